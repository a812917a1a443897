"""A certificate to look at: in a terminal, in a notebook, as plain text."""

from html import escape
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.certificate._certificate import HOLDS, SAYS, Certificate, ConstraintReport, Interval
from lariax.problem import visible

COLOURS = {SAYS[word]: colour for word, colour in zip(HOLDS, ("green", "yellow", "yellow", "red"), strict=True)}
"""Of the answers."""

_HEAD = ("", "estimate", "low", "high", "relative", "holds")
_Row = tuple[str, ...]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _ends(interval: Interval) -> tuple[str, str, str]:
    return _number(interval.estimate), _number(interval.low), _number(interval.high)


def _measures(certificate: Certificate) -> list[_Row]:
    rows: list[_Row] = []
    for name in ("stationarity", "feasibility", "complementarity", "natural residual", "objective"):
        relative = getattr(certificate.relative, name, None)
        beside = "" if relative is None else f"{relative.estimate:.2g}"
        says = SAYS[certificate.feasible] if name == "feasibility" else ""
        rows.append((name, *_ends(getattr(certificate, name.replace(" ", "_"))), beside, says))
    return rows


def _constraint(name: str, reports: list[ConstraintReport]) -> list[list[str]]:
    """One constraint on every side: a number, or the entries of a vector that the answers are about."""
    rows = []
    for entry in dict.fromkeys(report.worst for report in reports):
        first = reports[0]
        which = "" if first.value.size == 1 else f", of {first.value.size}"
        row = [f"{name}{first.place(entry)} {first.asked(entry)}{which}"]
        for report in reports:
            row += [*_ends(report.at(entry)), "", SAYS[report.holds] if entry == report.worst else ""]
        rows.append(row)
    return rows


def _sides(certificate: Certificate) -> list[tuple[str, Certificate]]:
    """The certificate, and the held-out one beside it."""
    beside = [] if certificate.heldout is None else [("held out", certificate.heldout)]
    return [("samples" if beside else "", certificate), *beside]


def _table(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    sides = _sides(certificate)
    head = [_HEAD[0], *(f"{side} {title}".strip() for side, _ in sides for title in _HEAD[1:])]
    each = [_measures(side) for _, side in sides]
    rows = [[lines[0][0], *(cell for line in lines for cell in line[1:])] for lines in zip(*each, strict=True)]
    for name in certificate.constraints:
        rows += _constraint(name, [side.constraints[name] for _, side in sides])
    return head, rows


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

    def pair(value: str, low: str, high: str, _: str, holds: str) -> tuple[str, str]:
        return f"{value} [{low}, {high}]", holds

    return head, [[name, *pair(*cells[:5]), *pair(*cells[5:])] for name, *cells in rows]


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
