"""What is known of the rates of a model, group by group."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lariax.sklearn._exact import Count, difference, lower, upper
from lariax.sklearn._promise import Tested, row_shown
from lariax.sklearn._rates import Plan
from lariax.utils import needed_by


@dataclass(frozen=True)
class CertifiedRate:
    """One rate, of one group and one class."""

    constraint: str
    rate: str
    group: str
    label: Any
    count: Count
    estimate: float
    low: float
    high: float
    shown: bool


@dataclass(frozen=True)
class RateCertificate:
    """Rates on hard decisions, counted on rows that the model was not trained on (or on the training rows).

    Attributes:
        population: whether it is about new data (rows kept back), or about the training rows, where it is exact.
        rows: how many rows were looked at.
        confidence: of the promise, and of each interval.
        entries: the rates, one a constraint, group and class.
        exact: whether the test was: on rows kept back from training and choice. Else the rows are cross-fitted.

    `holds` is the promise: every constraint at once. The interval of a rate is exact (Clopper and Pearson; empirical
    Bernstein for mean scores), for this rate alone and a model that was fixed before these rows were looked at.
    """

    population: bool
    rows: int
    confidence: float
    holds: bool
    entries: tuple[CertifiedRate, ...]
    largest: dict[str, tuple[Count, Count]]
    exact: bool = True

    @cached_property
    def differences(self) -> dict[str, tuple[float, float, float]]:
        """The largest difference of two groups' rates, constraint by constraint, with its interval: computed when it is
        asked for, as the exact ones take longer than many a fit."""
        found = {}
        for name, (first, second) in self.largest.items():
            middle = first.rate - second.rate
            ends = difference(first, second, 1.0, 1 - self.confidence) if self.population else (middle, middle)
            found[name] = (middle, *ends)
        return found

    def to_frame(self) -> Any:
        """A pandas frame, one row a rate."""
        with needed_by("to_frame()"):
            import pandas as pd

        head = ("constraint", "rate", "group", "label")
        records = [
            {
                **{name: getattr(entry, name) for name in head},
                "estimate": entry.estimate,
                "low": entry.low,
                "high": entry.high,
                "hits": entry.count.hits,
                "rows": entry.count.rows,
                "shown": entry.shown,
            }
            for entry in self.entries
        ]
        return pd.DataFrame.from_records(records).set_index(list(head)) if records else pd.DataFrame()

    @property
    def by_group(self) -> Any:
        """Estimates as a frame, groups down and constraints across (one column a class, where it is on several), as
        fairlearn's `MetricFrame.by_group`."""
        if not self.entries:
            return self.to_frame()
        frame = self.to_frame().reset_index()
        frame["constraint"] += [self._of_class(entry) for entry in self.entries]
        frame = frame[frame["group"] != ""]
        return frame.pivot_table(index="group", columns="constraint", values="estimate", sort=False)

    @property
    def difference(self) -> Any:
        """The largest difference of the groups' estimates, constraint by constraint, as `MetricFrame.difference()`."""
        by_group = self.by_group
        return (by_group.max() - by_group.min()).rename("difference")

    def _of_class(self, entry: CertifiedRate) -> str:
        """Which one, where the constraint is on several."""
        several = len({one.label for one in self.entries if one.constraint == entry.constraint}) > 1
        return f" of {entry.label}" if several else ""

    def __str__(self) -> str:
        if not self.entries:
            return "No rates are bounded."
        kept = "rows that were kept back" if self.exact else "rows, each decided by models that did not see it"
        verdict = f"promised, from {self.rows:,} {kept}" if self.population else f"met, on {self.rows:,} training rows"
        lines = [f"{'' if self.holds else 'not '}{verdict}:".capitalize()]
        for entry in self.entries:
            about = f"{entry.rate}{self._of_class(entry)}{f' [{entry.group}]' if entry.group else ''}"
            lines.append(f"  {about}: {entry.estimate:.4f} [{entry.low:.4f}, {entry.high:.4f}]")
        for name, (middle, low, high) in self.differences.items():
            lines.append(f"  largest difference of {name}: {middle:.4f} [{low:.4f}, {high:.4f}]")
        return "\n".join(lines)


def certificate_of(plan: Plan, tested: Tested, classes: Any, confidence: float, holds: bool) -> RateCertificate:
    error, entries = 1 - confidence, []
    for number, base in enumerate(plan.bases):
        rows = [row for row in plan.rows if number in (row.first, row.second)]
        count = tested.counts[number]
        low, high = (
            (lower(count, error / 2), upper(count, error / 2)) if tested.population else (count.rate, count.rate)
        )
        alone = [row for row in rows if row.second is None]
        ok = all(row_shown(row, tested.counts, error) if tested.population else _met(row, tested) for row in alone)
        label = classes[base.label] if base.label >= 0 else None
        estimate, low, high = (base.low + base.width * one for one in (count.rate, low, high))
        name = rows[0].name if rows else base.rate
        is_shown = holds or (bool(alone) and ok)
        entries.append(CertifiedRate(name, base.rate, base.group, label, count, estimate, low, high, is_shown))
    return RateCertificate(
        tested.population,
        tested.rows,
        confidence,
        holds,
        tuple(entries),
        _largest(plan, tested),
        tested.exact,
    )


def _met(row: Any, tested: Tested) -> bool:
    rates = [count.rate for count in tested.counts]
    other = 0.0 if row.second is None else row.slope * rates[row.second]
    return bool(row.sign * (rates[row.first] - other) <= row.bound + 1e-12)


def _largest(plan: Plan, tested: Tested) -> dict[str, tuple[Count, Count]]:
    """Of each constraint that compares groups the two that differ most."""
    found: dict[str, tuple[Count, Count]] = {}
    for row in plan.rows:
        if row.second is None:
            continue
        pair = tested.counts[row.first], tested.counts[row.second]
        if not (pair[0].rows and pair[1].rows):
            continue
        if row.name not in found or pair[0].rate - pair[1].rate > found[row.name][0].rate - found[row.name][1].rate:
            found[row.name] = pair
    return found
