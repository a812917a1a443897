"""SSL-ALM of Huang, Zhang and Alacaoglu: smoothed primal-dual steps."""

from typing import ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from lariax.formulas import storm
from lariax.methods import AbstractMethod, Answer, Needs, exact_stationarity, linear_system
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import check_all_positive, decayed


class SmoothedState(NamedTuple):
    x: Vector
    center: Vector  # z
    gradient: Vector  # an estimate of grad f at x
    residual: Float[Array, " m"]  # A x - b
    multipliers: Float[Array, " m"]


class SmoothedPrimalDual(AbstractMethod):
    """Smoothed linearised augmented Lagrangian steps (SSL-ALM) for A x = b, x in a polyhedron: descent on the Moreau
    envelope, whose centre z follows x slowly.

        y+ = y + gamma_k (A x - b)
        x+ = P_X( x - eta_k ( g + A^T (y+ + rho (A x - b)) + mu (x - z) ) )
        z+ = z + beta_k (x+ - z)

    g is the gradient on the iteration's batch; with `variance_reduced`, a STORM estimate.

    The source has constant parameters that depend on the length of the run. Chosen, so that it can be stopped at any
    time: eta_k, gamma_k and beta_k fall together as (k + 1)^(-1/2), with variance reduction as (k + 1)^(-1/3) and
    alpha_k = (k + 1)^(-2/3). Only the source's abstract was at hand; the order of the three updates and of the momentum
    is ours.

    Arguments:
        step_size, dual_step, smoothing: eta, gamma and beta at the start.
        penalty: rho.
        attraction: mu, larger than the objective's weak convexity.
        variance_reduced: two gradients a sample, and recursive momentum.

    Reference: R. Huang, J. Zhang, A. Alacaoglu, "Stochastic smoothed primal-dual algorithms for nonconvex optimization
    with linear inequality constraints", 2025.

    >>> import lariax as lx
    >>> method = lx.rivals.SmoothedPrimalDual(step_size=0.1, penalty=1.0, variance_reduced=True)
    >>> method.variance_reduced
    True
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    dual_step: float | Array = 1.0
    attraction: float | Array = 1.0
    smoothing: float | Array = 0.5
    variance_reduced: bool = eqx.field(static=True, default=False)

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "dual_step", "smoothing", or_zero=("penalty", "attraction"))

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "SmoothedPrimalDual":
        linear_system(self, oracle, x)
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> SmoothedState:
        residual, _ = oracle.exact_residuals(point)
        gradient = oracle.objective_gradient(point, batches.first)
        return SmoothedState(point, point, gradient, residual, 0 * residual)

    def step(self, oracle: Oracle, state: SmoothedState, k: Float[Array, ""], batch: Batch) -> SmoothedState:
        decay = decayed(1.0, k, 1 / 3 if self.variance_reduced else 1 / 2)
        step_size = self.step_size * decay
        residual, transposed = oracle.exact_residuals(state.x)
        multipliers = state.multipliers + self.dual_step * decay * residual
        gradient = state.gradient if self.variance_reduced else oracle.objective_gradient(state.x, batch)
        slope = gradient + transposed(multipliers + self.penalty * residual)
        x = oracle.prox(state.x - step_size * (slope + self.attraction * (state.x - state.center)), step_size)
        if self.variance_reduced:
            fresh, stale = oracle.objective_gradient(x, batch), oracle.objective_gradient(state.x, batch)
            gradient = storm(fresh, stale, gradient, decayed(1.0, k, 2 / 3))
        center = state.center + self.smoothing * decay * (x - state.center)
        return SmoothedState(x, center, gradient, oracle.exact_residuals(x)[0], multipliers)

    def answer(self, oracle: Oracle, state: SmoothedState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residual, state.multipliers)

    def observe(self, oracle: Oracle, state: SmoothedState, k: Float[Array, ""]) -> dict[str, Array]:
        power = 1 / 3 if self.variance_reduced else 1 / 2
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, state.multipliers),
            "step_size": decayed(self.step_size, k, power),
            "penalty": self.penalty + 0 * k,
        }
