"""Singular values of a linear operator: exactly when it is small, matrix-free when it is not."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import scipy  # its parts are loaded when they are used

Operator = Any  # a scipy.sparse.linalg.LinearOperator

SMALL = 1000
"""Up to this many rows or columns, singular values come from the matrix itself."""

TOLERANCE = 1e-6
"""Relative accuracy of the eigensolver beyond that."""

ACCURACY = 1e-10
"""Of the least-squares solves within it."""


def norm(operator: Operator, precision: float) -> float:
    """||A||, the largest singular value."""
    if _is_small(operator):
        return float(_svd(operator, precision)[1][0])
    outer = _wide(operator)
    return float(np.sqrt(_largest_eigenvalue(outer @ outer.H, _probe(outer.shape[0]))))


def smallest_eigenvalue(operator: Operator, precision: float) -> float:
    """The smallest *nonzero* eigenvalue of A^T A.

    Beyond the small, 1 / the largest eigenvalue of the pseudo-inverse of A A^T, whose products are two least-squares
    solves: those drop the null space, which a search from below would find first.
    """
    if _is_small(operator):
        return float(_svd(operator, precision)[1][-1] ** 2)
    outer = _wide(operator)
    pseudo_inverse = scipy.sparse.linalg.LinearOperator(
        (outer.shape[0], outer.shape[0]),
        matvec=lambda v: _least_squares(outer.H, _least_squares(outer, v)),
        dtype=float,
    )
    return 1 / _largest_eigenvalue(pseudo_inverse, outer @ _probe(outer.shape[1]))


def least_violation(operator: Operator, b: np.ndarray, precision: float) -> tuple[float, float]:
    """min over x of ||A x - b||, and the level up to which that is rounding, so that A x = b has a solution."""
    if _is_small(operator):
        u, singular, vt = _svd(operator, precision)
        x = vt.T @ (u.T @ b / singular)
        summed = np.max(singular, initial=0.0) * np.linalg.norm(x)  # what the entries of A x are sums of, at most
    else:
        x, precision = _least_squares(operator, b), max(precision, ACCURACY)
        summed = 0.0
    product = operator @ x
    scale = float(np.linalg.norm(b) + np.linalg.norm(product) + summed)
    return float(np.linalg.norm(product - b)), 100 * precision * scale


def stack(operators: Sequence[Operator]) -> Operator:
    """The operators on top of each other."""
    if len(operators) == 1:
        return operators[0]
    cuts = np.cumsum([operator.shape[0] for operator in operators])
    return scipy.sparse.linalg.LinearOperator(
        (int(cuts[-1]), operators[0].shape[1]),
        matvec=lambda v: np.concatenate([operator.matvec(np.ravel(v)) for operator in operators]),
        rmatvec=lambda w: sum(
            operator.rmatvec(part) for operator, part in zip(operators, np.split(np.ravel(w), cuts[:-1]), strict=True)
        ),
        dtype=float,
    )


def _is_small(operator: Operator) -> bool:
    return min(operator.shape) <= SMALL


def _wide(operator: Operator) -> Operator:
    return operator if operator.shape[0] <= operator.shape[1] else operator.H


def _svd(operator: Operator, precision: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular vectors and values, without those that are zero up to rounding in the precision of the data."""
    rows, columns = operator.shape
    matrix = (operator.H @ np.eye(rows)).T if rows <= columns else operator @ np.eye(columns)
    u, singular, vt = np.linalg.svd(matrix, full_matrices=False)
    kept = singular > singular[0] * max(rows, columns) * precision
    if not kept.any():
        raise ValueError("A is zero: leave the constraint out.")
    return u[:, kept], singular[kept], vt[kept]


def _least_squares(operator: Operator, right: np.ndarray) -> np.ndarray:
    """The shortest least-squares solution."""
    return scipy.sparse.linalg.lsmr(operator, right, atol=ACCURACY, btol=ACCURACY, conlim=1e13, maxiter=10_000)[0]


def _largest_eigenvalue(operator: Any, start: np.ndarray) -> float:
    return float(
        scipy.sparse.linalg.eigsh(operator, k=1, which="LM", v0=start, tol=TOLERANCE, return_eigenvectors=False)[0]
    )


def _probe(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(size)
