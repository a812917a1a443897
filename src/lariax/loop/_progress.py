"""A progress bar for whoever waits."""

from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lariax.loop._budget import Budget


class ProgressBar:
    """Iterations done, speed, objective and violation as they stand, on standard error; silent when not wanted."""

    def __init__(self, wanted: bool, first: int, last: int | None, budget: Budget):
        self._first, self._last, self._budget = first, last, budget
        self._bar = Progress(
            TextColumn("{task.fields[iteration]:>10,} iterations"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[speed]}  {task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not wanted,
        )
        self._task = self._bar.add_task("solve", total=1.0, iteration=first, speed="", state="")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def update(self, iteration: int, record: dict[str, Any]) -> None:
        if self._bar.disable:
            return
        elapsed = self._budget.elapsed()
        shares = []
        if self._last is not None:
            shares.append((iteration - self._first) / max(self._last - self._first, 1))
        if self._budget.seconds is not None:
            shares.append(min(elapsed / self._budget.seconds, 1.0))
        state = ""
        if record:
            values = "  ".join(f"{name} {_number(value)}" for name, value in list(record["constraints"].items())[:3])
            state = f"objective {_number(record['objective'])}  {values}"
        speed = f"{(iteration - self._first) / max(elapsed, 1e-9):,.0f}/s"
        self._bar.update(self._task, completed=max(shares), iteration=iteration, speed=speed, state=state)


def _number(value: Any) -> str:
    array = np.asarray(value)
    return f"{float(array):.4g}" if array.ndim == 0 else f"|{float(np.linalg.norm(array)):.4g}|"
