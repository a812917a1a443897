"""Error bars to look at: in a terminal, in a notebook, as plain text, as a frame."""

import math
from collections.abc import Iterator
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from lariax.problem import visible
from lariax.utils import narrow_table, needed_by

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_PLACES = 6  # behind the point, before numbers are written with an exponent
MOST_ROWS = 40  # of x, and of each constraint, in a table to look at
_HEAD = ("", "estimate", "standard error", "low", "high", "law")
_PARTS = ("estimate", "standard_error", "low", "high", "law")


class TableLine(NamedTuple):
    """One number with its interval."""

    part: str  # x, multipliers, objective, constraints
    name: str
    estimate: float
    standard_error: float
    low: float
    high: float
    law: str


class Shown(NamedTuple):
    """The numbers of an entry as text: as many digits as its interval tells."""

    estimate: str
    standard_error: str
    low: str
    high: str


def shown(entry: TableLine) -> Shown:
    """
    >>> from lariax.inference import TableLine, shown
    >>> shown(TableLine("x", "x[0]", 100.0, 0.025, 99.951, 100.049, "normal"))
    Shown(estimate='100.000', standard_error='0.025', low='99.951', high='100.049')
    """
    width = (entry.high - entry.low) / 4
    places = 1 - math.floor(math.log10(width)) if math.isfinite(width) and width > 0 else None
    form = f".{places}f" if places is not None and 0 <= places <= MOST_PLACES else ".4g"
    estimate, low, high = (_text(value, form) for value in (entry.estimate, entry.low, entry.high))
    return Shown(estimate, _text(entry.standard_error, ".3g"), low, high)


def _text(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def entries(inference: Any, most: int | None = None) -> Iterator[TableLine]:
    """Number by number: x, the multipliers, the objective, the constraints; of each array the first `most`."""
    leaves = [jax.tree_util.tree_leaves_with_path(getattr(inference.x, part)) for part in _PARTS]
    for parts in zip(*leaves, strict=True):
        path = f"x{jax.tree_util.keystr(parts[0][0])}"
        yield from _entries("x", path, [leaf for _, leaf in parts], most)
    for part in ("multipliers", "constraints"):
        for name, estimate in getattr(inference, part).items():
            yield from _entries(part, name, [getattr(estimate, each) for each in _PARTS], most)
    yield from _entries("objective", "objective", [getattr(inference.objective, part) for part in _PARTS], most)


def _entries(part: str, name: str, arrays: list[Any], most: int | None) -> Iterator[TableLine]:
    shape = np.shape(arrays[0])
    flat = [np.ravel(array) for array in arrays]
    for place in range(flat[0].size if most is None else min(most, flat[0].size)):
        index = str([int(i) for i in np.unravel_index(place, shape)]) if shape else ""
        estimate, error, low, high = (float(array[place]) for array in flat[:-1])
        yield TableLine(part, f"{name}{index}", estimate, error, low, high, str(flat[-1][place]))


def as_frame(inference: Any) -> Any:
    with needed_by("to_frame()"):
        import pandas as pd

    rows = list(entries(inference))
    return pd.DataFrame(rows, columns=list(TableLine._fields)).set_index(["part", "name"])


def _table(inference: Any) -> list[tuple[str, ...]]:
    titles = {"multipliers": "multiplier of ", "constraints": "value of "}
    rows: list[tuple[str, ...]] = []
    for line in entries(inference, MOST_ROWS):
        rows.append((f"{titles.get(line.part, '')}{line.name}", *shown(line), line.law))
    return rows


def caption(inference: Any) -> str:
    """What the numbers are about."""
    return f"{inference.about.capitalize()}; {inference.confidence:.4g} confidence each."


def as_rich(inference: Any) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    table = narrow_table(*_HEAD)
    for row in _table(inference):
        table.add_row(*(Text(visible(cell)) for cell in row))
    notes = [Text(f"Warning: {visible(note)}", style="yellow") for note in inference.warnings]
    return Group(table, Text(visible(caption(inference)), style="bold"), *notes)


def as_text(inference: Any) -> str:
    from rich.console import Console

    console = Console(file=StringIO(), width=140, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(as_rich(inference))
    return capture.get().rstrip()


def as_html(inference: Any) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in _HEAD)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(visible(cell))}</td>' for cell in row)}</tr>" for row in _table(inference)
    )
    notes = "".join(f"<p>Warning: {escape(visible(note))}</p>" for note in inference.warnings)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f"{table}<p><b>{escape(visible(caption(inference)))}</b></p>{notes}"
