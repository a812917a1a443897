"""A result to look at: in a terminal, in a notebook, as plain text."""

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lariax.problem import visible

if TYPE_CHECKING:
    from lariax.loop._result import Result


def headline(result: "Result") -> str:
    """How it ended and what it cost; of runs under vmap, how many ended how."""
    if np.ndim(result.outcome):
        counts = Counter(np.ravel(result.status).tolist())
        return ", ".join(f"{count} of {np.size(result.outcome)} runs: {status}" for status, count in counts.items())
    return f"{result.status} after {result.iterations:,} iterations, {result.draws:,} draws, {result.seconds:.2f} s"


def rows(result: "Result") -> list[tuple[str, str, str]]:
    """What, of what name, in few digits."""
    with np.printoptions(precision=6, threshold=8):
        answer = [("x", *_named(path, leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(result.x)]
        return answer + [("multipliers", name, str(np.asarray(y))) for name, y in result.multipliers.items()]


def _named(path: tuple[PyTree, ...], leaf: PyTree) -> tuple[str, str]:
    return jax.tree_util.keystr(path), str(np.asarray(leaf))


def as_text(result: "Result") -> str:
    lines = (f"  {what:11}  {f'{name}: ' if name else ''}{value}" for what, name, value in rows(result))
    return "\n".join([headline(result), *lines])


def as_rich(result: "Result") -> RenderableType:
    table = Table("", "name", "value")
    for row in rows(result):
        table.add_row(*(Text(visible(cell)) for cell in row))
    return Group(Text(headline(result), style="bold"), table, *(Text(line) for line in _message(result)))


def as_html(result: "Result") -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(result))
    head = "<thead><tr><th></th><th>name</th><th>value</th></tr></thead>"
    lines = "".join(f"<p>{escape(line)}</p>" for line in _message(result))
    return f"<p><b>{escape(headline(result))}</b></p><table>{head}<tbody>{body}</tbody></table>{lines}"


def _message(result: "Result") -> list[str]:
    return [] if np.ndim(result.outcome) else [result.message]
