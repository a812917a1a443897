"""The self-tuned method's numbers: its state, and the rules that turn it over."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from lariax.formulas import (
    Curvature,
    Curved,
    Filter,
    Shape,
    believable,
    changed,
    gain,
    growths,
    lagged,
    least_weights,
    leave_one_out,
    multiplier_bound,
    penalty_for,
    push,
    repelled,
    steepened,
    step_for,
    storm,
    times,
    updated,
    variance_of_mean,
)
from lariax.torch import _device, _kernels
from lariax.torch._constraints import Seen
from lariax.torch._passes import Vector
from lariax.tuned import host as _host


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
    bends: Any  # the diagonal of the curvature in the coordinates of the metric; empty: not wanted
    backed_off: float = 0.0
    jumps: float = 0.0

    def backed(self) -> "Tuned":
        """After a step that was taken back: the next one is shorter."""
        return self._replace(scale=max(self.scale / 4, 1e-8), backed_off=self.backed_off + 1)

    def in_metric(self, change: np.ndarray, seen: Curved, tiny: float) -> "Tuned":
        """In coordinates that gradients are `change` times as long in, entry by entry, with what was seen before."""
        size, growth = growths(np, change, seen)
        return self._replace(
            of_gradient=Filter(*(value * size for value in self.of_gradient)),
            curvature=steepened(np, self.curvature.in_metric(growth), growth * seen.largest, tiny),
            force=self.force * size,
            shape=self.shape._replace(jacobian=self.shape.jacobian * change),
        )

    def is_finite(self) -> bool:
        return all(np.isfinite(leaf).all() for leaf in tree_leaves(self))

    def leaves(self) -> list[Tensor]:
        """All numbers, to be saved."""
        return [torch.as_tensor(np.array(leaf, np.float64)) for leaf in tree_leaves(self)]

    @classmethod
    def of(cls, leaves: list[Tensor]) -> "Tuned":
        numbers = [leaf.cpu().numpy() if leaf.ndim else np.float64(leaf) for leaf in leaves]
        tuned = tree_unflatten(numbers, tree_structure(_TEMPLATE))
        return tuned._replace(shape=tuned.shape._replace(coupled=tuned.shape.coupled > 0))


_FILTER = Filter(0.0, 0.0, 0.0, 0.0)
_CURVATURE = Curvature(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_TEMPLATE = Tuned(0, 0, 0, _FILTER, _FILTER, _CURVATURE, 0, 0, Shape(0, 0, (0, 0), 0, 0, 0, 0, 0), 0, 0, 0)


class Sent(NamedTuple):
    """Of the state what rows are turned over with, where they are; and what else goes with them."""

    constraints: Any
    multipliers: Any
    weights: Any
    gains: Any  # of the values
    scale: Any
    force: Any
    rho: Any
    shape: Shape


class Spread(NamedTuple):
    """What a batch says about its constraint values, row by row."""

    mean: Any  # of the values at the previous point,
    noise: Any  # the variance of this mean,
    drift: Any  # and that of the mean difference


class Values(NamedTuple):
    """What follows from the constraint values of a batch."""

    constraints: Any
    multipliers: Any
    weights: Any
    spread: Spread
    each_weights: Any  # row by row


class Moved(NamedTuple):
    """How far a move went."""

    eta: float
    rho: float
    reach: float  # dx = -reach * estimate in it; 0: not so, for sets, groups or low precision
    square: Any = None  # ||estimate||^2, where it was summed in passing


class Looked(NamedTuple):
    """What one call saw of a batch."""

    old: Tuned
    new: Tuned
    alpha: Any
    rate: float
    now: Vector  # gradients
    before: Vector
    present: list[Seen]
    now_square: Tensor  # still on the device
    limit: float  # of now_square; -1 where numbers are not finite
    explained: float  # of ||now - before||

    def numbers(self) -> "Looked":
        """Without the vectors, to be kept."""
        return self._replace(now=[], before=[], present=[])


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
            return [_number(each) if isinstance(each, Tensor) else each for each in self.arrays]
        self.arrival.synchronize()
        parts = np.split(self.joined.numpy(), np.cumsum([each.numel() for each in self.arrays[:-1]]))
        return [part if each.ndim else part[0] for part, each in zip(parts, self.arrays, strict=True)]


class UnderWay(NamedTuple):
    """A step of which the host does not know yet whether it was sound, nor the sums over its vectors."""

    told: Arriving
    seen: Looked
    moves: list[Moved]  # if it was, and if not


@dataclass
class Rules:
    """The user's choices, what kind the constraints are, and the formulas with both."""

    step_size: float | None
    penalty: float | None
    gain_exponent: float | None
    population: int | None
    stiffened: bool  # by constraints that are not rows of the residuals
    dtype: torch.dtype
    on_host: bool = True  # where arrays are turned over
    inequality: Any = None  # row by row, known after the first look
    random: Any = None
    least: Any = None  # weight of each

    def __post_init__(self) -> None:
        info = torch.finfo(self.dtype)
        self.tiny, self.eps = float(info.tiny), float(info.eps)

    def lay_out(self, inequality: Tensor, random: Tensor) -> "Rules":
        """Know the rows. Returns the rules for where these are: on a GPU they are turned over there, and nothing that
        comes after has to wait for the host."""
        self.inequality, self.random = inequality.cpu().numpy(), random.cpu().numpy()
        self.least = least_weights(np, self.inequality)
        return self if inequality.device.type == "cpu" else self.on_a_device(inequality, random)

    def on_a_device(self, inequality: Tensor, random: Tensor) -> "Rules":
        least = least_weights(torch, inequality)
        return replace(self, on_host=False, inequality=inequality, random=random, least=least)

    @property
    def xp(self) -> Any:
        """The library of the arrays."""
        return _host if self.on_host else _device

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
        return self.xp.maximum(weights, self.least)

    def others(self, each: Any) -> Any:
        """For each row the mean of the others."""
        others = leave_one_out(each)
        if self.population is not None:
            others = self.xp.where(self.random, repelled(others, each, self.population), others)
        return others

    def rows(self, residuals: Tensor) -> Any:
        """In double precision, in arrays of the library."""
        if self.on_host:
            return residuals.numpy().astype(np.float64, order=_order(residuals))
        return residuals.double()

    def values(self, s: Sent, c0: Any, c1: Any) -> Values:
        """Constraint values, multipliers and weights."""
        xp, each = self.xp, storm(c1, c0, s.constraints, s.gains)
        constraints = xp.mean(each, axis=0)
        multipliers = self.signed(s.multipliers + s.scale * s.rho * times(xp, s.shape.dual, constraints))
        bound = multiplier_bound(xp, s.shape, multipliers, s.force, self.tiny)
        weights = self.signed(bound * s.multipliers + self.answer(s, self.others(each)))
        mean, moves = xp.mean(c0, axis=0), c1 - c0
        spread = Spread(mean, variance_of_mean(xp, c0, mean), variance_of_mean(xp, moves))
        return Values(constraints, bound * multipliers, xp.mean(weights, axis=0), spread, weights)

    def answer(self, s: Sent, values: Any) -> Any:
        """What a change of the constraint values does to the weights: the penalty's answer and the multiplier's."""
        return rows_times(s.rho * (s.shape.penalty + s.scale * s.shape.dual), values)

    def following(self, s: Sent, c0: Any, c1: Any) -> tuple[Any, Any]:
        """The old weights, where they would have followed the step; and with the expected move of the multipliers."""
        followed = self.answer(s, self.xp.mean(c1 - c0, axis=0))
        expected = s.scale * s.rho * times(self.xp, s.shape.dual, s.constraints)
        return (
            changed(self.xp, self.inequality, s.weights, followed),
            changed(self.xp, self.inequality, s.weights, followed + expected),
        )

    def of_constraints(self, s: Tuned, spread: Spread, alpha: Any, rate: float) -> Filter:
        """The filter of the constraint values, row by row; rounding is noise too."""
        old, (mean, noise, drift) = s.of_constraints, spread
        return updated(
            old,
            alpha,
            rate,
            noise=lagged(old.noise, noise + (self.eps * mean) ** 2, rate),
            drift=lagged(old.drift, drift, rate),
            innovation=believable(_host, old, (mean - s.constraints) ** 2),
        )


def _number(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.ndim else np.float64(tensor.item())


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
        return _kernels.square(vector[0])
    return torch.stack(torch._foreach_norm(vector)).square().sum()
