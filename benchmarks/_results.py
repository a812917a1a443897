"""RESULTS.md, section by section, and what benchmarks show on the way there."""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

RESULTS = Path(__file__).parent / "RESULTS.md"


def write(name: str, section: str, page: Path = RESULTS) -> None:
    """Replace a benchmark's own section of the results (or of another page), and leave the others alone."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = page.read_text() if page.exists() else "# Results\n"
    if begin in text:
        before, rest = text.split(begin, 1)
        after = rest.split(end, 1)[1]
    else:
        before, after = text.rstrip() + "\n\n", "\n"
    page.write_text(f"{before}{begin}\n{section}\n{end}{after}")


def origin(module: str, packages: Sequence[str], seconds: float) -> str:
    """Where figures come from: the command as it was given, the day, the machine, how long it took, versions."""
    command = " ".join(["python -m", module, *sys.argv[1:]])
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"`{command}`, {date.today()}, {os.cpu_count()} cores, {seconds:,.0f} s; "
        f"Python {sys.version.split()[0]}, {versions}."
    )


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table: the first column to the left, the others to the right."""
    lines = [f"| {' | '.join(map(str, head))} |", "|---|" + "---:|" * (len(head) - 1)]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
