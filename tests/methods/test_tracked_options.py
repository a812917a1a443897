"""The options of the default method: a metric, one backward pass, scheduled momenta."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import normal

SCALES = jnp.logspace(-1, 1, 6)
TARGET = jnp.arange(1.0, 7.0) / SCALES


def badly_scaled(**more):
    """min sum (s_i (x_i - t_i))^2 / 2, s from 0.1 to 10, with s.x = 12, through noise: s_i x_i = i + 1 - y, y = 3/2."""
    return lx.Problem(
        lambda x, z: 0.5 * jnp.sum((SCALES * (x - TARGET) - 0.3 * z[:6]) ** 2),
        samples=normal(7),
        constraints={"sum": lx.Equal(lambda x, z: SCALES @ x + 0.3 * z[6], 12.0)},
        **more,
    )


@pytest.mark.long
def test_an_adaptive_metric_needs_no_scaling_of_x():
    problem, expected = badly_scaled(), TARGET - 1.5 / SCALES
    results = [
        lx.solve(problem, jnp.zeros(6), lx.TrackedLagrangian(adaptive_metric=metric), iterations=3000)
        for metric in (True, False)
    ]
    errors = [float(jnp.linalg.norm(SCALES * (result.x - expected))) for result in results]
    assert max(errors) < 0.1  # the condition number is 1e4, and the default finds the units by itself
    np.testing.assert_allclose(results[0].multipliers["sum"], 1.5, atol=0.1)


@pytest.mark.long
def test_the_metric_copes_with_entries_that_rarely_have_a_gradient():
    """Least squares with 16 columns that are 0 in 99 of 100 rows, and a constraint seen through samples."""
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.normal(size=(4000, 4)), rng.random((4000, 16)) < 0.01], axis=1)
    b = a @ rng.normal(size=20) + 0.1 * rng.normal(size=4000)
    hessian, slope, normal = a.T @ a / 4000, a.T @ b / 4000, np.r_[1 + a[:, :2].mean(axis=0), np.zeros(18)]
    system = np.block([[hessian, normal[:, None]], [normal[None], np.zeros((1, 1))]])
    expected = np.linalg.solve(system, np.append(slope, 1.0))[:20]
    problem = lx.Problem(
        lambda x, row: 0.5 * (row[:20] @ x - row[20]) ** 2,
        samples=lx.Dataset(jnp.asarray(np.column_stack([a, b]))),
        constraints={"sum": lx.Equal(lambda x, row: (1 + row[:2]) @ x[:2], 1.0)},
    )
    result = lx.solve(problem, jnp.zeros(20), lx.TrackedLagrangian(adaptive_metric=True), iterations=500, batch_size=8)
    error = np.asarray(result.x) - expected
    assert 0.5 * error @ hessian @ error < 0.01  # at the start 1.3


@pytest.mark.long
def test_the_metric_respects_bounds():
    problem = badly_scaled(within=lx.sets.Box(-jnp.inf, 1.0 / SCALES))  # s_i x_i <= 1
    result = lx.solve(problem, jnp.zeros(6), lx.TrackedLagrangian(adaptive_metric=True), iterations=500)
    assert bool(problem.within.contains(result.x))


def test_the_metric_is_refused_where_entries_are_tied_together():
    with pytest.raises(ValueError, match="L2Ball does not allow"):
        lx.solve(
            badly_scaled(within=lx.sets.L2Ball(1e3)),
            jnp.zeros(6),
            lx.TrackedLagrangian(adaptive_metric=True),
            iterations=10,
        )


@pytest.mark.long_but("fresh")
@pytest.mark.parametrize(
    "method",
    [lx.TrackedLagrangian(one_backward=True), lx.TrackedLagrangian(gain_exponent=0.7)],
    ids=["fresh", "scheduled"],
)
def test_cheaper_and_scheduled_variants_converge(method):
    """min ||x - 1||^2 / 2 with sum x = 1: x = 1/3, y = 2/3."""
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - 1 - 0.3 * z[:3]) ** 2),
        samples=normal(4),
        constraints={"sum": lx.Equal(lambda x, z: (1 + 0.2 * z[3]) * jnp.sum(x) + 0.2 * z[3], 1.0)},
    )
    result = lx.solve(problem, jnp.zeros(3), method, iterations=20_000, batch_size=4)
    np.testing.assert_allclose(result.x, 1 / 3, atol=0.03)
    np.testing.assert_allclose(result.multipliers["sum"], 2 / 3, atol=0.05)


@pytest.mark.long
def test_one_backward_pass_is_one_evaluation_less():
    problem = badly_scaled()
    full, cheap = (
        lx.solve(
            problem, jnp.zeros(6), lx.TrackedLagrangian(one_backward=flag), iterations=400, batch_size=2
        ).evaluations
        for flag in (False, True)
    )
    ordinary = (400 - 255) - 37  # all of the first 255 measure, then one in 4, and see f at both points
    assert full - cheap == 2 * ordinary


@pytest.mark.parametrize("name", ["step_size", "penalty", "gain_exponent"])
def test_settings_are_checked(name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        lx.TrackedLagrangian(**{name: -1.0})
