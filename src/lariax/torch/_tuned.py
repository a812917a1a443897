"""The self-tuned method's numbers: its state, and the rules that turn it over."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from lariax.formulas import (
    Curvature,
    Filter,
    Shape,
    believable,
    changed,
    gain,
    lagged,
    leave_one_out,
    multiplier_bound,
    penalty_for,
    push,
    relieved,
    repelled,
    signed,
    step_for,
    storm,
    times,
    updated,
    variance_of_mean,
)
from lariax.torch import _device, _host
from lariax.torch._constraints import Seen
from lariax.torch._passes import Vector


class Tuned(NamedTuple):
    """The state on the host, as in the core."""

    constraints: Any  # u
    multipliers: Any  # y
    weights: Any  # w
    of_gradient: Filter
    of_constraints: Filter
    curvature: Curvature
    scale: Any
    force: Any
    shape: Shape
    backed_off: float = 0.0

    def is_finite(self) -> bool:
        return all(np.isfinite(leaf).all() for leaf in tree_leaves(self))

    def leaves(self) -> list[Tensor]:
        """All numbers, to be saved."""
        return [torch.as_tensor(np.array(leaf, np.float64)) for leaf in tree_leaves(self)]

    @classmethod
    def of(cls, leaves: list[Tensor]) -> "Tuned":
        numbers = [leaf.numpy() if leaf.ndim else np.float64(leaf) for leaf in leaves]
        return tree_unflatten(numbers, tree_structure(_TEMPLATE))


_FILTER = Filter(0.0, 0.0, 0.0, 0.0)
_CURVATURE = Curvature(0.0, 0.0, 0.0, 0.0, 0.0)
_TEMPLATE = Tuned(0, 0, 0, _FILTER, _FILTER, _CURVATURE, 0, 0, Shape(0, 0, 0, 0, 0), 0)


class Sent(NamedTuple):
    """Of the state what rows are turned over with, where they are."""

    constraints: Tensor
    multipliers: Tensor
    weights: Tensor
    scale: Tensor
    force: Tensor
    shape: Any


class Values(NamedTuple):
    """What follows from the constraint values of a batch."""

    constraints: Any
    multipliers: Any
    weights: Any
    spread: Any  # mean of the old values, variance of that mean, and that of the mean difference: one after the other
    each_weights: Any  # row by row


class Looked(NamedTuple):
    """What one call saw of a batch."""

    new: Tuned
    alpha: Any
    now: Vector  # gradients
    before: Vector
    now_square: Tensor  # still on the device
    before_square: Any
    present: list[Seen]


class Arriving:
    """Numbers on their way to the host, in double precision; those of a GPU in one transfer, that nothing waits for
    before they are asked for."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays, self.joined = arrays, None
        if isinstance(arrays[0], Tensor) and arrays[0].device.type != "cpu":
            self.joined = torch.cat([each.reshape(-1) for each in arrays]).double().to("cpu", non_blocking=True)
            self.arrival = torch.cuda.Event()
            self.arrival.record()

    def numbers(self) -> list[np.ndarray]:
        if self.joined is None:
            return [each.numpy().astype(np.float64) if isinstance(each, Tensor) else each for each in self.arrays]
        self.arrival.synchronize()
        parts = self.joined.split([each.numel() for each in self.arrays])
        return [part.numpy().reshape(each.shape) for part, each in zip(parts, self.arrays, strict=True)]


class Groups(NamedTuple):
    """Gradients of the Lagrangian for one batch, group by group, and their mean."""

    each: list[Vector]
    mean: Vector


Choice = Callable[[int, Seen], tuple[Tensor, list[Tensor]]]
"""(number of a piece, what was seen of it) -> weights of its rows and of its indexed constraints."""


@dataclass
class Rules:
    """The user's choices, what kind the constraints are, and the formulas with both."""

    step_size: float | None
    penalty: float | None
    gain_exponent: float | None
    population: int | None
    stiffened: bool  # by constraints that are not rows of the residuals
    dtype: torch.dtype
    xp: Any = _host  # the library whose arrays are turned over
    inequality: Any = None  # row by row, known after the first look
    random: Any = None
    several_inequalities: bool = False

    def __post_init__(self) -> None:
        info = torch.finfo(self.dtype)
        self.tiny, self.eps = float(info.tiny), float(info.eps)

    def lay_out(self, inequality: Tensor, random: Tensor) -> "Rules":
        """Know the rows. Returns the rules for where these are: on a GPU they are turned over there, and nothing that
        comes after has to wait for the host."""
        self.inequality, self.random = inequality.cpu().numpy(), random.cpu().numpy()
        self.several_inequalities = int(self.inequality.sum()) > 1
        return (
            self if inequality.device.type == "cpu" else replace(self, xp=_device, inequality=inequality, random=random)
        )

    def gain(self, filter: Filter, k: float) -> Any:
        if self.gain_exponent is None:
            return gain(filter)
        return (k + 1) ** -self.gain_exponent + 0 * filter.error

    def lengths(self, s: Tuned) -> tuple[float, float]:
        """eta and rho."""
        rho = 0.0
        if s.constraints.size:
            pushed = push(_host, s.shape, times(_host, s.shape.penalty, s.constraints))
            rho = penalty_for(_host, s.curvature, s.force, pushed, self.tiny)
            rho = rho if self.penalty is None else self.penalty * s.curvature.largest
        stiff = rho + (s.curvature.largest if self.stiffened else 0.0)
        eta = step_for(_host, s.curvature, s.scale, stiff, self.tiny)
        return float(eta if self.step_size is None else self.step_size), float(rho)

    def signed(self, weights: Any) -> Any:
        return signed(self.xp, self.inequality, weights)

    def others(self, each: Any) -> Any:
        """For each row the mean of the others."""
        others = leave_one_out(each)
        if self.population is not None:
            others = self.xp.where(self.random, repelled(others, each, self.population), others)
        return others

    def rows(self, residuals: Tensor) -> Any:
        """In double precision, in arrays of the library."""
        return (
            residuals.double() if self.xp is _device else residuals.numpy().astype(np.float64, order=_order(residuals))
        )

    def values(self, s: Tuned | Sent, c0: Any, c1: Any, alpha: Any, rho: float) -> Values:
        """Constraint values, multipliers and weights."""
        xp, each = self.xp, storm(c1, c0, s.constraints, alpha)
        constraints = xp.mean(each, axis=0)
        multipliers = self.signed(s.multipliers + s.scale * rho * times(xp, s.shape.dual, constraints))
        if self.several_inequalities:
            multipliers = relieved(xp, self.inequality, s.shape, multipliers)
        bound = multiplier_bound(xp, s.shape, multipliers, s.force, self.tiny)
        weights = self.signed(bound * s.multipliers + self.answer(s, self.others(each), rho))
        spread = variance_of_mean(xp, xp.concatenate([c0, c1 - c0], axis=1))
        return Values(
            constraints,
            bound * multipliers,
            xp.mean(weights, axis=0),
            xp.concatenate([xp.mean(c0, axis=0), spread], axis=0),
            weights,
        )

    def answer(self, s: Tuned | Sent, values: Any, rho: float) -> Any:
        """What a change of the constraint values does to the weights: the penalty's answer and the multiplier's."""
        return rho * (rows_times(s.shape.penalty, values) + s.scale * rows_times(s.shape.dual, values))

    def following(self, s: Tuned | Sent, c0: Any, c1: Any, rho: float) -> tuple[Any, Any]:
        """The old weights, where they would have followed the step; and with the expected move of the multipliers."""
        followed = self.answer(s, self.xp.mean(c1 - c0, axis=0), rho)
        expected = s.scale * rho * times(self.xp, s.shape.dual, s.constraints)
        return (
            changed(self.xp, self.inequality, s.weights, followed),
            changed(self.xp, self.inequality, s.weights, followed + expected),
        )

    def of_constraints(self, s: Tuned, spread: np.ndarray, alpha: Any, rate: float) -> Filter:
        """The filter of the constraint values, row by row; rounding is noise too."""
        old, (mean, noise, drift) = s.of_constraints, spread.reshape(3, -1)
        return updated(
            old,
            alpha,
            rate,
            noise=lagged(old.noise, noise + (self.eps * mean) ** 2, rate),
            drift=lagged(old.drift, drift, rate),
            innovation=believable(_host, old, (mean - s.constraints) ** 2),
        )


def _order(tensor: Tensor) -> Any:
    """Tall arrays column by column in memory: operations on them then have long loops."""
    return "F" if tensor.ndim == 2 and tensor.shape[0] > tensor.shape[1] else "C"


def rows_times(matrix: Any, rows: Any) -> Any:
    """Rows with a symmetric matrix, or with a diagonal; the order in memory stays."""
    if matrix.ndim < 2:
        return rows * matrix
    return rows @ matrix if isinstance(rows, Tensor) or rows.flags.c_contiguous else (matrix @ rows.T).T


def sum_of_squares(vector: Vector) -> Tensor:
    if len(vector) == 1:
        return torch.dot(vector[0].view(-1), vector[0].view(-1))
    return torch.stack(torch._foreach_norm(vector)).square().sum()
