"""SPIDER-ADMM of Huang, Chen and Huang."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.methods import AbstractMethod, Answer, Needs, exact_stationarity, linear_system
from lariax.oracle import Batch, Oracle, Vector, occasionally
from lariax.rivals._common import InnerLoop, check_all_positive
from lariax.utils import check_count


class SpiderState(NamedTuple):
    x: Vector
    gradient: Vector  # v, or, while it is being refreshed, the mean of the gradients at x so far
    residual: Float[Array, " m"]  # A x - b
    multipliers: Float[Array, " m"]
    inner: InnerLoop


class SpiderADMM(AbstractMethod):
    """SPIDER-ADMM, a linearised ADMM whose gradient estimate is refreshed by a large batch every so often, for A x = b.

        refresh:  v  = mean of grad f(x) over `refresh_batches` batches
        then:     x+ = x - eta ( v + A^T (y + rho (A x - b)) )
                  y+ = y + rho (A x+ - b)
                  v+ = v + grad f(x+, B) - grad f(x, B)

    The inner loop ends after `epoch` steps; then v is refreshed. A refresh takes `refresh_batches` iterations in which
    nothing moves, so that draws are counted as they are used. (The first of them is the start of the run.)

    The source has several blocks of variables, and quadratic terms in metrics of the user's choice. Chosen: one block,
    and the metric that leaves a gradient step. Its batches and epochs grow with the accuracy asked for; here both are
    given. A set or a regulariser is handled by a proximal step. Written without the source at hand.

    Arguments:
        step_size: eta.
        penalty: rho.
        refresh_batches: batches in a refresh.
        epoch: steps between two refreshes.

    Reference: F. Huang, S. Chen, H. Huang, "Faster stochastic alternating direction method of multipliers for nonconvex
    optimization", 2019.

    >>> import lariax as lx
    >>> method = lx.rivals.SpiderADMM(step_size=0.1, refresh_batches=16, epoch=16)
    >>> method.epoch
    16
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    refresh_batches: int = eqx.field(static=True, default=32)
    epoch: int = eqx.field(static=True, default=32)

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty")
        check_count("refresh_batches", self.refresh_batches)
        check_count("epoch", self.epoch)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "SpiderADMM":
        linear_system(self, oracle, x)
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> SpiderState:
        residual, _ = oracle.exact_residuals(point)
        inner, _ = InnerLoop.start().next(self.refresh_batches + self.epoch)  # the start is the first of the refresh
        return SpiderState(point, oracle.objective_gradient(point, batches.first), residual, 0 * residual, inner)

    def step(self, oracle: Oracle, state: SpiderState, k: Float[Array, ""], batch: Batch) -> SpiderState:
        cycle = self.refresh_batches + self.epoch
        refreshing = state.inner.place < self.refresh_batches
        residual, transposed = oracle.exact_residuals(state.x)
        slope = state.gradient + transposed(state.multipliers + self.penalty * residual)
        moved = oracle.prox(state.x - self.step_size * slope, self.step_size)
        x = jnp.where(refreshing, state.x, moved)
        residual, _ = oracle.exact_residuals(x)
        multipliers = state.multipliers + jnp.where(refreshing, 0, self.penalty * residual)
        fresh = oracle.objective_gradient(x, batch)
        with occasionally(self.epoch / cycle):
            change = jax.lax.cond(
                refreshing,
                lambda: (fresh - state.gradient) / (state.inner.place + 1),
                lambda: fresh - oracle.objective_gradient(state.x, batch),
            )
        return SpiderState(x, state.gradient + change, residual, multipliers, state.inner.next(cycle)[0])

    def answer(self, oracle: Oracle, state: SpiderState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residual, state.multipliers)

    def observe(self, oracle: Oracle, state: SpiderState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, state.multipliers),
            "step_size": self.step_size + 0 * k,
            "penalty": self.penalty + 0 * k,
        }
