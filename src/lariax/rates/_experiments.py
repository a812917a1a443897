"""The experiments: each case of the paper as it is, and what happens when a part of it is taken away."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from lariax.formulas import DETERMINISTIC_CONSTRAINTS, STOCHASTIC_CONSTRAINTS, Exponents
from lariax.loop import solve
from lariax.methods import DualPenalty, LinearizedALM, QuadraticPenalty
from lariax.rates._cases import ROWS, SLOPE_NOISE, VALUE_NOISE, VARIABLES, Member
from lariax.rates._watch import Watched

PaperMethod = LinearizedALM | QuadraticPenalty | DualPenalty

PAPER, NO_STORM, WRONG, SAME_BATCH = "the paper's", "no STORM", "wrong schedule", "same batch"
FROM_ZERO, AFAR, THEORY = "from y = 0", "from afar", "theory constants, from afar"

THEOREM = {"I": -1 / 3, "II": -1 / 4, "III": -1 / 5, "III+": -1 / 5}
"""The slopes of the theorems, up to logarithms."""

BURN_IN = 100
SHORTEST, LONGEST = 1_000, 1_000_000
SHORT = 100_000
"""Longest run of an ablation that makes its point early."""

PULL, CURVATURE = 0.5, 0.5
STEP_SIZE, PENALTY, DUAL_STEP = 0.25, 2.0, 0.1
AWAY = 0.5
_FORGET = 1e30  # c in alpha_k = min(1, c eta_k^2), so that it is 1


@dataclass(frozen=True)
class Experiment:
    """A method on a family of problems.

    The run starts where nothing is left to gain: at the solution with its multipliers for Algorithm 1 (its problems
    have y = 0, which is no restriction: starting at y on f is starting at 0 on f + y . c), at the least point of the
    first penalty function for Algorithm 2. So what is measured is not the decay of a bad start. `away` moves the start
    off.

    >>> import lariax as lx
    >>> next(lx.rates.experiments()).variant
    "the paper's"
    """

    case: str
    variant: str
    kind: str  # of the constraints
    method: PaperMethod
    pull: float = PULL  # ||y|| at the solution
    curvature: float = CURVATURE
    bounded: bool = True
    same_batch: bool = False
    away: float = 0.0
    longest: int = LONGEST

    @property
    def name(self) -> str:
        return f"{self.case}, {self.variant}"

    @property
    def theorem(self) -> float:
        return THEOREM[self.case]

    def marks(self, longest: int) -> tuple[int, ...]:
        """Values of K: 1, 2 and 5 times powers of 10."""
        limit = min(longest, self.longest)
        return tuple(n for e in range(3, 10) for n in (10**e, 2 * 10**e, 5 * 10**e) if SHORTEST <= n <= limit)

    def run(self, seeds: int, longest: int = LONGEST, seed: int = 0) -> "Measured":
        """Every seed a problem and a run of its own, all in one program."""
        marks = self.marks(longest)

        def one(key: Key[Array, ""]) -> tuple[Array, Array]:
            problem_key, run_key = jax.random.split(key)
            member = Member.draw(problem_key, pull=self.pull, curvature=self.curvature, bounded=self.bounded)
            has_multipliers = isinstance(self.method, LinearizedALM)
            start = member.constraint.point if has_multipliers else member.start(self.method.penalty)
            start = start + self.away * jnp.resize(jnp.array([-1.0, 1.0]), (VARIABLES,)) / np.sqrt(VARIABLES)
            watched = Watched(self.method, member, marks, BURN_IN, self.same_batch)
            result = solve(
                member.problem(self.kind), start, watched, iterations=marks[-1], seed=run_key, record_every=marks[-1]
            )
            travelled = jnp.linalg.norm(result.x - start)
            return result.history["sums"][0], travelled

        keys = jax.random.split(jax.random.key(seed), seeds)
        sums, travelled = jax.vmap(one)(keys)
        return Measured(self.case, self.variant, np.asarray(marks), np.asarray(sums), np.asarray(travelled))


@dataclass(frozen=True)
class Measured:
    """What was measured: sums over iterations, by seed, K and measure."""

    case: str
    variant: str
    marks: Float[np.ndarray, " marks"]
    sums: Float[np.ndarray, "seeds marks measures"]
    travelled: Float[np.ndarray, " seeds"]  # from the start to the last iterate

    @property
    def means(self) -> Float[np.ndarray, "seeds marks measures"]:
        """At a uniformly random iterate of the first K, after the burn-in."""
        return self.sums / (self.marks - BURN_IN)[:, None]

    @property
    def windows(self) -> Float[np.ndarray, "seeds marks measures"]:
        """At a uniformly random iterate between the mark before and this one."""
        ends = np.concatenate([[BURN_IN], self.marks])
        return np.diff(self.sums, axis=1, prepend=0) / np.diff(ends)[:, None]


def experiments() -> Iterator[Experiment]:
    """All of them, case by case.

    >>> import lariax as lx
    >>> sorted({experiment.case for experiment in lx.rates.experiments()})
    ['I', 'II', 'III', 'III+']
    """
    no_memory = {
        kind: Exponents(kind.step_size, kind.penalty, momentum=0.0, first_momentum=1.0)
        for kind in (DETERMINISTIC_CONSTRAINTS, STOCHASTIC_CONSTRAINTS)
    }
    one = Experiment("I", PAPER, "linear", LinearizedALM(lipschitz=1.0), pull=0.0, curvature=0.0, bounded=False)
    penalty = QuadraticPenalty(STEP_SIZE, PENALTY)
    two = Experiment("II", PAPER, "deterministic", penalty)
    three = Experiment("III", PAPER, "random", penalty)
    dual_penalty = DualPenalty(STEP_SIZE, PENALTY, DUAL_STEP)
    dual = Experiment("III+", PAPER, "random", dual_penalty)
    yield one
    yield replace(one, variant=NO_STORM, method=LinearizedALM(lipschitz=1.0, momentum=_FORGET))
    foreign = replace(penalty, exponents=STOCHASTIC_CONSTRAINTS)
    yield replace(one, variant=WRONG, method=foreign, pull=PULL, longest=SHORT)
    yield replace(one, variant=FROM_ZERO, pull=PULL)
    for case, method, own, other in (
        (two, penalty, DETERMINISTIC_CONSTRAINTS, STOCHASTIC_CONSTRAINTS),
        (three, penalty, STOCHASTIC_CONSTRAINTS, DETERMINISTIC_CONSTRAINTS),
        (dual, dual_penalty, STOCHASTIC_CONSTRAINTS, DETERMINISTIC_CONSTRAINTS),
    ):
        yield case
        yield replace(case, variant=NO_STORM, method=replace(method, exponents=no_memory[own]))
        yield replace(case, variant=WRONG, method=replace(method, exponents=other), longest=SHORT)
        if case.kind == "random":
            yield replace(case, variant=SAME_BATCH, same_batch=True, longest=SHORT)
    for case in (one, two, three):
        far = replace(case, variant=AFAR, away=AWAY, longest=SHORT)
        yield far
        yield replace(far, variant=THEORY, method=_by_the_theorem(case))


def _by_the_theorem(case: Experiment) -> PaperMethod:
    """The constants hold within a distance of 1 of the solution and for noise of up to 3 standard deviations: normal
    noise has no bound, as the theorem would want."""
    if case.kind == "linear":
        return LinearizedALM.from_constants(lipschitz=1.0, norm=1.0, smallest=1.0)
    noise = 3 * (VALUE_NOISE + SLOPE_NOISE) if case.kind == "random" else 0.0
    slope = 1 + CURVATURE + (3 * SLOPE_NOISE if case.kind == "random" else 0.0)
    return QuadraticPenalty.from_constants(
        penalty=PENALTY,
        constraints=ROWS,
        gradient_lipschitz=1.0,
        constraint_bound=1 + CURVATURE / 2 + noise,
        constraint_lipschitz=slope,
        constraint_gradient_bound=slope,
        constraint_gradient_lipschitz=CURVATURE,
    )
