"""Problems with known solutions, primal and dual, for the methods of the paper: inequalities, sets and matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import lasso_with_sum_one, normal

METHODS = {
    "quadratic": lx.QuadraticPenalty(step_size=0.1, penalty=4.0),
    "quadratic pairs": lx.QuadraticPenalty(step_size=0.1, penalty=4.0, pairs=True),
    "dual": lx.DualPenalty(step_size=0.1, penalty=4.0, dual_step=0.2),
}


@pytest.mark.parametrize("method", METHODS)
def test_active_and_inactive_inequalities(method):
    """min ||x - (2, 0)||^2 / 2 with x_0 <= 1 (active, y = 1), x_1 <= 5 (not), x_0 >= -3 (not), all through noise."""
    target = jnp.array([2.0, 0.0])
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - target - 0.2 * z) ** 2),
        samples=normal(2),
        constraints={
            "upper": lx.AtMost(lambda x, z: x + 0.2 * z, jnp.array([1.0, 5.0]), samples=normal(2)),
            "lower": lx.AtLeast(lambda x, z: x[0] + 0.2 * z, -3.0, samples=normal()),
        },
    )
    result = lx.solve(problem, jnp.zeros(2), METHODS[method], iterations=60_000, batch_size=4)
    penalty = 4.0 * 60_000**0.2
    np.testing.assert_allclose(result.x, [1.0 + 1 / penalty, 0.0], atol=0.02)
    np.testing.assert_allclose(result.multipliers["upper"], [1.0, 0.0], atol=0.08)
    np.testing.assert_allclose(result.multipliers["lower"], 0.0, atol=0.08)


def test_an_active_lower_bound_has_a_negative_multiplier():
    """min x with x >= 3: L = x + y x, so y = -1."""
    problem = lx.Problem(lambda x: x, constraints={"floor": lx.AtLeast(lambda x: x, 3.0, samples=None)})
    result = lx.solve(problem, jnp.array(0.0), lx.QuadraticPenalty(step_size=0.1, penalty=5.0), iterations=20_000)
    np.testing.assert_allclose(result.x, 3.0, atol=0.03)
    np.testing.assert_allclose(result.multipliers["floor"], -1.0, atol=0.01)


def test_semidefinite():
    """max <C, X> with trace X = 1, X >= 0: X = v v^T for the leading eigenvector v, and y = the leading eigenvalue."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    C = jnp.asarray(basis * [3.0, 1.0, 0.5, -1.0] @ basis.T)
    problem = lx.Problem(
        lambda x, z: -jnp.sum((C + 0.2 * (z + z.T)) * x),
        samples=normal(4, 4),
        constraints={"trace": lx.Equal(lambda x: jnp.trace(x), 1.0, samples=None)},
        within=lx.sets.PSDCone(),
    )
    result = lx.solve(
        problem, jnp.eye(4) / 4, lx.QuadraticPenalty(step_size=0.1, penalty=10.0), iterations=20_000, batch_size=4
    )
    v = basis[:, :1]
    np.testing.assert_allclose(result.x, v @ v.T, atol=0.05)
    np.testing.assert_allclose(result.multipliers["trace"], 3.0, atol=0.1)


def test_lasso_with_a_linear_constraint_by_penalty():
    """As for Algorithm 1, where the proximal case is within the paper's extension."""
    t, weight = np.array([2.0, 0.3, -0.1, 0.2]), 0.25
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - t - 0.1 * z) ** 2),
        samples=normal(4),
        constraints={"sum": lx.Linear(jnp.ones((1, 4)), 1.0)},
        regularizer=lx.prox.L1(weight),
    )
    result = lx.solve(problem, jnp.zeros(4), METHODS["quadratic"], iterations=20_000, batch_size=4)
    x, y = lasso_with_sum_one(t, weight)
    np.testing.assert_allclose(result.x, x, atol=0.03)
    np.testing.assert_allclose(result.multipliers["sum"], y, atol=0.03)


def test_a_regulariser_within_a_set():
    """min E (x - z)^2 / 2 + |x|_1 in [-1, 1]^4, E z = (3, 1.5, 0.5, -0.5):  x = (1, 0.5, 0, 0)."""
    mean = jnp.array([3.0, 1.5, 0.5, -0.5])
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - mean - 0.1 * z) ** 2),
        samples=normal(4),
        within=lx.sets.Box(-1.0, 1.0),
        regularizer=lx.prox.L1(1.0),
    )
    solution = jnp.array([1.0, 0.5, 0.0, 0.0])
    result = lx.solve(problem, jnp.zeros(4), iterations=4000)
    np.testing.assert_allclose(result.x, solution, atol=0.01)
    assert lx.certify(problem, solution).stationarity.low == 0
    assert lx.certify(problem, jnp.array([0.9, 0.5, 0.0, 0.0])).stationarity.low > 0.9
