"""The pages of `benchmarks/results`, one a benchmark, and what benchmarks show on the way there."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

RESULTS = Path(__file__).parent / "results"
FIGURES = RESULTS / "figures"
"""Pictures are made by their commands, and not kept in the repository."""


def write(name: str, text: str) -> Path:
    """A benchmark's page of the results, whole; it begins with a heading."""
    page = RESULTS / f"{name}.md"
    least = min(len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE))
    page.write_text(re.sub(rf"^#{{{least - 1}}}(#+ )", r"\1", text.strip(), flags=re.MULTILINE) + "\n")
    return page


def figures(name: str) -> Path:
    """The folder for a benchmark's pictures."""
    folder = FIGURES / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def replace_section(name: str, text: str, page: Path) -> None:
    """What stands between the marks of this name on a page of the docs."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin, 1)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")


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
