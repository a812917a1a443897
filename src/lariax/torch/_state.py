"""What the self-tuned optimizer keeps from call to call, and how it is saved."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from lariax.torch._constraints import ClosureValues
from lariax.torch._space import Vector
from lariax.torch._transfer import Transfer
from lariax.tuned.averaging import Averaging
from lariax.tuned.curvature import Curvature
from lariax.tuned.filter import Filter
from lariax.tuned.rule import RuleState, Turned
from lariax.tuned.shape import PenaltyShape


class Move(NamedTuple):
    """How far a move went."""

    eta: float
    rho: float
    reach: float  # dx = -reach * estimate in it; 0: not so, for sets, groups or low precision
    square: Any = None  # ||estimate||^2, where it was summed in passing


class Evaluation(NamedTuple):
    """What one call saw of a batch."""

    old: RuleState
    turned: Turned
    fresh: Vector  # gradients at the current point
    stale: Vector  # and at the previous one
    present: list[ClosureValues]
    square: Tensor  # ||fresh||^2, still on the device
    limit: float  # of it; -1 where numbers are not finite
    measured: bool  # whether it was looked at in halves

    def numbers(self) -> "Evaluation":
        """Without the vectors, to be kept."""
        return self._replace(fresh=[], stale=[], present=[])


class Pending(NamedTuple):
    """A step of which the host does not know yet whether it was good, nor the sums over its vectors."""

    sums: Transfer
    evaluation: Evaluation
    moves: list[Move]  # if it was, and if not


_FILTER = Filter(0.0, 0.0, 0.0, 0.0)
_CURVATURE = Curvature(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_LIKE = RuleState(0, 0, 0, _FILTER, _FILTER, _CURVATURE, 0, 0, PenaltyShape(0, 0, (0, 0), 0, 0, 0, 0, 0), 0, 0, 0, 0)
_AVERAGING = _LIKE._replace(shape=_LIKE.shape._replace(scatter=0), averaging=Averaging(0, 0, 0, 0, 0, 0))


def is_finite(state: RuleState) -> bool:
    return all(leaf is None or np.isfinite(leaf).all() for leaf in tree_leaves(state))


def numbers_of(s: RuleState) -> dict[str, float]:
    """Those worth plotting."""
    return {
        "curvature": float(s.curvature.largest),
        "scale": float(s.theta),
        "gradient_error": float(np.sqrt(s.gradient_filter.error)),
        "constraint_error": float(np.sqrt(np.sum(s.constraint_filter.error))),
        "backed_off": float(s.backed_off),
        "jumps": float(s.jumps),
        "averaged": float(s.averaging.count) if s.averaging else 0.0,  # iterates, at kinks
    }


def leaves_of(state: RuleState) -> list[Tensor]:
    """All numbers, to be saved."""
    state = state if state.diagonal is not None else state._replace(diagonal=np.zeros(0))
    return [torch.as_tensor(np.array(leaf, np.float64)) for leaf in tree_leaves(state)]


def state_of(leaves: list[Tensor]) -> RuleState:
    """From `leaves_of`."""
    numbers = [leaf.cpu().numpy() if leaf.ndim else np.float64(leaf) for leaf in leaves]
    structures = {tree.num_leaves: tree for tree in map(tree_structure, (_LIKE, _AVERAGING))}
    s = tree_unflatten(numbers, structures[len(numbers)])
    diagonal = s.diagonal if s.diagonal.size else None
    return s._replace(shape=s.shape._replace(coupled=s.shape.coupled > 0), diagonal=diagonal)
