"""From the end of training onto the bounds, by means over all training rows."""

from collections.abc import Callable, Iterable, Mapping
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.torch._constraints import Indexed, Proxy
from lariax.tuned.multipliers import Multipliers as Core

Closure = Callable[[Any], tuple[Tensor, Mapping[str, Any]]]
BEYOND = 0.05  # of a violation: a step onto the bound of an inequality goes so much farther,
NEAR = 1e-3  # and so many deviations of a batch's value; an equality is met by as many,
EXACT = 1e-6  # or by this share of its bound


class Worst(NamedTuple):
    """The entry of a constraint that is farthest beyond its bound."""

    name: str
    entry: int
    residual: float  # r = 0 or r <= 0
    goal: float  # what it is to be after the next step
    far: float  # in deviations of a batch's value; 0 where every bound is kept


def settled(
    core: Core, parameters: list[Tensor], closure: Closure, batches: Iterable[Any], most: int
) -> dict[str, Any]:
    """Step after step, each the shortest that ends the largest violation to first order; the means in the end. A step
    that makes it larger is taken back. Where that does not lead onto all bounds, parameters stay as they were."""
    batches = batches if hasattr(batches, "__len__") else list(batches)
    if length_hint(batches, 1) == 0:  # a loader of an IterableDataset has no length
        raise ValueError("settle wants batches of all training rows, a list or a DataLoader, and found none.")
    values = means(core, closure, batches)
    first, found = values, worst(core, values)
    before = [parameter.detach().clone() for parameter in parameters] if found.far else []
    stretch: dict[tuple[str, int], float] = {}  # of steps: a surrogate may fall faster than what it stands for
    slopes: list[Tensor] | None = None
    square = 0.0
    for _ in range(most if found.far else 0):
        if slopes is None:
            slopes = _slope(core, found, parameters, closure, batches)
            square = float(torch.stack([torch.sum(slope.double() ** 2) for slope in slopes]).sum())
        if not 0 < square < np.inf:
            break
        which, wish = (found.name, found.entry), found.residual - found.goal
        longer = stretch.get(which, 1.0)
        _move(parameters, slopes, longer * wish / square)
        seen = means(core, closure, batches)
        after = _residuals(core, found.name, seen[found.name])[found.entry]
        if not (after if core.kinds[found.name].inequality else abs(after)) <= abs(found.residual):
            _move(parameters, slopes, -longer * wish / square)  # it led too far, and is taken back
            stretch[which] = longer / 4
            continue
        stretch[which] = longer * float(np.clip(wish / max(found.residual - after, 0.25 * wish), 0.5, 4.0))
        values, found, slopes = seen, worst(core, seen), None
        if not found.far:
            break
    if found.far:
        with torch.no_grad():
            for parameter, number in zip(parameters, before, strict=True):
                parameter.copy_(number)
        values, left = first, worst(core, first)
        core._say(
            f"settle {left.name}",
            f"{most} steps do not lead onto all bounds, so that parameters stay as they were, {left.name!r} off by "
            f"{abs(left.residual):.4g}. Train longer; of a Proxy, take a surrogate that is nearer to the values.",
        )
    return {name: float(value) if np.ndim(value) == 0 else value for name, value in values.items()}


def means(core: Core, closure: Closure, batches: Iterable[Any]) -> dict[str, Any]:
    """By name, over all rows."""
    sums: dict[str, Any] = {}
    with torch.no_grad():
        for batch in batches:
            values = closure(batch)[1]
            core.check_names("settle", values)
            for name, given in values.items():
                if isinstance(given, Indexed):
                    continue  # a bound for each example is not a mean
                total, count = _summed(core, name, given.values if isinstance(given, Proxy) else given)
                old = sums.get(name, (0.0, 0))
                sums[name] = old[0] + total.double().cpu().numpy(), old[1] + count
    return {name: total / count for name, (total, count) in sums.items()}


def worst(core: Core, values: Mapping[str, Any]) -> Worst:
    found = Worst("", 0, 0.0, 0.0, 0.0)
    for name, value in values.items():
        bound, inequality = core.bounds[name], core.kinds[name].inequality
        deviation = np.ravel(core.deviation(name) + 0 * value)
        near = np.maximum(NEAR * deviation, EXACT * np.ravel(1 + np.abs(bound)))
        residual = _residuals(core, name, value)
        off = np.maximum(residual, 0) if inequality else np.maximum(np.abs(residual) - near, 0)
        far = np.nan_to_num(off / np.where(deviation > 0, deviation, 1.0), nan=np.inf)
        i = int(np.argmax(far))
        if far[i] > found.far:
            goal = -BEYOND * residual[i] - near[i] if inequality else 0.0
            found = Worst(name, i, float(residual[i]), float(goal), float(far[i]))
    return found


def _residuals(core: Core, name: str, value: Any) -> np.ndarray:
    """Entry by entry."""
    return np.ravel(core.constraints[name].sign * (value - core.bounds[name]))


def _summed(core: Core, name: str, value: Tensor) -> tuple[Tensor, int]:
    has_rows = value.ndim > 0 and not core.kinds[name].exact
    return (value.sum(dim=0), len(value)) if has_rows else (value, 1)


def _slope(core: Core, of: Worst, parameters: list[Tensor], closure: Closure, batches: Iterable[Any]) -> list[Tensor]:
    """The gradient of a residual, or of what stands in for it."""
    slopes, rows = [torch.zeros_like(parameter) for parameter in parameters], 0
    for batch in batches:
        given = closure(batch)[1][of.name]
        total, count = _summed(core, of.name, given.surrogate if isinstance(given, Proxy) else given)
        entry = core.constraints[of.name].sign * total.reshape(-1)[of.entry]
        if entry.requires_grad:
            found = torch.autograd.grad(entry, parameters, allow_unused=True)
            slopes = [slope if more is None else slope + more for slope, more in zip(slopes, found, strict=True)]
        rows += count
    return [slope / rows for slope in slopes]


def _move(parameters: list[Tensor], slopes: list[Tensor], length: float) -> None:
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter -= length * slope
