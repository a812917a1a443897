"""When to stop, and how much to do before looking up again."""

import math
import time
from dataclasses import dataclass, field

from lariax.loop._randomness import NEVER
from lariax.utils import check_count, is_number

POLL_SECONDS = 0.2  # between looks at the clock, the keyboard and the progress bar


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

    def seconds_left(self) -> float:
        return math.inf if self.seconds is None else max(self.seconds - self.elapsed(), 0.0)

    def out_of_time(self) -> bool:
        return self.seconds_left() == 0


@dataclass
class CallLength:
    """How many iterations to run in one compiled call: about `POLL_SECONDS` worth, learned on the way."""

    rate: float = 0.0  # iterations a second, 0 until measured: the first call is one iteration long

    def next_stop(self, iteration: int, last: int | None, budget: Budget) -> int:
        seconds = POLL_SECONDS if budget.seconds is None else min(POLL_SECONDS, budget.seconds_left())
        stop = iteration + max(int(seconds * self.rate), 1)
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
        if value is not None:
            check_count(name, value, below=NEVER)
    if seconds is not None and not (is_number(seconds) and seconds > 0):
        raise ValueError(f"seconds must be positive, found {seconds!r}.")
