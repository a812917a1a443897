"""Tables and plots of the comparison."""

from pathlib import Path

import numpy as np

from benchmarks.rivals.methods import DEFAULT
from benchmarks.rivals.run import TARGETS, Track

LEAST = 1e-5
"""Where the results refer to."""


def _number(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _cell(draws: np.ndarray, pace: float) -> str:
    """The median over seeds with the least and the most, if more than half of the seeds got there."""
    there = np.isfinite(draws)
    if 2 * there.sum() <= len(draws):
        return f"({there.sum()} of {len(draws)})" if there.any() else ""
    middle, low, high = np.median(draws), draws.min(), draws.max()
    spread = f"{_number(low)} .. {_number(high) if np.isfinite(high) else 'never'}"
    return f"{_number(middle)} [{spread}], {pace * middle:.2g} s"


def table(tracks: list[Track]) -> list[str]:
    """Of one problem: one row a method, the default first, then by how small the error in the end is."""
    last = {track.method: float(np.median(track.worse[:, -1])) for track in tracks}
    head = " | ".join(f"{target:g}" for target in TARGETS)
    lines = [f"| method | {head} | in the end | setting |", "|---|" + "---|" * (len(TARGETS) + 2)]
    for track in sorted(tracks, key=lambda track: (track.method != DEFAULT, last[track.method])):
        cells = [_cell(track.reached(target), track.pace) for target in TARGETS]
        ends = [np.median(track.errors[:, -1, i]) for i in range(2)]
        cells.append(" / ".join(f"{value:.1e}" if np.isfinite(value) else "diverged" for value in ends))
        lines.append(f"| {track.method} | {' | '.join(cells)} | {track.setting} |")
    return lines


def picture_of(problem: str) -> str:
    return f"{problem.replace(', ', '-').replace(' ', '-').lower()}.png"


def figure(problem: str, tracks: list[Track], folder: Path) -> None:
    """Stationarity and feasibility against draws, medians over seeds, with the middle half shaded for the default."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11, 4), constrained_layout=True)
    panels = picture.subplots(1, 2, sharex=True)
    for i, (panel, measure) in enumerate(zip(panels, ("stationarity", "feasibility"), strict=True)):
        for j, track in enumerate(tracks):
            own = track.method == DEFAULT
            middle = np.median(track.errors[:, :, i], axis=0)
            style = {"color": "black", "linewidth": 2.2} if own else {"color": f"C{j % 10}", "linewidth": 1.1}
            dashes = "-" if own or j < 10 else "--"
            panel.loglog(track.draws[0], np.clip(middle, LEAST, None), dashes, label=track.method, **style)
            if own:
                low, high = np.quantile(track.errors[:, :, i], (0.25, 0.75), axis=0)
                panel.fill_between(track.draws[0], low, high, color="black", alpha=0.15)
        panel.set(
            title=f"{problem}: {measure}", xlabel=f"draws (below {LEAST:g}: at the lower edge)", ylim=(LEAST / 1.5, 10)
        )
        panel.grid(alpha=0.3)
    picture.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside right center")
    picture.savefig(folder / picture_of(problem), dpi=80)
