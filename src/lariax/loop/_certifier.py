"""Certificates during a run, on draws of their own, after iterations that depend on nothing else."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from lariax.certificate import Certificate, SequentialTest, Tolerance, certify_run
from lariax.loop._feed import Feeder
from lariax.loop._randomness import Randomness
from lariax.oracle import Oracle
from lariax.problem import Stream

FIRST = 1000  # iterations before the first check; then at twice, four times, ... as many
FEWEST_DRAWS = 2048
SHARE = 4  # a check takes a quarter of the draws that the run has taken until then, so all checks at most a half


class CertifiedPoint(NamedTuple):
    x: PyTree[Array]
    multipliers: dict[str, Any]
    certificate: Certificate

    @property
    def worst(self) -> float:
        """The largest upper end."""
        certificate = self.certificate
        return max(certificate.stationarity.high, certificate.feasibility.high, certificate.complementarity.high)


@dataclass(frozen=True, eq=False)
class Checks:
    """The certificates of a run so far: what they cost, and the best point."""

    count: int = 0
    draws: int = 0  # from sources that draw anew; the rows of streams are the run's own
    evaluations: int = 0
    ahead: dict[int, int] = field(default_factory=dict)  # by stream, the last row that was looked at
    best: CertifiedPoint | None = None

    def draws_at(self, place: int, counts: list[int]) -> int:
        """What checks have drawn that the run, which has taken `counts` at each of `place` places, has not."""
        return self.draws + sum(max(0, row - place * counts[i]) for i, row in self.ahead.items())


class Certifier:
    """When a run is checked, at what confidence, and at what cost.

    Check j is certified at the confidence of the spending rule, so all certificates of a run hold together: neither
    stopping at the first good one nor keeping the best one is cheating. Held-out rows are left alone. Of a `Stream` the
    next rows are looked at, which the run has not had yet: what is true of x does not depend on them.
    """

    def __init__(
        self, oracle: Oracle, feeder: Feeder, tolerance: Tolerance | None, confidence: float, key: Key[Array, ""]
    ):
        problem = oracle.problem
        if any(isinstance(source, Stream) and source.repeat for source in problem.sources):
            raise ValueError(
                'tolerance= and output="best" need rows that the run has not seen, and a Stream with repeat=True gives '
                "the same again. Use lx.Dataset, or certify on held-out rows afterwards."
            )
        self._problem = problem.without_heldout()
        self._key, self._oracle, self._feeder = Randomness.CHECKS.of(key), oracle, feeder
        self._per_iteration = oracle.draws_per_iteration
        self.tolerance = tolerance
        self._test = SequentialTest(math.inf if tolerance is None else tolerance, confidence)

    @staticmethod
    def next_after(iteration: int) -> int:
        """The iteration of the next check."""
        due = FIRST
        while due <= iteration:
            due *= 2
        return due

    def draws_for(self, iteration: int) -> int:
        """How many draws a check after an iteration may take."""
        return max(FEWEST_DRAWS, iteration * self._per_iteration // SHARE)

    def most_draws(self, first: int, last: int) -> int:
        """What the checks of iterations first + 1 .. last take at most, with one at the end."""
        total, due = self.draws_for(last), self.next_after(first)
        while due < last:
            total, due = total + self.draws_for(due), 2 * due
        return total

    def last_iteration(self, first: int, last: int, draws: int) -> int:
        """The last iteration up to `last` that leaves the checks their part of `draws`, which start after `first`."""
        low, high = first, last
        while low < high:
            middle = (low + high + 1) // 2
            fits = (middle - first) * self._per_iteration + self.most_draws(first, middle) <= draws
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def check(
        self, before: Checks, iteration: int, x: PyTree[Array], multipliers: dict[str, Array]
    ) -> tuple[Checks, CertifiedPoint | None]:
        """Certify the point of an iteration; None: its Stream has no rows left for that."""
        number, draws = before.count + 1, self.draws_for(iteration)
        problem = self._feeder.problem_ahead(self._problem, draws)
        if problem is None:
            return before, None
        certificate, passes = certify_run(
            problem,
            x,
            multipliers,
            draws=draws,
            confidence=self._test.confidence_at(number),
            seed=jax.random.fold_in(self._key, number),
            tolerance=self.tolerance,
        )
        point, best = CertifiedPoint(x, dict(certificate.multipliers), certificate), before.best
        samples = certificate.draws // max(1, sum(s.rows_per_sample for s in self._oracle.sources if s is not None))
        handed_out = self._feeder.rows_handed_out()
        after = Checks(
            number,
            before.draws + certificate.draws - samples * len(handed_out),
            before.evaluations + passes * self._oracle.evaluations_of(samples),
            {i: row + samples for i, row in handed_out.items()},
            point if best is None or point.worst < best.worst else best,
        )
        return after, point

    def accepts(self, point: CertifiedPoint) -> bool:
        return self.tolerance is not None and self._test.accepts(point.certificate)
