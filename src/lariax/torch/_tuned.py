"""The self-tuned method's numbers on the host: its state, and the rules that turn it over."""

from collections.abc import Callable
from dataclasses import dataclass
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
from lariax.torch import _host
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


class Values(NamedTuple):
    """What follows from the constraint values of a batch."""

    constraints: np.ndarray
    multipliers: np.ndarray
    each_weights: np.ndarray
    weights: np.ndarray


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

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors, self.joined = tensors, None
        if tensors[0].device.type != "cpu":
            self.joined = torch.cat([each.reshape(-1) for each in tensors]).double().to("cpu", non_blocking=True)
            self.arrival = torch.cuda.Event()
            self.arrival.record()

    def numbers(self) -> list[np.ndarray]:
        """Tall arrays column by column in memory: operations on them then have long loops."""
        if self.joined is None:
            return [each.numpy().astype(np.float64, order=_order(each)) for each in self.tensors]
        self.arrival.synchronize()
        counts = np.cumsum([each.numel() for each in self.tensors])[:-1]
        parts = zip(np.split(self.joined.numpy(), counts), self.tensors, strict=True)
        return [np.array(part.reshape(each.shape), order=_order(each)) for part, each in parts]


def _order(tensor: Tensor) -> Any:
    return "F" if tensor.ndim == 2 and tensor.shape[0] > tensor.shape[1] else "C"


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

    inequality = random = np.zeros(0, bool)  # row by row, known after the first look

    def __post_init__(self) -> None:
        info = torch.finfo(self.dtype)
        self.tiny, self.eps = float(info.tiny), float(info.eps)

    def lay_out(self, inequality: Tensor, random: Tensor) -> None:
        self.inequality, self.random = inequality.cpu().numpy(), random.cpu().numpy()
        self.several_inequalities = int(self.inequality.sum()) > 1

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

    def signed(self, weights: np.ndarray) -> np.ndarray:
        return signed(_host, self.inequality, weights)

    def others(self, each: np.ndarray) -> np.ndarray:
        """For each row the mean of the others."""
        others = leave_one_out(each)
        if self.population is not None:
            others = np.where(self.random, repelled(others, each, self.population), others)
        return others

    def values(self, s: Tuned, c0: np.ndarray, c1: np.ndarray, alpha: Any, rho: float) -> Values:
        """Constraint values, multipliers and weights."""
        each = storm(c1, c0, s.constraints, alpha)
        constraints = _host.mean(each, axis=0)
        multipliers = self.signed(s.multipliers + s.scale * rho * times(_host, s.shape.dual, constraints))
        if self.several_inequalities:
            multipliers = relieved(_host, self.inequality, s.shape, multipliers)
        bound = multiplier_bound(_host, s.shape, multipliers, s.force, self.tiny)
        weights = self.signed(bound * s.multipliers + self.answer(s, self.others(each), rho))
        return Values(constraints, bound * multipliers, weights, _host.mean(weights, axis=0))

    def answer(self, s: Tuned, values: np.ndarray, rho: float) -> np.ndarray:
        """What a change of the constraint values does to the weights: the penalty's answer and the multiplier's."""
        return rho * (rows_times(s.shape.penalty, values) + s.scale * rows_times(s.shape.dual, values))

    def following(self, s: Tuned, c0: np.ndarray, c1: np.ndarray, rho: float) -> np.ndarray:
        """The old weights, where they would have followed the step."""
        moved = s.weights + self.answer(s, _host.mean(c1 - c0, axis=0), rho)
        return np.where(self.inequality & (s.weights <= 0), 0, moved)

    def of_constraints(self, s: Tuned, c0: np.ndarray, c1: np.ndarray, alpha: Any, rate: float) -> Filter:
        """The filter of the constraint values, row by row; rounding is noise too."""
        old, mean, m = s.of_constraints, _host.mean(c0, axis=0), c0.shape[1]
        variance = variance_of_mean(_host, np.concatenate([c0, c1 - c0], axis=1))
        return updated(
            old,
            alpha,
            rate,
            noise=lagged(old.noise, variance[:m] + (self.eps * mean) ** 2, rate),
            drift=lagged(old.drift, variance[m:], rate),
            innovation=believable(_host, old, (mean - s.constraints) ** 2),
        )


def rows_times(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows with a symmetric matrix, or with a diagonal; the order in memory stays."""
    if matrix.ndim < 2:
        return rows * matrix
    return rows @ matrix if rows.flags.c_contiguous else (matrix @ rows.T).T


def sum_of_squares(vector: Vector) -> Tensor:
    if len(vector) == 1:
        return torch.dot(vector[0].view(-1), vector[0].view(-1))
    return torch.stack(torch._foreach_norm(vector)).square().sum()
