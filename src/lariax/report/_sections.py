"""The parts of the page that are words and tables; they need no script."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lariax.certificate import Certificate, ConstraintReport, Interval
from lariax.loop import FAILURES
from lariax.report._html import Markup, element, joined, name_of, table
from lariax.report._words import LONGEST_SENTENCE, number, short
from lariax.runs import SavedRun

SIGNS = {"surely": "✓", "probably": "≈", "undecided": "?", "violated": "✗"}
MEASURES = {
    "stationarity": "how far the gradient of the Lagrangian is from zero, or from the cone of the set",
    "feasibility": "the length of all violations together",
    "complementarity": "multiplier (the certificate's own) times slack of the inequalities",
    "natural_residual": "how far one projected gradient step would move",
    "objective": "the mean of the objective",
}


def sides(certificate: Certificate) -> list[tuple[str, Certificate]]:
    beside = [] if certificate.heldout is None else [("held out", certificate.heldout)]
    return [("on samples" if beside else "", certificate), *beside]


# --- the verdict


def tone(run: SavedRun) -> str:
    """good, fair or bad: the colour of the verdict, by whether the constraints hold."""
    certificate = run.certificate
    if run.status in FAILURES:
        return "bad"
    if certificate is None:
        return "fair"
    found = {side.feasible for _, side in sides(certificate)}
    if "violated" in found:
        return "bad"
    return "fair" if "undecided" in found else "good"


def verdict(run: SavedRun, several: bool) -> Markup:
    kind, certificate = tone(run), run.certificate
    sign = {"good": "✓", "fair": "≈", "bad": "✗"}[kind]
    lines: list[Markup] = []
    if certificate is None:
        lines.append(element("p", f"No certificate. {run.outcome.get('no_certificate', '')}", class_="says"))
    else:
        for side, found in sides(certificate):
            where = element("b", f"{side.capitalize()}: ") if side else ""
            lines.append(element("p", where, "feasible: ", _badge(found.feasible), class_="says"))
            lines.append(element("p", found.verdict, class_="says"))
        for side, found in sides(certificate):
            for note in found.warnings:
                lines.append(element("p", f"Warning{f' ({side})' if side else ''}: {note}", class_="warning"))
    lines.append(element("p", run.outcome["message"], class_="message"))
    heading = element("h2" if not several else "h3", name_of(run.name if several else "Verdict"))
    icon = element("span", sign, class_="sign", aria_hidden="true")
    return element("article", icon, element("div", heading, *lines), class_=f"verdict {kind}")


def figures(run: SavedRun) -> Markup:
    """The numbers one looks for first."""
    outcome, certificate = run.outcome, run.certificate
    shown: list[tuple[str, str, str]] = []
    if certificate is not None:
        for name in ("objective", "stationarity", "feasibility"):
            interval = getattr(certificate, name)
            shown.append((name, number(interval.estimate), _ends(interval)))
    shown.append(("draws", f"{outcome['draws']:,}", f"{outcome['iterations']:,} iterations"))
    shown.append(("time", duration(outcome["seconds"]), outcome["status"].replace("_", " ")))
    tiles = [element("div", element("dt", a), element("dd", b, element("small", c))) for a, b, c in shown]
    return element("dl", *tiles, class_="tiles")


def _ends(interval: Interval) -> str:
    if interval.low == interval.high:
        return "exact"
    return f"{number(interval.low)} to {number(interval.high)}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def measures(runs: Sequence[SavedRun]) -> Markup | None:
    """Numbers of the problem's own field, such as accuracies."""
    found = [{name: number(value) for name, value in run.outcome.get("measures", {}).items()} for run in runs]
    if not any(found):
        return None
    if len(runs) == 1:
        tiles = [element("div", element("dt", name_of(name)), element("dd", value)) for name, value in found[0].items()]
        return element("dl", *tiles, class_="tiles small")
    return _beside(runs, found, "Measures of the problem's own")


# --- certificates


def certificates(runs: Sequence[SavedRun]) -> Markup:
    """Rows: what is measured; columns: runs and sides."""
    columns = [
        (run, side, found) for run in runs if run.certificate is not None for side, found in sides(run.certificate)
    ]
    if not columns:
        return element("p", "There is no certificate.")
    head = ["", *(_column_name(run, side, len(runs) > 1) for run, side, _ in columns)]
    rows: list[list[object]] = []
    for name, meaning in MEASURES.items():
        title = joined([name.replace("_", " "), element("small", meaning)])
        rows.append([title, *(_measure_cell(found, name) for _, _, found in columns)])
    about = [joined([found.about, element("small", _circumstances(found))]) for _, _, found in columns]
    rows.append(["about", *about])
    return table(head, rows, label="Certificate: estimates with the ends of their intervals", class_="numbers")


def _column_name(run: SavedRun, side: str, several: bool) -> Markup:
    parts: list[object] = [name_of(run.name)] if several else []
    if side:
        parts += [" " if several else "", side]
    return joined(parts or ["certificate"])


def _measure_cell(found: Certificate, name: str) -> Markup:
    interval, relative = getattr(found, name), getattr(found.relative, name, None)
    words = _ends(interval) if relative is None else f"{_ends(interval)}; relative {relative.estimate:.2g}"
    return joined([element("b", number(interval.estimate)), element("small", words)])


def _circumstances(found: Certificate) -> str:
    if found.exact:
        return "no sampling error"
    return f"{found.draws:,} draws, {found.confidence:.4g} confidence each"


# --- constraints


class _Row(NamedTuple):
    """One entry of a constraint of a run, on every side; the sides of whose verdict it is the one."""

    run: SavedRun
    name: str
    entry: int
    reports: dict[str, ConstraintReport]


def constraints(runs: Sequence[SavedRun]) -> Markup:
    """Constraint by constraint, whether it holds on the samples and on held-out data."""
    rows = list(_constraint_rows(runs))
    if not rows:
        return element("p", "The problem has no constraints, or there is no certificate.")
    titles = list(dict.fromkeys(side for row in rows for side in row.reports))
    head = ["constraint", *(["run"] if len(runs) > 1 else []), "asked", *(side or "value" for side in titles)]
    head += ["the run's multiplier", "interval against bound"]
    body = []
    for row in rows:
        report = next(iter(row.reports.values()))
        place = report.place(row.entry)
        which = element("small", f"of {report.value.size:,} entries") if report.value.size > 1 else ""
        cells: list[object] = [joined([name_of(row.name), place, which])]
        cells += [name_of(row.run.name)] if len(runs) > 1 else []
        cells.append(report.asked(row.entry))
        cells += [_holds_cell(row.reports[side], row.entry) if side in row.reports else "-" for side in titles]
        cells += [_multiplier(row), picture_of_intervals(row)]
        body.append(cells)
    return table(head, body, label="Constraints", class_="numbers")


def _constraint_rows(runs: Sequence[SavedRun]) -> Iterator[_Row]:
    """A number, or the entries of a vector that the verdicts are about."""
    names = list(dict.fromkeys(name for run in runs if run.certificate for name in run.certificate.constraints))
    for name in names:
        for run in runs:
            if run.certificate is None or name not in run.certificate.constraints:
                continue
            found = {side: c.constraints[name] for side, c in sides(run.certificate) if name in c.constraints}
            for entry in dict.fromkeys(report.worst for report in found.values()):
                yield _Row(run, name, entry, found)


def _badge(holds: str) -> Markup:
    return element("span", f"{SIGNS[holds]} {holds}", class_=f"badge {holds}")


def _holds_cell(report: ConstraintReport, entry: int) -> Markup:
    """A value; and the verdict, where that is about this entry."""
    interval = report.at(entry)
    badge = _badge(report.holds) if entry == report.worst else ""
    return joined([element("b", number(interval.estimate)), " ", badge, element("small", _ends(interval))])


def _multiplier(row: _Row) -> str:
    values = np.ravel(row.run.multipliers.get(row.name, np.zeros(0)))
    return number(float(values[row.entry])) if row.entry < values.size else "-"


def picture_of_intervals(row: _Row) -> Markup:
    """Bars from low to high, one above the other, and the bound as a line across."""
    intervals = [report.at(row.entry) for report in row.reports.values()]
    spans = [(interval.low, interval.estimate, interval.high) for interval in intervals]
    bound = float(np.ravel(next(iter(row.reports.values())).bound)[row.entry])
    points = [value for span in spans for value in span] + [bound]
    if not all(map(math.isfinite, points)):
        return Markup("-")
    low, high = min(points), max(points)
    room = (high - low) or abs(high) or 1.0
    low, high = low - 0.1 * room, high + 0.1 * room

    def x(value: float) -> str:
        return f"{4 + 152 * (value - low) / (high - low):.1f}"

    shapes = []
    for i, ((side, report), (left, middle, right)) in enumerate(zip(row.reports.items(), spans, strict=True)):
        y = 10 + 14 * i
        words = f"{side or 'value'}: {number(middle)}, {number(left)} to {number(right)}"
        line = element("line", x1=x(left), x2=x(right), y1=y, y2=y, class_=f"span {report.holds}")
        dot = element("circle", cx=x(middle), cy=y, r=3, class_=f"dot {report.holds}")
        shapes.append(element("g", element("title", words), line, dot))
    height = 6 + 14 * len(spans)
    edge = element("line", x1=x(bound), x2=x(bound), y1=0, y2=height, class_="bound")
    label = f"intervals against the bound {number(bound)}"
    view = {"viewBox": f"0 0 160 {height}"}
    return element("svg", edge, *shapes, width=160, height=height, role="img", aria_label=label, **view)


# --- settings, versions, answers


def settings(runs: Sequence[SavedRun]) -> Markup:
    asked = [dict(_flat(run.settings)) for run in runs]
    found = [dict(_flat(run.versions)) for run in runs]
    ends = [dict(_flat({k: v for k, v in run.outcome.items() if k != "measures"})) for run in runs]
    return joined(
        [
            element("h3", "Settings"),
            _beside(runs, asked),
            element("h3", "Cost and end"),
            _beside(runs, ends),
            element("h3", "Versions"),
            _beside(runs, found),
        ]
    )


def _beside(runs: Sequence[SavedRun], tables: Sequence[Mapping[str, str]], caption: str = "") -> Markup:
    names = list(dict.fromkeys(name for entries in tables for name in entries))
    head = ["", *(name_of(run.name) for run in runs)]
    rows = [
        [name_of(name), *(name_of(entries.get(name, "-"), LONGEST_SENTENCE) for entries in tables)] for name in names
    ]
    return table(head, rows, caption)


def _flat(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Names with dots; what is nested deeper than settings ever are stays one text."""
    for name, part in value.items():
        title = f"{prefix}{name}"
        if isinstance(part, Mapping) and depth < 4:
            yield from _flat(part, f"{title}.", depth + 1)
        elif part not in (None, "", [], {}):
            yield title, _text(part)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def answer(run: SavedRun) -> Markup:
    """The arrays of x in few words."""
    rows = []
    for path, array in run.x.items():
        size = " x ".join(map(str, array.shape)) or "one number"
        flat = np.ravel(array)
        shown = ", ".join(number(float(v)) for v in flat[:8]) + (", …" if flat.size > 8 else "")
        ends = f"{number(float(flat.min()))} to {number(float(flat.max()))}" if flat.size else "-"
        rows.append([name_of(path), size, str(array.dtype), ends, shown])
    return table(["array", "shape", "type", "entries", "first entries"], rows, f"x of {short(run.name)}")
