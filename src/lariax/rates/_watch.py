"""A method, watched: what the theorems are about, averaged over the iterations while they happen."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.methods import AbstractMethod, Answer, DualPenalty, Needs, QuadraticPenalty, State
from lariax.oracle import Batch, Oracle, Vector
from lariax.rates._cases import Member

MEASURES = ("stationarity", "feasibility", "error", "moved", "multipliers")
"""dist(grad f + J^T y, -N_X) and ||c|| with exact expectations; ||g - its mean||, and how far that moves c, about: that
over the penalty; ||y||."""


class WatchedState(NamedTuple):
    inner: State
    sums: Float[Array, "marks measures"]  # of the measures from the burn-in up to each mark


class Watched(AbstractMethod):
    """A method of the paper, and the sums of what is measured at its iterates.

    The mean over k = burn_in + 1 .. K of a measure at x_{k+1} is its expectation at an iterate whose index is drawn
    uniformly from these, given the run: the paper's output rule, without the noise of drawing the index.

    Measures never feed back.
    """

    method: AbstractMethod
    member: Member
    marks: tuple[int, ...] = eqx.field(static=True)  # values of K, ascending
    burn_in: int = eqx.field(static=True)
    same_batch: bool = eqx.field(static=True, default=False)  # the second batch of constraint samples is the first

    @property
    def needs(self) -> Needs:
        return self.method.needs

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "Watched":
        return replace(self, method=self.method.prepare(oracle, x, iterations))

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> WatchedState:
        sums = jnp.zeros((len(self.marks), len(MEASURES)), oracle.dtype)
        return WatchedState(self.method.init(oracle, point, batches), sums)

    def step(self, oracle: Oracle, state: WatchedState, k: Float[Array, ""], batch: Batch) -> WatchedState:
        inner = self.method.step(oracle, state.inner, k, self._seen(oracle, batch))
        counts = (k > self.burn_in) & (k <= jnp.asarray(self.marks))
        return WatchedState(inner, state.sums + counts[:, None] * self.measures(oracle, inner, k))

    def measures(self, oracle: Oracle, inner: State, k: Float[Array, ""]) -> Float[Array, " measures"]:
        """Of the state after iteration k, with the multiplier that the theorem certifies."""
        x, tracked, multipliers = self.method.answer(oracle, inner, k)
        penalty = self.method.observe(oracle, inner, k)["penalty"]
        values, pull = jax.vjp(self.member.constraint.mean, x)
        slope = jax.grad(self.member.objective.mean)(x)
        multipliers = multipliers + penalty * (values - tracked)  # theirs has the exact c where ours tracks it
        stationarity = oracle.stationarity(x, slope + pull(multipliers)[0])
        error = inner.gradient - slope - pull(self._weights(oracle, inner, k, values))[0]
        return jnp.stack([stationarity, *(jnp.linalg.norm(v) for v in (values, error, error / penalty, multipliers))])

    def _seen(self, oracle: Oracle, batch: Batch) -> Batch:
        """The batch, or the one whose second half repeats the first."""
        size = oracle.batch_size
        return jax.tree.map(lambda rows: jnp.resize(rows[:size], rows.shape), batch) if self.same_batch else batch

    def _weights(self, oracle: Oracle, inner: State, k: Float[Array, ""], values: Array) -> Array:
        """w such that the method's g estimates grad f + J^T w."""
        if isinstance(self.method, QuadraticPenalty | DualPenalty):
            penalty = self.method.schedule(oracle).penalty_at(k + 1)
            return penalty * values + (inner.multipliers if isinstance(self.method, DualPenalty) else 0)
        return jnp.zeros_like(values)

    def answer(self, oracle: Oracle, state: WatchedState, k: Float[Array, ""]) -> Answer:
        return self.method.answer(oracle, state.inner, k)

    def observe(self, oracle: Oracle, state: WatchedState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"sums": state.sums}
