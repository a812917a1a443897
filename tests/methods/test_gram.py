"""Both ways to a system with a Gram matrix, beside NumPy."""

import jax
import numpy as np
import pytest

from lariax.methods._gram import gram_solve

solve = jax.jit(gram_solve)


@pytest.mark.parametrize(("rows", "columns"), [(4, 10), (10, 10), (60, 10)])
@pytest.mark.parametrize("least", [1.0, 1e-6, 1e-11])
def test_beside_numpy(rows, columns, least):
    """As accurate as the condition of the matrix permits, and in A^T y, which steps are made of, nearer."""
    rng = np.random.default_rng(0)
    half, right = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    right = half @ rng.normal(size=columns) + least * right  # in the range but for a little, as active rows are
    diagonal = least * rng.uniform(0.5, 2.0, rows)
    found = solve(half, diagonal, right)
    left, values, across = np.linalg.svd(half / np.sqrt(diagonal)[:, None], full_matrices=False)
    part = right / np.sqrt(diagonal)
    within = left.T @ part
    exact = (left @ (within / (values**2 + 1)) + part - left @ within) / np.sqrt(diagonal)
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())
    np.testing.assert_allclose(half.T @ found, across.T @ (values * within / (values**2 + 1)), rtol=1e-4, atol=1e-6)
