"""Looking at the point during a run: certificates on draws of their own, at iterations that depend on nothing else."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from lariax.certificate import Certificate, SequentialTest, certify
from lariax.loop._run import NEVER
from lariax.problem import Problem, Stream

FIRST = 1000  # iterations before the first look; then at twice, four times, ... as many
FEWEST_DRAWS = 2048
SHARE = 4  # a look takes a quarter of the draws that the run has taken until then, so all looks at most a half

_LOOKS = NEVER - 2  # folded into the seed: a stream of random numbers that no source uses


class Sight(NamedTuple):
    """A point that was looked at."""

    x: PyTree[Array]
    multipliers: dict[str, Any]
    certificate: Certificate

    @property
    def worst(self) -> float:
        """The largest upper end."""
        certificate = self.certificate
        return max(certificate.stationarity.high, certificate.feasibility.high, certificate.complementarity.high)


@dataclass(frozen=True, eq=False)
class Looked:
    """What a continued run must know of the looks before."""

    looks: int = 0
    draws: int = 0
    best: Sight | None = None


class Looks:
    """The looks of one run: when, at what confidence, what they cost, and the best point seen.

    Look j is certified at the confidence of the spending rule, so all certificates of a run hold together: neither
    stopping at the first good one nor keeping the best one is cheating. Held-out rows are left alone.
    """

    def __init__(
        self,
        problem: Problem,
        tolerance: float | None,
        confidence: float,
        key: Key[Array, ""],
        per_iteration: int,
        before: Looked,
    ):
        if any(isinstance(source, Stream) for source in problem.sources):
            raise ValueError(
                'tolerance= and output="best" need draws beside those of the run, and a Stream is read only once. Use '
                "lx.Dataset or lx.Distribution, or certify afterwards."
            )
        self._problem = problem.without_heldout()
        self._key, self._per_iteration = jax.random.fold_in(key, _LOOKS), per_iteration
        self._tolerance, self._test = (
            tolerance,
            SequentialTest(math.inf if tolerance is None else tolerance, confidence),
        )
        self.record = before

    @staticmethod
    def next_after(iteration: int) -> int:
        """The iteration of the next look."""
        due = FIRST
        while due <= iteration:
            due *= 2
        return due

    def draws_for(self, iteration: int) -> int:
        """How many draws a look after an iteration may take."""
        return max(FEWEST_DRAWS, iteration * self._per_iteration // SHARE)

    def most_draws(self, first: int, last: int) -> int:
        """What the looks of iterations first + 1 .. last take at most, with one at the end."""
        total, due = self.draws_for(last), self.next_after(first)
        while due < last:
            total, due = total + self.draws_for(due), 2 * due
        return total

    def last_iteration(self, first: int, last: int, draws: int) -> int:
        """The last iteration up to `last` that leaves the looks their part of `draws`, which start after `first`."""
        low, high = first, last
        while low < high:
            middle = (low + high + 1) // 2
            fits = (middle - first) * self._per_iteration + self.most_draws(first, middle) <= draws
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def look(self, iteration: int, x: PyTree[Array]) -> Sight:
        """Certify the point of an iteration."""
        number = self.record.looks + 1
        certificate = certify(
            self._problem,
            x,
            draws=self.draws_for(iteration),
            confidence=self._test.confidence_at(number),
            seed=jax.random.fold_in(self._key, number),
            tolerance=self._tolerance,
        )
        sight = Sight(x, dict(certificate.multipliers), certificate)
        best = self.record.best
        self.record = Looked(
            number,
            self.record.draws + certificate.draws,
            sight if best is None or sight.worst < best.worst else best,
        )
        return sight

    def accepts(self, sight: Sight) -> bool:
        return self._tolerance is not None and self._test.accepts(sight.certificate)
