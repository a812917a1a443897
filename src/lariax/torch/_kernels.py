"""What is compiled on a GPU: one pass over memory for the update, one for the sums that the controllers need."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FunctionType
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
    good: Tensor,
    numbers: Tensor,
) -> None:
    """g+ = storm(fresh, stale, g), x+ = x - eta scaling g+, and x is kept as the previous point.

    `numbers` holds the momentum and the step of each parameter; `targets` takes the step in place of parameters of low
    precision. If `good` turns out to be false, the old estimate is followed from the previous point, by the steps that
    come second in `numbers`: the host need not wait to know.
    """
    new = [storm(*each, numbers[0]) for each in zip(fresh, stale, estimate, strict=True)]
    start, steps = params if targets is None else targets, numbers[1 : 1 + len(params)]
    new = [torch.where(good, a, b) for a, b in zip(new, estimate, strict=True)]
    base = [torch.where(good, a, b.to(a.dtype)) for a, b in zip(start, previous, strict=True)]
    kept = [torch.where(good, a, b) for a, b in zip(params, previous, strict=True)]
    steps = torch.where(good, steps, numbers[1 + len(params) :])
    moves = new if scaling is None else [g * s for g, s in zip(new, scaling, strict=True)]
    ends = [x - steps[i] * g for i, (x, g) in enumerate(zip(base, moves, strict=True))]
    for old, value in [
        *zip(estimate, new, strict=True),
        *zip(previous, kept, strict=True),
        *zip(start, ends, strict=True),
    ]:
        old.copy_(value)


def update_on(device: torch.device) -> Callable[..., None]:
    """`advance`, as one pass over memory where that can be had."""
    if device.type == "cuda":
        with suppress(ImportError):
            from lariax.torch import _triton

            return _triton.advance
    return advance


def sums(a: Tensors, b: Tensors, scaling: Tensors | None) -> Tensor:
    """||a||^2, ||a - b||^2 and ||b||^2, all with `scaling`, in one read of both."""
    if scaling is not None:
        a, b = ([x * s for x, s in zip(vector, scaling, strict=True)] for vector in (a, b))
    each = [torch.stack([square(x), square(x - y), square(y)]) for x, y in zip(a, b, strict=True)]
    return each[0] if len(each) == 1 else torch.stack(each).sum(dim=0)


def square(x: Tensor) -> Tensor:
    return torch.dot(x, x) if x.ndim == 1 else (x * x).sum()


@cache
def compiled(function: Any, *variant: bool) -> Any:
    """Made when first asked for; for each pattern of arguments that are left out, a program of its own."""
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, dynamic=False)
