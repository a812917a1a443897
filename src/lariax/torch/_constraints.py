"""Constraints by name, and their values as rows of one residual vector.

As in the core, r = sign (E[value] - bound), with r = 0 for an equality and r <= 0 for an inequality.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.oracle import Block, Layout

SHARED: Final = "shared"


@dataclass(frozen=True)
class AbstractConstraint:
    """The mean of the closure's values compared with `bound`: one number, or one for each entry of a row.

    Arguments:
        bound: what the mean is compared with.
        samples: None for a constraint of the parameters alone, whose values have no axis for the rows of a batch.
        indexed: the number of training examples, for a constraint that each of them has to keep by itself, with a
            multiplier of its own; the closure then gives `Indexed(values, examples)`.
    """

    bound: Any = 0.0
    samples: str | None = SHARED
    indexed: int | None = None

    sign: ClassVar[float]
    inequality: ClassVar[bool]
    relation: ClassVar[str]

    def __post_init__(self) -> None:
        name = type(self).__name__
        try:
            bound = torch.as_tensor(self.bound, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            bound = torch.tensor(torch.nan)
        if bound.ndim > 1 or not bool(torch.isfinite(bound).all()):
            raise ValueError(
                f"the bound of {name} must be one finite number or a vector of them, found {self.bound!r}."
            )
        if self.samples not in (SHARED, None):
            raise ValueError(f"samples= of {name} is left out, or None for no samples, found {self.samples!r}.")
        if self.indexed is not None and (type(self.indexed) is not int or self.indexed < 1):
            raise ValueError(f"indexed= of {name} is the number of training examples, found {self.indexed!r}.")
        if self.indexed is not None and (self.samples is None or bound.ndim):
            raise ValueError(f"{name}(indexed=...) has one bound, and one value for each row of a batch.")


class Equal(AbstractConstraint):
    """The mean of the values is `bound`, by default 0.

    >>> import lariax.torch as lt
    >>> balance = lt.Equal()
    """

    sign, inequality, relation = 1.0, False, "="


class AtMost(AbstractConstraint):
    """The mean of the values is at most `bound`, by default 0, entry by entry. Its multiplier is >= 0.

    >>> import lariax.torch as lt
    >>> gap = lt.AtMost(0.005)
    """

    sign, inequality, relation = 1.0, True, "<="


class AtLeast(AbstractConstraint):
    """The mean of the values is at least `bound`, by default 0, entry by entry. Its multiplier is <= 0.

    >>> import lariax.torch as lt
    >>> recall = lt.AtLeast(0.9)
    """

    sign, inequality, relation = -1.0, True, ">="


class Proxy(NamedTuple):
    """Values that have no useful gradient, and differentiable ones of the same shape whose gradient is taken.

    The multipliers see `values`, the parameters move along `surrogate`: best a function with a slope wherever the
    constraint may be violated, and bounded on the good side.

    >>> import torch, lariax.torch as lt
    >>> margin = torch.tensor([0.5, -1.0], requires_grad=True)
    >>> error = lt.Proxy((margin < 0).float(), torch.nn.functional.softplus(-margin))
    """

    values: Tensor
    surrogate: Tensor


class Indexed(NamedTuple):
    """Values of a constraint with a multiplier for each training example, and the numbers of the batch's examples.

    >>> import torch, lariax.torch as lt
    >>> seen = lt.Indexed(torch.tensor([0.1, -0.2]), torch.tensor([17, 4]))
    """

    values: Any  # a tensor, or a Proxy
    examples: Tensor


class ClosureValues(NamedTuple):
    """What the closure gave for one piece of a batch."""

    size: int
    loss: Tensor  # one number, or one a row
    residuals: Tensor  # (size, m), without a graph
    slopes: list[Tensor]  # what gradients are taken of, constraint by constraint, the indexed ones last
    indexed: list[tuple[Tensor, Tensor]]  # residuals and example numbers of the indexed constraints

    def without_graph(self) -> "ClosureValues":
        return ClosureValues(self.size, self.loss.detach(), self.residuals, [], self.indexed)


class Constraints:
    """The constraints of a problem; shapes are learned from the closure's first answer."""

    def __init__(self, constraints: Mapping[str, AbstractConstraint], dtype: torch.dtype, device: torch.device) -> None:
        if not isinstance(constraints, Mapping):
            raise TypeError(f"constraints must be a dictionary of names, found {type(constraints).__name__}.")
        for name, constraint in constraints.items():
            if not isinstance(constraint, AbstractConstraint):
                raise TypeError(
                    f"constraint {name!r} must be a lariax.torch.Equal, AtMost or AtLeast, found "
                    f"{type(constraint).__module__}.{type(constraint).__name__}."
                )
        self.named = {n: c for n, c in constraints.items() if c.indexed is None}
        self.indexed = {n: c for n, c in constraints.items() if c.indexed is not None}
        self.dtype, self.device = dtype, device
        self.layout = Layout(())
        self.inequality = self.random = torch.zeros(0, dtype=torch.bool, device=device)  # row by row
        self.bounds: Any = 0.0  # row by row, or of all,
        self.signs: Any = 1.0
        self.bounds_here: Any = 0.0  # the same on the host
        self.signs_here: Any = 1.0
        self.loss_by_row = False  # in the closure's last answer
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._constants: dict[Any, Tensor] = {}
        self._names = set(constraints)
        samples = [constraint.samples is not None for constraint in self.named.values()]
        self.has_pairs = any(samples)  # an unbiased product then needs two rows
        self.all_random = all(samples)
        self.has_inequalities = any(constraint.inequality for constraint in self.named.values())

    @property
    def names(self) -> list[str]:
        return [*self.named, *self.indexed]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The named constraints, but for the indexed ones."""
        return self.layout.blocks

    @property
    def rows(self) -> int:
        return self.layout.size

    def restore(self, shapes: dict[str, tuple[int, ...]], loss_by_row: bool) -> None:
        """As they were learned in an earlier run."""
        self.shapes, self.layout, self.loss_by_row = dict(shapes), Layout(()), loss_by_row
        if len(self.shapes) == len(self.named):
            self._lay_out()

    # --- reading an answer

    def read(self, answer: Any, count: int | None, *, graph: bool = True) -> ClosureValues:
        """The closure's answer for `count` rows (None: not known yet), checked."""
        loss, values = self._parts(answer)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the closure's loss must be a tensor, found {type(loss).__name__}.")
        if graph and not loss.requires_grad:
            raise RuntimeError(
                "the closure's loss has no gradient: it was computed under torch.no_grad(), detached, or from "
                "parameters that do not require one. Compute it from the model's output with gradients on."
            )
        if count is None:
            count = self._count(loss, values)
        self.loss_by_row = loss.ndim == 1
        if loss.ndim > 1 or (loss.ndim == 1 and loss.shape[0] != count):
            raise ValueError(
                f"the closure's loss has shape {tuple(loss.shape)} for a batch of {count} rows: return their mean, or "
                "one number a row."
            )
        learned = len(self.blocks) == len(self.named)
        try:
            return self._seen(loss, values, count, graph)
        except Exception:
            if not learned:  # nothing, from an answer that is refused
                self.shapes, self.layout = {}, Layout(())
            raise

    def _seen(self, loss: Tensor, values: Mapping[str, Any], count: int, graph: bool) -> ClosureValues:
        rows, slopes = [], []
        for name in self.named:
            value, slope = self._pair(name, values[name], graph)
            rows.append(self._rows(name, value, count))
            slopes.append(slope)
        if len(self.blocks) < len(self.named):
            self._lay_out()
        indexed = []
        for name, constraint in self.indexed.items():
            if not isinstance(values[name], Indexed):
                raise TypeError(
                    f"constraint {name!r} is indexed: the closure must return Indexed(values, examples) for it, found "
                    f"{type(values[name]).__name__}."
                )
            value, slope = self._pair(name, values[name].values, graph)
            examples = torch.as_tensor(values[name].examples, device=value.device)
            if value.numel() != count or examples.numel() != count:
                raise ValueError(
                    f"indexed constraint {name!r} has values of shape {tuple(value.shape)} and examples of shape "
                    f"{tuple(examples.shape)} for a batch of {count} rows: return one number of each for every row."
                )
            known = constraint.indexed or 0
            if examples.device.type == "cpu" and not 0 <= int(examples.min()) <= int(examples.max()) < known:
                raise ValueError(
                    f"constraint {name!r} has {known} examples, and the batch has numbers from {int(examples.min())} "
                    f"to {int(examples.max())}: they count from 0."
                )
            rest = constraint.sign * (value.detach().to(self.dtype).reshape(count) - float(constraint.bound))
            indexed.append((rest, examples.reshape(count)))
            slopes.append(slope)
        return ClosureValues(count, loss, self._residuals(rows, count), slopes, indexed)

    def _residuals(self, rows: list[Tensor], count: int) -> Tensor:
        """sign (value - bound), from the values of the constraints row by row."""
        if not rows:
            return torch.zeros((count, 0), dtype=self.dtype, device=self.device)
        joined = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
        if isinstance(self.bounds, Tensor) or self.bounds:
            joined = joined - self.bounds
        return joined if isinstance(self.signs, float) and self.signs > 0 else self.signs * joined

    def mean(self, rows: Tensor) -> Tensor:
        """The mean of rows of residuals; of a constraint without samples the value itself, free of rounding."""
        mean = rows.mean(dim=0)
        return mean if self.all_random else torch.where(self.random, mean, rows[0])

    def slope_means(self, seen: ClosureValues) -> Tensor:
        """Means over the rows of what gradients are taken of, less the bounds, which have none."""
        parts = []
        for block, slope in zip(self.blocks, seen.slopes, strict=False):
            mean = slope.mean(dim=0) if block.random else slope
            parts.append(block.sign * mean.reshape(-1).to(self.dtype))
        return torch.cat(parts)

    def mean_loss(self, seen: ClosureValues, rows: int) -> Tensor:
        """The piece's part of the mean over `rows` rows."""
        loss = seen.loss.detach()
        if loss.ndim == 1 and loss.dtype is self.dtype:
            return torch.dot(loss, self._of_loss(loss, 1 / rows))
        loss = loss if loss.ndim == 0 else loss.mean()
        return loss if seen.size == rows else loss * (seen.size / rows)

    def of_values(self, weights: Any, total: float) -> Any:
        """Weights of residuals as those of the closure's values in a mean over `total` rows; arrays or tensors."""
        return weights * ((self.signs if isinstance(weights, Tensor) else self.signs_here) / total)

    def cotangents(
        self, seen: ClosureValues, weights: Tensor, indexed: list[Tensor], total: float, factors: Tensor | None = None
    ) -> tuple[Any, Any]:
        """(outputs, weights of their entries) for the gradient of  (sum of f + r . w over the piece's rows) / total,
        where each row may count as often as `factors` say: as many times as there are rows, in all.

        `weights` has one row for all rows of the piece, or one for each: w `of_values`.
        """
        of_loss = self._of_loss(seen.loss, (seen.size if seen.loss.ndim == 0 else 1) / total)
        each = [of_loss if factors is None or of_loss.ndim == 0 else (factors * of_loss).to(of_loss.dtype)]
        for block, slope in zip(self.blocks, seen.slopes[: len(self.blocks)], strict=True):
            part = weights if block.size == weights.shape[-1] else weights[..., block.rows]
            if block.random or part.ndim == 2:
                part = part if part.ndim == 2 else part.expand(seen.size, block.size)
                part = part if factors is None else part * factors[:, None]
            if not block.random:
                part = part * seen.size if part.ndim == 1 else part.sum(dim=0)
            part = part if part.shape == slope.shape else part.reshape(slope.shape)
            each.append(part if part.dtype is slope.dtype else part.to(slope.dtype))
        for constraint, slope, own in zip(self.indexed.values(), seen.slopes[len(self.blocks) :], indexed, strict=True):
            own = own * (constraint.sign / total) if factors is None else own * factors * (constraint.sign / total)
            each.append(own.reshape(slope.shape).to(slope.dtype))
        return [seen.loss, *seen.slopes], each

    def _of_loss(self, loss: Tensor, value: float) -> Tensor:
        key = (tuple(loss.shape), value, loss.dtype)
        if key not in self._constants:
            if len(self._constants) > 64:
                self._constants.clear()
            self._constants[key] = torch.full_like(loss, value, requires_grad=False)
        return self._constants[key]

    def by_name(self, multipliers: Tensor) -> dict[str, Tensor]:
        """Multipliers of the residuals with the user's signs and shapes: L = f + sum y . value."""
        y = self.signs * torch.where(self.inequality, multipliers.clamp(min=0), multipliers)
        return self.layout.named(torch.where(y == 0, 0, y))  # no negative zeros

    def rows_named(self, named: Mapping[str, Any]) -> np.ndarray:
        """Multipliers by name, with the user's signs, as those of the residuals; 0 where left out."""
        return np.asarray(self.signs_here * self.layout.unnamed(np, named, float))

    def values_by_name(self, residuals: Tensor) -> dict[str, Tensor]:
        """Residuals in the user's own units and shapes."""
        return self.layout.named(self.signs * residuals + self.bounds)

    # --- inside

    def _parts(self, answer: Any) -> tuple[Tensor, Mapping[str, Any]]:
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], (dict, Mapping))):
            found = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
            raise TypeError(f"the closure must return (loss, {{name: values, ...}}), found {found}.")
        loss, values = answer
        if values.keys() != self._names:
            unknown, missing = sorted(set(values) - self._names), sorted(self._names - set(values))
            what = f"has values for the unknown {unknown}" if unknown else f"has no values for {missing}"
            raise ValueError(
                f"the closure {what}; the optimizer's constraints are {self.names}. Use the same names in both places."
            )
        return loss, values

    def _count(self, loss: Tensor, values: Mapping[str, Any]) -> int:
        if loss.ndim == 1:
            return loss.shape[0]
        for name, constraint in {**self.named, **self.indexed}.items():
            value = values[name].values if isinstance(values[name], Indexed | Proxy) else values[name]
            value = value.values if isinstance(value, Proxy) else value
            if constraint.samples is not None and isinstance(value, Tensor) and value.ndim:
                return int(value.shape[0])
        return 1

    def _pair(self, name: str, given: Any, graph: bool) -> tuple[Tensor, Tensor]:
        if isinstance(given, Indexed):
            raise TypeError(
                f"the values of constraint {name!r} are Indexed: declare it with indexed=, the number of training "
                "examples."
            )
        value, slope = given if isinstance(given, Proxy) else (given, given)
        if not isinstance(value, Tensor) or not isinstance(slope, Tensor):
            raise TypeError(f"constraint {name!r} must be a tensor or a Proxy of two, found {type(given).__name__}.")
        if value.shape != slope.shape:
            raise ValueError(
                f"the surrogate of {name!r} has shape {tuple(slope.shape)} and its values {tuple(value.shape)}: both "
                "need one value a row."
            )
        if graph and not slope.requires_grad:
            raise RuntimeError(
                f"the values of constraint {name!r} have no gradient. If they are not differentiable, return "
                "Proxy(values, surrogate) with a differentiable surrogate; otherwise do not detach them."
            )
        return value, slope

    def _check_rows(self, name: str, value: Tensor, count: int) -> None:
        if value.ndim == 0 or value.ndim > 2 or value.shape[0] != count:
            raise ValueError(
                f"constraint {name!r} has values of shape {tuple(value.shape)} for a batch of {count} rows: return one "
                f"value (or one vector) for each row, not their mean. A constraint that does not depend on the batch "
                "is declared with samples=None."
            )

    def _rows(self, name: str, value: Tensor, count: int) -> Tensor:
        """The values of a constraint as (rows of the batch, entries), without a graph."""
        random = self.named[name].samples is not None
        if random:
            self._check_rows(name, value, count)
        shape = tuple(value.shape[1:] if random else value.shape)
        if self.shapes.setdefault(name, shape) != shape:
            raise ValueError(
                f"constraint {name!r} had {self.shapes[name] or 'one value'} a row before and has "
                f"{shape or 'one value'} now: the number of constraints cannot change during a run."
            )
        rows = value.detach()
        rows = rows if rows.dtype is self.dtype else rows.to(self.dtype)
        if random:
            return rows if rows.ndim == 2 else rows.reshape(count, -1)
        return rows.reshape(1, -1).expand(count, rows.numel())

    def _lay_out(self) -> None:
        bounds = {
            name: torch.as_tensor(kind.bound, dtype=torch.float64).cpu().numpy() for name, kind in self.named.items()
        }
        for name, bound in bounds.items():
            if bound.ndim and bound.shape != self.shapes[name]:
                raise ValueError(
                    f"constraint {name!r} has {self.shapes[name] or 'one value'} a row, but its bound has shape "
                    f"{bound.shape}. Give one bound for all entries, or one for each."
                )
        sources = {name: None if constraint.samples is None else 0 for name, constraint in self.named.items()}
        self.layout = Layout.of(self.named, self.shapes, sources)
        self.inequality, self.random = (
            torch.from_numpy(flags).to(self.device) for flags in (self.layout.inequality, self.layout.random)
        )
        self.bounds, self.bounds_here = self._entries(self.layout.unnamed(np, bounds, float))
        self.signs, self.signs_here = self._entries(self.layout.signs)

    def _entries(self, values: np.ndarray) -> tuple[Any, Any]:
        """One value a row, on the device and on the host; one number, which is faster, where all are the same."""
        if len(set(values.tolist())) == 1:
            return float(values[0]), float(values[0])
        return torch.from_numpy(values).to(self.device, self.dtype), values
