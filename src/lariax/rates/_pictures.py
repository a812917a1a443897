"""Pictures of a report: levels against K with the theorem's line, and the inside of the runs."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from lariax.rates._experiments import AFAR, FROM_ZERO, NO_STORM, PAPER, PULL, THEOREM, THEORY
from lariax.rates._report import SHOWN, Report
from lariax.rates._watch import MEASURES
from lariax.utils import needed_by


def check_can_draw() -> None:
    """To be asked before a measurement that takes minutes."""
    with needed_by("a picture of rates"):
        importlib.import_module("matplotlib")


def draw(report: Report, folder: Path) -> list[Path]:
    """rates.png and rates-inside.png in a folder."""
    pictures = {"rates.png": levels(report), "rates-inside.png": inside(report)}
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=100)
    return [folder / name for name in pictures]


def levels(report: Report) -> Any:
    """Stationarity and violation at a uniformly random iterate against K, with twice the standard error."""
    from matplotlib.figure import Figure

    cases = [case for case in THEOREM if report.find(case, PAPER)]
    figure = Figure(figsize=(3.3 * len(cases), 5.6), constrained_layout=True)
    panels = figure.subplots(2, len(cases), sharex=True, squeeze=False)
    colors: dict[str, str] = {}
    for column, case in zip(panels.T, cases, strict=True):
        for panel, measure in zip(column, SHOWN, strict=True):
            for m in (m for m in report.measured if m.case == case and m.variant not in (AFAR, THEORY)):
                values = m.means[:, :, MEASURES.index(measure)]
                mean, spread = values.mean(axis=0), 2 * values.std(axis=0) / np.sqrt(len(values))
                color = colors.setdefault(m.variant, f"C{len(colors)}")
                panel.errorbar(m.marks, mean, spread, color=color, marker=".", label=m.variant, capsize=2)
                if m.variant == PAPER:
                    line = mean[0] * (m.marks / m.marks[0]) ** THEOREM[case]
                    panel.plot(m.marks, line, color="0.3", linestyle="--", label=f"slope {THEOREM[case]:.2f}")
            panel.set(xscale="log", yscale="log", title=f"{case}: {measure}")
            panel.grid(alpha=0.3)
        column[0].legend(fontsize=7)
        column[1].set_xlabel("K")
    return figure


def inside(report: Report) -> Any:
    """The estimator's error and the multiplier along the run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), constrained_layout=True)
    left, right = figure.subplots(1, 2)
    for i, case in enumerate(THEOREM):
        for variant, style in ((PAPER, "-"), (NO_STORM, ":")):
            m = report.find(case, variant)
            if m is not None:
                error = m.windows[:, :, MEASURES.index("error")].mean(axis=0)
                left.loglog(m.marks, error, style, marker=".", color=f"C{i}", label=f"{case}, {variant}")
    left.set(title="error of the gradient estimate along the run", xlabel="iteration")
    for m in (m for m in report.measured if m.variant in (PAPER, FROM_ZERO)):
        size = m.windows[:, :, MEASURES.index("multipliers")].mean(axis=0)
        right.semilogx(m.marks, size, marker=".", label=f"{m.case}, {m.variant}")
    right.axhline(PULL, color="0.3", linestyle="--", label="at the solution (not I, the paper's: 0)")
    right.set(title="norm of the multiplier along the run", xlabel="iteration", ylim=(0, None))
    for panel in (left, right):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    return figure
