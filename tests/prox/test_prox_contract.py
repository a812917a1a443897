"""What holds for every term. A new term is one line in CASES."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lariax import prox, sets
from lariax.prox import AbstractProximable


class Case(NamedTuple):
    make: Callable[[], AbstractProximable]
    shapes: object = (6,)  # a tree of shapes: the structure of x
    conjugate: Callable[[], AbstractProximable] | None = None  # where it is a term of ours


TREE = {"a": (2, 2), "b": [(), (1,)]}
WEIGHTS = np.array([0.0, 0.2, 0.7, 1.0, 2.0, 0.5])

CASES = {
    "zero": Case(prox.Zero, TREE, lambda: prox.Indicator(sets.Box(0.0, 0.0))),
    "l1": Case(lambda: prox.L1(0.6), TREE, lambda: prox.Indicator(sets.LInfBall(0.6))),
    "l1, weights": Case(lambda: prox.L1(WEIGHTS), conjugate=lambda: prox.Indicator(sets.Box(-WEIGHTS, WEIGHTS))),
    "elastic net": Case(lambda: prox.ElasticNet({"a": 0.3, "b": 1.0}, 0.5), TREE),
    "rows": Case(lambda: prox.GroupL2(0.8), TREE),
    "one group": Case(lambda: prox.GroupL2(0.8, np.zeros(6, int)), TREE, lambda: prox.Indicator(sets.L2Ball(0.8))),
    "groups": Case(lambda: prox.GroupL2(np.array([0.5, 0.9]), np.array([7, 7, -1, 7, -1, -1]))),
    "nuclear": Case(lambda: prox.Nuclear(0.7), [(3, 2)], lambda: prox.Indicator(sets.SpectralBall(0.7))),
    "l1 in a box": Case(lambda: prox.Restricted(prox.L1(0.4), sets.Box(-0.5, 0.8)), TREE),
    "indicator": Case(lambda: prox.Indicator(sets.L1Ball(1.0)), TREE),
}

every_term = pytest.mark.parametrize("name", CASES)
both_precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
few = settings(derandomize=True, max_examples=10, deadline=None, database=None)
seeds = st.integers(0, 10_000)

_apply = eqx.filter_jit(lambda term, x, step_size: term.prox(x, step_size))
value = eqx.filter_jit(lambda term, x: term.value(x))
stationarity = eqx.filter_jit(lambda term, x, g: term.stationarity(x, g))


def apply(term: AbstractProximable, x, step_size):
    return _apply(term, x, jnp.asarray(step_size))  # a plain number would be compiled in


def is_shape(node: object) -> bool:
    return isinstance(node, tuple) and all(isinstance(length, int) for length in node)


def draw(rng: np.random.Generator, shapes: object, dtype: type):
    size = 10 ** rng.uniform(-1, 0.5)
    return jax.tree.map(lambda shape: jnp.asarray(size * rng.normal(size=shape), dtype), shapes, is_leaf=is_shape)


def flat(x) -> np.ndarray:
    """All entries as one float64 vector, so that the checks themselves do not round."""
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(x)])


def rounding(dtype: type, *vectors: np.ndarray) -> float:
    return 100 * float(np.finfo(dtype).eps) * (1 + max(np.linalg.norm(vector) for vector in vectors))


@every_term
@both_precisions
@few
@given(seed=seeds)
def test_proximal_map(name, dtype, seed):
    case, rng = CASES[name], np.random.default_rng(seed)
    term, t = case.make(), float(rng.uniform(0.1, 2))
    x, y = draw(rng, case.shapes, dtype), draw(rng, case.shapes, dtype)
    px, py = apply(term, x, t), apply(term, y, t)
    tolerance = rounding(dtype, flat(x), flat(y)) / t
    slope = jax.tree.map(lambda moved, leaf: (moved - leaf) / t, px, x)
    assert stationarity(term, px, slope) <= tolerance, "(x - p) / t is a subgradient at p"

    gap, size = flat(px) - flat(py), 1 + np.linalg.norm(flat(x)) + np.linalg.norm(flat(y))
    assert gap @ gap <= gap @ (flat(x) - flat(y)) + tolerance * size, "firmly non-expansive"
    here = float(value(term, px)) + np.sum((flat(px) - flat(x)) ** 2) / (2 * t)
    there = float(value(term, py)) + np.sum((flat(py) - flat(x)) ** 2) / (2 * t)
    assert here <= there + tolerance * size**2, "the minimum is at the proximal point"
    middle = jax.tree.map(lambda a, b: (a + b) / 2, px, py)
    assert value(term, middle) <= (value(term, px) + value(term, py)) / 2 + tolerance * size, "convex"

    if case.conjugate is not None:
        dual = apply(case.conjugate(), jax.tree.map(lambda leaf: leaf / t, x), 1 / t)
        np.testing.assert_allclose(flat(px) + t * flat(dual), flat(x), atol=tolerance, err_msg="Moreau")


@every_term
@few
@given(seed=seeds)
def test_stationarity_is_the_speed_of_the_proximal_gradient(name, seed):
    case, rng = CASES[name], np.random.default_rng(seed)
    term, step = case.make(), 1e-7
    x = apply(term, draw(rng, case.shapes, np.float64), 1.0)
    g = draw(rng, case.shapes, np.float64)
    moved = apply(term, jax.tree.map(lambda leaf, slope: leaf - step * slope, x, g), step)
    speed = np.linalg.norm(flat(moved) - flat(x)) / step
    assert float(stationarity(term, x, g)) == pytest.approx(speed, abs=1e-4 * (1 + np.linalg.norm(flat(g))))


@every_term
@both_precisions
def test_structure_and_precision_are_kept(name, dtype):
    case, rng = CASES[name], np.random.default_rng(1)
    term, x = case.make(), draw(rng, case.shapes, dtype)
    assert term.mismatch(x) is None
    result = apply(term, x, np.float64(0.5))
    assert jax.tree.structure(result) == jax.tree.structure(x)
    for found, leaf in zip(jax.tree.leaves(result), jax.tree.leaves(x), strict=True):
        assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype)
    assert value(term, x).dtype == dtype
    assert stationarity(term, x, x).dtype == dtype


@every_term
def test_many_at_once(name):
    case, rng = CASES[name], np.random.default_rng(2)
    term, points = case.make(), [draw(rng, case.shapes, np.float64) for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
    together = jax.jit(jax.vmap(lambda x: term.prox(x, 0.3)))(stacked)
    for i, x in enumerate(points):
        found = flat(jax.tree.map(lambda leaf, i=i: leaf[i], together))
        np.testing.assert_allclose(found, flat(apply(term, x, 0.3)), atol=1e-12)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.make().separable])
def test_separable_terms_take_a_step_size_per_entry(name):
    case, rng = CASES[name], np.random.default_rng(3)
    term, x = case.make(), draw(rng, case.shapes, np.float64)
    steps = jax.tree.map(lambda leaf: jnp.exp(leaf), draw(rng, case.shapes, np.float64))
    point = term.prox(x, steps)
    slope = jax.tree.map(lambda moved, leaf, t: (moved - leaf) / t, point, x, steps)
    assert term.stationarity(point, slope) <= rounding(np.float64, flat(slope))
