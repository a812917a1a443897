"""NumPy for the formulas on the host, quick on single numbers, of which a controller handles dozens in every call."""

import math
from typing import Any

import numpy as np

is_compiled = False
_NUMBER, _TRUTH = (float, int), (bool, np.bool_)


def minimum(a: Any, b: Any) -> Any:
    """As NumPy's: what is not a number stays so."""
    if isinstance(a, _NUMBER) and isinstance(b, _NUMBER):
        return a if a < b or a != a else b
    return np.minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    if isinstance(a, _NUMBER) and isinstance(b, _NUMBER):
        return a if a > b or a != a else b
    return np.maximum(a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, _TRUTH):
        return a if condition else b
    return np.where(condition, a, b)


def mean(values: np.ndarray, axis: int | None = None) -> Any:
    return np.add.reduce(values, axis) / (values.size if axis is None else values.shape[axis])


def sum(values: np.ndarray, axis: int | None = None) -> Any:
    return np.add.reduce(values, axis)


def diag(matrix: np.ndarray) -> np.ndarray:
    return matrix.diagonal() if matrix.ndim == 2 else np.diag(matrix)


def max(values: np.ndarray, axis: int | None = None) -> Any:
    return np.maximum.reduce(values, axis)


def exp(value: Any) -> Any:
    return math.exp(value) if isinstance(value, float) else np.exp(value)


def log(value: Any) -> Any:
    return math.log(value) if isinstance(value, float) else np.log(value)


def multiply_rows(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows times a symmetric matrix; the order in memory stays."""
    return rows @ matrix if rows.flags.c_contiguous else (matrix @ rows.T).T


def sqrt(value: Any) -> Any:
    return math.sqrt(value) if isinstance(value, float) and value >= 0 else np.sqrt(value)


def __getattr__(name: str) -> Any:
    """What is rare is NumPy's own."""
    return getattr(np, name)
