"""A result to look at: in a terminal, in a notebook, as plain text."""

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from lariax.problem import visible
from lariax.utils import narrow_table

if TYPE_CHECKING:
    from rich.console import RenderableType

SMALL = 12
"""The most entries of an array that are shown one by one."""

Rows = list[tuple[str, str, str]]
"""What, of what name, in few digits."""


def summary(array: Any) -> str:
    """All entries of a small array; of a large one its shape, range and length."""
    values = np.asarray(array)
    if values.size <= SMALL:
        return str([float(f"{value:.5g}") for value in values.ravel()]) if values.ndim else f"{float(values):.5g}"
    low, high, length = values.min(), values.max(), np.linalg.norm(values.astype(float))
    return f"{values.dtype}{values.shape}, from {low:.4g} to {high:.4g}, of length {length:.4g}"


def as_text(headline: str, rows: Rows) -> str:
    lines = (f"  {what:11}  {f'{name}: ' if name else ''}{value}" for what, name, value in rows)
    return "\n".join([headline, *lines])


def as_rich(headline: str, rows: Rows, *notes: str) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    table = narrow_table("", "name", "value", words=3)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return Group(Text(headline, style="bold"), table, *map(Text, notes))


def as_html(headline: str, rows: Rows, *notes: str) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "<thead><tr><th></th><th>name</th><th>value</th></tr></thead>"
    lines = "".join(f"<p>{escape(line)}</p>" for line in notes)
    return f"<p><b>{escape(headline)}</b></p><table>{head}<tbody>{body}</tbody></table>{lines}"
