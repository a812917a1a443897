"""The update, with sums that the controllers need: over vectors like the parameters, on a GPU in one pass."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.formulas import storm

Tensors = list[Tensor]
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def sent(numbers: np.ndarray, device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers of the host, on the device; on the way while host and device go on."""
    here = torch.from_numpy(numbers.astype(_NUMPY[dtype], copy=False))
    return here if device.type == "cpu" else here.pin_memory().to(device, non_blocking=True)


class Update(NamedTuple):
    """What an update reads and writes. Targets are the parameters, or for those of low precision exact copies."""

    params: Tensors
    targets: Tensors
    previous: Tensors
    estimate: Tensors
    fresh: Tensors
    stale: Tensors
    scaling: Tensors | None
    good: Tensor  # whether the step to here was; the host need not wait to know
    numbers: Tensor  # the momentum, the step of each parameter if good, and if not

    def only(self, i: int) -> "Update":
        """Of one parameter."""
        places = torch.tensor([0, 1 + i, 1 + len(self.params) + i], device=self.numbers.device)
        own: dict[str, Any] = {
            name: vector[i : i + 1] for name, vector in self._asdict().items() if isinstance(vector, list)
        }
        return self._replace(numbers=self.numbers[places], **own)


def advance(update: Update, summed: bool = False) -> Tensors:
    """g+ = storm(fresh, stale, g), x+ = x - eta scaling g+, and x is kept as the previous point.

    If `good` turns out to be false, the old estimate is followed from the previous point. If they are wanted, returns
    the sums ||stale - g||^2, ||fresh - stale||^2 and ||g+||^2, their terms multiplied by `scaling`.
    """
    params, targets, previous, estimate, fresh, stale, scaling, good, numbers = update
    new = [storm(*each, numbers[0]) for each in zip(fresh, stale, estimate, strict=True)]
    new = [torch.where(good, a, b) for a, b in zip(new, estimate, strict=True)]
    base = [torch.where(good, a, b.to(a.dtype)) for a, b in zip(targets, previous, strict=True)]
    kept = [torch.where(good, a, b) for a, b in zip(params, previous, strict=True)]
    steps = torch.where(good, *numbers[1:].chunk(2))
    moves = new if scaling is None else [g * s for g, s in zip(new, scaling, strict=True)]
    ends = [x - steps[i] * g for i, (x, g) in enumerate(zip(base, moves, strict=True))]
    pairs = ((stale, estimate), (fresh, stale), (new, None)) if summed else ()
    sums = [_apart(a, b, scaling) for a, b in pairs]
    for old, value in [
        *zip(estimate, new, strict=True),
        *zip(previous, kept, strict=True),
        *zip(targets, ends, strict=True),
    ]:
        old.copy_(value)
    return sums


def _apart(a: Tensors, b: Tensors | None, scaling: Tensors | None) -> Tensor:
    """||a - b||^2."""
    squares = [x**2 for x in (a if b is None else map(torch.sub, a, b))]
    return torch.stack([x.sum() for x in (squares if scaling is None else map(torch.mul, squares, scaling))]).sum()


def follow(estimate: Tensors, fresh: Tensors, stale: Tensors, momentum: float) -> None:
    """g <- storm(fresh, stale, g), in place."""
    for g, now, then in zip(estimate, fresh, stale, strict=True):
        torch.add(now, g.sub_(then), alpha=1 - momentum, out=g)


def sum_of_squares(vector: Tensors) -> Tensor:
    if len(vector) == 1:
        return torch.dot(vector[0], vector[0]) if vector[0].ndim == 1 else (vector[0] * vector[0]).sum()
    return torch.stack(torch._foreach_norm(vector)).square().sum()
