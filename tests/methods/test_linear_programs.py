"""Linear programs: nothing has curvature, so steps and penalty have to find their length from elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import lariax as lx

D, ROWS = 4, 20
NORMAL = lx.Distribution(lambda key: jax.random.normal(key, (ROWS,)))


def program(seed):
    """min c.x over A x <= 1, a box around 0 and twelve cuts."""
    rng = np.random.default_rng(seed)
    cuts = rng.normal(size=(ROWS - 2 * D, D))
    rows = np.vstack([cuts / np.linalg.norm(cuts, axis=1, keepdims=True), np.eye(D), -np.eye(D)])
    return rng.normal(size=D), rows


@pytest.mark.long_but("exact costs")
@pytest.mark.parametrize("noisy", [True, False], ids=["noisy costs", "exact costs"])
def test_a_linear_program_is_solved(noisy):
    """The vertex moves by the noise of four rows, 0.1 / sqrt(20,000) = 0.0007 each, times its condition number of about
    5: 0.01 is three times what is usual."""
    costs, rows = program(0)
    solution = linprog(costs, A_ub=rows, b_ub=np.ones(ROWS), bounds=(None, None)).x
    constraint = lx.AtMost(lambda x, z: jnp.asarray(rows) @ x + 0.1 * z, 1.0, samples=NORMAL)
    objective = (lambda x, z: (costs + 0.3 * z[:D]) @ x) if noisy else (lambda x: costs @ x)
    problem = lx.Problem(objective, samples=NORMAL if noisy else None, constraints={"rows": constraint})
    result = lx.solve(problem, jnp.zeros(D), iterations=10_000, batch_size=2)
    assert result.status == "budget", result.message
    np.testing.assert_allclose(result.x, solution, atol=0.01)


@pytest.mark.long
def test_a_solution_far_away_is_reached():
    """At -1000 from 1, with an error that is small beside that."""
    constraint = lx.AtLeast(lambda x, z: x + 0.1 * z[:3], -1000.0)
    problem = lx.Problem(lambda x, z: (1 + 0.1 * z[0]) * jnp.sum(x), samples=NORMAL, constraints={"floor": constraint})
    result = lx.solve(problem, jnp.ones(3), iterations=5_000)
    assert result.status == "budget", result.message
    np.testing.assert_allclose(result.x, -1000.0, atol=1.0)


def test_a_variable_that_costs_little_holds_nothing_up():
    """Its gradient is a thousandth of the others'. Were it for that a thousand times as long in the method's units, the
    constraints would pull at it alone; and it is at its bound."""
    costs, rows = jnp.array([-1.0, -2.0, 1e-3]), jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    constraint = lx.AtMost(lambda x, z: rows @ x + 0.1 * z[:2], 1.0, samples=NORMAL)
    box = lx.sets.Box(jnp.zeros(3), jnp.full(3, 10.0))
    problem = lx.Problem(lambda x: costs @ x, constraints={"rows": constraint}, within=box)
    result = lx.solve(problem, jnp.zeros(3), iterations=2_000, batch_size=2)
    np.testing.assert_allclose(result.x, [1.0, 1.0, 0.0], atol=0.02)  # 0.1 / sqrt(4000), 12 times
    np.testing.assert_allclose(result.multipliers["rows"], [1.0, 2.0], atol=0.02)
