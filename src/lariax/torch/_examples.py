"""Constraints of `Multipliers` with a multiplier for each training example."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.torch._constraints import AbstractConstraint, Indexed, Proxy
from lariax.torch._processes import processes
from lariax.tuned.pressure import visit_share


class ExampleRows(NamedTuple):
    """The examples of a batch: r = 0 or r <= 0 for each."""

    residual: Tensor
    slope: Tensor  # whose gradient is taken, less the bound, with the sign of the residual
    which: Tensor  # their numbers

    def broken(self, inequality: bool) -> Tensor:
        """The slopes of those that are not kept: what their multipliers will be measured against."""
        return self.slope * (self.residual > 0) if inequality else self.slope * self.residual.sign()


class ExampleMultipliers:
    """One constraint's table, one multiplier an example. The value of one example has no noise, so that an augmented
    Lagrangian serves: w = [y + penalty r], and y <- [y + a share of penalty r] when an example is visited.
    """

    def __init__(self, name: str, constraint: AbstractConstraint) -> None:
        self.name, self.constraint = name, constraint
        self.table: Tensor | None = None

    @property
    def stand_in(self) -> AbstractConstraint:
        """What the core follows: the batch's largest violation, for a penalty and a limit."""
        return dataclasses.replace(self.constraint, indexed=None, samples=None)

    def seen(self, given: Any) -> ExampleRows:
        if not isinstance(given, Indexed):
            raise TypeError(
                f"constraint {self.name!r} is indexed: its values are Indexed(values, examples), found "
                f"{type(given).__name__}."
            )
        if processes() > 1:
            raise NotImplementedError(
                f"constraint {self.name!r} is indexed: tables of examples are kept by one process only. Use "
                "lariax.torch.TrackedLagrangian with several."
            )
        value, slope = given.values if isinstance(given.values, Proxy) else (given.values, given.values)
        index, known = torch.as_tensor(given.examples, device=value.device), self.constraint.indexed or 0
        if value.ndim != 1 or slope.shape != value.shape or index.shape != value.shape:
            raise ValueError(
                f"indexed constraint {self.name!r} has values of shape {tuple(value.shape)} and examples of shape "
                f"{tuple(index.shape)}: give one number of each for every row."
            )
        if index.device.type == "cpu" and not 0 <= int(index.min()) <= int(index.max()) < known:
            raise ValueError(
                f"constraint {self.name!r} has {known} examples, and the batch has numbers from {int(index.min())} to "
                f"{int(index.max())}: they count from 0."
            )
        sign, bound = self.constraint.sign, float(self.constraint.bound)
        return ExampleRows(sign * (value.detach() - bound), sign * (slope - bound), index)

    def worst(self, rows: ExampleRows) -> Tensor:
        """The value of the example that is farthest beyond its bound; the bound, if all keep it."""
        size = rows.residual.clamp(min=0) if self.constraint.inequality else rows.residual.abs()
        return float(self.constraint.bound) + self.constraint.sign * size.max()

    def weighed(self, rows: ExampleRows, penalty: float, limit: float, calls: float) -> Tensor:
        """Their part of the Lagrangian; multipliers move if gradients are on. `calls`: how many there will be."""
        if self.table is None:
            self.table = rows.residual.new_zeros(self.constraint.indexed or 0)
        self.table = self.table.to(rows.residual)
        low = 0.0 if self.constraint.inequality else -limit
        pull = penalty * rows.residual
        own = self.table[rows.which]
        if torch.is_grad_enabled():
            share = visit_share(len(self.table) / len(own), calls)
            self.table[rows.which] = (own + share * pull).clamp(low, limit)
        return torch.mean((own + pull).clamp(low, limit) * rows.slope)

    def load(self, multipliers: list[float]) -> None:
        self.table = torch.tensor(multipliers, dtype=torch.float64) * self.constraint.sign

    @property
    def multipliers(self) -> Any:
        """With the user's sign, as an array."""
        if self.table is None:
            return np.zeros(self.constraint.indexed or 0)
        return self.constraint.sign * self.table.double().cpu().numpy() + 0.0
