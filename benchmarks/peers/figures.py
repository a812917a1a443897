"""Plots of the comparison: one figure a data set, one row of panels a problem."""

from pathlib import Path

import numpy as np

from benchmarks.peers.methods import JAX, RIVALS, TORCH
from benchmarks.peers.run import Outcome, Trace
from benchmarks.peers.tasks import Shape

"""Where the results refer to."""

STYLES = {
    JAX: ("black", "-", 2.4),
    TORCH: ("black", "--", 1.6),
    **{name: (f"C{i}", "-" if name.startswith("hc") else "--", 1.1) for i, name in enumerate(RIVALS)},
}


def _middle(traces: list[Trace], x: str, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Medians over seeds, look by look."""
    looks = min(len(trace.looks) for trace in traces)
    places = np.median([getattr(trace, x)[:looks] for trace in traces], axis=0)
    return places, np.median([trace.table[:looks, column] for trace in traces], axis=0)


def draw(name: str, parts: list[tuple[Shape, str, list[Outcome]]], folder: Path) -> Path:
    """Excess against seconds and draws, loss and quality against seconds; medians over the seeds."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(17, 3.5 * len(parts)), constrained_layout=True)
    panels = picture.subplots(len(parts), 4, squeeze=False)
    for row, (shape, better, found) in zip(panels, parts, strict=True):
        kinds = (("seconds", 1, "excess"), ("draws", 1, "excess"), ("seconds", 0, "loss"), ("seconds", 2, better))
        for panel, (x, column, title) in zip(row, kinds, strict=True):
            for each in found:
                colour, dashes, width = STYLES[each.method]
                places, values = _middle(each.traces, x, column)
                panel.plot(places, values, dashes, color=colour, linewidth=width, label=each.method)
            panel.set(title=f"{shape.name}: {title}", xlabel=x, xscale="log")
            panel.title.set_fontsize(9)
            panel.grid(alpha=0.3)
            if column == 1:
                panel.set_yscale("symlog", linthresh=shape.slack)
                panel.axhspan(panel.get_ylim()[0], shape.slack, color="green", alpha=0.08)
            elif column == 0:
                ends = [_middle(each.traces, x, 0)[1][-1] for each in found]
                low, high = np.nanmin(ends), np.nanmax(ends)
                panel.set_ylim(low - 0.3 * (high - low), high + 1.5 * (high - low))
    picture.legend(*panels[0][0].get_legend_handles_labels(), fontsize=9, loc="outside right center")
    path = folder / f"{name}.png"
    picture.savefig(path, dpi=65)
    return path
