"""When to stop, and how much to do before looking up again."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lariax.loop._randomness import NEVER

GLANCE = 0.2  # seconds between looks at the clock, the keyboard and the progress bar


@dataclass
class Budget:
    """Limits; the first one reached ends the run. The clock starts when the first iteration can run: compiling takes
    seconds, and is none of the run's."""

    iterations: int | None
    draws: int | None
    seconds: float | None
    before: float = 0.0  # seconds that a resumed run has spent
    _asked: float = field(default_factory=time.perf_counter)
    _began: float | None = None

    def begin(self) -> float:
        """Start the clock; how many seconds it has taken to get ready."""
        self._began = time.perf_counter()
        return self._began - self._asked

    def last_iteration(self, first: int, draws_per_iteration: int, draws_so_far: int) -> int | None:
        """The last iteration that the budgets of iterations and draws allow to a run now at iteration `first`."""
        limits = []
        if self.iterations is not None:
            limits.append(first + self.iterations)
        if self.draws is not None and draws_per_iteration:
            limits.append(first + max(0, (self.draws - draws_so_far) // draws_per_iteration))
        return min(limits) if limits else None

    def elapsed(self) -> float:
        return self.before + (0.0 if self._began is None else time.perf_counter() - self._began)

    def out_of_time(self) -> bool:
        return self.seconds is not None and self.elapsed() >= self.seconds


@dataclass
class Pace:
    """How many iterations to run in one compiled call: about `GLANCE` seconds' worth, learned on the way."""

    rate: float = 0.0  # iterations a second, 0 until measured: the first call is one iteration long

    def next_stop(self, iteration: int, last: int | None, budget: Budget) -> int:
        seconds = GLANCE if budget.seconds is None else min(GLANCE, max(budget.seconds - budget.elapsed(), 0))
        span = max(int(seconds * self.rate), 1)
        stop = iteration + span
        return stop if last is None else min(stop, last)

    def learn(self, iterations: int, seconds: float) -> None:
        self.rate = iterations / max(seconds, 1e-9)


def record_interval(last: int | None, first: int) -> int:
    """By default some 200 records, or one every 1,000 iterations when the length of the run is not known."""
    return 1000 if last is None else max(1, math.ceil((last - first) / 200))


def check_budgets(
    iterations: int | None, draws: int | None, seconds: float | None, record_every: int | None = None
) -> None:
    """Refuse what is no budget."""
    if iterations is None and draws is None and seconds is None:
        raise ValueError("say how long to run: iterations=, draws= or seconds=, at least one.")
    for name, value in (("iterations", iterations), ("draws", draws), ("record_every", record_every)):
        if value is not None and (not is_number(value, int) or value < 1 or value >= NEVER):
            raise ValueError(f"{name} must be a positive integer below 2^31, found {value!r}.")
    if seconds is not None and not (is_number(seconds) and seconds > 0):
        raise ValueError(f"seconds must be positive, found {seconds!r}.")


def is_number(value: Any, kind: type = float) -> bool:
    """Whether it is a number of Python or NumPy, and no truth value."""
    kinds = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)
