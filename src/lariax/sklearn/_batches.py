"""Rows that come in batches, for `partial_fit`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lariax.sklearn._constraints import Limit, OnRows, each
from lariax.sklearn._groups import Columns


@dataclass(frozen=True)
class CheckedRows:
    """Rows as they were checked, and the columns that tell groups apart."""

    inputs: Any
    y: np.ndarray
    weights: np.ndarray
    columns: dict[Any, np.ndarray]


def columns_of(limits: Mapping[str, tuple[str, Limit]], columns: Columns) -> dict[Any, np.ndarray]:
    """Those columns that constraints name."""
    found: dict[Any, np.ndarray] = {}
    for _, limit in limits.values():
        inner = limit.limit if isinstance(limit, each) else limit
        if isinstance(inner, OnRows):
            continue
        by = getattr(limit, "by", ())
        for name in (*(by if isinstance(by, tuple | list) else (by,)), *(inner.given or ())):
            if name != "y":
                found[name] = columns[name]
    return found


def joined(batches: Iterable[CheckedRows]) -> CheckedRows:
    batches = list(batches)
    inputs = [one.inputs for one in batches]
    sparse = any(scipy.sparse.issparse(one) for one in inputs)
    return CheckedRows(
        scipy.sparse.vstack(inputs, format="csr") if sparse else np.concatenate(inputs),
        np.concatenate([one.y for one in batches]),
        np.concatenate([one.weights for one in batches]),
        {name: np.concatenate([one.columns[name] for one in batches]) for name in batches[0].columns},
    )
