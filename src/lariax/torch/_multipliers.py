"""Multipliers for a training loop that keeps its optimizer: `lariax.Multipliers`, with tensors for numbers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor

from lariax.torch._constraints import AbstractConstraint, Proxy
from lariax.torch._transfer import Transfer
from lariax.tuned import Estimate
from lariax.tuned import Multipliers as Core

FIRST = 8  # so many calls look at gradients apart, each of them,
EVERY = 64  # and then one in so many: a look costs one backward pass for the loss and one for each name


class Seen(NamedTuple):
    """One constraint in one batch."""

    mean: Tensor  # of what is compared with the bound
    variance: Tensor | float  # of that mean; not a number: unknown
    slope: Tensor  # the mean whose gradient is taken
    rows: Tensor | None  # and its rows


class Multipliers:
    """Multipliers for a loop that has its own optimizer: in each step a scalar to call `backward()` on.

        L = mean loss + sum y . (value - bound),       y from earlier batches

    Optimizer, schedule, clipping, accumulation, loss scaling and wrappers stay as they are. Nothing is to be tuned:
    `lariax.Multipliers` says by what a multiplier moves.

    Arguments:
        constraints: `Equal`, `AtMost` or `AtLeast` by name.
        steps: the number of calls that there will be, which schedules of the learning rate know too. Without it the
            rule looks ahead to twice the calls until now, which is less good.
        parameters: of the model. With them the lengths of the gradients of loss and constraints are measured, in one
            call of 64; `lagrangian(..., shared=logits)` does it with a tensor that both go through, where parameters
            are sharded. Without either, sizes are compared by how values spread, which is less good.

    >>> import torch, lariax.torch as lt
    >>> _ = torch.manual_seed(0)
    >>> x = torch.zeros(2, requires_grad=True)
    >>> adam = torch.optim.Adam([x], lr=0.05)
    >>> schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, 500)
    >>> multipliers = lt.Multipliers({"line": lt.AtMost(1.0)}, steps=500, parameters=[x])
    >>> for _ in range(500):
    ...     z = torch.randn(32)
    ...     losses, values = 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2) + 0 * z, x[0] + x[1] + 0.1 * z
    ...     adam.zero_grad()
    ...     multipliers.lagrangian(losses, {"line": values}).backward()
    ...     adam.step()
    ...     schedule.step()
    >>> [round(value, 1) for value in x.tolist()]
    [-0.5, 1.5]
    """

    def __init__(
        self,
        constraints: Mapping[str, AbstractConstraint],
        steps: int | None = None,
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        self.core = Core(constraints, steps)
        self.parameters = None if parameters is None else [p for p in parameters if p.requires_grad]
        self._pending: tuple[list[tuple[str, tuple[int, ...]]], list[str], Transfer] | None = None
        self._told: dict[str, Any] = {}  # values from `update` that the next call takes in
        self._by_update: set[str] = set()
        self._joined = False

    # --- a call

    def lagrangian(self, losses: Tensor, values: Mapping[str, Any], shared: Any = None) -> Tensor:
        """The loss and the weighted constraints, for `backward()`.

        `losses` are rows or their mean; `values` by name are rows, (rows, entries), means, or a `Proxy` of two such; of
        a constraint with samples=None, its value. Names that are left out are not weighed in this call.
        """
        self._arrive()
        unknown = sorted(set(values) - set(self.core.constraints))
        if unknown:
            raise ValueError(
                f"lagrangian has values for the unknown {unknown}; the constraints are {list(self.core.constraints)}. "
                "Use the same names in both places."
            )
        if not isinstance(losses, Tensor):
            raise TypeError(f"losses are a tensor, one a row or their mean, found {type(losses).__name__}.")
        seen = {name: self._seen(name, given) for name, given in values.items()}
        total = losses if losses.ndim == 0 else losses.mean()
        for name, each in seen.items():
            weight, bound = self.core[name], self.core.bounds[name]
            if isinstance(weight, float):
                if weight:
                    total = torch.add(total, each.slope, alpha=weight) - weight * bound
            else:
                weights = torch.as_tensor(weight.reshape(-1), dtype=each.slope.dtype, device=each.slope.device)
                total = total + torch.dot(weights, each.slope.reshape(-1)) - float(np.sum(weight * bound))
        self._joined = True
        self._send(losses, seen, self._look(losses, seen, shared))
        return total

    def update(self, values: Mapping[str, Any], objective: Any = None) -> dict[str, Any]:
        """Values without gradients, each a mean or (mean, standard error): of rollouts, or of a validation metric.

        As in the core. Where `lagrangian` is used too, they are taken in by its next call, and a constraint that has
        been given here is measured here alone: `lagrangian` then only weighs it.
        """
        self._arrive()
        pairs = self.core.pairs(values)
        self._by_update |= set(values)
        if not self._joined:
            return self.core.update(values, objective)
        self._told.update({name: list(pair) for name, pair in pairs.items()})
        return self.core.multipliers

    # --- what is known

    @property
    def constraints(self) -> dict[str, Any]:
        """By name."""
        return dict(self.core.constraints)

    def __getitem__(self, name: str) -> Any:
        self._arrive()
        return self.core[name]

    @property
    def multipliers(self) -> dict[str, Any]:
        """By name, with L = f + sum y . value: >= 0 for AtMost, <= 0 for AtLeast."""
        self._arrive()
        return self.core.multipliers

    @property
    def values(self) -> dict[str, Estimate]:
        """By name: level, trend and standard error."""
        self._arrive()
        return self.core.values

    @property
    def steps(self) -> int | None:
        """How many calls there will be."""
        return self.core.steps

    @steps.setter
    def steps(self, steps: int | None) -> None:
        self.core.steps = steps

    def observe(self) -> dict[str, float]:
        """Numbers worth plotting; they never feed back."""
        self._arrive()
        return self.core.observe()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next call needs, in numbers, lists and texts: `torch.load(..., weights_only=True)` reads
        it."""
        self._arrive()
        own = {"joined": self._joined, "by_update": sorted(self._by_update), "told": dict(self._told)}
        return {**self.core.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, to the same bits; steps stay as they are here."""
        self.core.load_state_dict(state)
        self._pending, self._joined = None, state["joined"]
        self._by_update, self._told = set(state["by_update"]), dict(state["told"])

    # --- inside

    def _seen(self, name: str, given: Any) -> Seen:
        value, slope = given if isinstance(given, Proxy) else (given, given)
        if not isinstance(value, Tensor) or not isinstance(slope, Tensor) or value.shape != slope.shape:
            raise TypeError(
                f"the values of constraint {name!r} must be a tensor, or a Proxy of two of one shape, found "
                f"{type(given).__name__}."
            )
        constraint: Any = self.core.constraints[name]
        if constraint.samples is None:
            return Seen(value.detach(), 0.0, slope, None)
        if value.ndim == 0:
            return Seen(value.detach(), math.nan, slope, None)
        if len(value) < 2:
            return Seen(value.detach().mean(dim=0), math.nan, slope.mean(dim=0), None)
        variance, mean = torch.var_mean(value.detach(), dim=0)
        return Seen(mean, variance / len(value), slope.mean(dim=0), slope)

    def _look(self, losses: Tensor, seen: dict[str, Seen], shared: Any) -> dict[str, list[Tensor]]:
        """Products of gradients of two halves and squares of those of the whole, of the objective and of each name."""
        call = self.core.calls + 1
        targets = shared if shared is not None else self.parameters
        if targets is None:
            self.core._say(
                "alone",
                "neither parameters= nor shared= is given: the sizes of loss and constraints are compared by how their "
                "values spread, which is less good than by their gradients.",
            )
            return {}
        if not (call <= FIRST or call % EVERY == 0) or not losses.requires_grad:
            return {}
        targets = [targets] if isinstance(targets, Tensor) else list(targets)
        try:
            return self._looked(losses, seen, targets, apart=shared is None)
        except RuntimeError as reason:  # graphs of compiled models can be used once only
            self.parameters = None
            self.core._say(
                "alone",
                f"gradients could not be taken apart ({str(reason).splitlines()[0]}): sizes are compared by how values "
                "spread from now on. lagrangian(..., shared=logits) may do, with a tensor outside of what is compiled.",
            )
            return {}

    def _looked(
        self, losses: Tensor, seen: dict[str, Seen], targets: list[Tensor], apart: bool
    ) -> dict[str, list[Tensor]]:
        objective = _sizes(losses if losses.ndim else None, losses.mean(), targets, apart)
        found = {}
        for name, each in seen.items():
            if not each.slope.requires_grad:
                continue
            entry = self.core.looks(name) % max(each.slope.numel(), 1)  # of several, each in its turn
            rows = None if each.rows is None else each.rows.flatten(1)[:, entry] if each.rows.ndim > 1 else each.rows
            whole = each.slope.flatten()[entry]
            own = _sizes(rows, whole, targets, apart)
            found[name] = [objective[0], own[0], objective[1], own[1]]
        return found

    def _send(self, losses: Tensor, seen: dict[str, Seen], looks: dict[str, list[Tensor]]) -> None:
        """Numbers on their way to the core; those of a GPU arrive at the next call."""
        losses = losses.detach()
        plain = self.parameters is None and losses.ndim and len(losses) > 1
        numbers: list[Any] = [losses.var() / len(losses) if plain else math.nan]
        parts = []
        for name, each in seen.items():
            if name not in self._by_update:
                parts.append((name, tuple(each.mean.shape)))
                numbers += [each.mean, each.variance]
        for found in looks.values():
            numbers += found
        if _processes() > 1:
            numbers = _agreed(numbers, len(parts), losses.device)
        if losses.device.type != "cpu":
            numbers = [torch.as_tensor(number, device=losses.device).float() for number in numbers]
        self._pending = parts, list(looks), Transfer(*numbers)
        if losses.device.type == "cpu":
            self._arrive()

    def _arrive(self) -> None:
        """Take in the numbers of the last call."""
        if self._pending is None:
            return
        (parts, looks, arriving), self._pending = self._pending, None
        numbers = [number if isinstance(number, float) else _plain(number) for number in arriving.numbers()]
        spread, at = numbers[0], 1 + 2 * len(parts)
        for i, name in enumerate(looks):
            own = numbers[at + 4 * i : at + 4 * i + 4]
            self.core.look(name, (own[0], own[1]), (own[2], own[3]))
        values = {}
        for i, (name, shape) in enumerate(parts):
            mean, variance = numbers[2 * i + 1 : 2 * i + 3]
            if shape:
                mean = np.asarray(mean, float).reshape(shape)
                variance = np.asarray(variance, float).reshape(shape) if np.ndim(variance) else np.full(shape, variance)
            values[name] = (mean, variance)
        told, self._told = self._told, {}
        self.core.advance({**values, **{name: (pair[0], pair[1]) for name, pair in told.items()}}, spread)


def _sizes(rows: Tensor | None, whole: Tensor, targets: list[Tensor], apart: bool) -> tuple[Tensor, Tensor]:
    """(product of the gradients of two halves, square of the whole's); both the square, where there are no halves."""
    if rows is None or len(rows) < 2 or not apart:
        gradient = _gradient(whole, targets)
        square = _dot(gradient, gradient)
        return square, square
    first, second = (_gradient(half.mean(), targets) for half in rows.chunk(2))
    product = _dot(first, second)
    return product, (_dot(first, first) + _dot(second, second) + 2 * product) / 4


def _gradient(of: Tensor, targets: list[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(of, targets, retain_graph=True, allow_unused=True))


def _dot(one: list[Tensor | None], other: list[Tensor | None]) -> Tensor:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return torch.zeros(())
    return torch.stack([torch.sum(a.float() * b.float()) for a, b in pairs]).sum()


def _processes() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _agreed(numbers: list[Any], parts: int, device: torch.device) -> list[Any]:
    """Means over all processes, each with its part of the batch; the variance of a mean falls with their number."""
    tensors = [torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers]
    joined = torch.cat([each.reshape(-1) for each in tensors])
    count = _processes()
    distributed.all_reduce(joined)
    split = (joined / count).split([each.numel() for each in tensors])
    variances = {0, *range(2, 2 * parts + 1, 2)}
    return [
        (part.reshape(each.shape) / (count if i in variances else 1))
        for i, (part, each) in enumerate(zip(split, tensors, strict=True))
    ]


def _plain(number: Any) -> Any:
    array = np.asarray(number, float)
    return float(array) if array.ndim == 0 else array
