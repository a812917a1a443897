"""The exact penalty method with SPIDER of Liu and Xu."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lariax.methods import Answer, Needs
from lariax.oracle import Batch, Oracle, Vector, occasionally
from lariax.rivals._common import AbstractConstraintMethod, Averaged, InnerLoop, check_all_positive, decayed
from lariax.utils import check_count


class SpiderPenaltyState(NamedTuple):
    x: Vector
    values: Float[Array, " m"]  # u, or, while it is being refreshed, the mean of r at x so far
    weights: Float[Array, " m"]  # their mean, later ones counting more
    average: Averaged
    inner: InnerLoop


class SpiderPenalty(AbstractConstraintMethod):
    """A subgradient method on f + beta sum of h(r), h being max(r, 0) rounded over `width`, with constraint values by
    SPIDER.

        refresh:  u  = mean of r(x) over `refresh_batches` batches
        then:     x+ = P_X( x - eta_k (grad f(x, B) + beta sum of h'(u_i) grad r_i(x, B)) )
                  u+ = u + r(x+, B') - r(x, B')

    with h'(u) = u / width between 0 and 1. The inner loop ends after `epoch` steps; then u is refreshed, which takes
    `refresh_batches` iterations in which nothing moves, so that draws are counted as they are used.

    Known from its abstract: an exact penalty, one loop, subgradients of objective and constraints, values by SPIDER.
    Chosen: eta_k = step_size (k + 1)^(-1/2), an equality counts as |r|, B' is independent of B, batches and epochs are
    given (the source's grow with the accuracy asked for), the point returned is the mean of all, the k-th with weight
    k, and the multipliers are the weights' mean likewise.

    Arguments:
        step_size, width: as above.
        penalty: beta.
        refresh_batches: batches in a refresh.
        epoch: steps between two refreshes.

    Reference: W. Liu, Y. Xu, "A single-loop SPIDER-type stochastic subgradient method for expectation-constrained
    nonconvex nonsmooth optimization", 2025.

    >>> import lariax as lx
    >>> method = lx.rivals.SpiderPenalty(step_size=0.05, penalty=10.0)
    >>> method.epoch
    32
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    width: float | Array = 0.01
    refresh_batches: int = eqx.field(static=True, default=32)
    epoch: int = eqx.field(static=True, default=32)

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", "width")
        check_count("refresh_batches", self.refresh_batches)
        check_count("epoch", self.epoch)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> SpiderPenaltyState:
        values = oracle.join(oracle.residuals(point, batches.first, copy=1))
        inner, _ = InnerLoop.start().next(self.refresh_batches + self.epoch)  # the start is the first of the refresh
        return SpiderPenaltyState(point, values, 0 * values, Averaged.start(point), inner)

    def step(self, oracle: Oracle, state: SpiderPenaltyState, k: Float[Array, ""], batch: Batch) -> SpiderPenaltyState:
        cycle, step_size = self.refresh_batches + self.epoch, decayed(self.step_size, k, 1 / 2)
        refreshing = state.inner.place < self.refresh_batches
        least = jnp.where(oracle.inequality, 0.0, -1.0)
        weights = self.penalty * jnp.clip(state.values / self.width, least, 1.0)

        def values_at(x: Vector) -> Array:
            return oracle.join(oracle.residuals(x, batch, copy=1))

        def refresh() -> tuple[Vector, Array]:
            return state.x, state.values + (values_at(state.x) - state.values) / (state.inner.place + 1)

        def move() -> tuple[Vector, Array]:
            slope = oracle.look(state.x, batch).gradient(oracle.split(weights))
            x = oracle.prox(state.x - step_size * slope, step_size)
            return x, state.values + values_at(x) - values_at(state.x)

        with occasionally(self.epoch / cycle):
            x, values = jax.lax.cond(refreshing, refresh, move)
        counts = jnp.where(refreshing, 0, k)
        mean = state.weights + jnp.where(refreshing, 0, 2 / (k + 2)) * (weights - state.weights)
        return SpiderPenaltyState(x, values, mean, state.average.add(x, counts), state.inner.next(cycle)[0])

    def answer(self, oracle: Oracle, state: SpiderPenaltyState, k: Float[Array, ""]) -> Answer:
        return Answer(state.average.point, state.values, state.weights)

    def observe(self, oracle: Oracle, state: SpiderPenaltyState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, 1 / 2), "penalty": self.penalty + 0 * k}
