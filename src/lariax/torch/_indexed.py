"""Constraints with a multiplier for each training example. Products need no pairs: its values are not random."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lariax.torch import _device
from lariax.torch._constraints import ClosureValues
from lariax.torch._passes import Choice, Passes, Piece
from lariax.tuned.rule import RuleState
from lariax.tuned.shape import violation

MoveLength = Callable[[int, Tensor, Tensor], Tensor | float]
"""(number of a constraint, residuals, visits) -> how far multipliers move."""

CURRENT, NEXT, WEIGHT, VISITS = range(4)
"""Rows of a table: y of the estimate, y to come, the weight at the last visit, the number of visits."""


class IndexedMultipliers:
    """Tables of multipliers, one entry an example, and the penalty of the estimate and of the one to come."""

    def __init__(self, passes: Passes, dtype: torch.dtype, device: torch.device) -> None:
        self.passes, self.constraints = passes, passes.constraints.indexed
        self.tables = [torch.zeros((4, c.indexed or 0), dtype=dtype, device=device) for c in self.constraints.values()]
        self.changed: list[Tensor | None] = [None] * len(self.tables)  # the examples in which y and the next y differ
        self.penalty = (0.0, 0.0)  # for CURRENT and NEXT
        self.size = 1.0  # about the mean of ||J_i||^2 over the examples

    def __bool__(self) -> bool:
        return bool(self.tables)

    def weights(self, seen: list[tuple[Tensor, Tensor]], which: int) -> list[Tensor]:
        """w = [y + rho r] for the examples of a piece."""
        weights = []
        for (residual, index), y, constraint in zip(seen, self.tables, self.constraints.values(), strict=True):
            weight = y[which][index] + self.penalty[which] * residual
            weights.append(weight.clamp(min=0) if constraint.inequality else weight)
        return weights

    def choice(self, weights: Tensor, which: int, pieces: list[Piece] | None = None) -> Choice:
        """The same weights for all rows, or those of the rows of each piece; and those of the examples."""
        if pieces is None or len(pieces) == 1:
            return lambda i, look: (weights, self.weights(look.indexed, which))
        return lambda i, look: (weights[pieces[i].rows], self.weights(look.indexed, which))

    def move(self, looks: list[Any], move: MoveLength) -> None:
        """y <- [y + move] for the examples of the batch; the old y belongs to the estimate until then."""
        for i, (constraint, (residual, index)) in enumerate(
            zip(self.constraints.values(), self._joined(looks), strict=True)
        ):
            y, changed = self.tables[i], self.changed[i]
            if changed is not None:
                y[CURRENT][changed] = y[NEXT][changed]
            y[VISITS][index] += 1
            weight = y[NEXT][index] + self.penalty[NEXT] * residual
            moved = y[NEXT][index] + move(i, residual, y[VISITS][index])
            for row, new in ((WEIGHT, weight), (NEXT, moved)):
                y[row][index] = new.clamp(min=0) if constraint.inequality else new
            self.changed[i] = index

    def follow(self, looks: list[ClosureValues], rows: int, s: RuleState) -> None:
        """The self-tuned rule's move, and the penalty after it. A batch has so many rows."""
        if not self:
            return
        waits = [y.shape[1] / rows for y in self.tables]  # calls between two visits to an example
        lengths = [min(1.0, float(s.theta) * wait) * self.penalty[NEXT] for wait in waits]
        self.move([look.indexed for look in looks], lambda i, residual, _: lengths[i] * residual)
        self.penalty = (self.penalty[NEXT], float(s.curvature.largest) / self.size)

    def signal(self, looks: list[ClosureValues]) -> float:
        """What the examples' violations would change of the gradient, squared."""
        squares, seen = 0.0, self._joined([look.indexed for look in looks])
        for constraint, y, (residual, index) in zip(self.constraints.values(), self.tables, seen, strict=True):
            left = violation(_device, constraint.inequality, y[NEXT][index], residual)
            squares += float(torch.mean(left**2))
        return self.penalty[NEXT] ** 2 * self.size * squares

    def swing(self, before: list[ClosureValues], now: list[ClosureValues]) -> float:
        """What new weights of examples may change of the gradient."""
        old, new = (
            self.weights(self._joined([look.indexed for look in looks]), which)
            for which, looks in ((CURRENT, before), (NEXT, now))
        )
        squares = sum(float(torch.mean((b - a) ** 2)) for a, b in zip(old, new, strict=True))
        return (self.size * squares) ** 0.5

    def _joined(self, seen: list[list[tuple[Tensor, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
        """Residuals and examples of the whole batch, constraint by constraint."""
        gather = self.passes.gather
        return [
            (gather(torch.cat([r for r, _ in each])), gather(torch.cat([index for _, index in each])))
            for each in zip(*seen, strict=True)
        ]

    def multipliers(self) -> dict[str, Tensor]:
        """By name, with the user's signs."""
        own = zip(self.constraints.items(), self.tables, strict=True)
        return {name: c.sign * y[WEIGHT] for (name, c), y in own}

    def export(self) -> dict[str, Any]:
        return {
            "indexed": {name: y.clone() for name, y in zip(self.constraints, self.tables, strict=True)},
            "changed": list(self.changed),
            "indexed_penalty": [float(number) for number in (*self.penalty, self.size)],
        }

    def check(self, saved: dict[str, Any]) -> None:
        counts = {name: y.shape[1] for name, y in saved["indexed"].items()}
        own = {name: c.indexed or 0 for name, c in self.constraints.items()}
        if list(counts.items()) != list(own.items()):
            raise ValueError(f"the state is of indexed constraints with {counts} examples, these have {own}.")

    def load(self, saved: dict[str, Any], here: Callable[[Tensor], Tensor]) -> None:
        self.tables = [here(y) for y in saved["indexed"].values()]
        self.changed = [None if c is None else here(c) for c in saved["changed"]]
        *penalty, self.size = saved["indexed_penalty"]
        self.penalty = penalty[0], penalty[1]
