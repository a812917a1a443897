"""A progress bar for whoever waits."""

from types import TracebackType
from typing import Any, Self

import numpy as np

from lariax.loop._budget import Budget


class ProgressBar:
    """Draws a second, feasibility and stationarity as the method sees them, time left; on standard error, and silent
    when not wanted."""

    def __init__(self, wanted: bool, budget: Budget):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._first, self._budget, self._draws = 0, budget, 0
        self._last: int | None = None
        self._began: tuple[float, int, float] | None = None  # seconds, iteration and share at the first look
        console = Console(stderr=True)
        self._width = console.width
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=max(4, min(24, self._width - 90))),
            TextColumn("{task.fields[state]}"),
            console=console,
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
        elapsed = self._budget.elapsed()
        shares = []
        if self._last is not None:
            shares.append((iteration - self._first) / max(self._last - self._first, 1))
        if self._budget.seconds is not None:
            shares.append(min(elapsed / self._budget.seconds, 1.0))
        share = max(shares)
        if self._began is None:  # the first call finds out how fast it goes
            self._began = elapsed, iteration, share
        since, done, gained = elapsed - self._began[0], iteration - self._began[1], share - self._began[2]
        words = [_pace(done, since, self._draws), *_standing(record, self._width)]
        if gained > 0:
            words.append(f"{_clock(since * (1 - share) / gained)} left")
        state = "  ".join(word for word in words if word)
        self._bar.update(self._task, description=f"{iteration:,} iterations", total=1.0, completed=share, state=state)


def _pace(iterations: int, seconds: float, draws: int) -> str:
    if not iterations:
        return ""
    rate = iterations / max(seconds, 1e-9)
    return f"{rate * draws:,.0f} draws/s" if draws else f"{rate:,.0f} iterations/s"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _standing(record: dict[str, Any], width: int) -> list[str]:
    """What the method knows, with its standard errors where it has them and there is room."""
    words, errors = [], width > 125
    for name, error in (("feasibility", "constraint_error"), ("stationarity", "gradient_error")):
        if name in record and width < 100:
            words.append(f"{name[:4]}. {_number(record[name])}")
        elif name in record:
            words.append(
                f"{name} {_number(record[name])}{f' ±{_number(record[error])}' if errors and error in record else ''}"
            )
    return words


def _number(value: Any) -> str:
    return f"{float(np.asarray(value)):.2g}"
