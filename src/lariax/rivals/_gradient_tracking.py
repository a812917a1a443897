"""GT-STORM of Zhang et al.: gradient tracking with recursive momentum, for consensus."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.formulas import storm
from lariax.methods import AbstractMethod, Answer, Needs, exact_stationarity, linear_system
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import check_all_positive, decayed


class TrackingState(NamedTuple):
    x: Vector
    gradient: Vector  # v, an estimate of grad f at x
    residual: Float[Array, " m"]  # A x - b
    multipliers: Float[Array, " m"]  # the tracked gradient is v + A^T y


class GradientTracking(AbstractMethod):
    """Gradient tracking with STORM: agents mix what they hold with their neighbours' and step along a tracked gradient.

        x+ = W x - eta_k p                                              W = I - mix A^T A / ||A||^2
        v+ = grad f(x+, B) + (1 - alpha_k) (v - grad f(x, B))
        p+ = W p + v+ - v

    with eta_k = step_size (k + 1)^(-1/3), alpha_k = min(1, momentum (k + 1)^(-2/3)).

    The source is about consensus, where x stacks the agents' copies, A is the incidence matrix of their graph and W
    mixes neighbours. Here W comes from A, and W x is taken to be x - mix A^T (A x - b) / ||A||^2, so that any A x = b
    will do. As p - v stays in the range of A^T, p = v + A^T y with

        y+ = y - mix A p / ||A||^2,

    and y is what is kept: p = 0 is stationarity, and y its multiplier. One round of mixing an iteration, as in the
    source. A set or a regulariser is handled by a proximal step, which is beyond it. Written without the source at
    hand; its step sizes carry an offset, left out here.

    Arguments:
        step_size, momentum: as above.
        mix: in (0, 1].

    Reference: X. Zhang, J. Liu, Z. Zhu, E. S. Bentley, "GT-STORM: taming sample, communication, and memory complexities
    in decentralized non-convex learning", 2021.

    >>> import lariax as lx
    >>> method = lx.rivals.GradientTracking(step_size=0.3, momentum=0.5)
    >>> method.momentum
    0.5
    """

    step_size: float | Array = 0.1
    momentum: float | Array = 1.0
    mix: float | Array = 1.0
    norm: Any = None  # ||A||, from the problem

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "momentum", "mix", "norm")

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "GradientTracking":
        norm = linear_system(self, oracle, x).norm()
        return GradientTracking(self.step_size, self.momentum, self.mix, norm)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> TrackingState:
        residual, _ = oracle.exact_residuals(point)
        return TrackingState(point, oracle.objective_gradient(point, batches.first), residual, 0 * residual)

    def step(self, oracle: Oracle, state: TrackingState, k: Float[Array, ""], batch: Batch) -> TrackingState:
        step_size, rate = decayed(self.step_size, k, 1 / 3), self.mix / self.norm**2
        residual, transposed = oracle.exact_residuals(state.x)
        tracked = state.gradient + transposed(state.multipliers)
        x = oracle.prox(state.x - rate * transposed(residual) - step_size * tracked, step_size)
        shifted, _ = oracle.exact_residuals(state.x + tracked)  # A p, as the difference of two residuals
        multipliers = state.multipliers - rate * (shifted - residual)
        fresh, stale = oracle.objective_gradient(x, batch), oracle.objective_gradient(state.x, batch)
        momentum = jnp.minimum(1, decayed(self.momentum, k, 2 / 3))
        return TrackingState(
            x, storm(fresh, stale, state.gradient, momentum), oracle.exact_residuals(x)[0], multipliers
        )

    def answer(self, oracle: Oracle, state: TrackingState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residual, state.multipliers)

    def observe(self, oracle: Oracle, state: TrackingState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, state.multipliers),
            "step_size": decayed(self.step_size, k, 1 / 3),
            "momentum": jnp.minimum(1, decayed(self.momentum, k, 2 / 3)),
        }
