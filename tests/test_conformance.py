"""What every method owes: over methods, simple terms, sources and precisions, each pair of choices at least once."""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lariax as lx
from conftest import normal
from pairwise import pairwise

METHODS = {
    "QuadraticPenalty": lx.QuadraticPenalty(step_size=0.02, penalty=1.0),
    "QuadraticPenalty pairs": lx.QuadraticPenalty(step_size=0.02, penalty=1.0, pairs=True),
    "DualPenalty": lx.DualPenalty(step_size=0.02, penalty=1.0, dual_step=0.1),
    "LinearizedALM": lx.LinearizedALM(lipschitz=2.0),
    "TrackedLagrangian": lx.TrackedLagrangian(),
    "TangentNormal": lx.TangentNormal(),
    "Optax": lx.Optax(optax.adam(0.02), steps=300),
}
FOR_ALL = [name for name in METHODS if name not in ("TangentNormal", "Optax")]
SEPARABLE = ["Everything", "Box"]
SIMPLE = {
    "Everything": {},
    "Box": {"within": lx.sets.Box(-1.0, 1.0)},
    "L2Ball": {"within": lx.sets.L2Ball(2.0)},
    "PSDCone": {"within": lx.sets.PSDCone()},
    "L1": {"regularizer": lx.prox.L1(0.01)},
    "Nuclear": {"regularizer": lx.prox.Nuclear(0.01)},
}
ROWS = np.random.default_rng(0).normal(size=(40, 2, 2))
NOISE = normal(2, 2)
SOURCES = {
    "Distribution": lambda: NOISE,
    "Dataset": lambda: lx.Dataset(ROWS),
    "epochs": lambda: lx.Dataset(ROWS, epochs=True),
    "Stream": lambda: lx.Stream([ROWS], repeat=True),
}
PRECISIONS = {"float64": jnp.float64, "float32": jnp.float32}


TARGET = jnp.array([[1.0, 0.2], [0.2, 0.5]])
TRACE = lx.Linear(jnp.array([[1.0, 0.0, 0.0, 1.0]]), 1.0)


def distance(x, z):
    return jnp.sum((x - TARGET - 0.1 * z) ** 2)


def order(x, z):
    return x[0, 0] - x[1, 1] + 0.1 * z[0, 0] * x[0, 1]


def exact_order(x):
    return x[0, 0] - x[1, 1]


def size(x):
    return jnp.sum(x**2)


def problem_for(method, simple, source):
    """min ||x - t||^2 with trace x = 1 and x_00 <= x_11 + 0.1, through noise where the method takes it."""
    constraints = {"trace": TRACE}
    if method != "LinearizedALM":
        exact = method == "TangentNormal"
        constraints["order"] = lx.AtMost(exact_order, 0.1, samples=None) if exact else lx.AtMost(order, 0.1)
        constraints["size"] = lx.AtMost(size, 10.0, samples=None)
    return lx.Problem(distance, samples=SOURCES[source](), constraints=constraints, **SIMPLE[simple])


COMBINATIONS = [
    *pairwise(FOR_ALL, SIMPLE, SOURCES, PRECISIONS),
    ("TangentNormal", "Everything", "Distribution", "float64"),
    ("TangentNormal", "Box", "epochs", "float32"),
    ("Optax", "Everything", "Stream", "float64"),
    ("Optax", "Box", "Distribution", "float32"),
]


@pytest.mark.parametrize("simple", [name for name in SIMPLE if name not in SEPARABLE])
def test_what_does_not_fit_is_refused(simple):
    with pytest.raises(ValueError, match="TangentNormal is for"):
        lx.solve(problem_for("TangentNormal", simple, "Distribution"), jnp.eye(2), lx.TangentNormal(), iterations=1)


def conforms(make, x0, method, batch_size=2):
    """What every method owes on any problem; `make` makes the problem anew, of the same functions. The result."""
    problem = make()
    options = {"method": method, "batch_size": batch_size, "iterations": 300, "record_every": 100}
    result = lx.solve(problem, x0, **options)

    # the answer has the structure and precision of x0, is finite and in the set
    leaves = jax.tree.leaves((result.x, result.multipliers))
    assert {leaf.dtype for leaf in leaves} == {x0.dtype}
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert result.status == "budget"
    assert bool(problem.within.contains(result.x))

    # multipliers have the documented names and signs
    assert set(result.multipliers) == set(problem.constraints)
    for name, constraint in problem.constraints.items():
        assert not constraint.inequality or (constraint.sign * np.asarray(result.multipliers[name]) >= 0).all()

    # what it cost is told, and told in the history
    assert result.iterations == 300
    run = result.continuation
    assert result.draws == (300 + run.setup.blocks.start) * run.oracle.draws_per_iteration + run.checks.draws
    assert result.evaluations > 300
    assert list(result.history["iteration"]) == [100, 200, 300]
    for column in jax.tree.leaves(result.history.columns):
        assert np.isfinite(column).all()

    # in pieces, and from disk, the same bits
    again = make()
    with tempfile.TemporaryDirectory() as folder:
        part = lx.solve(again, x0, **(options | {"iterations": 130}), checkpoint=folder)
        rest = lx.solve(again, part, iterations=170)
        functions = {"method": method} if isinstance(method, lx.Optax) else {}  # which no file holds
        resumed = lx.resume(folder, make(), iterations=170, **functions)
    for other in (rest, resumed):
        jax.tree.map(np.testing.assert_array_equal, (other.x, other.multipliers), (result.x, result.multipliers))
        assert other.evaluations == result.evaluations
    return result


@pytest.mark.long_but(
    "QuadraticPenalty-Everything-Distribution-float64",
    "QuadraticPenalty pairs-Box-Stream-float64",
    "DualPenalty-PSDCone-Dataset-float64",
    "LinearizedALM-L2Ball-epochs-float64",
    "TrackedLagrangian-L1-Distribution-float64",
    "TrackedLagrangian-Nuclear-Dataset-float32",
    "TangentNormal-Box-epochs-float32",
    "Optax-Box-Distribution-float32",
    "DualPenalty-L2Ball-Distribution-float32",
)
@pytest.mark.parametrize(("method", "simple", "source", "precision"), COMBINATIONS)
def test_conformance(method, simple, source, precision):
    x0 = jnp.eye(2, dtype=PRECISIONS[precision]) / 2
    result = conforms(lambda: problem_for(method, simple, source), x0, METHODS[method])
    assert float(jnp.abs(jnp.trace(result.x) - 1.0)) < 0.3
