"""Least-squares multipliers without a matrix."""

import jax.numpy as jnp
import numpy as np

from lariax.certificate._multipliers import _Free, _least_squares, _Products, _Scaling


def test_steps_are_short_enough_for_rows_that_oppose_each_other():
    """J J^T has the eigenvector of ones for its least eigenvalue: a step made from that one would diverge."""
    rows = jnp.array([[1.0, -2.0], [-2.0, 1.0]])
    wanted = jnp.array([2.0, 3.0])
    free = jnp.full(2, jnp.inf)
    found = _least_squares(
        -rows.T @ wanted,
        _Products(lambda v: rows @ v, lambda y: rows.T @ y),
        jnp.zeros(2),
        _Free(-free, free),
        _Scaling(lambda t: t, lambda t: t),
        residual=lambda v: -v,
        most=2000,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
