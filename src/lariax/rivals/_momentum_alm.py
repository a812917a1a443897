"""Recursive momentum on the objective, exact constraints: Shi, Wang and Wang; Lu, Mei and Xiao."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.formulas import storm
from lariax.methods import AbstractMethod, Answer, Needs, exact_stationarity
from lariax.oracle import Batch, Oracle, Vector, occasionally
from lariax.rivals._common import check_all_positive, check_deterministic, decayed
from lariax.utils import check_count


class MomentumState(NamedTuple):
    x: Vector
    gradient: Vector  # an estimate of grad f at x
    constraints: Float[Array, " m"]  # c at x, exactly
    multipliers: Float[Array, " m"]


class MomentumALM(AbstractMethod):
    """Momentum-based linearised augmented Lagrangian method (MLALM), for deterministic constraints.

        x+ = prox( x - eta ( d + J(x)^T (y + rho c(x)) ) )
        y+ = y + gamma c(x+)
        d+ = grad f(x+, B) + (1 - alpha) (d - grad f(x, B))

    with constant parameters, as in the source, where they depend on the length of the run (penalties of the order of
    K^(1/4)). The returned multiplier is y + rho c(x).

    Its better complexity wants a start that is nearly feasible. `feasibility_steps` gradient steps on ||c||^2 / 2
    provide one before the run; they need no draws, and their evaluations are counted. Chosen, as the source was not at
    hand: Polyak's step size, ||c||^2 / (2 ||J^T c||^2), which needs no constant, for a number of steps given
    beforehand. Inequalities enter through slacks.

    Arguments:
        step_size, penalty, dual_step, momentum: eta, rho, gamma, alpha.
        feasibility_steps: 0 leaves that stage out.

    Reference: Q. Shi, X. Wang, H. Wang, "A momentum-based linearized augmented Lagrangian method for nonconvex
    constrained stochastic optimization", 2022.

    >>> import lariax as lx
    >>> method = lx.rivals.MomentumALM(step_size=0.02, penalty=5.0)
    >>> method.penalty
    5.0
    """

    step_size: float | Array = 0.01
    penalty: float | Array = 10.0
    dual_step: float | Array = 0.1
    momentum: float | Array = 0.1
    feasibility_steps: int = eqx.field(static=True, default=0)

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", "momentum", or_zero=("dual_step",))
        check_count("feasibility_steps", self.feasibility_steps, least=0)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "MomentumALM":
        check_deterministic(self, oracle)
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> MomentumState:
        with occasionally(self.feasibility_steps):
            point, _ = jax.lax.scan(lambda z, _: (_polyak(oracle, z), None), point, length=self.feasibility_steps)
        values, _ = oracle.exact_residuals(point)
        return MomentumState(point, oracle.objective_gradient(point, batches.first), values, 0 * values)

    def step(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""], batch: Batch) -> MomentumState:
        _, transposed = oracle.exact_residuals(state.x)
        slope = state.gradient + transposed(state.multipliers + self.penalty * state.constraints)
        x = oracle.prox(state.x - self.step_size * slope, self.step_size)
        values, _ = oracle.exact_residuals(x)
        fresh, stale = oracle.objective_gradient(x, batch), oracle.objective_gradient(state.x, batch)
        gradient = storm(fresh, stale, state.gradient, self.momentum)
        return MomentumState(x, gradient, values, state.multipliers + self.dual_step * values)

    def answer(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.constraints, state.multipliers + self.penalty * state.constraints)

    def observe(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""]) -> dict[str, Array]:
        multipliers = state.multipliers + self.penalty * state.constraints
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, multipliers),
            "step_size": self.step_size + 0 * k,
            "penalty": self.penalty + 0 * k,
        }


def _polyak(oracle: Oracle, point: Vector) -> Vector:
    """A gradient step on ||c||^2 / 2, as long as it would have to be if that were linear and its least value 0."""
    values, transposed = oracle.exact_residuals(point)
    slope = transposed(values)
    square = slope @ slope
    length = jnp.where(square > 0, 0.5 * (values @ values) / jnp.where(square > 0, square, 1), 0)
    return oracle.prox(point - length * slope, 0.0)


class RecursiveMomentumPenalty(AbstractMethod):
    """A quadratic penalty method with recursive momentum on the objective alone, for deterministic constraints.

        x+ = P_X( x - eta_k ( g + rho_k J(x)^T c(x) ) )
        g+ = truncated( grad f(x+, B) + (1 - alpha_k) (g - grad f(x, B)) )

    with eta_k = step_size (k + 1)^(-1/3), rho_k = penalty (k + 1)^(1/3), alpha_k = min(1, momentum (k + 1)^(-2/3)): as
    the constraints are exact, nothing that the penalty multiplies is random, and the penalty may grow faster than in
    `lx.QuadraticPenalty`. The returned multiplier is rho_k c(x).

    The source truncates g to a ball that contains all gradients. `radius` does; None, the default, leaves it out, as
    its size is a constant of the problem. Written without the source at hand: that the step falls while rho_k eta_k
    stays constant is how we read its rates. Inequalities enter through slacks.

    Arguments:
        step_size, penalty, momentum: as above. rho ||J||^2 eta wants to be below 2.
        radius: of the ball that g is kept in.

    Reference: Z. Lu, S. Mei, Y. Xiao, "Variance-reduced first-order methods for deterministically constrained
    stochastic nonconvex optimization with strong convergence guarantees", 2024.

    >>> import lariax as lx
    >>> method = lx.rivals.RecursiveMomentumPenalty(step_size=0.1, penalty=2.0, radius=10.0)
    >>> method.radius
    10.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    momentum: float | Array = 1.0
    radius: float | Array | None = None

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", "momentum", "radius")

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "RecursiveMomentumPenalty":
        check_deterministic(self, oracle)
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> MomentumState:
        values, _ = oracle.exact_residuals(point)
        return MomentumState(
            point, self._truncated(oracle.objective_gradient(point, batches.first)), values, 0 * values
        )

    def step(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""], batch: Batch) -> MomentumState:
        step_size, penalty = decayed(self.step_size, k, 1 / 3), decayed(self.penalty, k, -1 / 3)
        _, transposed = oracle.exact_residuals(state.x)
        slope = state.gradient + transposed(penalty * state.constraints)
        x = oracle.prox(state.x - step_size * slope, step_size)
        values, _ = oracle.exact_residuals(x)
        fresh, stale = oracle.objective_gradient(x, batch), oracle.objective_gradient(state.x, batch)
        gradient = storm(fresh, stale, state.gradient, jnp.minimum(1, decayed(self.momentum, k, 2 / 3)))
        return MomentumState(x, self._truncated(gradient), values, penalty * values)

    def _truncated(self, gradient: Vector) -> Vector:
        if self.radius is None:
            return gradient
        return gradient * (self.radius / jnp.maximum(jnp.linalg.norm(gradient), self.radius))

    def answer(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.constraints, state.multipliers)

    def observe(self, oracle: Oracle, state: MomentumState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, state.multipliers),
            "step_size": decayed(self.step_size, k, 1 / 3),
            "penalty": decayed(self.penalty, k, -1 / 3),
            "momentum": jnp.minimum(1, decayed(self.momentum, k, 2 / 3)),
        }
