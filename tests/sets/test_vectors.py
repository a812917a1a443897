import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lariax.sets import Affine, HalfSpace, L1Ball, L2Ball, SecondOrderCone, Simplex

BALLS = {"l1": L1Ball, "l2": L2Ball}

project = eqx.filter_jit(lambda constraint, x: constraint.project(x))
stationarity = eqx.filter_jit(lambda constraint, x, g: constraint.stationarity(x, g))
judge = eqx.filter_jit(lambda constraint, x, g: (constraint.stationarity(x, g), constraint.contains(x)))


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("radius", [1e-8, 1e8])
@pytest.mark.parametrize("ball", BALLS)
def test_boundary_and_interior_are_told_apart(ball, radius, size):
    constraint, rng = BALLS[ball](radius), np.random.default_rng(0)
    x = jnp.asarray(radius * rng.normal(size=size) * (10 if size > 1 else 0) + 3 * radius, jnp.float32)
    boundary = project(constraint, x)
    inner, outer = boundary * np.float32(0.9999), boundary * np.float32(1.0001)
    speed, inside = judge(constraint, boundary, boundary - x)
    assert inside
    assert speed <= 1e-6 * jnp.linalg.norm(x - boundary)
    speed, inside = judge(constraint, inner, inner - x)
    assert inside
    assert speed == pytest.approx(float(jnp.linalg.norm(inner - x)), rel=1e-5)
    assert not judge(constraint, outer, outer - x)[1]


@pytest.mark.parametrize(("spread", "shift"), [(1e-4, 1e3), (1e-4, 0.0), (1.0, 0.0), (1e3, 1e6)])
def test_a_long_simplex_in_single_precision(spread, shift):
    rng, simplex = np.random.default_rng(0), Simplex()
    x = jnp.asarray(spread * rng.normal(size=100_000) + shift, jnp.float32)
    exact = project(simplex, jnp.asarray(x, jnp.float64))
    point = project(simplex, x)
    assert np.sum(np.asarray(point, np.float64)) == pytest.approx(1, abs=1e-6)
    assert judge(simplex, point, x)[1]
    np.testing.assert_allclose(point, exact, atol=2e-7)


def test_small_probabilities_are_not_zero():
    x = jnp.full(100_000, 1e-5, jnp.float32).at[0].set(1e-9)
    gradient = jnp.zeros(100_000, jnp.float32).at[0].set(1.0)
    assert stationarity(Simplex(), x, gradient) == pytest.approx(1, rel=1e-4)


def test_extreme_numbers_do_not_overflow():
    huge = jnp.array([3e30, 4e30], jnp.float32)
    np.testing.assert_allclose(project(L2Ball(1.0), huge), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(project(L1Ball(1e-10), huge), [0, 1e-10], rtol=1e-6)
    np.testing.assert_allclose(project(Simplex(1e-10), huge), [0, 1e-10], rtol=1e-6)
    np.testing.assert_array_equal(project(L2Ball(1e-30), jnp.zeros(2, jnp.float32)), 0)
    np.testing.assert_allclose(project(HalfSpace(1e25 * np.ones(2), 0.0), huge), [-5e29, 5e29], rtol=1e-6)
    assert stationarity(L2Ball(1.0), jnp.zeros(2, jnp.float32), huge) == pytest.approx(5e30)


@pytest.mark.parametrize(
    ("x", "gradient", "distance"),
    [
        ([1.0, 0.0, 0.0], [-2.0, 1.0, -1.0], 0.0),
        ([1.0, 0.0, 0.0], [-2.0, 3.0, 0.0], np.sqrt(0.5)),
        ([1.0, 0.0, 0.0], [2.0, 0.0, 0.0], 2.0),
        ([0.5, 0.5, 0.0], [-1.0, 1.0, 0.0], np.sqrt(2)),
        ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], 1.0),
    ],
)
def test_l1_ball_by_hand(x, gradient, distance):
    assert stationarity(L1Ball(1.0), jnp.array(x), jnp.array(gradient)) == pytest.approx(distance, abs=1e-12)


def test_simplex_vertex_by_hand():
    vertex = jnp.array([1.0, 0.0, 0.0])
    assert stationarity(Simplex(), vertex, jnp.array([0.0, 1.0, 2.0])) == 0
    assert stationarity(Simplex(), vertex, jnp.array([1.0, 0.0, 5.0])) == pytest.approx(np.sqrt(0.5))


@pytest.mark.parametrize(
    ("constraint", "x", "point"),
    [
        (Simplex(2.0), -3.0, 2.0),
        (L1Ball(2.0), -3.0, -2.0),
        (SecondOrderCone(), -3.0, 0.0),
        (SecondOrderCone(), 3.0, 3.0),
    ],
)
def test_single_numbers(constraint, x, point):
    x = jnp.asarray(x)
    found = project(constraint, x)
    assert found == point
    assert stationarity(constraint, found, found - x) == 0


def test_halfspace_from_far_away():
    """The first step may end inside by rounding; the boundary must still be met and recognised."""
    constraint = HalfSpace(np.ones(5), 0.2)
    x = jnp.full(5, 2.0, jnp.float32)
    point = project(constraint, x)
    assert stationarity(constraint, point, point - x) <= 1e-6


def test_apex_of_the_second_order_cone():
    apex = jnp.zeros(3)
    assert stationarity(SecondOrderCone(), apex, jnp.array([1.0, 0.5, 0.5])) == 0
    assert stationarity(SecondOrderCone(), apex, jnp.array([-3.0, 0.0, 0.0])) == 3
    assert stationarity(SecondOrderCone(), apex, jnp.array([0.0, 1.0, 0.0])) == pytest.approx(np.sqrt(0.5))


def test_affine_from_far_away():
    affine = Affine(np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]]), np.array([1.0, 2.0]))
    point = affine.project(jnp.array([1e6, 1e6, 1.0], jnp.float32))
    np.testing.assert_allclose(point, [0.5, 0.5, 1.0], atol=1e-6)
    assert affine.basis.shape == (1, 3)


def test_affine_while_tracing():
    rows, target = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]]), np.array([1.0, 2.0])
    x = jnp.array([1.0, -2.0, 3.0])
    traced = jax.jit(lambda A, b: Affine(A, b).project(x))(rows, target)
    np.testing.assert_allclose(traced, Affine(rows, target).project(x), atol=1e-12)


def test_a_sweep_over_radii():
    lengths = jax.vmap(lambda radius: jnp.linalg.norm(L2Ball(radius).project(jnp.array([3.0, 4.0]))))
    np.testing.assert_allclose(lengths(jnp.array([1.0, 2.0, 10.0])), [1, 2, 5])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: L2Ball(0.0), "radius=0.0"),
        (lambda: L2Ball(np.ones(2)), r"shape \(2,\)"),
        (lambda: L2Ball(1.0, np.inf), "center"),
        (lambda: L1Ball(-1.0), "radius=-1.0"),
        (lambda: Simplex(np.inf), "total=inf"),
        (lambda: HalfSpace(np.zeros(2), 1.0), "zero"),
        (lambda: HalfSpace(np.ones(2), np.nan), "offset"),
        (lambda: Affine(np.ones(2), 1.0), "shape"),
        (lambda: Affine(np.ones((2, 2)), np.array([0.0, 1.0])), "without a solution"),
        (lambda: Affine(np.array([[np.nan]]), np.array([0.0])), "finite"),
    ],
)
def test_sets_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "constraint",
    [
        L2Ball(1.0, np.zeros(3)),
        HalfSpace(np.ones(3), 0.0),
        Affine(np.ones((1, 3)), np.zeros(1)),
    ],
    ids=lambda constraint: type(constraint).__name__,
)
def test_sets_that_do_not_fit(constraint):
    assert constraint.mismatch({"a": np.zeros(2), "b": 0.0}) is None
    found = constraint.mismatch(np.zeros(5))
    assert "3" in found
    assert "5" in found
    assert "no entries" in constraint.mismatch(np.zeros(0))
