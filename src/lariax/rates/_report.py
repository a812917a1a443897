"""From measurements to slopes, verdicts, tables and pictures."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lariax.rates._experiments import (
    AFAR,
    BURN_IN,
    FROM_ZERO,
    NO_STORM,
    PAPER,
    SHORTEST,
    THEOREM,
    THEORY,
    Measured,
)
from lariax.rates._watch import MEASURES

ALLOWANCE = 0.05
"""How far above the theorem's slope the upper end of an interval may lie,"""

TRANSIENT = 10.0
"""and how far above the level of the noise a run of the shortest length."""

CONFIDENCE, RESAMPLES = 0.95, 2000
SHOWN = ("stationarity", "feasibility")


class Slope(NamedTuple):
    """Of log(mean over seeds) against log(K), by least squares, with a bootstrap interval over the seeds.

    >>> import lariax as lx
    >>> lx.rates.Slope(-0.2, low=-0.21, high=-0.19).high < -0.15
    True
    """

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def slope(measured: Measured, measure: str) -> Slope:
    """Runs are resampled as wholes, so that it does not matter that the values of K share them."""
    values = measured.means[:, :, MEASURES.index(measure)]
    seeds = values.shape[0]
    picks = np.random.default_rng(0).integers(0, seeds, (RESAMPLES, seeds))
    log_k = np.log(measured.marks)
    centered = (log_k - log_k.mean()) / np.sum((log_k - log_k.mean()) ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):  # a run that does not move may be at 0
        estimate = float(np.log(values.mean(axis=0)) @ centered)
        resampled = np.log(values[picks].mean(axis=1)) @ centered
    tail = (1 - CONFIDENCE) / 2
    return Slope(estimate, float(np.quantile(resampled, tail)), float(np.quantile(resampled, 1 - tail)))


class Finding(NamedTuple):
    """A sentence that a measurement can refute."""

    sentence: str
    holds: bool


@dataclass(frozen=True)
class Report:
    """All that was measured, by case and variant.

    >>> import lariax as lx
    >>> report = lx.rates.measure(["III"], seeds=8, longest=10_000)  # doctest: +SKIP
    >>> all(claim.holds for claim in report.claims())  # doctest: +SKIP
    True
    """

    measured: list[Measured]
    seconds: float

    def find(self, case: str, variant: str) -> Measured | None:
        return next((m for m in self.measured if (m.case, m.variant) == (case, variant)), None)

    def level(self, measured: Measured, measure: str, mark: int) -> float:
        return float(measured.means[:, mark, MEASURES.index(measure)].mean())

    def claims(self) -> list[Finding]:
        """What must hold, for the cases that were measured."""
        found = []
        for case, theorem in THEOREM.items():
            own, ablated = self.find(case, PAPER), self.find(case, NO_STORM)
            limit = theorem + ALLOWANCE
            if own is not None:
                for measure, noise in zip(SHOWN, ("error", "moved"), strict=True):
                    high = slope(own, measure).high
                    found.append(
                        Finding(f"{case}: {measure} slope at most {limit:.3f}, found {high:.3f}", high <= limit)
                    )
                    ratio = self.level(own, measure, 0) / self.level(own, noise, 0)
                    sentence = f"{case}: {measure} at K = {SHORTEST:,} at most {TRANSIENT:g} times the noise"
                    found.append(Finding(f"{sentence}, found {ratio:.2f}", ratio <= TRANSIENT))
            if ablated is not None:
                low = slope(ablated, "stationarity").low
                sentence = f"{case}: no STORM misses that stationarity slope, found at least {low:.3f}"
                found.append(Finding(sentence, low > limit))
        return found

    def markdown(self) -> str:
        return "\n".join([*self._slopes(), "", *self._claims(), "", *self._along(), "", *self._theory()]) + "\n"

    def _slopes(self) -> list[str]:
        seeds, longest = self.measured[0].sums.shape[0], max(int(m.marks[-1]) for m in self.measured)
        head = "stationarity: slope | at first K | at last K | norm of c: slope | at first K | at last K"
        lines = [
            f"{seeds} problems and runs for each row, K from {SHORTEST:,} to {longest:,} (ablations that make their "
            f"point early, to less), {self.seconds / 60:.1f} minutes. Levels are means over a uniformly random iterate "
            f"of {BURN_IN + 1} .. K; slopes of their logarithms with {CONFIDENCE:.0%} intervals over the runs.",
            "",
            f"| case | | theorem | {head} |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for m in self.measured:
            cells = [m.case, m.variant, f"{THEOREM[m.case]:.3f}"]
            for measure in SHOWN:
                cells += [str(slope(m, measure)), *(f"{self.level(m, measure, mark):.2e}" for mark in (0, -1))]
            lines.append(f"| {' | '.join(cells)} |")
        return lines

    def _claims(self) -> list[str]:
        return [f"- {'holds' if claim.holds else '**missed**'}: {claim.sentence}" for claim in self.claims()]

    def _along(self) -> list[str]:
        """The estimator's error and the multiplier along the runs."""
        lines = ["Error of the gradient estimate, and norm of the multiplier, around the first and the last K:", ""]
        head = "error first | error last | multiplier first | multiplier last"
        lines += [f"| case | | {head} |", "|---|---|---|---|---|---|"]
        for m in self.measured:
            if m.variant in (PAPER, NO_STORM, FROM_ZERO):
                means = m.windows.mean(axis=0)
                columns = [means[mark, MEASURES.index(name)] for name in ("error", "multipliers") for mark in (0, -1)]
                lines.append(f"| {m.case} | {m.variant} | {' | '.join(f'{value:.3g}' for value in columns)} |")
        return lines

    def _theory(self) -> list[str]:
        """What the constants of the theorems do, from a start that leaves something to do."""
        lines = ["Constants of the theorems against practical ones, from a start 0.5 off:", ""]
        lines += ["| case | | stationarity at first K | at last K | way made by x |", "|---|---|---|---|---|"]
        for m in self.measured:
            if m.variant in (AFAR, THEORY):
                levels = " | ".join(f"{self.level(m, 'stationarity', mark):.3g}" for mark in (0, -1))
                lines.append(f"| {m.case} | {m.variant} | {levels} | {m.travelled.mean():.3g} |")
        return lines
