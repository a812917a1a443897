"""Stoc-iALM of Li et al.: an inexact augmented Lagrangian method, double loop."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from lariax.formulas import storm
from lariax.methods import Answer, Needs
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import AbstractConstraintMethod, InnerLoop, check_all_positive, decayed


class InexactState(NamedTuple):
    x: Vector
    gradient: Vector  # an estimate of the gradient of the augmented Lagrangian at x
    constraints: Float[Array, " m"]  # an estimate of c at x, by the same recursion
    multipliers: Float[Array, " m"]  # of the outer iteration
    inner: InnerLoop


class StochasticIALM(AbstractConstraintMethod):
    """Stoc-iALM: every outer iteration minimises the augmented Lagrangian roughly, by STORM steps, then moves the
    multipliers and raises the penalty.

        inner, j = 0, 1, ...:   x+ = P_X(x - eta_j g),   g+ = G(x+; B) + (1 - alpha_j) (g - G(x; B))
            G(x; B) = grad f(x, xi) + sum_i grad c_i(x, zeta1) ( y_i + rho c_i(x, zeta2) )
            eta_j = step_size / rho (j + 1)^(-1/3),   alpha_j = (j + 1)^(-2/3)
        outer:                  y+ = y + min(rho, dual_bound / ||c||) c,   rho+ = growth rho

    The inner loop ends after a number of iterations that is fixed beforehand: inner_iterations, times growth for every
    outer iteration. The source's numbers depend on the optimal values of the subproblems, which are not known. The
    first iteration of an inner loop moves nothing and starts g anew, for the new y and rho. c in the outer step is
    tracked by the recursion that serves g; the source draws a batch for it, and it takes a random inner iterate where
    the last is taken here. The returned multiplier is y + rho c. Written without the source at hand. Inequalities enter
    through slacks.

    Arguments:
        step_size, penalty, dual_bound: as above; penalty is the first rho.
        growth: of the penalty and of the inner loop, from one outer iteration to the next.
        inner_iterations: of the first inner loop.

    Reference: Z. Li, P.-Y. Chen, S. Liu, S. Lu, Y. Xu, "Stochastic inexact augmented Lagrangian method for nonconvex
    expectation constrained optimization", 2023.

    >>> import lariax as lx
    >>> method = lx.rivals.StochasticIALM(step_size=0.05, growth=3.0)
    >>> method.growth
    3.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    dual_bound: float | Array = 1.0
    growth: float | Array = 2.0
    inner_iterations: float | Array = 100.0

    needs: ClassVar[Needs] = Needs(slacks=True, copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", "growth", "inner_iterations", or_zero=("dual_bound",))

    def _scaled(self, size: float | Array, inner: InnerLoop) -> Array:
        return size * jnp.asarray(self.growth) ** inner.round.astype(jnp.result_type(self.growth))

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> InexactState:
        multipliers = jnp.zeros(oracle.rows, oracle.dtype)
        gradient, values = oracle.penalty_gradient(point, self.penalty, batches.first, multipliers)
        return InexactState(point, gradient, values, multipliers, InnerLoop.start())

    def step(self, oracle: Oracle, state: InexactState, k: Float[Array, ""], batch: Batch) -> InexactState:
        penalty, step_size = self._lengths(oracle, state.inner)
        x = oracle.prox(state.x - step_size * state.gradient, step_size)
        fresh, now = oracle.penalty_gradient(x, penalty, batch, state.multipliers)
        stale, then = oracle.penalty_gradient(state.x, penalty, batch, state.multipliers)
        momentum = decayed(1.0, state.inner.place.astype(oracle.dtype), 2 / 3)
        values = storm(now, then, state.constraints, momentum)
        inner, ended = state.inner.next(self._scaled(self.inner_iterations, state.inner))
        size = jnp.linalg.norm(values)
        length = jnp.minimum(penalty, self.dual_bound / jnp.where(size > 0, size, 1))
        multipliers = jnp.where(ended, state.multipliers + length * values, state.multipliers)
        return InexactState(x, storm(fresh, stale, state.gradient, momentum), values, multipliers, inner)

    def _lengths(self, oracle: Oracle, inner: InnerLoop) -> tuple[Array, Array]:
        """The penalty, and the step size: 0 in the first iteration of an inner loop, which starts the estimate."""
        penalty = self._scaled(self.penalty, inner)
        step_size = decayed(self.step_size / penalty, inner.place.astype(oracle.dtype), 1 / 3)
        return penalty, jnp.where(inner.place > 0, step_size, 0)

    def answer(self, oracle: Oracle, state: InexactState, k: Float[Array, ""]) -> Answer:
        penalty = self._scaled(self.penalty, state.inner)
        return Answer(state.x, state.constraints, state.multipliers + penalty * state.constraints)

    def observe(self, oracle: Oracle, state: InexactState, k: Float[Array, ""]) -> dict[str, Array]:
        penalty, step_size = self._lengths(oracle, state.inner)
        stationarity = oracle.stationarity(state.x, state.gradient)
        return {"stationarity": stationarity, "penalty": penalty, "step_size": step_size, "outer": state.inner.round}
