"""Torch for the formulas, under NumPy's names: on a GPU the rows of a batch are turned over where they are."""

from typing import Any

import torch
from torch import Tensor


def minimum(a: Any, b: Any) -> Tensor:
    """Of tensors, or of a tensor and a number, which need not be sent."""
    if isinstance(a, Tensor):
        return torch.clamp(a, max=b)
    return torch.clamp(b, max=a)


def maximum(a: Any, b: Any) -> Tensor:
    if isinstance(a, Tensor):
        return torch.clamp(a, min=b)
    return torch.clamp(b, min=a)


def mean(values: Tensor, axis: int) -> Tensor:
    return torch.mean(values, dim=axis)


def sum(values: Tensor, axis: int | None = None) -> Tensor:
    return torch.sum(values, dim=axis)


def max(values: Tensor, axis: int) -> Tensor:
    return torch.amax(values, dim=axis)


def sqrt(value: Any) -> Any:
    return value**0.5


def multiply_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    return rows @ matrix


where, isfinite = torch.where, torch.isfinite
