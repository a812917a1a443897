"""What a method is: a state, an `init` and a `step`."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key, PyTree

from lariax.oracle import Batch, Oracle, Vector
from lariax.problem import Linear, LinearSystem

State = Any


class Answer(NamedTuple):
    """What a method would return if it were stopped now.

    >>> import jax.numpy as jnp, lariax as lx
    >>> lx.Answer(jnp.zeros(2), residuals=jnp.zeros(1), multipliers=jnp.ones(1)).multipliers.tolist()
    [1.0]
    """

    point: Vector
    residuals: Float[Array, " m"]  # its estimate of the constraints there
    multipliers: Float[Array, " m"]


class Needs(NamedTuple):
    """What a method asks of the loop.

    >>> import lariax as lx
    >>> lx.Needs(slacks=True, copies=2).copies  # inequalities as equalities, and two batches an iteration
    2
    """

    slacks: bool = False  # inequalities as equalities with slacks
    copies: int = 1  # independent batches of the constraints' samples an iteration
    smallest_batch: int = 1  # a smaller batch size is raised to this
    start_samples: int = 1  # samples that `init` wants to see, if it can have them cheaply
    refresh_samples: int = 0  # samples that `refresh` looks back on; 0: it is never called
    measuring_interval: Callable[[Int[Array, ""]], Int[Array, ""]] | None = None
    """How many iterations apart a `measuring_step` is from iteration k on; changes where the new one divides k. None:
    there are none."""


class Diagnosis(NamedTuple):
    """What a method knows of its own run.

    >>> import lariax as lx
    >>> lx.Diagnosis(violated=True, remark="The penalty is small.").remark
    'The penalty is small.'
    """

    violated: ArrayLike = False  # constraints, by more than the method's own errors explain
    pressed: ArrayLike = False  # multipliers are at the limit that the method sets them
    stuck: ArrayLike = False  # the last steps were all refused
    scales: Vector | None = None  # the units in which the method moves, entry by entry of x; None: those of x
    remark: str = ""  # for the user, on a problem with kinks
    averages: bool = False  # its estimates of gradients get better for as long as it gets on
    note: str = ""  # for the user, on any problem
    idle: ArrayLike = False  # inequalities have multipliers, and more room to spare than its errors explain


class AbstractMethod(eqx.Module):
    """A single-loop method. Hyperparameters live in the constructor, everything that changes lives in the state.

    Iterations are numbered k = 1, 2, ...; `k` comes in the precision of x, ready for powers. `init`, `step`, `answer`
    and `observe` are compiled. A state may have a field `extra_evaluations`: evaluations until now that only the run
    can count, in loops of a length that depends on what they find.

    >>> import lariax as lx
    >>> isinstance(lx.QuadraticPenalty(step_size=0.1), lx.AbstractMethod)  # a method of your own: docs/own-method.md
    True
    """

    @property
    def needs(self) -> Needs:
        """What the method asks of the loop. A class may have it as a plain class attribute."""
        return Needs()

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> Self:
        """The method for this problem, on the host, before anything is compiled: complains if the two do not fit, and
        fills in what only the problem can tell. `iterations`: how many the first run has; None: they are not what
        limits it."""
        return self

    @abc.abstractmethod
    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> State:
        """The state before iteration 1, from a few batches, stacked along a leading axis."""

    @abc.abstractmethod
    def step(self, oracle: Oracle, state: State, k: Float[Array, ""], batch: Batch) -> State:
        """Iteration k, on a batch that is independent of the state."""

    def measuring_step(self, oracle: Oracle, state: State, k: Float[Array, ""], batch: Batch) -> State:
        """Iteration k with a closer look than every iteration can afford."""
        return self.step(oracle, state, k, batch)

    def refresh(self, oracle: Oracle, state: State, batches: Batch, key: Key[Array, ""]) -> State:
        """Work that is too costly for every iteration, done further and further apart, on the last few batches, stacked
        along a leading axis."""
        return state

    @abc.abstractmethod
    def answer(self, oracle: Oracle, state: State, k: Float[Array, ""]) -> Answer:
        """The point, its constraint values and its multipliers after iteration k."""

    def observe(self, oracle: Oracle, state: State, k: Float[Array, ""]) -> dict[str, Array]:
        """Scalars worth plotting, after iteration k; "stationarity" is one of them if the method has an estimate of
        the gradient. They never feed back."""
        return {}

    def diagnose(self, oracle: Oracle, state: State, k: Float[Array, ""]) -> Diagnosis:
        """What the method knows of its run when it ends after iteration k, on the host."""
        return Diagnosis()


AbstractScheduledMethod = AbstractMethod
"""The name for methods whose parameters are functions of k alone, which need nothing more."""


def check_positive(name: str, value: Any, or_zero: bool = False) -> None:
    """Refuse a hyperparameter that is not positive and finite, unless it is being traced and cannot be looked at."""
    if isinstance(value, jax.core.Tracer) or not (hasattr(value, "__float__") or isinstance(value, str)):
        return  # None, or what JAX puts in the place of leaves when it rebuilds a module
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number, found the text {value!r}.")
    number = np.asarray(value)
    if not bool(np.all(((number >= 0) if or_zero else (number > 0)) & np.isfinite(number))):
        raise ValueError(f"{name} must be {'at least 0' if or_zero else 'positive'} and finite, found {value}.")


def check_known(given: Mapping[str, Any] | None, names: list[str]) -> None:
    """Refuse multipliers of constraints that there are not."""
    unknown = sorted(set(given or {}) - set(names))
    if unknown:
        raise ValueError(
            f"multipliers= has the unknown {unknown}; the constraints are {names}. Use the same names in both places."
        )


def check_pairs(method: AbstractMethod, oracle: Oracle) -> None:
    """Refuse a batch in which there are no pairs."""
    if method.needs.copies == 1 and oracle.has_random_constraints and oracle.batch_size < 2:
        raise ValueError(
            f"{type(method).__name__} forms unbiased products from pairs within a batch and needs batch_size >= 2, "
            f"found {oracle.batch_size}. Raise batch_size, or use pairs=False."
        )


def exact_stationarity(
    oracle: Oracle, x: Vector, gradient: Vector, multipliers: Float[Array, " m"]
) -> Float[Array, ""]:
    """Of an estimate of grad f, where the constraints are known exactly."""
    _, transposed = oracle.exact_residuals(x)
    return oracle.stationarity(x, gradient + transposed(multipliers))


def linear_system(method: AbstractMethod, oracle: Oracle, x: PyTree[Array]) -> LinearSystem:
    """All constraints as one A x = b; refused if one of them is not linear, or if there is none."""
    constraints = oracle.problem.constraints
    others = [name for name, constraint in constraints.items() if not isinstance(constraint, Linear)]
    if others or not constraints:
        raise ValueError(
            f"{type(method).__name__} is for problems whose constraints are all lx.Linear, found "
            f"{'others: ' + ', '.join(map(repr, others)) if others else 'none'}. Use lx.QuadraticPenalty or "
            'lx.DualPenalty, or method="auto".'
        )
    return LinearSystem([c for c in constraints.values() if isinstance(c, Linear)], x)
