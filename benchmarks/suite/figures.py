"""One figure a problem: error over draws, the limit's line, the rivals beside."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

from benchmarks._results import figures
from benchmarks.suite.limits import Solved

if TYPE_CHECKING:
    from benchmarks.suite.run import Score

mpl.use("Agg")

PLACES = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of draws at which a figure has points."""


def draw(solved: Solved, scores: "Sequence[Score]", rivals: dict[int, dict[str, np.ndarray]]) -> Path:
    import matplotlib.pyplot as plt

    draws = [score.draws for score in scores]
    limits = np.array([solved.limit(n)[:2] for n in draws])
    names = sorted({name for each in rivals.values() for name in each})
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), constrained_layout=True, sharex=True)
    for i, (panel, measure) in enumerate(zip(panels, ("stationarity", "feasibility"), strict=True)):
        panel.loglog(draws, limits[:, i], color="0.3", linestyle="--", label="statistical limit")
        own = [score.rms[i] * limit for score, limit in zip(scores, limits[:, i], strict=True)]
        panel.loglog(draws, own, marker="o", color="C0", label="TrackedLagrangian, no settings")
        for color, name in zip(("C1", "C2"), names, strict=False):
            places = [j for j, n in enumerate(draws) if n in rivals]
            values = [rivals[draws[j]][name][i] * limits[j, i] for j in places]
            panel.loglog([draws[j] for j in places], values, marker=".", color=color, label=f"{name}, best of 16")
        panel.set(title=f"{solved.case.name}: {measure}", xlabel="draws", ylabel="rms error")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=7)
    path = figures("suite") / f"{solved.case.name}.png"
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return path
