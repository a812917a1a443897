"""Steps on vectors that are kept in pieces do what they do on whole ones."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.loop import _pieces
from lariax.loop._pieces import Cutter, Pieces
from lariax.methods import _survey
from lariax.oracle import _oracle

CUTTER = Cutter.of((3, 4), 2)


def summed(*vectors):
    zero = jnp.zeros((), vectors[0].dtype)
    return jax.lax.reduce(vectors, (zero,) * len(vectors), lambda s, t: tuple(map(operator.add, s, t)), (0,))


PROGRAMS = {
    "entry by entry": lambda a, b: (2 * a - b / (1 + a**2), jnp.where(a > b, a, 0.5)),
    "with a number": lambda a, b: a * jnp.sum(b) + jnp.max(a) * jnp.min(b),
    "products": lambda a, b: jnp.vdot(a, b) * a + jnp.linalg.norm(b),
    "sums together": lambda a, b: summed(a, b**2),
    "flags": lambda a, b: (jnp.all(jnp.isfinite(a)), jnp.any(a > 1)),
    "leaves": lambda a, b: jnp.concatenate([jnp.ravel(jnp.sin(a[:3])), a[3:7] * b[3:7], b[7:]]),
    "gradient": lambda a, b: jax.grad(lambda z: jnp.sum(z[:7] ** 3) * jnp.sum(z[7:]))(a) + b,
    "across pieces": lambda a, b: jnp.cumsum(a) + a[::-1] * b + jnp.pad(a[1:5], (0, 5)),
    "a choice": lambda a, b: jax.lax.cond(a[0] > b[0], lambda: (a, b + a), lambda: (b, a)),
    "a loop": lambda a, b: jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + b, a),
    "nothing of them": lambda a, b: (jnp.zeros(9), jnp.ones(4), 3.0),
    "parts behind each other": lambda a, b: a[7:] - b[:2],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_pieces_gives_the_same(name):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=9), jnp.float32) for _ in range(2))
    program, like = jax.make_jaxpr(PROGRAMS[name], return_shape=True)(a, b)
    outputs = jax.tree.unflatten(jax.tree.structure(like), CUTTER.run(program, [CUTTER.cut(a), CUTTER.cut(b)]))
    vectors = [leaf for leaf in jax.tree.leaves(outputs, is_leaf=_pieces.is_cut) if isinstance(leaf, Pieces)]
    assert len(vectors) == sum(leaf.shape in {(9,), (7,)} for leaf in jax.tree.leaves(like))
    jax.tree.map(
        lambda found, right: np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6),
        CUTTER.whole(outputs),
        PROGRAMS[name](a, b),
    )


def test_a_vector_of_one_piece_is_not_cut():
    assert Cutter.of((5,), 0) is None
    assert Cutter.of((5,), 1).sizes == {5: (5,), 6: (5, 1)}


# --- whole runs

METHODS = {
    "QuadraticPenalty": lx.QuadraticPenalty(step_size=0.01),
    "pairs": lx.QuadraticPenalty(step_size=0.01, pairs=True),
    "DualPenalty": lx.DualPenalty(step_size=0.01),
    "TrackedLagrangian": lx.TrackedLagrangian(),
    "adaptive_metric": lx.TrackedLagrangian(adaptive_metric=True),
    "one_backward": lx.TrackedLagrangian(one_backward=True),
}


def network(kind):
    """A loss and the mean of an output, for two layers of weights and biases."""
    rng = np.random.default_rng(1)
    x = {
        name: jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32)
        for name, shape in {"w": (6, 5), "b": (5,), "v": (5, 1)}.items()
    }
    rows = jnp.asarray(rng.normal(size=(64, 6)), jnp.float32)

    def joint(x, row):
        out = (jnp.tanh(row @ x["w"] + x["b"]) @ x["v"])[0]
        return (out - row[0]) ** 2, {"mean": out - row[1]}

    return lx.Problem.joint(joint, samples=lx.Dataset(rows), constraints={"mean": kind(bound=0.1)}), x


@pytest.mark.long_but("TrackedLagrangian-AtMost")
@pytest.mark.parametrize("kind", [lx.Equal, lx.AtMost])
@pytest.mark.parametrize("name", METHODS)
def test_runs_in_pieces_give_the_same_iterates(monkeypatch, name, kind):
    answers = []
    for large in (False, True):
        monkeypatch.setattr(_oracle, "takes_time", lambda entries, large=large: large)
        problem, x = network(kind)
        answers.append(lx.solve(problem, x, METHODS[name], iterations=51, batch_size=4, record_every=7))
    whole, pieces = answers
    assert pieces.evaluations == whole.evaluations
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), pieces.x, whole.x)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_puts_no_vector_together(monkeypatch, name):
    """Neither x nor a gradient is copied from leaves to a vector and back."""
    monkeypatch.setattr(_oracle, "takes_time", lambda entries: True)
    monkeypatch.setattr(_survey, "MOST_HELD", 10)
    problem, x = network(lx.AtMost)
    sizes, seen, run = {40, 41}, [], Cutter.run

    def watched(self, program, values):
        outputs = jax.make_jaxpr(lambda *values: jax.tree.leaves(run(self, program, values)))(*values)
        seen.extend(_shapes(outputs.jaxpr))
        return run(self, program, values)

    monkeypatch.setattr(Cutter, "run", watched)
    lx.solve(problem, x, METHODS[name], iterations=3, batch_size=4)
    assert (30,) in seen  # pieces were
    assert not [shape for shape in seen if sizes & set(shape)]


def _shapes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _shapes(inner)


def test_a_run_in_pieces_is_resumed_to_the_same_bits(monkeypatch):
    monkeypatch.setattr(_oracle, "takes_time", lambda entries: True)
    problem, x = network(lx.AtMost)
    whole = lx.solve(problem, x, iterations=60, batch_size=4)
    parts = lx.solve(problem, lx.solve(problem, x, iterations=33, batch_size=4), iterations=27)
    jax.tree.map(np.testing.assert_array_equal, parts.x, whole.x)
