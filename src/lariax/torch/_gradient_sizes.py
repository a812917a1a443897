"""How long the gradients of loss and constraints are."""

from typing import Any

import torch
from torch import Tensor


def sizes_of(
    rows: Tensor | None, whole: Tensor, targets: list[Tensor], apart: bool, needed: bool = False
) -> tuple[Tensor, Tensor]:
    """(product of the gradients of two halves, square of the whole's); both the square, where there are no halves.

    `needed`: whether it is an error if no gradient gets to the targets.
    """
    if rows is None or len(rows) < 2 or not apart:
        gradient = _gradient(whole, targets, needed)
        square = _dot(gradient, gradient)
        return square, square
    first, second = (_gradient(half.mean(), targets, needed) for half in rows.chunk(2))
    product = _dot(first, second)
    return product, (_dot(first, first) + _dot(second, second) + 2 * product) / 4


def _gradient(of: Tensor, targets: list[Tensor], needed: bool) -> list[Tensor | None]:
    found: list[Tensor | None] = list(torch.autograd.grad(of, targets, retain_graph=True, allow_unused=True))
    if needed and all(each is None for each in found):
        raise RuntimeError("the loss does not depend on the given tensors")
    return found


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is spread over processes (FSDP, tensor parallelism): a DTensor."""
    return hasattr(tensor, "placements")


def _dot(one: list[Tensor | None], other: list[Tensor | None]) -> Tensor:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return torch.zeros(())
    return torch.stack([torch.dot(_wide(a), _wide(b)) for a, b in pairs]).sum()


def _wide(tensor: Tensor) -> Tensor:
    """Flat, in at least single precision."""
    return (tensor if tensor.dtype is torch.float64 else tensor.float()).reshape(-1)
