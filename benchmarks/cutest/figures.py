"""Performance profiles: for how many cells a method is within a factor of the best."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

from benchmarks._results import figures

if TYPE_CHECKING:
    from benchmarks.cutest.run import Cell

mpl.use("Agg")


def draw(cells: "Sequence[Cell]") -> Path:
    import matplotlib.pyplot as plt

    variances = sorted({cell.variance for cell in cells})
    figure, panels = plt.subplots(1, len(variances), figsize=(8, 3.2), constrained_layout=True, sharey=True)
    factors = np.geomspace(1, 1000, 400)
    for panel, variance in zip(np.atleast_1d(panels), variances, strict=True):
        here = [cell for cell in cells if cell.variance == variance]
        best = np.array([min(cell.median(name) for name in cell.error) for cell in here])
        for name in here[0].error:
            errors = np.array([cell.median(name) for cell in here])
            within = [np.mean(errors <= factor * best) for factor in factors]
            panel.semilogx(factors, within, label=name)
        panel.set(title=f"noise variance {variance:g}", xlabel="factor of the best error", ylim=(0, 1.02))
        panel.grid(alpha=0.3)
    np.atleast_1d(panels)[0].set_ylabel("share of problems")
    np.atleast_1d(panels)[0].legend(fontsize=7, loc="lower right")
    path = figures("cutest") / "profiles.png"
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path
