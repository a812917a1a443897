"""The single-loop hinge penalty method of Yang, Li, Hu, Lin and Yang."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from lariax.formulas import storm
from lariax.methods import Answer, Needs
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import AbstractConstraintMethod, Averaged, check_all_positive, decayed


def _exact_weights(oracle: Oracle, values: Float[Array, " m"], penalty: Array | float) -> Float[Array, " m"]:
    """A subgradient of penalty * sum of max(r, 0); of |r| for equalities."""
    return penalty * jnp.where(oracle.inequality, (values > 0).astype(values.dtype), jnp.sign(values))


class HingeState(NamedTuple):
    x: Vector
    values: Float[Array, " m"]  # u, an estimate of r at x
    weights: Float[Array, " m"]  # their mean, later ones counting more
    average: Averaged


class HingePenalty(AbstractConstraintMethod):
    """A subgradient method on f + beta sum of max(r, 0), with constraint values that are tracked.

        x+ = P_X( x - eta_k (grad f(x, B) + beta sum over u_i > 0 of grad r_i(x, B)) )
        u+ = r(x+, B') + (1 - gamma) (u - r(x, B'))

    The penalty is constant: beyond the size of the multipliers it is exact. Known from its abstract: one loop, a hinge
    penalty with a constant parameter, variance-reduced estimates of the constraint values. Chosen: an equality counts
    as |r|; eta_k = step_size (k + 1)^(-1/2); B' is independent of B; the point returned is the mean of all, the k-th
    with weight k, and the multipliers are the weights' mean likewise.

    Arguments:
        step_size: as above.
        penalty: beta.
        momentum: gamma, 1 for the values of the last batch.

    Reference: M. Yang, G. Li, Q. Hu, Q. Lin, T. Yang, "Single-loop algorithms for stochastic non-convex optimization
    with weakly-convex constraints", 2025.

    >>> import lariax as lx
    >>> method = lx.rivals.HingePenalty(step_size=0.05, penalty=10.0)
    >>> method.penalty
    10.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    momentum: float | Array = 0.1

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", "momentum")

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> HingeState:
        values = oracle.join(oracle.residuals(point, batches.first, copy=1))
        return HingeState(point, values, 0 * values, Averaged.start(point))

    def step(self, oracle: Oracle, state: HingeState, k: Float[Array, ""], batch: Batch) -> HingeState:
        step_size = decayed(self.step_size, k, 1 / 2)
        weights = _exact_weights(oracle, state.values, self.penalty)
        slope = oracle.look(state.x, batch).gradient(oracle.split(weights))
        x = oracle.prox(state.x - step_size * slope, step_size)
        new, old = (oracle.join(oracle.residuals(at, batch, copy=1)) for at in (x, state.x))
        mean = state.weights + 2 / (k + 2) * (weights - state.weights)
        return HingeState(x, storm(new, old, state.values, self.momentum), mean, state.average.add(x, k))

    def answer(self, oracle: Oracle, state: HingeState, k: Float[Array, ""]) -> Answer:
        return Answer(state.average.point, state.values, state.weights)

    def observe(self, oracle: Oracle, state: HingeState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, 1 / 2), "penalty": self.penalty + 0 * k}
