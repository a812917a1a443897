"""What is compiled on a GPU: one pass over memory for the update, one for the sums that the controllers need."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lariax.formulas import storm

Tensors = list[Tensor]


def advance(
    params: Tensors,
    targets: Tensors | None,
    previous: Tensors,
    estimate: Tensors,
    fresh: Tensors,
    stale: Tensors,
    scaling: Tensors | None,
    numbers: Tensor,
) -> None:
    """Seven streams: reads of x, g and two gradients, writes of x, the previous x and g.

    `numbers` holds the momentum and the step of each parameter; `targets` takes the step in place of parameters of low
    precision.
    """
    new = [storm(*each, numbers[0]) for each in zip(fresh, stale, estimate, strict=True)]
    torch._foreach_copy_(estimate, new)
    torch._foreach_copy_(previous, params)
    moves = new if scaling is None else [g * s for g, s in zip(new, scaling, strict=True)]
    torch._foreach_sub_(params if targets is None else targets, [numbers[1 + i] * g for i, g in enumerate(moves)])


def sums(a: Tensors, b: Tensors, scaling: Tensors | None) -> Tensor:
    """||a||^2, ||a - b||^2 and ||b||^2, all with `scaling`, in one read of both."""
    return _total([[dot(x, x), dot(x - y, x - y), dot(y, y)] for x, y in _scaled(a, b, scaling)])


def products(a: Tensors, b: Tensors, scaling: Tensors | None) -> Tensor:
    """||a||^2 and a . b, likewise."""
    return _total([[dot(x, x), dot(x, y)] for x, y in _scaled(a, b, scaling)])


def _scaled(a: Tensors, b: Tensors, scaling: Tensors | None) -> list[tuple[Tensor, Tensor]]:
    if scaling is None:
        return list(zip(a, b, strict=True))
    return [(x * s, y * s) for x, y, s in zip(a, b, scaling, strict=True)]


def _total(numbers: list[list[Tensor]]) -> Tensor:
    each = [torch.stack(some) for some in numbers]
    return each[0] if len(each) == 1 else torch.stack(each).sum(dim=0)


def dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.dot(x, y) if x.ndim == 1 else (x * y).sum()


@cache
def compiled(function: Any) -> Any:
    """Made when first asked for."""
    return torch.compile(function, dynamic=False)
