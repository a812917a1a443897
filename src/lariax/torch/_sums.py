"""Sums over vectors like the parameters, in the coordinates of the metric: x = metric * z."""

import torch
from torch import Tensor

from lariax.torch._kernels import sum_of_squares
from lariax.torch._passes import Groups
from lariax.torch._space import Vector, minus


def square(gradient: Vector, metric: Vector | None) -> Tensor:
    """||gradient||^2."""
    return sum_of_squares(gradient if metric is None else [x * m for x, m in zip(gradient, metric, strict=True)])


def length(move: Vector, metric: Vector | None) -> Tensor:
    """||dx||^2."""
    return sum_of_squares(move if metric is None else [x / m for x, m in zip(move, metric, strict=True)])


def noise(halves: list[Vector], shares: list[float], metric: Vector | None) -> Tensor:
    """The variance of the mean over two halves of a batch, in all entries together."""
    return shares[0] * shares[1] * square(minus(halves[0], halves[1]), metric)


def measurement(
    point: Vector,
    dx: Vector,
    then: Groups,
    now: list[Groups],
    shares: list[float],
    metric: Vector | None,
    one_backward: bool,
) -> list[Tensor]:
    """The numbers of a `Measurement`, from gradients at x and, for four sets of weights, at x+."""
    fresh, fixed, follow, whole = now
    at_fixed, at_follow = minus(fixed.mean, then.mean), minus(follow.mean, then.mean)
    if one_backward:  # the estimate does not follow the moves, so all of a move is drift
        own, drift = noise(fresh.each, shares, metric), square(minus(whole.mean, then.mean), metric)
    else:
        moves = [minus(a, b) for a, b in zip(whole.each, then.each, strict=True)]
        own, drift = noise(then.each, shares, metric), noise(moves, shares, metric)
    along = torch.stack([torch.sum(a * b) for a, b in zip(dx, at_follow, strict=True)]).sum()
    squares = square(at_fixed, metric), along, square(at_follow, metric)
    return [own, length(dx, metric), length(point, metric), *squares, drift]
