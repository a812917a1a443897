"""Runs in one table, in a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.certificate import COLOURS, SAYS, ConstraintReport
from lariax.report._words import short
from lariax.runs import SavedRun


def comparison(runs: Sequence[SavedRun]) -> RenderableType:
    """One row a run: how it ended, what it cost, what its certificate says; then the constraints, run by run."""
    head = ("run", "ended", "method", "draws", "seconds", "objective", "stationarity", "feasibility")
    table = Table(*head, title="Runs", title_justify="left")
    for run in runs:
        method, certificate = run.settings.get("method"), run.certificate
        name = method.get("name", "") if isinstance(method, dict) else ""
        measures = ("objective", "stationarity", "feasibility")
        found = [str(getattr(certificate, measure)) if certificate else "-" for measure in measures]
        cells = [run.name, run.status, str(name), f"{run.outcome['draws']:,}", f"{run.outcome['seconds']:.1f}", *found]
        table.add_row(*(Text(short(cell)) for cell in cells))
    names = list(dict.fromkeys(name for run in runs if run.certificate for name in run.certificate.constraints))
    return Group(table, _constraints(runs, names)) if names else table


def _constraints(runs: Sequence[SavedRun], names: Sequence[str]) -> Table:
    table = Table("constraint", "run", "asked", "on samples", "", "held out", "", title="Constraints")
    table.title_justify = "left"
    for name in names:
        for run in runs:
            certificate = run.certificate
            if certificate is None or name not in certificate.constraints:
                continue
            report = certificate.constraints[name]
            beside = certificate.heldout.constraints.get(name) if certificate.heldout else None
            asked = report.asked(report.worst)
            table.add_row(Text(short(name)), Text(short(run.name)), asked, *_cells(report), *_cells(beside))
    return table


def _cells(report: ConstraintReport | None) -> tuple[Text, Text]:
    if report is None:
        return Text("-"), Text("")
    return Text(str(report)), Text(SAYS[report.holds], style=COLOURS[SAYS[report.holds]])
