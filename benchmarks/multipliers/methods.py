"""Ways to weigh constraints in a loop that Adam drives: ours, and those that have something to tune.

A method is a function (training, steps, setting) -> weigh, and weigh(losses, values) is the scalar to call `backward()`
on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import cooper
import torch
from humancompatible.train import dual_optim
from torch import Tensor

import lariax.torch as lt
from benchmarks.multipliers.scenarios import Training, Values
from benchmarks.peers.methods import TOLERANCE

Setting = Any
Weigh = Callable[[Tensor, Values], Tensor]


class Batch(NamedTuple):
    """All constraints of a batch as rows r = 0 or r <= 0."""

    values: Tensor  # without gradients
    slopes: Tensor  # with those of the surrogates
    equality: bool


def joined(training: Training, values: Values) -> Batch:
    found, slopes = [], []
    for name, constraint in training.constraints.items():
        value, slope = values[name] if isinstance(values[name], lt.Proxy) else (values[name], values[name])
        if constraint.samples is not None:
            value, slope = value.mean(dim=0), slope.mean(dim=0)
        found.append((value.detach() - torch.as_tensor(constraint.bound)).reshape(-1))
        slopes.append((slope - torch.as_tensor(constraint.bound)).reshape(-1))
    return Batch(torch.cat(found), torch.cat(slopes), not next(iter(training.constraints.values())).inequality)


def ours(training: Training, steps: int, setting: Setting) -> Weigh:
    options = {"steps": steps, "parameters": training.model.parameters()} | (setting or {})
    multipliers = lt.Multipliers(training.constraints, **options)
    return multipliers.lagrangian


def fixed(training: Training, steps: int, weight: float) -> Weigh:
    """A weight that somebody chose; on the square of an equality, and on violations where there are several rows."""

    def weigh(losses: Tensor, values: Values) -> Tensor:
        batch = joined(training, values)
        if batch.equality:
            return losses.mean() + weight * (batch.slopes**2).sum()
        return losses.mean() + weight * (batch.slopes * (batch.values > 0 if len(batch.values) > 1 else 1)).sum()

    return weigh


def dual_ascent(training: Training, steps: int, rate: float) -> Weigh:
    return _with(training, lambda y, r, _: y + rate * r, 0.0)


def augmented(training: Training, steps: int, setting: tuple[float, float]) -> Weigh:
    rate, penalty = setting
    return _with(training, lambda y, r, _: y + rate * r, penalty)


def pid(training: Training, steps: int, setting: tuple[float, float, float]) -> Weigh:
    """As safe reinforcement learning has it (Stooke, Achiam, Abbeel 2020): terms of the violation, of its sum, and of
    its growth, all smoothed."""
    proportional, integral, derivative = setting
    smooth: list[Any] = [None, None, 0.0]  # the violation, the one before it, the sum

    def weigh(losses: Tensor, values: Values) -> Tensor:
        batch = joined(training, values)
        now, before, total = smooth
        weights = torch.zeros_like(batch.values)
        if now is not None:
            growth = now - before if batch.equality else (now - before).clamp(min=0)
            weights = proportional * now + total + derivative * growth
            weights = weights if batch.equality else weights.clamp(min=0)
        new = batch.values if now is None else 0.95 * now + 0.05 * batch.values
        total = total + integral * batch.values
        smooth[:] = new, new if now is None else now, total if batch.equality else torch.clamp(total, min=0)
        return losses.mean() + weights @ batch.slopes

    return weigh


def _with(training: Training, move: Callable[..., Tensor], penalty: float) -> Weigh:
    kept: list[Any] = [None]

    def weigh(losses: Tensor, values: Values) -> Tensor:
        batch = joined(training, values)
        y = torch.zeros_like(batch.values) if kept[0] is None else kept[0]
        weights = y + penalty * batch.values
        new = move(y, batch.values, penalty)
        if not batch.equality:
            weights, new = weights.clamp(min=0), new.clamp(min=0)
        kept[0] = new
        return losses.mean() + weights @ batch.slopes

    return weigh


def with_nupi(training: Training, steps: int, setting: tuple[float, float]) -> Weigh:
    """cooper's nuPI, as its documentation uses it: the optimizer of the multipliers."""
    rate, gain = setting
    kept: list[Any] = [None, None]

    def weigh(losses: Tensor, values: Values) -> Tensor:
        batch = joined(training, values)
        if kept[0] is None:
            kept[0] = torch.nn.Parameter(torch.zeros_like(batch.values))
            kept[1] = cooper.optim.nuPI([kept[0]], lr=rate, Kp=gain, ema_nu=0.9, maximize=True)
        weights = kept[0].detach().clone()
        kept[0].grad = batch.values.clone()
        kept[1].step()
        if not batch.equality:
            kept[0].data.clamp_(min=0)
        return losses.mean() + weights @ batch.slopes

    return weigh


def with_barrier(training: Training, steps: int, setting: tuple[str, float]) -> Weigh:
    """humancompatible-train's penalty-barrier method, which has inequalities only."""
    kept: list[Any] = [None]

    def weigh(losses: Tensor, values: Values) -> Tensor:
        batch = joined(training, values)
        rows = batch.slopes.abs() - TOLERANCE if batch.equality else batch.slopes
        if kept[0] is None:
            update, factor = setting
            kept[0] = dual_optim.PBM(
                m=len(rows),
                penalty_mult=factor,
                gamma=0.9,
                penalty_update=update,
                dual_range=(0.01, 100.0),
                epoch_length=100,
            )
        return kept[0].forward_update(losses.mean(), rows)

    return weigh


class Method(NamedTuple):
    build: Callable[[Training, int, Setting], Weigh]
    grid: list[Setting]


RATES = [1e-4, 1e-3, 1e-2, 1e-1]
FRONT = Method(fixed, [0.0, 0.03, 0.1, 0.3, 1.0, 3.0])
METHODS = {
    "ours": Method(ours, [None]),
    "dual ascent": Method(dual_ascent, RATES),
    "augmented": Method(augmented, [(1e-3, 0.1), (1e-2, 1.0), (1e-1, 10.0)]),
    "PID": Method(pid, [(0.1, 1e-3, 1.0), (0.1, 1e-2, 1.0), (1.0, 1e-2, 10.0)]),
    "cooper nuPI": Method(with_nupi, [(1e-3, 1.0), (1e-2, 1.0), (1e-2, 10.0)]),
    "penalty-barrier": Method(with_barrier, [("dimin_adapt", 0.1), ("dimin_adapt", 0.9), ("dimin", 0.999)]),
}
ABLATIONS = {
    "no look ahead": {"TRUST": 0.0},
    "no slow slope": {"LONG": 0.05},
    "nothing at once": {"PROMPT": 0.0, "QUICK": 0.0},
    "the level alone at once": {"QUICK": 0.0},
    "a band of one deviation": {"BAND": 1.0},
    "no haste": {"HASTE": 0.0},
    "no margin": {"MARGIN": 0.0},
    "no floor of the window": {"FLOOR": 0.0},
    "to the very end": {"END": 1.0},
    "no limit on a step": {"LATE": 1e-9},
    "limit of 3 units": {"LIMIT": 3.0},
    "no pools": {"LARGEST": 1.0, "LARGEST_EXACT": 1.0},
    "more looks": {"LOOKS": 3, "FEW": 1},
    "a tenth of the penalty": {"EXACT": 0.3},
    "the whole penalty at once": {"RAMP": 0.0},
    "a penalty that grows over half of the run": {"RAMP": 0.5},
    "half the rate of the exact sum": {"EXACT_TIME": 0.1},
}
"""Constants of `lariax.tuned.pressure` that turn a part of the rule off."""
