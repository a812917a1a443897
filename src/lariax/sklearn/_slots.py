"""What batches are drawn from: distinct rows, so that a row of weight 2 is two rows, to the bit."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Slots:
    """Equal rows are one, with their weights together; one that weighs more than the mean is in several slots, with
    equal parts of its weight, so that no draw weighs more than the mean. The order is that of the rows' bytes: it
    depends on which rows there are, not on where they stood or how often.

    Attributes:
        index: of each slot, the number of a row.
    """

    index: np.ndarray
    distinct: np.ndarray  # of each row, its number among the distinct ones
    copies: np.ndarray  # of each distinct row

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """Of slots, from those of rows."""
        return np.repeat(np.bincount(self.distinct, weights, len(self.copies)) / self.copies, self.copies)


def slots(weights: np.ndarray, *columns: Any) -> Slots:
    """`columns`: all that tells rows apart, (rows,) or (rows, several)."""
    key = np.ascontiguousarray(np.column_stack(columns), dtype=float) + 0.0  # one zero, not two
    rows = key.view(np.dtype((np.void, key.dtype.itemsize * key.shape[1]))).ravel()
    _, first, distinct = np.unique(rows, return_index=True, return_inverse=True)
    total = np.bincount(distinct, weights)
    copies = np.maximum(np.ceil(total / total.mean() - 1e-9), 1).astype(int)
    return Slots(np.repeat(first, copies), distinct, copies)
