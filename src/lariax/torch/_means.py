"""Means over the rows of a batch, and sums of rows with weights."""

from functools import lru_cache

import torch
from torch import Tensor

MOST = 4096  # rows that one product adds up: single precision wants more of them to be added in pieces


def mean_of(rows: Tensor) -> Tensor:
    """Over the first axis. A product with 1 / count takes half as long as a mean, forward and backward."""
    if not is_quick(rows):
        return rows.mean(dim=0)
    if rows.ndim == 1:
        return torch.dot(rows, shares(rows))
    return torch.mv(rows.flatten(1).t(), shares(rows)).reshape(rows.shape[1:])


def added(rows: Tensor, weight: float | Tensor, slope: Tensor) -> Tensor:
    """Rows and weighted others, whose entries have one weight each."""
    if isinstance(weight, float):
        return torch.add(rows, slope, alpha=weight)
    return torch.addmv(rows, slope.flatten(1), weight)


def is_quick(rows: Tensor) -> bool:
    """Whether one product may add them up."""
    return type(rows) is Tensor and rows.dtype in (torch.float32, torch.float64) and 0 < len(rows) <= MOST


def shares(rows: Tensor) -> Tensor:
    """Of each row in their mean."""
    return _shares(len(rows), rows.dtype, rows.device)


@lru_cache(maxsize=64)
def _shares(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what is made in an evaluation serves in training too
        return torch.full((count,), 1 / count, dtype=dtype, device=device)
