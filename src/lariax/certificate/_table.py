"""A certificate to look at: in a terminal, in a notebook, as plain text."""

from html import escape
from io import StringIO

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.certificate._certificate import Certificate, ConstraintReport, Interval
from lariax.problem import visible

COLOURS = {"surely": "green", "probably": "yellow", "undecided": "yellow", "violated": "red"}
_HEAD = ("", "estimate", "low", "high", "holds")
_Row = tuple[str, str, str, str, str]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _measure(name: str, interval: Interval) -> _Row:
    return name, _number(interval.estimate), _number(interval.low), _number(interval.high), ""


def _constraint(name: str, report: ConstraintReport) -> list[_Row]:
    """One line for a number, the extremes for a vector."""
    bounds = np.unique(report.bound)
    asked = f"{name} {report.relation} {_number(bounds[0]) if bounds.size == 1 else '...'}"
    if report.value.size == 1:
        value, low, high = (_number(float(np.ravel(part)[0])) for part in (report.value, report.low, report.high))
        return [(asked, value, low, high, report.holds)]

    def line(which: str, entry: int) -> _Row:
        value, low, high = (_number(float(np.ravel(part)[entry])) for part in (report.value, report.low, report.high))
        return f"{asked}, {which} of {report.value.size}", value, low, high, report.holds

    return [line("least", int(np.argmin(report.value))), line("largest", int(np.argmax(report.value)))]


def _rows(certificate: Certificate) -> list[_Row]:
    rows = [
        _measure("stationarity", certificate.stationarity),
        _measure("feasibility", certificate.feasibility),
        _measure("complementarity", certificate.complementarity),
        _measure("natural residual", certificate.natural_residual),
        _measure("objective", certificate.objective),
    ]
    for name, report in certificate.constraints.items():
        rows += _constraint(name, report)
    return rows


def _sides(certificate: Certificate) -> list[tuple[str, Certificate]]:
    """The certificate, and the held-out one beside it."""
    beside = [] if certificate.heldout is None else [("held out", certificate.heldout)]
    return [("samples" if beside else "", certificate), *beside]


def _table(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    sides = _sides(certificate)
    head = [_HEAD[0], *(f"{side} {title}".strip() for side, _ in sides for title in _HEAD[1:])]
    each = [_rows(side) for _, side in sides]
    return head, [[lines[0][0], *(cell for line in lines for cell in line[1:])] for lines in zip(*each, strict=True)]


def _notes(certificate: Certificate) -> list[str]:
    return [f"{side}: {note}" if side else note for side, c in _sides(certificate) for note in c.warnings]


def _verdicts(certificate: Certificate) -> list[str]:
    return [f"{side}: {c.verdict}" if side else c.verdict for side, c in _sides(certificate)]


def _narrow(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    """The table for a terminal: beside a held-out side, an interval shares the cell of its estimate."""
    if certificate.heldout is None:
        return _table(certificate)
    head = ["", *(title for side, _ in _sides(certificate) for title in (side, "holds"))]
    _, rows = _table(certificate)
    return head, [
        [name, f"{a} [{b}, {c}]", holds, f"{d} [{e}, {f}]", beside] for name, a, b, c, holds, d, e, f, beside in rows
    ]


def as_rich(certificate: Certificate) -> RenderableType:
    head, rows = _narrow(certificate)
    table = Table(*head)
    for row in rows:
        table.add_row(*(Text(visible(cell), style=COLOURS.get(cell, "")) for cell in row))
    lines = [Text(visible(line), style="bold") for line in _verdicts(certificate)]
    return Group(table, *lines, *(Text(f"Warning: {visible(note)}", style="yellow") for note in _notes(certificate)))


def as_text(certificate: Certificate) -> str:
    console = Console(file=StringIO(), width=140, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(as_rich(certificate))
    return capture.get().rstrip()


def as_html(certificate: Certificate) -> str:
    head, rows = _table(certificate)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    lines = "".join(f"<p><b>{escape(line)}</b></p>" for line in _verdicts(certificate))
    notes = "".join(f"<p>Warning: {escape(note)}</p>" for note in _notes(certificate))
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{lines}{notes}"


def _cell(text: str) -> str:
    colour = COLOURS.get(text)
    return f'<td style="color: {colour}">{escape(text)}</td>' if colour else f"<td>{escape(text)}</td>"
