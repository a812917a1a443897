"""Multipliers for a training loop that keeps its optimizer: `lariax.Multipliers`, with tensors for numbers."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.torch._constraints import AbstractConstraint, Proxy
from lariax.torch._examples import ExampleMultipliers, ExampleRows
from lariax.torch._gradient_sizes import is_sharded, sizes_of
from lariax.torch._means import added, is_quick, mean_of, shares
from lariax.torch._processes import processes
from lariax.torch._records import Alike, Part, PendingCalls, Record
from lariax.torch._settle import Closure, settled
from lariax.tuned.multipliers import Multipliers as Core
from lariax.tuned.multipliers import ValueEstimate
from lariax.tuned.pressure import next_look
from lariax.utils import helped_by


class ConstraintRows(NamedTuple):
    """One constraint in one batch."""

    value: Tensor  # what is compared with the bound, without gradient
    slope: Tensor  # whose gradient is taken
    has_rows: bool
    examples: ExampleRows | None = None


class Multipliers:
    """Multipliers for a loop that has its own optimizer: in each step a scalar to call `backward()` on.

        L = mean loss + sum y . (value - bound),       y from earlier batches

    Optimizer, schedule, clipping, accumulation, loss scaling and wrappers stay as they are. Nothing is to be tuned:
    `lariax.Multipliers` says by what a multiplier moves.

    Arguments:
        constraints: `Equal`, `AtMost` or `AtLeast` by name.
        steps: the number of calls that there will be, which schedules of the learning rate know too. Without it the
            rule looks ahead to twice the calls until now, which is less good.
        parameters: the model, or its parameters. With them the lengths of the gradients of loss and constraints are
            measured, in a few calls, ever more rarely; `lagrangian(..., shared=logits)` does it with a tensor that both
            go through, where parameters are sharded. Without either, sizes are compared by how values spread, which is
            less good.

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

    @helped_by("multipliers")
    def __init__(
        self,
        constraints: Mapping[str, AbstractConstraint],
        steps: int | None = None,
        parameters: torch.nn.Module | Iterable[Tensor] | None = None,
    ) -> None:
        self._tables = {n: ExampleMultipliers(n, c) for n, c in _indexed(constraints).items()}
        stand_ins = {name: table.stand_in for name, table in self._tables.items()}
        self.core = Core({**constraints, **stand_ins} if stand_ins else constraints, steps)
        is_model = isinstance(parameters, torch.nn.Module)
        self.parameters: Any = parameters if is_model or parameters is None else list(parameters)  # type: ignore[arg-type]
        self._records = PendingCalls(self.core)
        self._waits = 0  # calls that may be recorded before a multiplier moves
        self._alike: Alike | None = None  # what the last call was like
        self._weights: dict[str, Any] = {}  # for as long as no multiplier moves
        self._told: dict[str, Any] = {}  # values from `update` that the next call takes in
        self._by_update: set[str] = set()
        self._joined = False
        self._next_look = 1
        self._blind = False  # whether gradients cannot be measured

    # --- a call

    def lagrangian(self, losses: Tensor, values: Mapping[str, Any], shared: Any = None) -> Tensor:
        """The loss and the weighted constraints, for `backward()`.

        `losses` are rows or their mean; `values` by name are rows, (rows, entries), means, or a `Proxy` of two such; of
        a constraint with samples=None, its value. Names that are left out are not weighed in this call. Where gradients
        are off (evaluation) the call weighs and is not counted.
        """
        if not isinstance(losses, Tensor):
            raise TypeError(f"losses are a tensor, one a row or their mean, found {type(losses).__name__}.")
        if torch.compiler.is_compiling() or torch.is_autocast_enabled(losses.device.type):
            return self._apart(losses, values, shared)
        return self._lagrangian(losses, values, shared)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the host decides here, and gradients are taken
    def _apart(self, losses: Tensor, values: Mapping[str, Any], shared: Any) -> Tensor:
        """Uncompiled, and in the precision that losses and values have."""
        with torch.autocast(losses.device.type, enabled=False):
            return self._lagrangian(losses, values, shared)

    def _lagrangian(self, losses: Tensor, values: Mapping[str, Any], shared: Any) -> Tensor:
        if self._records.under_way is not None:
            self._take_in()
        if self._alike is not None:
            total = self._as_before(self._alike, losses, values)
            if total is not None:
                return total
        if not self.core.constraints.keys() >= values.keys():
            self.core.check_names("lagrangian", values)
        seen = {name: self._seen(name, given) for name, given in values.items()}
        total = self._weighed(losses, seen)
        if not torch.is_grad_enabled():
            return total
        self._joined = True
        self._record(losses, seen, self._look(losses, seen, shared), shared is None)
        return total

    def _as_before(self, known: Alike, losses: Tensor, values: Mapping[str, Any]) -> Tensor | None:
        """The Lagrangian of a call like the last one, as most are: as short as it can be. None of others."""
        if (
            len(values) != len(known.parts)
            or (losses.shape, losses.dtype, losses.device) != known.losses
            or self._records.calls + 1 >= known.until
            or self._told
            or not torch.is_grad_enabled()
        ):
            return None
        rows, numbers, constant = losses, [], 0.0
        for (name, _, _), shape in zip(known.parts, known.values, strict=True):
            given = values.get(name)
            value, slope = given if type(given) is Proxy else (given, given)
            if not (type(value) is type(slope) is Tensor and value.shape == slope.shape == shape):
                return None
            if not value.dtype == slope.dtype == losses.dtype:
                return None
            weight, own = self._weights.get(name) or self._weight(name, slope)
            constant += own
            if weight is not None:
                rows = added(rows, weight, slope)
            value = value.detach()
            numbers.append(torch.dot(value, known.shares) if value.ndim == 1 else torch.mv(value.t(), known.shares))
        self._keep(Record(known.parts, numbers))
        total = torch.dot(rows, known.shares)
        return total - constant if constant else total

    def _weighed(self, losses: Tensor, seen: dict[str, ConstraintRows]) -> Tensor:
        """Rows are added up before their mean is taken: fewer operations than two means and their sum."""
        rows, parts, constant = losses, [], 0.0
        for name, each in seen.items():
            if each.examples is not None:
                _, penalty, _ = self.core.exactly(name)
                limit = self.core.limit(name)
                calls = float(self.core.steps or 2 * (self.core.calls + 1))
                parts.append(self._tables[name].weighed(each.examples, float(penalty), float(limit), calls))
                continue
            if self.core.kinds[name].exact:
                parts += self._exactly(name, each)
                continue
            weight, own = self._weight(name, each.slope)
            constant += own
            if weight is None:
                continue
            if each.has_rows and rows.shape == each.slope.shape[:1] and rows.dtype == each.slope.dtype:
                rows = added(rows, weight, each.slope)
                continue
            mean = mean_of(each.slope) if each.has_rows else each.slope
            parts.append(weight * mean.mean() if isinstance(weight, float) else torch.dot(weight, mean.reshape(-1)))
        total = rows if rows.ndim == 0 else mean_of(rows) if rows.ndim == 1 else rows.mean()
        for part in parts:
            total = total + part
        return total - constant if constant else total

    def _weight(self, name: str, like: Tensor) -> tuple[Any, float]:
        """(the multiplier as a number or a flat tensor, None for 0; its product with the bound)"""
        if name not in self._weights:
            weight = self.core[name]
            constant = float(np.sum(weight * self.core.bounds[name]))
            if not np.any(weight):
                weight = None
            elif not isinstance(weight, float):
                weight = torch.as_tensor(weight.reshape(-1), dtype=like.dtype, device=like.device)
            self._weights[name] = weight, constant
        return self._weights[name]

    def _exactly(self, name: str, each: ConstraintRows) -> list[Tensor]:
        """An augmented term: a value without noise may weigh itself without bias."""
        if name not in self._weights:
            numbers = (*self.core.exactly(name), self.core.bounds[name])
            self._weights[name] = [
                torch.as_tensor(n, dtype=each.slope.dtype, device=each.slope.device) for n in numbers
            ]
            if not np.any(numbers[0]) and not np.any(numbers[1]):
                self._weights[name] = None
        if self._weights[name] is None:
            return []
        multiplier, penalty, limit, bound = self._weights[name]
        sign, inequality = self.core.constraints[name].sign, self.core.kinds[name].inequality
        weight = multiplier + penalty * sign * (each.value - bound)
        weight = torch.minimum(torch.maximum(weight, 0 * limit if inequality else -limit), limit)
        return [torch.sum(weight * sign * (each.slope - bound))]

    def update(self, values: Mapping[str, Any], objective: Any = None) -> dict[str, Any]:
        """Values without gradients, each a mean or (mean, standard error): of rollouts, or of a validation metric.

        As in the core. Where `lagrangian` is used too, they are taken in by its next call, and a constraint that has
        been given here is measured here alone: `lagrangian` then only weighs it.
        """
        self._arrive()
        pairs = self.core.pairs(values)
        self._by_update |= set(values)
        self._alike = None
        if not self._joined:
            return self.core.update(values, objective)
        self._told.update({name: list(pair) for name, pair in pairs.items()})
        self._waits = 0
        return self.core.multipliers

    def settle(self, closure: Closure, batches: Iterable[Any], most: int = 20) -> dict[str, Any]:
        """After training, onto the bounds, with means over all `batches` (a list, or a DataLoader); those means.

        The last batches of a loop know a value up to their noise only. Each step here is the shortest that ends the
        largest violation to first order: a pass over the batches with gradients, and one without. One that leads too
        far is taken back, and a quarter of it tried. Where all bounds are kept, nothing moves; nor where they cannot be
        reached so, with a warning. `closure(batch)` gives losses and
        values as for `lagrangian`; indexed ones are left out.
        """
        self._arrive()
        parameters = self._own()
        if not parameters or processes() > 1 or any(map(is_sharded, parameters)):
            raise ValueError(
                "settle moves the parameters of one process: give Multipliers(..., parameters=model), unsharded."
            )
        return settled(self.core, parameters, closure, batches, most)

    # --- what is known

    @property
    def constraints(self) -> dict[str, Any]:
        """By name."""
        return {**self.core.constraints, **{name: table.constraint for name, table in self._tables.items()}}

    def __getitem__(self, name: str) -> Any:
        self._arrive()
        return self._tables[name].multipliers if name in self._tables else self.core[name]

    @property
    def multipliers(self) -> dict[str, Any]:
        """By name, with L = f + sum y . value: >= 0 for AtMost, <= 0 for AtLeast."""
        return {name: self[name] for name in self.core.constraints}

    @property
    def values(self) -> dict[str, ValueEstimate]:
        """By name: level, trend and standard error."""
        self._arrive()
        return self.core.values

    @property
    def steps(self) -> int | None:
        """How many calls there will be."""
        return self.core.steps

    @steps.setter
    def steps(self, steps: int | None) -> None:
        self._arrive()
        self.core.steps = steps
        self._waits, self._alike = 0, None

    def observe(self) -> dict[str, float]:
        """Numbers worth plotting; they never feed back."""
        self._arrive()
        return self.core.observe()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next call needs. Its entries are always the same ones, as `torch.distributed.checkpoint`
        wants them, and the numbers are one text (JSON): any file takes them, and `torch.load(..., weights_only=True)`
        reads them."""
        self._arrive()
        own = {"joined": self._joined, "by_update": sorted(self._by_update), "told": dict(self._told)}
        numbers = {**self.core.state_dict(), **own, "next_look": self._next_look}
        tables = {name: own.multipliers.tolist() for name, own in self._tables.items()}
        return {"lariax": "Multipliers", "numbers": json.dumps({**numbers, "tables": tables})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, to the same bits; steps stay as they are here."""
        saved = json.loads(state["numbers"]) if "numbers" in state else state
        self.core.load_state_dict(saved)
        self._records.forget()
        self._weights, self._waits, self._alike = {}, 0, None
        self._joined, self._next_look = saved["joined"], saved.get("next_look", next_look(self.core.calls))
        self._by_update, self._told = set(saved["by_update"]), dict(saved["told"])
        for name, own in self._tables.items():
            own.load(saved["tables"][name])

    # --- inside

    def _seen(self, name: str, given: Any) -> ConstraintRows:
        if name in self._tables:
            rows = self._tables[name].seen(given)
            return ConstraintRows(self._tables[name].worst(rows), rows.slope, False, rows)
        value, slope = given if isinstance(given, Proxy) else (given, given)
        if not isinstance(value, Tensor) or not isinstance(slope, Tensor) or value.shape != slope.shape:
            raise TypeError(
                f"the values of constraint {name!r} must be a tensor, or a Proxy of two of one shape, found "
                f"{type(given).__name__}."
            )
        has_rows = value.ndim > 0 and not self.core.kinds[name].exact
        return ConstraintRows(value.detach(), slope, has_rows)

    def _look(self, losses: Tensor, seen: dict[str, ConstraintRows], shared: Any) -> dict[str, list[Tensor]]:
        """Products of gradients of two halves and squares of those of the whole, of the objective and of each name."""
        call = self._records.calls + 1
        if call < self._next_look or self._blind:
            return {}
        targets = self._targets(shared)
        if targets is None or not losses.requires_grad:
            return {}
        self._next_look = next_look(call)
        try:
            return self._looked(losses, seen, targets, shared is None)
        except RuntimeError as reason:  # graphs of compiled models can be used once only
            self._blind = True
            self.core._say(
                "alone",
                f"gradients could not be taken apart ({str(reason).splitlines()[0]}): sizes are compared by how values "
                "spread from now on. lagrangian(..., shared=logits) may do, with a tensor outside of what is compiled.",
            )
            return {}

    def _targets(self, shared: Any) -> list[Tensor] | None:
        """In what gradients are measured; the parameters as they are now."""
        if shared is not None:
            return [shared] if isinstance(shared, Tensor) else list(shared)
        found = self._own()
        if found and not any(map(is_sharded, found)):
            return found
        self._blind = True
        self.core._say(
            "alone",
            f"{'the parameters are sharded' if found else 'neither parameters= nor shared= is given'}: the sizes of "
            "loss and constraints are compared by how their values spread, which is less good than by their gradients. "
            "lagrangian(..., shared=logits) takes a tensor that both go through.",
        )
        return None

    def _own(self) -> list[Tensor]:
        given = self.parameters
        own = given.parameters() if isinstance(given, torch.nn.Module) else given or []
        return [parameter for parameter in own if parameter.requires_grad]

    def _looked(
        self, losses: Tensor, seen: dict[str, ConstraintRows], targets: list[Tensor], apart: bool
    ) -> dict[str, list[Tensor]]:
        objective = sizes_of(losses if losses.ndim else None, losses.mean(), targets, apart, needed=True)
        found = {}
        for name, each in seen.items():
            if not each.slope.requires_grad:
                continue
            if each.examples is not None:
                broken = each.examples.broken(self.core.kinds[name].inequality)
                if not bool(broken.detach().any()):
                    continue  # nothing to measure
                each = ConstraintRows(each.value, broken, True)
            flat = each.slope.reshape(len(each.slope) if each.has_rows else 1, -1)
            column = flat[:, self.core.looks(name) % max(flat.shape[1], 1)]  # of several, each in its turn
            own = sizes_of(column if each.has_rows else None, column.mean(), targets, apart)
            found[name] = [objective[0], own[0], objective[1], own[1]]
        return found

    def _record(
        self, losses: Tensor, seen: dict[str, ConstraintRows], looks: dict[str, list[Tensor]], apart: bool
    ) -> None:
        spread = self._blind and losses.ndim > 0 and losses.shape[0] > 1 and not looks
        parts: list[Part] = []
        numbers = [losses.detach().var() / len(losses)] if spread else []
        for name, each in seen.items():
            if name in self._by_update:
                continue
            value = each.value
            variance: float | None = 0.0 if self.core.kinds[name].exact else math.nan
            if each.has_rows:
                if spread and len(value) > 1:
                    numbers.append(value.var(dim=0) / len(value))
                    variance = None
                value = mean_of(value)
            numbers.append(value)
            parts.append((name, value.shape, variance))
        for found in looks.values():
            numbers += found
        told, self._told = self._told, {}
        record = Record(parts, numbers, list(looks), apart, told, spread)
        self._alike = self._likeness(losses, seen, record)
        self._keep(record)

    def _likeness(self, losses: Tensor, seen: dict[str, ConstraintRows], record: Record) -> Alike | None:
        plain = not record.spread and len(record.parts) == len(seen) and losses.ndim == 1 and is_quick(losses)
        if not plain or not all(
            each.has_rows and each.value.ndim < 3 and len(each.value) == len(losses) for each in seen.values()
        ):
            return None
        until = self._next_look if self.steps is None else min(self._next_look, self.steps)
        kind = losses.shape, losses.dtype, losses.device
        return Alike(kind, [each.value.shape for each in seen.values()], list(record.parts), until, shares(losses))

    def _keep(self, record: Record) -> None:
        """Most calls wait until a multiplier is to move; then all of them are sent to the core."""
        self._records.kept.append(record)
        is_last = self._records.calls == self.core.steps
        if self._waits > 0 and not record.told and not is_last:
            self._waits -= 1
        elif self._records.send():
            self._moved()
        if is_last:
            self._arrive()

    def _take_in(self) -> None:
        self._records.take_in()
        self._moved()

    def _moved(self) -> None:
        """The core knows more than before."""
        self._weights = {}
        self._waits = self.core.idle(name for name in self.core.constraints if name not in self._by_update)

    def _arrive(self) -> None:
        """Take in all that is known."""
        if self._records.under_way is not None:
            self._take_in()
        if self._records.kept:
            if not self._records.send():
                self._records.take_in()
            self._moved()


def _indexed(constraints: Any) -> dict[str, AbstractConstraint]:
    own = constraints.items() if isinstance(constraints, Mapping) else ()
    return {name: c for name, c in own if getattr(c, "indexed", None) is not None}
