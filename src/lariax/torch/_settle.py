"""From the end of training onto the bounds, by means over all training rows."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.torch._constraints import Proxy
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
    """Step after step, each the shortest that ends the largest violation to first order; the means in the end."""
    batches = batches if hasattr(batches, "__len__") else list(batches)
    values = means(core, closure, batches)
    best = found = worst(core, values)
    kept = [parameter.detach().clone() for parameter in parameters] if found.far else []
    for _ in range(most if found.far else 0):
        slopes = _slope(core, found, parameters, closure, batches)
        square = float(torch.stack([torch.sum(slope.double() ** 2) for slope in slopes]).sum())
        if not 0 < square < np.inf:
            break
        _move(parameters, slopes, (found.residual - found.goal) / square)
        values = means(core, closure, batches)
        found = worst(core, values)
        if found.far < best.far:
            best, kept = found, [parameter.detach().clone() for parameter in parameters]
        if not found.far:
            break
    if best.far:
        with torch.no_grad():
            for parameter, number in zip(parameters, kept, strict=True):
                parameter.copy_(number)
        values = means(core, closure, batches)
        core._say(
            f"settle {best.name}",
            f"no step has brought {best.name!r} to its bound: it is off by {abs(best.residual):.4g}. Train longer; of "
            "a Proxy, take a surrogate that is nearer to the values.",
        )
    return {name: float(value) if np.ndim(value) == 0 else value for name, value in values.items()}


def means(core: Core, closure: Closure, batches: Iterable[Any]) -> dict[str, Any]:
    """By name, over all rows."""
    sums: dict[str, Any] = {}
    with torch.no_grad():
        for batch in batches:
            for name, given in closure(batch)[1].items():
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
        residual = np.ravel(core.constraints[name].sign * (value - bound))
        off = np.maximum(residual, 0) if inequality else np.maximum(np.abs(residual) - near, 0)
        far = off / np.where(deviation > 0, deviation, 1.0)
        i = int(np.argmax(far))
        if far[i] > found.far:
            goal = -BEYOND * residual[i] - near[i] if inequality else 0.0
            found = Worst(name, i, float(residual[i]), float(goal), float(far[i]))
    return found


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
        found = torch.autograd.grad(entry, parameters, allow_unused=True)
        slopes = [slope if more is None else slope + more for slope, more in zip(slopes, found, strict=True)]
        rows += count
    return [slope / rows for slope in slopes]


def _move(parameters: list[Tensor], slopes: list[Tensor], length: float) -> None:
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter -= length * slope
