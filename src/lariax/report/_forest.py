"""Error bars as a table with a forest plot: one interval a row, those of one kind on one scale."""

import math
from collections.abc import Sequence

from lariax.inference import Entry
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


def _forest(title: str, rows: Sequence[Entry]) -> Markup:
    shown = rows[:MOST_ROWS]
    ends = [value for line in shown for value in (line.low, line.high, line.estimate) if math.isfinite(value)]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    body = [
        [name_of(line.name), number(line.estimate), _error(line), _interval(line), line.law, _bar(line, low, high)]
        for line in shown
    ]
    left = f", the first {MOST_ROWS} of {len(rows):,}" if len(rows) > MOST_ROWS else ""
    head = ["", "estimate", "standard error", "interval", "law", f"{number(low)} to {number(high)}"]
    return table(head, body, f"{title}{left}", class_="numbers")


def _error(line: Entry) -> str:
    return number(line.standard_error) if math.isfinite(line.standard_error) else "-"


def _interval(line: Entry) -> str:
    return f"{number(line.low)} to {number(line.high)}" if math.isfinite(line.low) else "-"


def _bar(line: Entry, low: float, high: float) -> Markup:
    """The interval as a bar, the estimate as a dot, and 0 as a line across."""
    if not all(map(math.isfinite, (line.low, line.high, line.estimate))):
        return Markup("-")

    def x(value: float) -> str:
        return f"{EDGE + (WIDTH - 2 * EDGE) * (value - low) / ((high - low) or 1):.1f}"

    kind = "surely" if line.law in ("normal", "fixed") else "probably"
    shapes = [element("line", x1=x(0), x2=x(0), y1=0, y2=16, class_="bound")] if low <= 0 <= high else []
    shapes.append(element("line", x1=x(line.low), x2=x(line.high), y1=8, y2=8, class_=f"span {kind}"))
    shapes.append(element("circle", cx=x(line.estimate), cy=8, r=3, class_=f"dot {kind}"))
    label = f"{number(line.estimate)}, {_interval(line)}"
    view = {"viewBox": f"0 0 {WIDTH} 16"}
    return element("svg", *shapes, width=WIDTH, height=16, role="img", aria_label=label, **view)
