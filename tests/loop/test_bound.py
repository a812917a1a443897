"""A loop of one's own around a method's `init` and `step`."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, normal


def test_steps_are_those_of_solve(wells):
    method = lx.QuadraticPenalty()
    bound = lx.bind(wells, Wells.x0, method, batch_size=2, seed=3)
    state = bound.init()
    for k in range(1, 11):
        state = bound.step(state, k)
    x, multipliers = bound.answer(state, 10)
    result = lx.solve(wells, Wells.x0, method, batch_size=2, seed=3, iterations=10)
    np.testing.assert_allclose(x, result.x, rtol=1e-12)
    np.testing.assert_allclose(multipliers["c"], result.multipliers["c"], rtol=1e-12)


@pytest.mark.long
def test_a_refresh_sees_the_samples_before_it(wells):
    """As in `solve`, which measures in each of the first iterations too, and refreshes after the sixth: the start took
    two of the window's eight batches."""
    bound = lx.bind(wells, Wells.x0, lx.TrackedLagrangian(), batch_size=8)
    state = bound.init()
    assert bound.window == 8
    for k in range(1, 9):
        state = bound.step(state, k)
        if k == 6:
            state = bound.refresh(state, k)
    result = lx.solve(wells, Wells.x0, lx.TrackedLagrangian(), batch_size=8, iterations=8)
    np.testing.assert_allclose(bound.answer(state, 8)[0], result.x, rtol=1e-12)


def test_wrong_use():
    problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=normal(2))
    with pytest.raises(TypeError, match="method must be a method such as"):
        lx.bind(problem, jnp.zeros(2), "auto")
    with pytest.raises(ValueError, match="batch_size must be a positive integer, found 0"):
        lx.bind(problem, jnp.zeros(2), lx.TrackedLagrangian(), batch_size=0)
    rows = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Stream([np.zeros((4, 2))]))
    with pytest.raises(ValueError, match=r"a Stream is fed by lx.solve"):
        lx.bind(rows, jnp.zeros(2), lx.TrackedLagrangian())
