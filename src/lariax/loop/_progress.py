"""A progress bar for whoever waits."""

from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lariax.loop._budget import Budget


class ProgressBar:
    """Draws a second, feasibility and stationarity as the method sees them, time left; on standard error, and silent
    when not wanted."""

    def __init__(self, wanted: bool, budget: Budget):
        self._first, self._budget, self._draws = 0, budget, 0
        self._last: int | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not wanted,
        )
        self._task = self._bar.add_task("compiling", total=None, state="")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def span(self, first: int, last: int | None, draws_per_iteration: int) -> None:
        """Where the run starts and where it must end."""
        self._first, self._last, self._draws = first, last, draws_per_iteration

    def update(self, iteration: int, record: dict[str, Any]) -> None:
        if self._bar.disable:
            return
        elapsed, done = self._budget.elapsed(), iteration - self._first
        shares = []
        if self._last is not None:
            shares.append(done / max(self._last - self._first, 1))
        if self._budget.seconds is not None:
            shares.append(min(elapsed / self._budget.seconds, 1.0))
        rate = max(done, 1) / max(elapsed, 1e-9)
        pace = f"{rate * self._draws:,.0f} draws/s" if self._draws else f"{rate:,.0f} iterations/s"
        state = "  ".join([pace, *_standing(record)])
        words = f"{iteration:>10,} iterations"
        self._bar.update(self._task, description=words, total=1.0, completed=max(shares), state=state)


def _standing(record: dict[str, Any]) -> list[str]:
    """What the method knows, with its standard errors where it has them."""
    words = []
    for name, error in (("feasibility", "constraint_error"), ("stationarity", "gradient_error")):
        if name in record:
            words.append(f"{name} {_number(record[name])}{f' ±{_number(record[error])}' if error in record else ''}")
    return words


def _number(value: Any) -> str:
    return f"{float(np.asarray(value)):.2g}"
