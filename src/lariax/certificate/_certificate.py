"""What is known of a point and how surely; as a sentence, as a table in a terminal or a notebook, as plain text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from lariax.problem import visible
from lariax.utils import narrow_table

if TYPE_CHECKING:
    from rich.console import RenderableType

HOLDS = ("surely", "probably", "undecided", "violated")
COLOURS = dict(zip(HOLDS, ("green", "yellow", "yellow", "red"), strict=True))

_HEAD = ("", "estimate", "low", "high", "relative", "holds")
_Row = tuple[str, ...]

MOST_NAMED = 3  # rows of constraints in a sentence


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
        fault: what speaks surely against the point: "not finite", "infeasible", "not stationary", "not complementary";
            None where nothing does, on held-out rows neither (there constraints alone count).
        verdict: one sentence.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> certificate = lx.certify(problem, jnp.array([0.5, 0.5]))
    >>> certificate.constraints["sum"].holds, certificate.stationarity.high < 1e-3
    ('surely', True)
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
    def fault(self) -> str | None:
        """What the verdict holds against the point."""
        found = _fault(self)
        heldout = self.heldout is not None and self.heldout.feasible == "violated"
        return "infeasible" if found is None and heldout else found

    @property
    def verdict(self) -> str:
        return f"{_judgement(self)} ({_circumstances(self)})."

    def __str__(self) -> str:
        return _as_text(self)

    def __rich__(self) -> Any:
        return _as_rich(self)

    def _repr_html_(self) -> str:
        return _as_html(self)


# --- in one sentence


def _fault(certificate: Certificate) -> str | None:
    s, f, c = certificate.stationarity, certificate.feasibility, certificate.complementarity
    if not all(np.isfinite([s.high, f.high, c.high])):
        return "not finite"
    if certificate.feasible == "violated":
        return "infeasible"
    if s.low > certificate.tolerance:
        return "not stationary"
    return "not complementary" if c.low > certificate.tolerance else None


def _judgement(certificate: Certificate) -> str:
    s, f, c = certificate.stationarity, certificate.feasibility, certificate.complementarity
    fault = _fault(certificate)
    if fault == "not finite":
        return "Nothing can be said: a function or its gradient is not finite here"
    off = f"off by {_at_least(s)}{_share(certificate)}"
    moreover = f"; and not stationary, {off}" if s.low > certificate.tolerance else ""
    if certificate.outside > 0:
        return f"Not feasible: x lies {certificate.outside:.3g} outside of its set{moreover}"
    if fault == "infeasible":
        return f"Not feasible: {_violations(certificate)}, in all by {_at_least(f)}{moreover}"
    if certificate.within(certificate.tolerance):
        return f"A solution within {certificate.tolerance:.3g}: feasible, stationary and complementary"
    feasible = "Feasible" if f.high <= certificate.tolerance else f"Feasible to within {f.high:.3g}"
    if fault == "not stationary":
        return f"{feasible}, but not stationary: the gradient of the Lagrangian is {off}"
    if fault == "not complementary":
        return (
            f"{feasible}, but multipliers are at work on inactive constraints: {_slack_rows(certificate)}; "
            f"complementarity is {_at_least(c)}"
        )
    return (
        f"{feasible}, and not distinguishable from a solution: stationarity is at most {s.high:.3g}, complementarity "
        f"at most {c.high:.3g}"
    )


def _violations(certificate: Certificate) -> str:
    """The constraints that are violated, each by the entry for which that is surest."""
    rows = []
    for name in certificate.violated:
        report = certificate.constraints[name]
        entry = report.worst
        rows.append(f"{_row(name, report, entry)} ({report.at(entry).estimate:.4g}, asked {report.asked(entry)})")
    return f"{_listed(rows)} {'is' if len(rows) == 1 else 'are'} violated"


def _slack_rows(certificate: Certificate) -> str:
    """The inequalities with the largest products of slack and multiplier."""
    rows = []
    for name, report in certificate.constraints.items():
        if report.relation == "=":
            continue
        slack = np.ravel(np.abs(report.value - report.bound))
        multipliers = np.ravel(certificate.multipliers[name])
        for entry in map(int, np.flatnonzero(slack * multipliers)):
            words = f"{_row(name, report, entry)} (slack {slack[entry]:.3g}, multiplier {multipliers[entry]:.3g})"
            rows.append((abs(slack[entry] * multipliers[entry]), words))
    return _listed([words for _, words in sorted(rows, key=lambda row: -row[0])])


def _row(name: str, report: ConstraintReport, entry: int) -> str:
    return f"{name!r}{report.place(entry)}"


def _at_least(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.estimate:.3g}"
    return f"{interval.estimate:.3g} (at least {interval.low:.3g})"


def _share(certificate: Certificate) -> str:
    return "" if certificate.relative is None else f", relative {certificate.relative.stationarity.estimate:.2g}"


def _circumstances(certificate: Certificate) -> str:
    if certificate.exact:
        return f"{certificate.about}, no sampling error"
    return f"{certificate.about}, {certificate.confidence:.4g} confidence each, {certificate.draws:,} draws"


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_NAMED
    shown = [*words[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


# --- as a table


def _number(value: float) -> str:
    return f"{value:.4g}"


def _ends(interval: Interval) -> tuple[str, str, str]:
    return _number(interval.estimate), _number(interval.low), _number(interval.high)


def _measures(certificate: Certificate) -> list[_Row]:
    rows: list[_Row] = []
    for name in ("stationarity", "feasibility", "complementarity", "natural residual", "objective"):
        relative = getattr(certificate.relative, name, None)
        beside = "" if relative is None else f"{relative.estimate:.2g}"
        says = certificate.feasible if name == "feasibility" else ""
        rows.append((name, *_ends(getattr(certificate, name.replace(" ", "_"))), beside, says))
    return rows


def _constraint(name: str, reports: list[ConstraintReport]) -> list[list[str]]:
    """One constraint on every side: a number, or the entries of a vector that the answers are about."""
    rows = []
    for entry in dict.fromkeys(report.worst for report in reports):
        first = reports[0]
        which = "" if first.value.size == 1 else f", of {first.value.size}"
        row = [f"{name}{first.place(entry)} {first.asked(entry)}{which}"]
        for report in reports:
            row += [*_ends(report.at(entry)), "", report.holds if entry == report.worst else ""]
        rows.append(row)
    return rows


def _sides(certificate: Certificate) -> list[tuple[str, Certificate]]:
    """The certificate, and the held-out one beside it."""
    beside = [] if certificate.heldout is None else [("held out", certificate.heldout)]
    return [("samples" if beside else "", certificate), *beside]


def _table(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    sides = _sides(certificate)
    head = [_HEAD[0], *(f"{side} {title}".strip() for side, _ in sides for title in _HEAD[1:])]
    each = [_measures(side) for _, side in sides]
    rows = [[lines[0][0], *(cell for line in lines for cell in line[1:])] for lines in zip(*each, strict=True)]
    for name in certificate.constraints:
        rows += _constraint(name, [side.constraints[name] for _, side in sides])
    return head, rows


def _notes(certificate: Certificate) -> list[str]:
    return [f"{side}: {note}" if side else note for side, c in _sides(certificate) for note in c.warnings]


def _verdicts(certificate: Certificate) -> list[str]:
    return [f"{side}: {c.verdict}" if side else c.verdict for side, c in _sides(certificate)]


def _narrow(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    """The table for a terminal: a held-out side has lines of its own below those of the samples."""
    head, rows = _table(certificate)
    if certificate.heldout is None:
        return head, rows
    lines = []
    for name, *cells in rows:
        for title, part in (("samples", cells[:5]), ("held out", cells[5:])):
            lines.append([name if title == "samples" else "", title, *part[:3], part[4]])
    return ["", "on", "estimate", "low", "high", "holds"], lines


def _as_rich(certificate: Certificate) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    head, rows = _narrow(certificate)
    table = narrow_table(*head)
    for row in rows:
        table.add_row(*(Text(visible(cell), style=COLOURS.get(cell, "")) for cell in row))
    lines = [Text(visible(line), style="bold") for line in _verdicts(certificate)]
    return Group(table, *lines, *(Text(f"Warning: {visible(note)}", style="yellow") for note in _notes(certificate)))


def _as_text(certificate: Certificate) -> str:
    from rich.console import Console

    console = Console(file=StringIO(), width=140, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(_as_rich(certificate))
    return capture.get().rstrip()


def _as_html(certificate: Certificate) -> str:
    head, rows = _table(certificate)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    lines = "".join(f"<p><b>{escape(line)}</b></p>" for line in _verdicts(certificate))
    notes = "".join(f"<p>Warning: {escape(note)}</p>" for note in _notes(certificate))
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{lines}{notes}"


def _cell(text: str) -> str:
    colour = COLOURS.get(text)
    return f'<td style="color: {colour}">{escape(text)}</td>' if colour else f"<td>{escape(text)}</td>"
