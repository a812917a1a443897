"""What is known of a point, and how surely."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

HOLDS = ("surely", "probably", "undecided", "violated")
SAYS = {"surely": "yes, surely", "probably": "probably", "undecided": "undecided", "violated": "no"}
"""The same as answers to a question: what tables and pages show."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.estimate:.3g}"
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, eq=False)
class ConstraintReport:
    """One named constraint.

    Attributes:
        value: the estimate of E[fun], entry by entry, in the units of `fun`.
        low, high: the ends of its interval; for several entries the intervals hold for all of them at once.
        relation, bound: what was asked of it.
        holds: the worst of its entries, which `worst` tells.

            surely      the whole interval keeps the bound (within the tolerance)
            probably    the estimate keeps the bound and the interval does not; for an equality, the bound is within one
                        standard error of the estimate
            undecided   the estimate does not, but the interval reaches a value that would
            violated    no value in the interval keeps the bound
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    relation: str
    bound: np.ndarray
    holds: str

    @property
    def worst(self) -> int:
        """The place, in `np.ravel`, of the entry that `holds` speaks of."""
        value, low, high = (np.ravel(part - self.bound) for part in (self.value, self.low, self.high))
        if self.relation == ">=":
            value, low, high = -value, -high, -low
        if self.relation == "=":  # how far off, by the estimate, at least and at most
            value, low, high = np.abs(value), np.maximum(low, -high), np.maximum(high, -low)
            value = value / np.where(high > low, high - low, 1) if self.holds == "undecided" else value
        deciding = {"violated": low, "undecided": value, "probably": high, "surely": high}[self.holds]
        broken = ~np.isfinite(np.ravel(self.value))
        return int(np.argmax(np.where(broken, np.inf, deciding)))

    def at(self, entry: int) -> Interval:
        """The value of one entry, by its place in `np.ravel`."""
        return Interval(*(float(np.ravel(part)[entry]) for part in (self.value, self.low, self.high)))

    def asked(self, entry: int) -> str:
        """What was asked of an entry, as `<= 0.005`."""
        return f"{self.relation} {np.ravel(self.bound)[entry]:.4g}"

    def place(self, entry: int) -> str:
        """An entry as an index: `[3]` or `[1, 2]`; nothing for a number."""
        if self.value.ndim == 0:
            return ""
        return str([int(i) for i in np.unravel_index(entry, self.value.shape)])

    def __str__(self) -> str:
        words = str(self.at(self.worst))
        return words if self.value.size == 1 else f"{words} at {self.place(self.worst)}, the worst of {self.value.size}"


@dataclass(frozen=True)
class Relative:
    """The measures without units, each part beside the size of its own: see `Certificate.relative`."""

    stationarity: Interval
    feasibility: Interval
    complementarity: Interval


@dataclass(frozen=True, eq=False)
class Certificate:
    """Is it feasible, is it a solution, how sure are we. Made by `lx.certify`; nothing in it changes.

    Attributes:
        stationarity: of the Lagrangian with the certificate's multipliers: dist(grad f + sum J^T y, -N_X(x)), or the
            distance to minus the subdifferential of the regulariser.
        feasibility: the length of (equality residuals, excesses over inequality bounds, distance to the set).
        complementarity: the length of (multiplier times residual) over the inequalities.
        relative: the same three without units: the entries of the gradient beside the terms that cancel in them and
            beside what they change by when x changes by its own size (the root of the mean square of these ratios);
            residuals beside their bounds and what they change by; inactive rows as far as their multipliers have a
            share in the Lagrangian. Other units of x, of the objective or of a constraint do not change them. None
            where gradients were made elsewhere (`lariax.torch`).
        natural_residual: || x - P(x - v) || with v the gradient of the Lagrangian: beside the distance to the cone,
            since the two can differ at a point that is nearly, not exactly, on the boundary.
        objective: E[f], without the regulariser.
        constraints: a `ConstraintReport` for each name.
        multipliers: by name, with L = f + sum y . c; fitted says whether they come from a part of the draws. Then the
            lower end of stationarity is one for all multipliers.
        population: True: about the distribution that samples come from. False: about all rows of a data set.
        exact: whether every row was used, so that there is no sampling error.
        heldout: the same for rows never trained on, where the problem has them.
        draws: how many samples were drawn for it.
        confidence: of each interval on its own.
        tolerance: up to where a violation or a distance counts as none, in `holds` and in the verdict.
        warnings: what may be wrong with the statements made, in words.
        violated: the names of constraints that are.
        feasible: whether all of them hold, in the words of `holds`.
        verdict: one sentence.
    """

    stationarity: Interval
    feasibility: Interval
    complementarity: Interval
    relative: Relative | None
    natural_residual: Interval
    objective: Interval
    constraints: Mapping[str, ConstraintReport]
    multipliers: Mapping[str, np.ndarray]
    fitted: bool
    population: bool
    exact: bool
    outside: float
    about: str
    heldout: "Certificate | None"
    draws: int
    confidence: float
    tolerance: float
    warnings: tuple[str, ...]

    def within(self, tolerance: float) -> bool:
        """Whether the upper ends of stationarity, feasibility and complementarity are at most `tolerance`."""
        return max(self.stationarity.high, self.feasibility.high, self.complementarity.high) <= tolerance

    @property
    def violated(self) -> list[str]:
        """Names of the constraints that are."""
        return [name for name, report in self.constraints.items() if report.holds == "violated"]

    @property
    def feasible(self) -> str:
        """Whether every constraint holds, as well as the worst of them does."""
        if self.outside > 0:
            return "violated"
        return max((report.holds for report in self.constraints.values()), key=HOLDS.index, default="surely")

    @property
    def verdict(self) -> str:
        from lariax.certificate._verdict import verdict

        return verdict(self)

    def __str__(self) -> str:
        from lariax.certificate._table import as_text

        return as_text(self)

    def __rich__(self) -> Any:
        from lariax.certificate._table import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from lariax.certificate._table import as_html

        return as_html(self)
