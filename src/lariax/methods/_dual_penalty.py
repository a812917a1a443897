"""Algorithm 2 of Alacaoglu & Wright with dual updates (their first extension)."""

from typing import NamedTuple, Unpack

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.formulas import Exponents, PenaltySchedule, dual_length, dual_penalty_lipschitz, storm
from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs, check_pairs, check_positive
from lariax.methods._quadratic_penalty import SampleConstants, check_theory_penalty, exponents_for, remainder
from lariax.oracle import Batch, Oracle, Vector


class DualState(NamedTuple):
    x: Vector
    gradient: Vector  # g_k, an estimate of grad f + J^T (y_k + rho_k c) at x_k
    constraints: Float[Array, " m"]  # an estimate of c at x_k, for the returned multiplier alone
    last: Float[Array, " m"]  # y_{k-1}, which the returned multiplier goes with
    multipliers: Float[Array, " m"]  # y_k
    following: Float[Array, " m"]  # y_{k+1}


class DualPenalty(AbstractMethod):
    """Algorithm 2 with multipliers, which move by a summable amount along the sign of the sampled constraints.

        x_{k+1} = P_X(x_k - eta_k g_k)
        g_{k+1} = G(x_{k+1}, y_{k+1}, rho_{k+1}; B) + (1 - alpha_{k+1}) (g_k - G(x_k, y_k, rho_k; B))
        y_{k+2} = y_{k+1} + gamma sign(c(x_{k+1}, zeta2)) / ((k + 1) log(k + 2)^2)
        G(x, y, rho; B) = grad f(x, xi) + sum_i grad c_i(x, zeta1) ( y_i + rho c_i(x, zeta2) )

    Schedules as in `QuadraticPenalty`. Where a sampled constraint is exactly 0 its multiplier stays. All steps together
    move a multiplier by at most 3.4 gamma, 61 % of it in the first: gamma wants to be of the size of the solution's
    multipliers, and a start on the wrong side of a constraint costs.

    The returned multiplier of x_{k+1} is y_k + rho_k c(x_{k+1}), with c tracked as in `QuadraticPenalty`.

    Random constraints with a set are covered by the source's theorem on dual updates. Deterministic constraints, where
    the exponents of their own theorem are used, and a regulariser combine two of its extensions; inequalities enter
    through slacks.

    Arguments:
        step_size, penalty, pairs, exponents: as in `QuadraticPenalty`.
        dual_step: gamma; 0 gives `QuadraticPenalty`.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> method = lx.DualPenalty(step_size=0.2, penalty=1.0, dual_step=0.3)
    >>> result = lx.solve(problem, jnp.ones(2), method=method, iterations=20_000)
    >>> round(float(result.multipliers["sum"]), 1)
    1.0

    Reference: A. Alacaoglu, S. J. Wright, "Complexity of Single Loop Algorithms for Nonlinear Programming with
    Stochastic Objective and Constraints", section on dual variable updates.
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    dual_step: float | Array = 1.0
    pairs: bool = eqx.field(static=True, default=False)
    exponents: Exponents | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_positive("step_size", self.step_size)
        check_positive("penalty", self.penalty)
        check_positive("dual_step", self.dual_step, or_zero=True)

    @classmethod
    def from_constants(
        cls,
        *,
        penalty: float,
        dual_step: float = 1.0,
        multiplier_norm: float = 0.0,
        pairs: bool = False,
        **constants: Unpack[SampleConstants],
    ) -> "DualPenalty":
        """The parameters of the theorem: step_size = 1 / (9 L~ penalty), L~ of `formulas.dual_penalty_lipschitz`."""
        check_theory_penalty(penalty)
        lipschitz = dual_penalty_lipschitz(dual_step=dual_step, multiplier_norm=multiplier_norm, **constants)
        return cls(step_size=1 / (9 * lipschitz * penalty), penalty=penalty, dual_step=dual_step, pairs=pairs)

    @property
    def needs(self) -> Needs:
        return Needs(slacks=True, copies=1 if self.pairs else 2)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "DualPenalty":
        check_pairs(self, oracle)
        return self

    def schedule(self, oracle: Oracle) -> PenaltySchedule:
        return PenaltySchedule(self.step_size, self.penalty, self.exponents or exponents_for(oracle))

    def moved(self, multipliers: Array, k: Float[Array, ""] | float, values: Array) -> Array:
        """y_{k+1} from y_k and c(x_k, zeta2): gamma_{k,i} c_i has the size gamma / (k log(k+1)^2), whatever c_i."""
        return multipliers + dual_length(self.dual_step, k, jnp.log(k + 1.0)) * jnp.sign(values)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> DualState:
        multipliers = jnp.zeros(oracle.rows, oracle.dtype)
        gradient, values = oracle.penalty_gradient(
            point, self.schedule(oracle).penalty_at(1), batches.first, multipliers
        )
        if self.pairs:  # the slacks come from these very values, and the sign of what is left would be rounding
            values = oracle.taken_up(point, values)
        return DualState(point, gradient, values, multipliers, multipliers, self.moved(multipliers, 1.0, values))

    def step(self, oracle: Oracle, state: DualState, k: Float[Array, ""], batch: Batch) -> DualState:
        schedule = self.schedule(oracle)
        step_size, momentum = schedule.step_size_at(k), schedule.momentum_after(k)
        x = oracle.prox(state.x - step_size * state.gradient, step_size)
        fresh, now = oracle.penalty_gradient(x, schedule.penalty_at(k + 1), batch, state.following)
        stale, then = oracle.penalty_gradient(state.x, schedule.penalty_at(k), batch, state.multipliers)  # same batch
        return DualState(
            x,
            storm(fresh, stale, state.gradient, momentum),
            storm(now, then, state.constraints, momentum),
            last=state.multipliers,
            multipliers=state.following,
            following=self.moved(state.following, k + 1, now),
        )

    def answer(self, oracle: Oracle, state: DualState, k: Float[Array, ""]) -> Answer:
        multipliers = state.last + self.schedule(oracle).penalty_at(k) * state.constraints
        return Answer(state.x, state.constraints, multipliers)

    def diagnose(self, oracle: Oracle, state: DualState, k: Float[Array, ""]) -> Diagnosis:
        return Diagnosis(note=remainder(oracle, state.constraints, self.schedule(oracle), k))

    def observe(self, oracle: Oracle, state: DualState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"stationarity": oracle.stationarity(state.x, state.gradient), **self.schedule(oracle).at(k)}
