"""ConEx of Boob, Deng and Lan, in a proximal-point loop."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lariax.methods import Answer, Needs
from lariax.oracle import Batch, Oracle, Vector, either
from lariax.rivals._common import AbstractConstraintMethod, Averaged, InnerLoop, check_all_positive
from lariax.utils import check_count


class ExtrapolationState(NamedTuple):
    x: Vector
    previous: Vector
    linear: Float[Array, " m"]  # the linearised constraints of the previous iteration
    multipliers: Float[Array, " m"]
    center: Vector
    average: Averaged  # of this inner loop's points
    inner: InnerLoop


class ConstraintExtrapolation(AbstractConstraintMethod):
    """Constraint extrapolation (ConEx) in an inexact proximal-point loop, for random inequalities.

        outer:  the subproblem  min f + (mu/2) ||x - z||^2  subject to  r + (mu/2) ||x - z||^2 <= 0,  z its centre
        inner:  l  = r(x-) + J(x-) (x - x-) + (mu/2) ||x - z||^2            x- the point before x
                y+ = max(0, y + gamma (2 l - l-))                          l- the l before l
                x+ = P_X( x - eta_j ( grad f(x) + J(x)^T y+ + mu (1 + sum y+) (x - z) ) )
                eta_j = 1 / (1 / step_size + mu j / 2)

    Gradients and values come from independent batches. The inner loop ends after `inner_iterations`, a number given
    beforehand; the mean of its points, the j-th with weight j, is the next centre and the point that is returned. The
    next inner loop starts from there, with the multipliers as they are. The source has sequences of inner and outer
    lengths, step sizes and extrapolations that depend on constants of the problem and on the accuracy wanted; those
    above keep their shape. It takes a random centre as the answer, where the last is returned here. Written without the
    source at hand.

    The source treats inequalities only. An equality has a multiplier of either sign here and no quadratic term, which
    makes the subproblem convex if the equality is linear.

    Arguments:
        step_size, dual_step: eta at the start, gamma.
        proximity: mu, larger than the weak convexity of objective and constraints.
        inner_iterations: as above.

    Reference: D. Boob, Q. Deng, G. Lan, "Stochastic first-order methods for convex and nonconvex functional constrained
    optimization", 2022.

    >>> import lariax as lx
    >>> method = lx.rivals.ConstraintExtrapolation(step_size=0.05, dual_step=0.5, inner_iterations=50)
    >>> method.inner_iterations
    50
    """

    step_size: float | Array = 0.1
    dual_step: float | Array = 0.1
    proximity: float | Array = 1.0
    inner_iterations: int = eqx.field(static=True, default=100)

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "dual_step", "proximity")
        check_count("inner_iterations", self.inner_iterations)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> ExtrapolationState:
        values = oracle.join(oracle.residuals(point, batches.first, copy=1))
        return ExtrapolationState(point, point, values, 0 * values, point, Averaged.start(point), InnerLoop.start())

    def step(self, oracle: Oracle, state: ExtrapolationState, k: Float[Array, ""], batch: Batch) -> ExtrapolationState:
        away = state.x - state.center
        bump = jnp.where(oracle.inequality, 0.5 * self.proximity * (away @ away), 0)
        linear = _linearised(oracle, state.previous, state.x - state.previous, batch) + bump
        multipliers = oracle.signed(state.multipliers + self.dual_step * (2 * linear - state.linear))
        pull = self.proximity * (1 + jnp.sum(jnp.where(oracle.inequality, multipliers, 0)))
        slope = oracle.look(state.x, batch).gradient(oracle.split(multipliers)) + pull * away
        step_size = state.inner.step_size(self.step_size, self.proximity, oracle.dtype)
        x = oracle.prox(state.x - step_size * slope, step_size)
        average = state.average.add(x, state.inner.place + 1)
        inner, ended = state.inner.next(self.inner_iterations)
        going = ExtrapolationState(x, state.x, linear, multipliers, state.center, average, inner)
        done = average.point
        over = ExtrapolationState(done, done, linear, multipliers, done, Averaged.start(done), inner)
        return either(oracle, ~ended, going, over)

    def answer(self, oracle: Oracle, state: ExtrapolationState, k: Float[Array, ""]) -> Answer:
        return Answer(state.center, state.linear, state.multipliers)

    def observe(self, oracle: Oracle, state: ExtrapolationState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "step_size": state.inner.step_size(self.step_size, self.proximity, oracle.dtype),
            "outer": state.inner.round,
        }


def _linearised(oracle: Oracle, point: Vector, direction: Vector, batch: Batch) -> Float[Array, " m"]:
    """r + J direction at a point, on the second copy of the batch. J v is the transpose of w -> J^T w, so that a user's
    rule for the way back is enough."""
    values, pull = jax.vjp(lambda z: oracle.join(oracle.residuals(z, batch, copy=1)), point)
    (along,) = jax.linear_transpose(lambda w: pull(w)[0], values)(direction)
    return values + along
