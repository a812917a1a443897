"""What holds for every set. A new set is one line in CASES."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lariax import sets
from lariax.sets import AbstractSet


class Case(NamedTuple):
    make: Callable[[], AbstractSet]
    shapes: object = (6,)  # a tree of shapes: the structure of x
    cone: bool = False
    open: bool = True  # has interior points


NORMAL = np.array([1.0, -2.0, 0.0, 0.5, 3.0, -1.0])
ROWS = np.array([[1.0, 2.0, 0.0, -1.0, 0.5, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0, -2.0]])
LOWER = np.array([-np.inf, 0, 1, -1, 0, -2])
UPPER = np.array([0, np.inf, 1, np.inf, 2, 0.1])
TREE = {"a": (2, 2), "b": [(), (1,)]}
BOXES = [sets.NonNegative(), sets.Box(0.0, 1.0)]

CASES = {
    "everything": Case(sets.Everything, TREE),
    "box": Case(lambda: sets.Box(LOWER, UPPER), open=False),
    "box, tree": Case(lambda: sets.Box({"a": np.zeros((2, 2)), "b": -1.0}, {"a": 1.0, "b": [0.0, np.inf]}), TREE),
    "nonnegative": Case(sets.NonNegative, TREE, cone=True),
    "l-infinity ball": Case(lambda: sets.LInfBall(0.7), TREE),
    "l2 ball": Case(lambda: sets.L2Ball(0.9), TREE),
    "l2 ball, moved": Case(lambda: sets.L2Ball(0.3, NORMAL)),
    "l1 ball": Case(lambda: sets.L1Ball(1.3), TREE),
    "simplex": Case(lambda: sets.Simplex(2.5), TREE, open=False),
    "half-space": Case(lambda: sets.HalfSpace({"a": np.ones((2, 2)), "b": [0.0, np.ones(1)]}, 0.2), TREE),
    "affine": Case(lambda: sets.Affine(np.vstack([ROWS, ROWS.sum(0)]), [1.0, -0.3, 0.7]), open=False),
    "second-order cone": Case(sets.SecondOrderCone, TREE, cone=True),
    "psd cone": Case(sets.PSDCone, (3, 3), cone=True, open=False),
    "spectral ball": Case(lambda: sets.SpectralBall(0.8), (2, 3)),
    "nuclear ball": Case(lambda: sets.NuclearBall(1.1), [(3, 2)]),
    "product": Case(
        lambda: sets.Product({"a": sets.Simplex(), "b": sets.Product({"c": sets.L2Ball(0.5), "d": BOXES})}),
        {"a": (3,), "b": {"c": (2,), "d": [(2, 2), ()]}},
        open=False,
    ),
}

every_set = pytest.mark.parametrize("name", CASES)
both_precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
few = settings(derandomize=True, max_examples=10, deadline=None, database=None)
seeds = st.integers(0, 10_000)

project = eqx.filter_jit(lambda s, x: s.project(x))
contains = eqx.filter_jit(lambda s, x: s.contains(x))
normal_and_speed = eqx.filter_jit(
    lambda s, x, g: (s.nearest_subgradient(x, g), s.stationarity(x, jax.tree.map(jnp.negative, g)))
)


def nearest_normal(constraint: AbstractSet, x, direction):
    return normal_and_speed(constraint, x, direction)[0]


def stationarity(constraint: AbstractSet, x, gradient):
    return normal_and_speed(constraint, x, jax.tree.map(jnp.negative, gradient))[1]


def visit(constraint: AbstractSet, x):
    """The projection of x, whether it is in the set, and how far x - P(x) is from being normal there."""
    point = constraint.project(x)
    return point, constraint.contains(point), constraint.stationarity(point, subtract(point, x))


def is_shape(node: object) -> bool:
    return isinstance(node, tuple) and all(isinstance(length, int) for length in node)


def draw(rng: np.random.Generator, shapes: object, dtype: type):
    """A random x. Half the time its entries are multiples of 1/2, which makes ties, zeros and points on bounds."""
    size, coarse = 10 ** rng.uniform(-1, 1), rng.random() < 0.5
    shift = rng.choice([0, -2, 2])

    def leaf(shape):
        entries = size * rng.normal(size=shape) + shift
        return jnp.asarray(np.round(2 * entries) / 2 if coarse else entries, dtype)

    return jax.tree.map(leaf, shapes, is_leaf=is_shape)


def flat(x) -> np.ndarray:
    """All entries as one float64 vector, so that the checks themselves do not round."""
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(x)])


def rounding(dtype: type, *vectors: np.ndarray) -> float:
    return 100 * float(np.finfo(dtype).eps) * (1 + max(np.linalg.norm(vector) for vector in vectors))


def subtract(x, y):
    return jax.tree.map(jnp.subtract, x, y)


@every_set
@both_precisions
@few
@given(seed=seeds)
def test_projection(name, dtype, seed):
    case, rng = CASES[name], np.random.default_rng(seed)
    constraint = case.make()
    x, y = draw(rng, case.shapes, dtype), draw(rng, case.shapes, dtype)
    px, py = project(constraint, x), project(constraint, y)
    assert contains(constraint, px)
    assert contains(constraint, py)
    tolerance = rounding(dtype, flat(x), flat(y))
    np.testing.assert_allclose(flat(project(constraint, px)), flat(px), atol=tolerance, err_msg="idempotent")
    step_x, step_y, gap = flat(x) - flat(px), flat(y) - flat(py), flat(px) - flat(py)
    size = 1 + np.linalg.norm(flat(x)) + np.linalg.norm(flat(y))
    assert step_x @ gap >= -tolerance * size, "the angle at the projection is not acute"
    assert gap @ gap <= gap @ (flat(x) - flat(y)) + tolerance * size, "firmly non-expansive"
    if case.cone:
        assert abs(step_x @ flat(px)) <= tolerance * size
        polar = project(constraint, subtract(x, px))
        np.testing.assert_allclose(flat(polar), 0, atol=tolerance)
    assert step_y @ gap <= tolerance * size


@every_set
@both_precisions
@few
@given(seed=seeds)
def test_normal_cone(name, dtype, seed):
    case, rng = CASES[name], np.random.default_rng(seed)
    constraint = case.make()
    x, z, g, h = (draw(rng, case.shapes, dtype) for _ in range(4))
    px, pz = project(constraint, x), project(constraint, z)
    tolerance = rounding(dtype, flat(x), flat(z), flat(g), flat(h))
    assert stationarity(constraint, px, subtract(px, x)) <= tolerance, "x - P(x) is normal at P(x)"

    size = 1 + np.linalg.norm(flat(g)) + np.linalg.norm(flat(px)) + np.linalg.norm(flat(pz))
    normal = flat(nearest_normal(constraint, px, g))
    assert normal @ (flat(pz) - flat(px)) <= tolerance * size, "a normal makes an obtuse angle with the set"
    assert abs(normal @ (flat(g) - normal)) <= tolerance * size, "normal and tangent parts are orthogonal"

    change = abs(float(stationarity(constraint, px, g)) - float(stationarity(constraint, px, h)))
    assert change <= np.linalg.norm(flat(g) - flat(h)) + tolerance, "1-Lipschitz in the gradient"


@every_set
@few
@given(seed=seeds)
def test_stationarity_is_the_speed_of_the_projected_gradient(name, seed):
    case, rng = CASES[name], np.random.default_rng(seed)
    constraint, step = case.make(), 1e-7
    x = project(constraint, draw(rng, case.shapes, np.float64))
    g = draw(rng, case.shapes, np.float64)
    moved = project(constraint, jax.tree.map(lambda leaf, slope: leaf - step * slope, x, g))
    speed = np.linalg.norm(flat(moved) - flat(x)) / step
    assert float(stationarity(constraint, x, g)) == pytest.approx(speed, abs=1e-4 * (1 + np.linalg.norm(flat(g))))


@both_precisions
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.open])
def test_interior_points_are_not_on_the_boundary(name, dtype):
    case, rng = CASES[name], np.random.default_rng(0)
    constraint = case.make()
    points = [project(constraint, draw(rng, case.shapes, dtype)) for _ in range(30)]
    inner = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *points)
    g = draw(rng, case.shapes, dtype)
    assert float(stationarity(constraint, inner, g)) == pytest.approx(np.linalg.norm(flat(g)), rel=1e-5)
    np.testing.assert_array_equal(flat(project(constraint, inner)), flat(inner))


@every_set
@both_precisions
def test_structure_and_precision_are_kept(name, dtype):
    case, rng = CASES[name], np.random.default_rng(1)
    constraint = case.make()
    x, g = draw(rng, case.shapes, dtype), draw(rng, case.shapes, dtype)
    assert constraint.mismatch(x) is None
    for result in (project(constraint, x), nearest_normal(constraint, x, g)):
        assert jax.tree.structure(result) == jax.tree.structure(x)
        for found, given_ in zip(jax.tree.leaves(result), jax.tree.leaves(x), strict=True):
            assert (found.shape, found.dtype) == (given_.shape, given_.dtype)
    assert stationarity(constraint, x, g).dtype == dtype
    assert contains(constraint, x).dtype == bool


@every_set
def test_many_at_once_without_double_precision(name):
    case, rng = CASES[name], np.random.default_rng(3)
    points = [draw(rng, case.shapes, np.float32) for _ in range(3)]
    alone = [flat(project(case.make(), x)) for x in points]
    with jax.enable_x64(False):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
        together, inside, speeds = eqx.filter_jit(eqx.filter_vmap(visit, in_axes=(None, 0)))(case.make(), stacked)
    assert {leaf.dtype for leaf in jax.tree.leaves(together)} == {np.dtype(np.float32)}
    assert inside.all()
    for i, x in enumerate(points):
        tolerance = rounding(np.float32, flat(x))
        found = flat(jax.tree.map(lambda leaf, i=i: leaf[i], together))
        np.testing.assert_allclose(found, alone[i], atol=tolerance)
        assert speeds[i] <= tolerance


@every_set
def test_points_that_are_not_numbers_are_not_contained(name):
    case = CASES[name]
    broken = jax.tree.map(lambda shape: jnp.asarray(np.full(shape, np.nan)), case.shapes, is_leaf=is_shape)
    assert not contains(case.make(), broken)


@pytest.mark.parametrize("name", [name for name in CASES if name != "everything"])
def test_far_points_are_not_contained(name):
    case, rng = CASES[name], np.random.default_rng(4)
    constraint, x = case.make(), draw(rng, case.shapes, np.float64)
    far = jax.tree.map(lambda leaf: leaf - 1e3 * (1 + jnp.abs(leaf)), x)
    if name.startswith("half-space"):
        far = jax.tree.map(jnp.multiply, far, jax.tree.map(lambda a: -jnp.sign(a), constraint.normal))
    assert not contains(constraint, far)


@every_set
def test_integers_are_a_mismatch(name):
    case = CASES[name]
    x = jax.tree.map(lambda shape: np.zeros(shape, int), case.shapes, is_leaf=is_shape)
    assert "floating-point" in case.make().mismatch(x)
