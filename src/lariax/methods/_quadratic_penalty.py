"""Algorithm 2 of Alacaoglu & Wright: a linearised quadratic penalty method with variance reduction."""

from typing import NamedTuple, TypedDict, Unpack

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from lariax.compilation import on_host
from lariax.formulas import (
    DETERMINISTIC_CONSTRAINTS,
    STOCHASTIC_CONSTRAINTS,
    Exponents,
    PenaltySchedule,
    penalty_lipschitz,
    storm,
)
from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs, check_pairs, check_positive
from lariax.oracle import Batch, Oracle, Vector


def exponents_for(oracle: Oracle) -> Exponents:
    """Case III when a constraint is random, case II when none is."""
    return STOCHASTIC_CONSTRAINTS if oracle.has_random_constraints else DETERMINISTIC_CONSTRAINTS


class SampleConstants(TypedDict):
    """Constants of every single sample of the objective and of every single constraint."""

    constraints: int  # how many
    gradient_lipschitz: float
    constraint_bound: float
    constraint_lipschitz: float
    constraint_gradient_bound: float
    constraint_gradient_lipschitz: float


def check_theory_penalty(penalty: float) -> None:
    if penalty <= 1:
        raise ValueError(f"the theorems need penalty > 1, found {penalty}. Any penalty > 0 works with step_size=.")


def remainder(oracle: Oracle, values: Array, schedule: PenaltySchedule, k: Float[Array, ""]) -> str:
    """By how much a penalty leaves constraints off their bounds, slacks taken in: in words, and of the worst name."""
    off = np.abs(np.asarray(on_host(values)))
    if not off.size:
        return ""
    row, penalty, power = int(np.argmax(off)), float(schedule.penalty_at(float(k))), schedule.exponents.penalty
    name = next(block.name for block in oracle.blocks if row in range(oracle.rows)[block.rows])
    return (
        f"By the run's own estimate {name!r}, with its slacks, is off its bound by {off[row]:.2g}: a penalty of "
        f'{penalty:.3g} leaves that, and grows as k^{power:.3g}. Take a larger penalty=, or method="auto".'
    )


class PenaltyState(NamedTuple):
    x: Vector
    gradient: Vector  # g_k, an estimate of grad f + rho_k J^T c at x_k
    constraints: Float[Array, " m"]  # an estimate of c at x_k, for the multiplier alone


class QuadraticPenalty(AbstractMethod):
    """Algorithm 2: one proximal step an iteration on f + (rho_k / 2) ||c||^2, with a STORM estimate of its gradient.

        x_{k+1} = P_X(x_k - eta_k g_k)
        g_{k+1} = G(x_{k+1}, rho_{k+1}; B) + (1 - alpha_{k+1}) (g_k - G(x_k, rho_k; B))    one fresh batch B, used twice
        G(x, rho; B) = grad f(x, xi) + rho sum_i grad c_i(x, zeta1) c_i(x, zeta2)           zeta1, zeta2 independent

    The step size falls, the penalty grows and the momentum falls at the rates of the main theorem when a constraint is
    random, at those of the deterministic theorem when none is (`formulas.PenaltySchedule`; `exponents` overrides).
    Constraint violation falls as 1/rho_k: the method needs a long run, and a step size, to be accurate.

    The multiplier of x_{k+1} is rho_k c(x_{k+1}), with c tracked by the same recursion on the values that the products
    use anyway; where no constraint is random that estimate is exact.

    Sets are covered by the theorems; a regulariser h takes the place of the set (P_X becomes the proximal map of h) as
    in the extension to the proximal case; inequalities become r(x) + s = 0, s >= 0 as the source suggests.

    Arguments:
        step_size: eta_k = step_size / (k + 1)^(3/5), or (k + 1)^(1/2) for deterministic constraints.
        penalty: rho_k = penalty * k^(1/5), or k^(1/4).
        pairs: take the product of constraint gradient and value from all ordered pairs of one batch, instead of two
            independent batches: half the draws and less variance, for a batch size of 2 or more.
        exponents: other powers of k.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> method = lx.QuadraticPenalty(step_size=0.2, penalty=1.0)
    >>> result = lx.solve(problem, jnp.zeros(2), method=method, iterations=20_000)
    >>> [round(float(value), 1) for value in result.x]
    [0.5, 0.5]

    Reference: A. Alacaoglu, S. J. Wright, "Complexity of Single Loop Algorithms for Nonlinear Programming with
    Stochastic Objective and Constraints".
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    pairs: bool = eqx.field(static=True, default=False)
    exponents: Exponents | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_positive("step_size", self.step_size)
        check_positive("penalty", self.penalty)

    @classmethod
    def from_constants(
        cls, *, penalty: float, pairs: bool = False, **constants: Unpack[SampleConstants]
    ) -> "QuadraticPenalty":
        """The parameters of the theorems: step_size = 1 / (9 L~ penalty), L~ of `formulas.penalty_lipschitz`.

        The theorems want penalty > 1. The steps are safe and small; expect to do better with a step size of your own.
        """
        check_theory_penalty(penalty)
        lipschitz = penalty_lipschitz(**constants)
        return cls(step_size=1 / (9 * lipschitz * penalty), penalty=penalty, pairs=pairs)

    @property
    def needs(self) -> Needs:
        return Needs(slacks=True, copies=1 if self.pairs else 2)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "QuadraticPenalty":
        check_pairs(self, oracle)
        return self

    def schedule(self, oracle: Oracle) -> PenaltySchedule:
        return PenaltySchedule(self.step_size, self.penalty, self.exponents or exponents_for(oracle))

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> PenaltyState:
        penalty = self.schedule(oracle).penalty_at(1)
        gradient, constraints = oracle.penalty_gradient(point, penalty, batches.first)  # line 1
        return PenaltyState(point, gradient, constraints)

    def step(self, oracle: Oracle, state: PenaltyState, k: Float[Array, ""], batch: Batch) -> PenaltyState:
        schedule = self.schedule(oracle)
        step_size, momentum = schedule.step_size_at(k), schedule.momentum_after(k)
        x = oracle.prox(state.x - step_size * state.gradient, step_size)  # line 3
        fresh, now = oracle.penalty_gradient(x, schedule.penalty_at(k + 1), batch)  # lines 4 and 5, at x_{k+1}
        stale, then = oracle.penalty_gradient(state.x, schedule.penalty_at(k), batch)  # old point, old penalty
        gradient = storm(fresh, stale, state.gradient, momentum)  # line 6
        return PenaltyState(x, gradient, storm(now, then, state.constraints, momentum))

    def answer(self, oracle: Oracle, state: PenaltyState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.constraints, self.schedule(oracle).penalty_at(k) * state.constraints)

    def diagnose(self, oracle: Oracle, state: PenaltyState, k: Float[Array, ""]) -> Diagnosis:
        return Diagnosis(note=remainder(oracle, state.constraints, self.schedule(oracle), k))

    def observe(self, oracle: Oracle, state: PenaltyState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"stationarity": oracle.stationarity(state.x, state.gradient), **self.schedule(oracle).at(k)}
