"""How much memory compiled programs take, in copies of x, by the compiler's own account."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.loop import _unbounded
from lariax.loop._compiled import advance
from lariax.methods import _survey
from lariax.oracle import Batch, bind

WIDTH, BATCH = 300, 4


def network():
    """Two layers, of which a sample keeps next to nothing beside what they take."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:2]]
    rows = jax.random.normal(keys[2], (64, WIDTH))

    def joint(x, row):
        out = jnp.tanh(jnp.tanh(row @ x[0]) @ x[1])
        return jnp.mean((out - row) ** 2), {"mean": jnp.mean(out * row)}

    return lx.Problem.joint(joint, samples=lx.Dataset(rows), constraints={"mean": lx.AtMost(bound=0.1)}), x


def copies(x, program, *arguments):
    memory = eqx.filter_jit(program).lower(*arguments).compile().compiled.memory_analysis()
    return memory.temp_size_in_bytes / sum(leaf.nbytes for leaf in x)


@pytest.mark.parametrize(
    ("method", "most"),
    [(lx.QuadraticPenalty(step_size=0.01, pairs=True), 7), (lx.TrackedLagrangian(), 14)],
    ids=["penalty", "default"],
)
def test_the_loop_holds_few_copies_of_x(monkeypatch, method, most):
    """Beside the state that it is given and the one that it returns: the state before the block, which is what is left
    where the block diverges, and the vectors of one iteration. A look at halves holds one gradient's at a time."""
    monkeypatch.setattr(_survey, "MOST_HELD", 1000)
    problem, x = network()
    run = lx.solve(problem, x, method, iterations=1, batch_size=BATCH).continuation
    setup, stop, every = run.setup, jnp.int32(600), jnp.int32(100)
    loop = (setup.oracle, setup.method, run.loop, stop, every, setup.feeder.nothing, setup.blocks, 8)
    assert copies(x, advance.__wrapped__, *loop) < most


def test_a_look_along_a_ray_holds_few_copies_of_x():
    """Points around x are made one by one."""
    problem, x = network()
    oracle = bind(problem, x, (np.zeros(WIDTH),), batch_size=BATCH, copies=1, has_slacks=False)
    z = oracle.coordinates.ravel(x)
    rows = Batch((problem.samples.arrays[:BATCH],))
    assert copies(x, _unbounded._along.__wrapped__, oracle, z, z, rows) < 9


def test_a_look_at_large_vectors_shows_the_same(monkeypatch):
    problem, x = network()
    answers = []
    for most in (_survey.MOST_HELD, 1000):
        monkeypatch.setattr(_survey, "MOST_HELD", most)
        answers.append(lx.solve(problem, x, lx.TrackedLagrangian(), iterations=40, batch_size=BATCH, record_every=5))
    at_once, one_by_one = answers
    assert one_by_one.evaluations == at_once.evaluations
    np.testing.assert_allclose(one_by_one.history["curvature"], at_once.history["curvature"], rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one_by_one.x, at_once.x)
