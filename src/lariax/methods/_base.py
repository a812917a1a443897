"""What a method is: a state, an `init` and a `step`."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from lariax.oracle import Batch, Oracle, Vector

State = Any


class Answer(NamedTuple):
    """What a method would return if it were stopped now."""

    point: Vector
    residuals: Float[Array, " m"]  # its estimate of the constraints there
    multipliers: Float[Array, " m"]


class AbstractMethod(eqx.Module):
    """A single-loop method. Hyperparameters live in the constructor, everything that changes lives in the state.

    Iterations are numbered k = 1, 2, ...; `k` comes in the precision of x, ready for powers.
    """

    wants_slacks: eqx.AbstractClassVar[bool]

    @property
    @abc.abstractmethod
    def copies(self) -> int:
        """How many independent batches of the constraints' samples an iteration needs."""

    @abc.abstractmethod
    def smallest_batch(self, oracle: Oracle) -> int:
        """The smallest batch size with which the method's estimates are unbiased."""

    @abc.abstractmethod
    def init(self, oracle: Oracle, point: Vector, batch: Batch) -> State:
        """The state before iteration 1, from a first batch."""

    @abc.abstractmethod
    def step(self, oracle: Oracle, state: State, k: Float[Array, ""], batch: Batch) -> State:
        """Iteration k, on a batch that is independent of the state."""

    @abc.abstractmethod
    def answer(self, oracle: Oracle, state: State, k: Float[Array, ""]) -> Answer:
        """The point, its constraint values and its multipliers after iteration k."""

    @abc.abstractmethod
    def observe(self, oracle: Oracle, state: State, k: Float[Array, ""]) -> dict[str, Array]:
        """Scalars worth plotting, after iteration k. They never feed back."""


def check_positive(name: str, value: Any) -> None:
    """Refuse a hyperparameter that is not positive and finite, unless it is being traced and cannot be looked at."""
    if isinstance(value, jax.core.Tracer) or not hasattr(value, "__float__"):
        return  # also what JAX puts in the place of leaves when it rebuilds a module
    if not bool(np.all((np.asarray(value) > 0) & np.isfinite(np.asarray(value)))):
        raise ValueError(f"{name} must be positive and finite, found {value}.")
