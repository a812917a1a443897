import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from lariax.sets import NuclearBall, Product, PSDCone, Simplex, SpectralBall

project = eqx.filter_jit(lambda matrix_set, x: matrix_set.project(x))
stationarity = eqx.filter_jit(lambda matrix_set, x, g: matrix_set.stationarity(x, g))


@eqx.filter_jit
def visit(matrix_set, x):
    point = matrix_set.project(x)
    return point, matrix_set.contains(point), matrix_set.stationarity(point, point - x)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("constraint", [PSDCone, SpectralBall, NuclearBall])
def test_boundary_is_recognised_at_any_scale(constraint, scale):
    matrix_set = constraint() if constraint is PSDCone else constraint(scale)
    x = jnp.asarray(scale * np.random.default_rng(0).normal(size=(40, 40)), jnp.float32)
    point, inside, speed = visit(matrix_set, x)
    assert inside
    assert speed <= 200 * np.finfo(np.float32).eps * jnp.linalg.norm(point - x)


def test_psd_cone_ignores_the_skew_part():
    skew = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(project(PSDCone(), jnp.eye(2) + skew), jnp.eye(2))
    assert stationarity(PSDCone(), jnp.eye(2), skew) == 0
    assert not PSDCone().contains(jnp.eye(2) + skew)


def test_rank_one_gives_exact_zero_eigenvalues():
    """The rounding of the large negative eigenvalue must not leave small positive ones behind."""
    np.testing.assert_array_equal(project(PSDCone(), -2.0 * jnp.ones((3, 3))), 0)


def test_balls_by_hand():
    gradient = -jnp.array([[2.0, 0.0], [0.0, 1.0]])
    assert stationarity(SpectralBall(1.0), jnp.eye(2), gradient) == pytest.approx(0, abs=1e-12)
    assert stationarity(SpectralBall(1.0), jnp.eye(2), -gradient) == pytest.approx(np.sqrt(5))
    corner = jnp.diag(jnp.array([1.0, 0.0]))
    assert stationarity(NuclearBall(1.0), corner, gradient) == pytest.approx(0, abs=1e-12)
    assert stationarity(NuclearBall(1.0), corner, gradient[::-1, ::-1]) == pytest.approx(np.sqrt(0.5))


@pytest.mark.parametrize("x", [np.zeros(4), np.zeros((2, 2, 2)), [np.zeros((2, 2)), np.zeros((2, 2))], {}])
def test_anything_but_one_matrix_does_not_fit(x):
    assert "one matrix" in SpectralBall(1.0).mismatch(x)


def test_oblong_matrices_are_not_symmetric():
    assert "(2, 3)" in PSDCone().mismatch(np.zeros((2, 3)))


def test_product_says_which_part_does_not_fit():
    product = Product({"a": Simplex(), "b": [PSDCone()]})
    assert product.mismatch({"a": np.zeros(3), "b": [np.zeros((2, 2))]}) is None
    assert "['b'][0]" in product.mismatch({"a": np.zeros(3), "b": [np.zeros((2, 3))]})
    assert "arranged differently" in product.mismatch({"a": np.zeros(3)})
    with pytest.raises(ValueError, match="every part is a set"):
        Product({"a": Simplex(), "b": None})


def test_product_is_separable_when_all_parts_are():
    assert not Product([Simplex()]).separable
    assert Product([Product([])]).separable
