"""The self-tuned method's state on the host, and what it learns from a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from lariax.formulas import Curvature, Filter, Shape
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

    def leaves(self) -> list[Tensor]:
        """All numbers, to be saved."""
        return [torch.as_tensor(np.array(leaf, np.float64)) for leaf in tree_leaves(self)]

    @classmethod
    def of(cls, leaves: list[Tensor]) -> "Tuned":
        numbers = [leaf.numpy() if leaf.ndim else float(leaf) for leaf in leaves]
        return tree_unflatten(numbers, tree_structure(_TEMPLATE))


class Groups(NamedTuple):
    """Gradients of the Lagrangian for one batch, group by group, and their mean."""

    each: list[Vector]
    mean: Vector


class Values(NamedTuple):
    """What follows from the constraint values of a batch."""

    constraints: np.ndarray
    multipliers: np.ndarray
    each_weights: np.ndarray
    weights: np.ndarray
    following: np.ndarray  # the old weights, where they would have followed the step
    of_constraints: Filter
    alpha: Any


Choice = Callable[[int, Seen], tuple[Tensor, list[Tensor]]]
"""(number of a piece, what was seen of it) -> weights of its rows and of its indexed constraints."""


_FILTER = Filter(0.0, 0.0, 0.0, 0.0)
_TEMPLATE = Tuned(
    0.0, 0.0, 0.0, _FILTER, _FILTER, Curvature(0.0, 0.0, 0.0, 0.0, 0.0), 0.0, 0.0, Shape(0, 0, 0, 0, 0), 0
)


def rows_times(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows with a symmetric matrix, or with a diagonal."""
    return rows @ matrix if matrix.ndim == 2 else rows * matrix


def sum_of_squares(vector: Vector) -> Tensor:
    if len(vector) == 1:
        return torch.dot(vector[0].view(-1), vector[0].view(-1))
    return torch.stack(torch._foreach_norm(vector)).square().sum()
