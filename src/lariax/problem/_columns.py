"""Rows in the shapes that people bring: data frames, tables, sparse matrices. None of their libraries is imported."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lariax.utils import warn

FRAMES = {"pandas", "polars", "pyarrow", "modin", "cudf"}
MOST_SHOWN = 4  # categories in a warning
FILLED = 0.5  # the share of the longest row from which on a sparse matrix is kept as a dense one


class SparseRows(eqx.Module):
    """The rows of a sparse matrix, each as long as the fullest of them; a row that is fetched is a dense vector."""

    places: Int[Array, "rows most"]
    values: Any  # rows by most
    width: int = eqx.field(static=True)

    def fetch(self, ticket: Int[Array, "*shape"]) -> Float[Array, "*shape width"]:
        places, values = self.places[ticket], self.values[ticket]
        flat = places.reshape(-1, places.shape[-1])
        empty = jnp.zeros((len(flat), self.width), values.dtype)
        rows = empty.at[jnp.arange(len(flat))[:, None], flat].add(values.reshape(flat.shape))
        return rows.reshape(*places.shape[:-1], self.width)


def is_sparse_rows(node: Any) -> bool:
    return isinstance(node, SparseRows)


def fetched(arrays: PyTree, ticket: Int[Array, "..."]) -> PyTree:
    """The rows of a ticket."""
    return jax.tree.map(
        lambda array: array.fetch(ticket) if is_sparse_rows(array) else array[ticket], arrays, is_leaf=is_sparse_rows
    )


def as_columns(data: PyTree, owner: str) -> PyTree:
    """The same as a pytree of arrays. A frame or a table becomes a dictionary of columns, so that a sample is a
    dictionary of numbers; words become codes, with a word about it; a sparse matrix becomes `SparseRows`."""
    told: list[str] = []

    def convert(path: Any, leaf: Any) -> Any:
        if _package(leaf) in FRAMES and hasattr(leaf, "collect"):
            raise TypeError(f"{owner} takes rows, found a {type(leaf).__name__} of {_package(leaf)}. Write .collect().")
        if _is_frame(leaf):
            return {name: _column(name, column, told, owner) for name, column in _columns(leaf)}
        if hasattr(leaf, "tocsr"):
            return _sparse(leaf.tocsr())
        if _package(leaf) in FRAMES or (isinstance(leaf, list) and leaf and np.ndim(leaf[0]) == 0):
            return _column(jax.tree_util.keystr(path).strip("[]'") or "column", leaf, told, owner)
        return leaf

    def is_leaf(node: Any) -> bool:
        return _package(node) in FRAMES or (isinstance(node, list) and bool(node) and np.ndim(node[0]) == 0)

    found = jax.tree_util.tree_map_with_path(convert, data, is_leaf=is_leaf)
    if told:
        warn(f"{owner} takes words as codes: {'; '.join(told)}. To choose codes yourself, give numbers.")
    return found


def _package(node: Any) -> str:
    return type(node).__module__.partition(".")[0]


def _is_frame(node: Any) -> bool:
    return _package(node) in FRAMES and (hasattr(node, "columns") and len(getattr(node, "shape", (0,))) == 2)


def _columns(frame: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(frame, "column_names"):  # Arrow: `columns` has no names
        yield from zip(map(str, frame.column_names), frame.columns, strict=True)
    else:
        yield from ((str(name), frame[name]) for name in frame.columns)


def _column(name: str, column: Any, told: list[str], owner: str) -> np.ndarray:
    """One column as numbers; categories as codes in the order in which they are declared, words in that of the
    alphabet."""
    declared = getattr(column, "cat", None) if _package(column) == "pandas" else None
    if declared is not None:
        values, codes = np.asarray(declared.categories), np.asarray(declared.codes)
    else:
        array = _array(column)
        if array.dtype.kind in "mM":
            raise TypeError(
                f"{owner} takes numbers, and column {name!r} holds times. Give it in days, say: (column - start) / "
                "np.timedelta64(1, 'D')."
            )
        if array.dtype.kind not in "OUST":
            return array
        missing = np.array([value is None or value != value for value in array.tolist()])
        kinds = {type(value) for value in array[~missing].tolist()}
        if kinds <= {int, float, bool, np.float64, np.int64}:
            return np.where(missing, np.nan, np.where(missing, 0, array)).astype(float)
        if kinds != {str}:
            raise TypeError(
                f"{owner} takes numbers, and column {name!r} holds {' and '.join(sorted(k.__name__ for k in kinds))}."
            )
        values, found = np.unique(array[~missing].astype(str), return_inverse=True)
        codes = np.full(len(array), -1)
        codes[~missing] = found
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise ValueError(f"column {name!r} of {owner} has no value at row {row}. Drop or impute those rows first.")
    shown = ", ".join(f"{value} = {code}" for code, value in enumerate(values[:MOST_SHOWN]))
    told.append(f"{name!r}: {shown}{', ...' if len(values) > MOST_SHOWN else ''}")
    return codes.astype(np.int32)


def _array(column: Any) -> np.ndarray:
    """A column of whatever library as an array; missing numbers are NaN."""
    dtype: Any = getattr(column, "dtype", None)
    if _package(column) == "pandas" and hasattr(dtype, "na_value") and getattr(dtype, "kind", "O") in "iuf":
        return np.asarray(column.to_numpy(dtype=float if column.isna().any() else dtype.numpy_dtype, na_value=np.nan))
    if _package(column) == "pyarrow":  # whose `to_numpy` refuses what it would have to copy
        return np.asarray(column)
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)


def _sparse(matrix: Any) -> Any:
    counts = np.diff(matrix.indptr)
    most = max(int(counts.max(initial=0)), 1)
    if most > FILLED * matrix.shape[1]:
        return matrix.toarray()
    places, values = np.zeros((len(counts), most), np.int32), np.zeros((len(counts), most), matrix.dtype)
    inside = np.arange(most) < counts[:, None]
    places[inside], values[inside] = matrix.indices, matrix.data
    return SparseRows(jnp.asarray(places), values, int(matrix.shape[1]))
