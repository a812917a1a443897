"""Algorithm 2 with dual updates against the paper's lines in NumPy."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, WellsByHand, batches_of, normal

STEPS = 50


def transcript(batches, powers, step_size=0.05, penalty=1.5, gamma=0.4):
    """Iterates x_2 .. x_{K+1} with the multipliers y_k + rho_k c(x_{k+1})."""
    p, q, r = powers

    def lagrangian_gradient(x, y, rho, xi, zeta1, zeta2):
        values = WellsByHand.constraint(x, zeta2)
        return WellsByHand.gradient(x, xi) + WellsByHand.jacobian(x, zeta1).T @ (y + rho * values), values

    def sign_step(k, values):
        return np.array([0.0 if v == 0 else gamma / (k * np.log(k + 1) ** 2 * abs(v)) * v for v in values])

    x = np.asarray(Wells.x0)
    y = np.zeros(2)  # y_1
    g, u = lagrangian_gradient(x, y, penalty, *batches[0])
    y_next = y + sign_step(1, u)  # y_2
    iterates = []
    for k in range(1, len(batches)):
        eta, alpha = step_size / (k + 1) ** p, 72 / 81 / (k + 1) ** r
        rho, rho_next = penalty * k**q, penalty * (k + 1) ** q
        x_next = x - eta * g
        fresh, now = lagrangian_gradient(x_next, y_next, rho_next, *batches[k])
        stale, then = lagrangian_gradient(x, y, rho, *batches[k])
        g = fresh + (1 - alpha) * (g - stale)
        u = now + (1 - alpha) * (u - then)
        iterates.append((x_next, y + rho * u))
        x, y, y_next = x_next, y_next, y_next + sign_step(k + 1, now)
    return iterates


@pytest.mark.parametrize(
    ("name", "powers"), [("wells", (3 / 5, 1 / 5, 4 / 5)), ("wells_deterministic", (1 / 2, 1 / 4, 1 / 2))]
)
def test_follows_the_paper_line_by_line(name, powers, request):
    seen = []
    result = lx.solve(
        request.getfixturevalue(name),
        Wells.x0,
        lx.DualPenalty(step_size=0.05, penalty=1.5, dual_step=0.4),
        iterations=STEPS,
        seed=3,
        record_every=1,
        callback=lambda s: seen.append(s) and False,
    )
    for snapshot, (x, y) in zip(seen, transcript(batches_of(result, STEPS + 1), powers), strict=True):
        np.testing.assert_allclose(snapshot.x, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(snapshot.multipliers["c"], y, rtol=0, atol=1e-12)


def test_a_constraint_that_is_exactly_zero_leaves_its_multiplier():
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2),
        samples=normal(2),
        constraints={"zero": lx.Equal(lambda x: 0.0 * x[0], samples=None), "sum": lx.Equal(jnp.sum, samples=None)},
    )
    result = lx.solve(problem, jnp.ones(2), lx.DualPenalty(step_size=0.05), iterations=100)
    assert float(result.multipliers["zero"]) == 0.0
    assert float(result.multipliers["sum"]) != 0.0
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("method", [lx.DualPenalty(), lx.QuadraticPenalty()])
def test_says_what_the_penalty_leaves(method):
    """Twelve noisy sides: multipliers or slacks are not yet right after 20,000 iterations, at 0.1 from the solution."""
    angles = 2 * np.pi * np.arange(12) / 12
    sides = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    problem = lx.Problem(
        lambda x: 0.5 * jnp.sum((x - 2) ** 2),
        constraints={"gon": lx.AtMost(lambda x, z: sides @ x + 0.1 * z, 1.0, samples=normal(12))},
    )
    result = lx.solve(problem, jnp.zeros(2), method, iterations=20_000)
    assert np.linalg.norm(result.x - 2 / (1 + 3**0.5)) > 0.05
    assert (result.status, result.success) == ("budget", False)
    assert float(re.search(r"'gon', with its slacks, is off its bound by ([0-9.]+):", result.message)[1]) > 0.05


def test_without_dual_steps_it_is_the_penalty_method(wells, method):
    dual = lx.solve(wells, Wells.x0, lx.DualPenalty(step_size=0.05, penalty=1.5, dual_step=0.0), iterations=200)
    plain = lx.solve(wells, Wells.x0, method, iterations=200)
    np.testing.assert_allclose(dual.x, plain.x, rtol=1e-13)


def test_theory_parameters():
    constants = dict(
        constraints=3,
        gradient_lipschitz=2.0,
        constraint_bound=0.5,
        constraint_lipschitz=1.5,
        constraint_gradient_bound=0.7,
        constraint_gradient_lipschitz=0.2,
    )
    square = (
        0.75 * 2.0**2
        + 0.75 * 9 * (0.3 + 4 * 0.5) ** 2 * 0.2**2
        + 1.5 * 9 * (0.5**2 * 0.2**2 + 0.7**2 * 1.5**2)
    )  # fmt: skip
    method = lx.DualPenalty.from_constants(penalty=2.0, dual_step=0.5, multiplier_norm=0.3, **constants)
    assert method.step_size == pytest.approx(1 / (9 * np.sqrt(square) * 2.0), rel=1e-14)
    assert method.dual_step == 0.5


def test_a_good_dual_step_makes_the_penalty_method_more_feasible():
    """min (x - 1)^2 with x = 0 from x = 1: y* = 2. The penalty method is y*/rho_K away, here (y* - y_K)/rho_K."""
    problem = lx.Problem(lambda x: (x - 1.0) ** 2, constraints={"zero": lx.Equal(lambda x: x, samples=None)})
    runs = [
        lx.solve(
            problem, jnp.array(1.0), lx.DualPenalty(step_size=0.2, penalty=1.0, dual_step=gamma), iterations=20_000
        )
        for gamma in (0.0, 0.5)
    ]
    assert abs(float(runs[1].x)) < 0.3 * abs(float(runs[0].x))
    np.testing.assert_allclose(runs[1].multipliers["zero"], 2.0, atol=0.1)
