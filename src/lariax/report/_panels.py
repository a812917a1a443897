"""What there is to plot of a history: the same for the page and for a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lariax.certificate import Certificate, Interval
from lariax.runs import SavedInference, SavedRun

SMOOTHED = 10  # a line of so many records is drawn beside its means
MOST_BANDS = 12
TIMES = ("draws", "seconds", "iteration")
ERRORS = {"feasibility": "constraint_error", "stationarity": "gradient_error"}
ABOUT = {
    "feasibility": "How much the constraints are violated, by the method's own estimate.",
    "stationarity": "How far the Lagrangian is from being stationary, by the method's own estimate.",
    "objective": "Measured on the batch of the iteration.",
    "multipliers": "With the signs of L = f + sum y c; bars at the right edge are intervals, once inference was run.",
}


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a panel: a value a record of a run."""

    run: int
    label: str
    values: np.ndarray
    minor: bool = False  # drawn thin: a standard error,
    raw: bool = False  # or pale: what another line has smoothed


@dataclass(frozen=True)
class Mark:
    """What a certificate says of the same quantity at the end."""

    run: int
    label: str
    interval: Interval


@dataclass(frozen=True, eq=False)
class Panel:
    """One chart."""

    title: str
    group: str  # "progress", "constraints", "multipliers" or "method"
    logarithmic: bool
    about: str = ""
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    bound: float | None = None


def panels(runs: Sequence[SavedRun]) -> list[Panel]:
    """The charts of one run, or of several together."""
    charts: dict[tuple[str, str], Panel] = {}
    for i, run in enumerate(runs):
        for name in ("feasibility", "stationarity", "objective"):
            if (name,) in run.history:
                _add_measure(charts, name, i, run)
        for path, values in run.history.items():
            if path[0] == "constraints":
                _add_constraint(charts, path, values, i, run)
        for path, values in run.history.items():
            if path[0] == "multipliers":
                panel = _panel(charts, "Multipliers", "multipliers", False, ABOUT["multipliers"])
                panel.lines.append(Line(i, _label(path[1:]), values))
        if run.inference is not None and any(path[0] == "multipliers" for path in run.history):
            panel = _panel(charts, "Multipliers", "multipliers", False, ABOUT["multipliers"])
            panel.marks.extend(_bands(i, run.inference))
        shown = {*TIMES, *ERRORS, *ERRORS.values(), "objective"}
        for path, values in run.history.items():
            if len(path) == 1 and path[0] not in shown:
                title = _title(path)
                finite = values[np.isfinite(values)]
                positive = bool(finite.size) and bool((finite > 0).all())
                _panel(charts, title, "method", positive).lines.append(Line(i, title.lower(), values))
    for key in [key for key, panel in charts.items() if panel.group == "method" and not _varies(panel)]:
        del charts[key]
    order = {group: place for place, group in enumerate(("progress", "constraints", "multipliers", "method"))}
    return sorted(charts.values(), key=lambda panel: order[panel.group])


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean over a window around each record, a twentieth of all; what is not finite is left out of it."""
    width = max(1, len(values) // (2 * SMOOTHED))
    finite = np.isfinite(values)
    sums, counts = (
        np.concatenate([[0.0], np.cumsum(each)]) for each in (np.where(finite, values, 0.0), finite.astype(float))
    )
    low, high = (np.clip(np.arange(len(values)) + shift, 0, len(values)) for shift in (-width, width + 1))
    found = counts[high] - counts[low]
    return np.where(found > 0, (sums[high] - sums[low]) / np.maximum(found, 1), np.nan)


def _bands(i: int, inference: SavedInference) -> list[Mark]:
    """The intervals of the multipliers, for as many as can be told apart."""
    entries = [entry for entry in inference.entries if entry.part == "multipliers"][:MOST_BANDS]
    return [Mark(i, entry.name, Interval(entry.estimate, entry.low, entry.high)) for entry in entries]


def _panel(charts: dict[tuple[str, str], Panel], title: str, group: str, logarithmic: bool, about: str = "") -> Panel:
    return charts.setdefault((group, title), Panel(title, group, logarithmic, about))


def _varies(panel: Panel) -> bool:
    """Whether there is anything to see: a line that is not level, or runs that differ."""
    values = np.concatenate([line.values for line in panel.lines])
    return bool(values.size) and not bool((values == values[0]).all())


def constants(runs: Sequence[SavedRun]) -> dict[str, float]:
    """What the method shows and what has been the same throughout, for which a chart would be too much."""
    drawn = {panel.title for panel in panels(runs)}
    ends = {_title(path): float(v[-1]) for run in runs for path, v in run.history.items() if len(path) == 1 and v.size}
    apart = {_title((name,)) for name in (*TIMES, *ERRORS, *ERRORS.values(), "objective")}
    return {title: value for title, value in ends.items() if title not in drawn | apart}


def _title(path: tuple[str | int, ...]) -> str:
    return str(path[0]).replace("_", " ").capitalize()


def _label(path: tuple[str | int, ...]) -> str:
    name, *entry = path
    if not entry:
        return str(name)
    return f"{name}[{entry[0]}]" if isinstance(entry[0], int) else f"{name}, {entry[0]}"


def _sides(certificate: Certificate | None) -> list[tuple[str, Certificate]]:
    if certificate is None:
        return []
    beside = [] if certificate.heldout is None else [("held out", certificate.heldout)]
    return [("certificate", certificate), *beside]


def _add_measure(charts: dict[tuple[str, str], Panel], name: str, i: int, run: SavedRun) -> None:
    panel = _panel(charts, name.capitalize(), "progress", name in ERRORS, ABOUT[name])
    values = run.history[(name,)]
    if name == "objective" and len(values) >= SMOOTHED:
        panel.lines.append(Line(i, f"{name}, smoothed", smoothed(values)))
        panel.lines.append(Line(i, f"{name} of a batch", values, raw=True))
    else:
        panel.lines.append(Line(i, name, values))
    error = (ERRORS.get(name, ""),)
    if error in run.history:
        panel.lines.append(Line(i, "standard error of it", run.history[error], minor=True))
    panel.marks.extend(Mark(i, side, getattr(found, name)) for side, found in _sides(run.certificate))


def _add_constraint(
    charts: dict[tuple[str, str], Panel], path: tuple[str | int, ...], values: np.ndarray, i: int, run: SavedRun
) -> None:
    name = str(path[1])
    sides = [(side, found.constraints[name]) for side, found in _sides(run.certificate) if name in found.constraints]
    bounds = np.unique(np.concatenate([np.ravel(report.bound) for _, report in sides])) if sides else np.zeros(0)
    panel = charts.get(("constraints", name))
    if panel is None:
        asked = f"Asked: {sides[0][1].relation} {bounds[0]:.4g}." if bounds.size == 1 else ""
        bound = float(bounds[0]) if bounds.size == 1 else None
        panel = Panel(name, "constraints", False, asked, bound=bound)
        charts["constraints", name] = panel
    if not any(line.run == i for line in panel.lines):
        panel.marks.extend(Mark(i, side, report.at(report.worst)) for side, report in sides)
    panel.lines.append(Line(i, _label(path[1:]), values))
