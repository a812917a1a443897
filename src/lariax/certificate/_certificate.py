"""What is known of a point, and how surely."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

HOLDS = ("surely", "probably", "undecided", "violated")


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
        holds: the worst of its entries.

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

    def __str__(self) -> str:
        return f"{_range(self.value)} [{np.min(self.low):.3g}, {np.max(self.high):.3g}]"


def _range(values: np.ndarray) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


@dataclass(frozen=True, eq=False)
class Certificate:
    """Is it feasible, is it a solution, how sure are we. Made by `lx.certify`; nothing in it changes.

    Attributes:
        stationarity: of the Lagrangian with the certificate's multipliers: dist(grad f + sum J^T y, -N_X(x)), or the
            distance to minus the subdifferential of the regulariser.
        feasibility: the length of (equality residuals, excesses over inequality bounds, distance to the set).
        complementarity: the length of (multiplier times residual) over the inequalities.
        natural_residual: || x - P(x - v) || with v the gradient of the Lagrangian: beside the distance to the cone,
            since the two can differ at a point that is nearly, not exactly, on the boundary.
        objective: E[f], without the regulariser.
        constraints: a `ConstraintReport` for each name.
        multipliers: by name, with L = f + sum y . c; fitted says whether they come from a part of the draws.
        population: True: about the distribution that samples come from. False: about all rows of a data set.
        exact: whether every row was used, so that there is no sampling error.
        heldout: the same for rows never trained on, where the problem has them.
        draws: how many samples were drawn for it.
        confidence: of each interval on its own.
        tolerance: up to where a violation or a distance counts as none, in `holds` and in the verdict.
        warnings: what may be wrong with the statements made, in words.
        violated: the names of constraints that are.
        verdict: one sentence.
    """

    stationarity: Interval
    feasibility: Interval
    complementarity: Interval
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
    def verdict(self) -> str:
        return f"{_judgement(self)} ({_circumstances(self)})."

    def __str__(self) -> str:
        from lariax.certificate._table import as_text

        return as_text(self)

    def __rich__(self) -> Any:
        from lariax.certificate._table import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from lariax.certificate._table import as_html

        return as_html(self)


def _judgement(certificate: Certificate) -> str:
    broken = certificate.violated
    s, f, c = certificate.stationarity, certificate.feasibility, certificate.complementarity
    if not all(np.isfinite([s.high, f.high, c.high])):
        return "Nothing can be said: a function or its gradient is not finite here"
    moreover = f"; and not stationary, off by {_at_least(s)}" if s.low > certificate.tolerance else ""
    if certificate.outside > 0:
        return f"Not feasible: x lies {certificate.outside:.3g} outside of its set{moreover}"
    if broken:
        verb = "is" if len(broken) == 1 else "are"
        return f"Not feasible: {_listed(broken)} {verb} violated, in all by {_at_least(f)}{moreover}"
    if certificate.within(certificate.tolerance):
        return f"A solution within {certificate.tolerance:.3g}: feasible, stationary and complementary"
    feasible = "Feasible" if f.high <= certificate.tolerance else f"Feasible to within {f.high:.3g}"
    if s.low > certificate.tolerance:
        return f"{feasible}, but not stationary: the gradient of the Lagrangian is off by {_at_least(s)}"
    if c.low > certificate.tolerance:
        return f"{feasible}, but a multiplier is at work on an inactive constraint: complementarity is {_at_least(c)}"
    return (
        f"{feasible}, and not distinguishable from a solution: stationarity is at most {s.high:.3g}, complementarity "
        f"at most {c.high:.3g}"
    )


def _at_least(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.estimate:.3g}"
    return f"{interval.estimate:.3g} (at least {interval.low:.3g})"


def _circumstances(certificate: Certificate) -> str:
    if certificate.exact:
        return f"{certificate.about}, no sampling error"
    return f"{certificate.about}, {certificate.confidence:.4g} confidence each, {certificate.draws:,} draws"


def _listed(names: list[str]) -> str:
    shown = [repr(name) for name in names[:4]] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
