"""The pictures of the page in a notebook."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lariax.loop import Result
from lariax.report._panels import TIMES, Line, Panel, panels
from lariax.report._words import short
from lariax.runs import SavedRun, saved
from lariax.utils import needed_by

COLUMNS = 3


def plot(runs: Result | SavedRun | Sequence[SavedRun], against: str = "draws") -> Any:
    """A matplotlib figure of one run, or of several: what the HTML report plots, against draws, seconds or iteration.

    Thin dotted lines are standard errors, bars at the end the intervals of the certificate (thin and grey: held out),
    dashed lines bounds.

    >>> import jax.numpy as jnp, lariax as lx
    >>> from lariax import report
    >>> result = lx.solve(lx.Problem(lambda x: jnp.sum((x - 1) ** 2)), jnp.zeros(2), iterations=100)
    >>> figure = report.plot(result, against="iteration")  # the same as result.plot("iteration")
    >>> len(figure.axes) > 0
    True
    """
    if against not in TIMES:
        raise ValueError(f"against must be one of {', '.join(map(repr, TIMES))}, found {against!r}.")
    if isinstance(runs, Result):
        made = runs.certified or vars(runs).get("certificate")  # the latter once it has been asked for
        runs = saved(runs, certificate=made)
    runs = [runs] if isinstance(runs, SavedRun) else list(runs)
    charts = panels([run for run in runs if len(run)])
    if not charts:
        raise ValueError("there is nothing to plot: the history has no records. Run longer, or lower record_every.")
    rows = -(-len(charts) // COLUMNS)
    columns = min(COLUMNS, len(charts))
    figure = _figure(figsize=(4.6 * columns, 3.1 * rows), layout="constrained")
    for i, panel in enumerate(charts):
        axes = figure.add_subplot(rows, columns, i + 1)
        _draw(axes, panel, runs, against)
    return figure


def _figure(**options: Any) -> Any:
    """A figure that a notebook shows by itself, without pyplot's list of open figures."""
    with needed_by("plot()"):
        from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure(**options)


def _draw(axes: Any, panel: Panel, runs: Sequence[SavedRun], against: str) -> None:
    from matplotlib.ticker import EngFormatter

    several, is_positive = len(runs) > 1, False
    colours: dict[tuple[int, str], str] = {}
    major = [line for line in panel.lines if not line.minor]
    for place, line in enumerate(panel.lines):
        colour = f"C{line.run if several else (place if not (line.minor or line.raw) else place - 1)}"
        colours[line.run, line.label] = colour
        x = runs[line.run].history[(against,)]
        style = {"linewidth": 0.9, "linestyle": ":"} if line.minor else {"linewidth": 1.5}
        style = {"linewidth": 0.8, "alpha": 0.35} if line.raw else style
        y = _drawable(line, panel)
        is_positive |= bool(np.any(y > 0))
        axes.plot(x, y, color=colour, label=_name(line, runs, several), **style)
    if panel.bound is not None:
        axes.axhline(panel.bound, color="0.4", linewidth=1, linestyle="--")
    if panel.logarithmic and is_positive:
        axes.set_yscale("log", nonpositive="clip")
    _draw_marks(axes, panel, runs, against, colours)
    axes.set_title(short(panel.title).replace("$", r"\$"), loc="left", fontsize=10)
    axes.set_xlabel("iterations" if against == "iteration" else against, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    if (len(major) > 1 or len(panel.lines) > 1) and len(panel.lines) <= 12:
        axes.legend(fontsize=7, frameon=False)


def _draw_marks(
    axes: Any, panel: Panel, runs: Sequence[SavedRun], against: str, colours: Mapping[tuple[int, str], str]
) -> None:
    """Intervals at the end of the lines, in the colour of theirs; on a logarithmic axis down to its foot."""
    foot, _ = axes.get_ylim()
    for mark in panel.marks:
        end = float(runs[mark.run].history[(against,)][-1])
        low, high = mark.interval.low, mark.interval.high
        if np.isfinite([low, high]).all() and (high > 0 or not panel.logarithmic):
            low = max(low, min(foot, high)) if panel.logarithmic else low
            beside = mark.label == "held out"
            style = {"linewidth": 3 if beside else 6, "alpha": 0.9 if beside else 0.45, "solid_capstyle": "butt"}
            colour = "0.3" if beside else colours.get((mark.run, mark.label), f"C{mark.run}")
            axes.plot([end, end], [low, high], color=colour, **style)
    if panel.logarithmic:
        axes.set_ylim(bottom=foot)


def _drawable(line: Line, panel: Panel) -> np.ndarray:
    values = np.asarray(line.values, float)
    return np.where(np.isfinite(values), np.maximum(values, 0) if panel.logarithmic else values, np.nan)


def _name(line: Line, runs: Sequence[SavedRun], several: bool) -> str:
    name = short(f"{runs[line.run].name}: {line.label}" if several else line.label).replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name  # matplotlib hides labels that begin so
