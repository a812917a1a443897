"""Error bars as a table with a forest plot: one interval a row, those of one kind in one scale."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lariax.inference import TableLine, shown
from lariax.report._html import Markup, element, joined, name_of, table
from lariax.report._words import number
from lariax.runs import SavedRun

TITLES = {
    "x": "x",
    "multipliers": "Multipliers",
    "constraints": "Constraints at the solution",
    "objective": "Objective",
}
MOST_ROWS = 40  # of a kind
WIDTH, EDGE = 220, 6
SHORTEST = 0.04  # of an axis: a bar that can be seen


def error_bars(run: SavedRun, several: bool) -> Markup:
    """All that is known of a run's error bars."""
    found = run.inference
    assert found is not None
    about = f"{found.about[:1].upper()}{found.about[1:]}; {found.confidence:.4g} confidence each."
    parts: list[object] = [element("h3", name_of(run.name))] if several else []
    parts.append(element("p", about))
    parts += [element("p", f"Warning: {note}", class_="warning") for note in found.warnings]
    for kind, title in TITLES.items():
        rows = [line for line in found.entries if line.part == kind]
        if rows:
            parts.append(_forest(title, rows))
    return joined(parts)


def _forest(title: str, rows: Sequence[TableLine]) -> Markup:
    lines = rows[:MOST_ROWS]
    axes = _axes(lines)
    body = [_line(line, *axis) for line, axis in zip(lines, axes.ends, strict=True)]
    left = f", the first {MOST_ROWS} of {len(rows):,}" if len(rows) > MOST_ROWS else ""
    head = ["", "estimate", "standard error", "interval", "law", axes.words]
    return table(head, body, f"{title}{left}", class_="numbers")


class _Axes(NamedTuple):
    """What the plot of each row reaches from and to, and how that is said."""

    ends: list[tuple[float, float]]
    words: str


def _axes(lines: Sequence[TableLine]) -> _Axes:
    """One axis; where intervals would be too short to be seen on it, one around each estimate, in one scale."""
    known = [line for line in lines if _is_known(line)]
    low = min((min(line.low, line.estimate) for line in known), default=0.0)
    high = max((max(line.high, line.estimate) for line in known), default=1.0)
    widths = sorted(line.high - line.low for line in known if line.high > line.low)
    if not widths or widths[len(widths) // 2] >= SHORTEST * (high - low):
        return _Axes([(low, high)] * len(lines), f"{number(low)} to {number(high)}")
    reach = max(max(line.high - line.estimate, line.estimate - line.low) for line in known)
    return _Axes([(line.estimate - reach, line.estimate + reach) for line in lines], f"estimate \u00b1 {number(reach)}")


def _is_known(line: TableLine) -> bool:
    return all(map(math.isfinite, (line.low, line.high, line.estimate)))


def _line(line: TableLine, low: float, high: float) -> list[object]:
    text = shown(line)
    interval = f"{text.low} to {text.high}" if _is_known(line) else "-"
    bar = _bar(line, low, high, f"{text.estimate}, {interval}") if _is_known(line) else "-"
    return [name_of(line.name), text.estimate, text.standard_error, interval, line.law, bar]


def _bar(line: TableLine, low: float, high: float, label: str) -> Markup:
    """The interval as a bar, the estimate as a dot, and 0 as a line across."""

    def x(value: float) -> str:
        return f"{EDGE + (WIDTH - 2 * EDGE) * (value - low) / ((high - low) or 1):.1f}"

    kind = "surely" if line.law in ("normal", "fixed") else "probably"
    shapes = [element("line", x1=x(0), x2=x(0), y1=0, y2=16, class_="bound")] if low <= 0 <= high else []
    shapes.append(element("line", x1=x(line.low), x2=x(line.high), y1=8, y2=8, class_=f"span {kind}"))
    shapes.append(element("circle", cx=x(line.estimate), cy=8, r=3, class_=f"dot {kind}"))
    view = {"viewBox": f"0 0 {WIDTH} 16"}
    return element("svg", *shapes, width=WIDTH, height=16, role="img", aria_label=label, **view)
