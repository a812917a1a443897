"""Runs in one table, in a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.certificate import COLOURS, ConstraintReport
from lariax.report._words import short
from lariax.runs import SavedRun
from lariax.utils import narrow_table


def comparison(runs: Sequence[SavedRun]) -> RenderableType:
    """One row a run: how it ended, what it cost, what its certificate says; then the constraints, run by run."""
    cost = narrow_table("run", "ended", "method", "draws", "seconds", words=3, title="Runs")
    for run in runs:
        method = run.settings.get("method")
        name = method.get("name", "") if isinstance(method, dict) else ""
        cells = [run.name, run.status, str(name), f"{run.outcome['draws']:,}", f"{run.outcome['seconds']:.1f}"]
        cost.add_row(*(Text(short(cell)) for cell in cells))
    found = narrow_table("measure", "run", "estimate [low, high]", words=2, title="Certificates")
    for measure in ("objective", "stationarity", "feasibility"):
        for run in runs:
            value = str(getattr(run.certificate, measure)) if run.certificate else "-"
            found.add_row(measure, Text(short(run.name)), value)
    names = list(dict.fromkeys(name for run in runs if run.certificate for name in run.certificate.constraints))
    return Group(cost, found, *([_constraints(runs, names)] if names else []))


def _constraints(runs: Sequence[SavedRun], names: Sequence[str]) -> Table:
    table = narrow_table("constraint", "run", "on", "value [low, high]", "holds", words=2, title="Constraints")
    for name in names:
        for run in runs:
            certificate = run.certificate
            if certificate is None or name not in certificate.constraints:
                continue
            report = certificate.constraints[name]
            beside = certificate.heldout.constraints.get(name) if certificate.heldout else None
            what = Text(short(f"{name} {report.asked(report.worst)}"))
            table.add_row(what, Text(short(run.name)), "samples", *_cells(report))
            if beside is not None:
                table.add_row("", Text(short(run.name)), "held out", *_cells(beside))
    return table


def _cells(report: ConstraintReport) -> tuple[Text, Text]:
    return Text(str(report)), Text(report.holds, style=COLOURS[report.holds])
