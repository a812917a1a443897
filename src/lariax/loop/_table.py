"""A result to look at: in a terminal, in a notebook, as plain text."""

from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.problem import visible

Rows = list[tuple[str, str, str]]
"""What, of what name, in few digits."""


def as_text(headline: str, rows: Rows) -> str:
    lines = (f"  {what:11}  {f'{name}: ' if name else ''}{value}" for what, name, value in rows)
    return "\n".join([headline, *lines])


def as_rich(headline: str, rows: Rows, *notes: str) -> RenderableType:
    table = Table("", "name", "value")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return Group(Text(headline, style="bold"), table, *map(Text, notes))


def as_html(headline: str, rows: Rows, *notes: str) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "<thead><tr><th></th><th>name</th><th>value</th></tr></thead>"
    lines = "".join(f"<p>{escape(line)}</p>" for line in notes)
    return f"<p><b>{escape(headline)}</b></p><table>{head}<tbody>{body}</tbody></table>{lines}"
