"""The host's side of a run: call after call of the compiled loop, until something ends it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.loop._budget import Budget, Pace
from lariax.loop._checkpoint import Keeper
from lariax.loop._feed import ReadFurtherError
from lariax.loop._interrupts import Interrupts
from lariax.loop._ledger import Ledger
from lariax.loop._looks import Looked, Looks, Sight
from lariax.loop._progress import ProgressBar
from lariax.loop._randomness import Randomness
from lariax.loop._result import Continuation, Result, outcome
from lariax.loop._run import Records, Run, advance, conclude, finite_next, nonfinite
from lariax.loop._start import Start, explaining_memory
from lariax.loop._verdict import Verdict, has_kinks, judged
from lariax.problem import Linear, LinearSystem, Problem, warn


class Snapshot(NamedTuple):
    """What a callback sees, at every record."""

    iteration: int
    x: PyTree[Array]
    multipliers: dict[str, Array]
    record: dict[str, Any]


class Position(NamedTuple):
    """Where a run stands: all that changes on the way, but for the place in a `Stream`."""

    run: Run
    iteration: int
    evaluations: int
    ledger: Ledger
    looked: Looked
    sight: Sight | None = None  # the look after this very iteration


@dataclass
class Drive:
    """Takes a run to its end.

    The position is replaced as a whole, when a call of the compiled loop and what belongs to it is done: whatever
    interrupts in between, it is sound.
    """

    start: Start
    position: Position
    budget: Budget
    first: int  # the iteration from which the budget counts
    last: int | None  # and the one that it allows
    looks: Looks | None
    bar: ProgressBar
    callback: Callable[[Snapshot], Any] | None
    keeper: Keeper | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    failure: Exception | None = None  # of a Stream

    def go(self) -> Result:
        self.bar.span(self.first, self.last, self.start.oracle.draws_per_iteration)
        self.start.feeder.give_up = lambda: self.interrupts.asked or self.budget.out_of_time()
        if self.keeper:
            self.keeper.begin(*self._state)
        with self.interrupts:
            try:
                status = self._until_it_ends()
            except KeyboardInterrupt:
                if self.interrupts.asked:  # and asked again
                    raise
                status = "interrupted"
            finally:
                if self.keeper:
                    self.keeper.save(*self._state, wait=True)
        return self._result(status)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do."""
        return self._ended() is not None

    @property
    def _state(self) -> tuple[Position, float, dict[str, Any]]:
        feeder = self.start.feeder
        return self.position, self.budget.elapsed(), feeder.place() if feeder else {}

    def _until_it_ends(self) -> str:
        status, pace = self._ended(), Pace()
        if status is None:
            self._get_ready()
        while status is None:
            if self.keeper and self.keeper.due:
                self.keeper.save(*self._state)
            status = self._advance(pace) or self._shown() or self._ended()
        return status

    def _get_ready(self) -> None:
        """Compile, by a call for no iterations, and start the clock."""
        position = self.position
        self._called(position.iteration, self.start.feeder.latest)
        ledger = position.ledger
        seconds_before = ledger.seconds_before + self.budget.begin()
        self.position = position._replace(ledger=replace(ledger, seconds_before=seconds_before))

    def _called(self, stop: int, fed: tuple[PyTree, ...]) -> tuple[Run, Records]:
        """The compiled loop, up to an iteration."""
        start, position = self.start, self.position
        with explaining_memory():
            return jax.block_until_ready(
                advance(
                    start.oracle,
                    start.method,
                    position.run,
                    jnp.int32(stop),
                    jnp.int32(self._interval),
                    fed,
                    start.settings.rhythm,
                    position.ledger.capacity,
                )
            )

    def _ended(self) -> str | None:
        """How the run has ended, as far as its position tells."""
        position = self.position
        if not position.run.finite:
            return "diverged"
        if self.looks and position.sight and self.looks.accepts(position.sight):
            return "stationary"
        if (self.last is not None and position.iteration >= self.last) or self.budget.out_of_time():
            return "budget"
        return "interrupted" if self.interrupts.asked else None

    def _advance(self, pace: Pace) -> str | None:
        """One call of the compiled loop, and the look that may be due after it."""
        start, before = self.start, self.position
        beat, iteration = start.settings.rhythm, before.iteration
        fed, stop = start.feeder.nothing, self._next_stop(pace)
        if start.feeder:
            found = self._fed((iteration + beat.start) // beat.block * beat.block)
            if found is None:
                return self._ended() or "source_ended"
            fed, available = found
            if available - beat.shift <= iteration:
                return "source_ended"
            stop = min(stop, available - beat.shift)
        began = self.budget.elapsed()
        run, records = self._called(stop, fed)
        ended = self.budget.elapsed()
        pace.learn(stop - iteration, ended - began)
        ledger = before.ledger.added(
            records.named(start.oracle.layout), iteration, stop, began, ended, before.looked.draws
        )
        evaluations = before.evaluations + int(records.evaluations)
        position = Position(run, int(run.iteration), evaluations, ledger, before.looked)
        if self.looks and run.finite and position.iteration == self.looks.next_after(position.iteration - 1):
            position = self._looked_at(position)
        self.position = position
        self.bar.update(position.iteration, ledger.newest)
        return None

    def _fed(self, place: int) -> tuple[tuple[PyTree, ...], int] | None:
        """A block of rows; None: they do not come, or come to an error, which then goes with the answer."""
        start = self.start
        try:
            return start.feeder.block(place, start.settings.rhythm.block, start.oracle.sample_counts)
        except ReadFurtherError:
            raise
        except Exception as error:
            self.failure = error
            warn(f"{_words(error)} The run ends here, with the answer so far.")
            return None

    @property
    def _interval(self) -> int:
        """Iterations between two records: for the history, or for whoever watches."""
        return self.position.ledger.every if self.callback else self.position.ledger.spacing

    def _next_stop(self, pace: Pace) -> int:
        iteration, every = self.position.iteration, self._interval
        rows = 1 if self.callback else self.position.ledger.capacity
        stop = min(pace.next_stop(iteration, self.last, self.budget), (iteration // every + rows) * every)
        return min(stop, self.looks.next_after(iteration)) if self.looks else stop

    def _looked_at(self, position: Position) -> Position:
        assert self.looks
        sight = self.looks.look(position.iteration, *self._concluded(position))
        return position._replace(looked=self.looks.record, sight=sight)

    def _concluded(self, position: Position) -> tuple[PyTree, dict[str, Array]]:
        return conclude(self.start.oracle, self.start.method, position.run)

    def _shown(self) -> str | None:
        """What the callback says to it."""
        position = self.position
        if not self.callback or position.iteration % self._interval or self._ended() in ("diverged", "stationary"):
            return None
        x, multipliers = self._concluded(position)
        stop = self.callback(Snapshot(position.iteration, x, multipliers, position.ledger.newest))
        return "interrupted" if stop else None

    def _result(self, status: str) -> Result:
        start, position = self.start, self.position
        x, multipliers = self._concluded(position)
        found: tuple[str, ...] = ()
        if status == "budget":
            status, found, draws = self._judged(x)
            position = position._replace(looked=replace(position.looked, draws=position.looked.draws + draws))
        sight = position.sight
        if self.looks:
            if sight is None and position.run.finite:
                position = self._looked_at(position)
                sight = position.sight
                status = "stationary" if status == "budget" and sight and self.looks.accepts(sight) else status
            best = start.settings.output == "best"
            sight = position.looked.best if best else sight
            if sight and (best or status == "stationary"):
                x, multipliers = sight.x, sight.multipliers  # those that the certificate vouches for
        place, looked = position.iteration + start.settings.rhythm.start, position.looked
        return Result(
            x=x,
            multipliers=multipliers,
            iterations=position.iteration,
            draws=place * start.oracle.draws_per_iteration + looked.draws_at(place, start.oracle.sample_counts),
            evaluations=position.evaluations + looked.evaluations,
            seconds=position.ledger.seconds_before + self.budget.elapsed(),
            history=position.ledger.history(),
            outcome=outcome(status),
            choice=start.choice,
            continuation=Continuation(
                position.run, start.oracle, start.method, start.settings, start.feeder, position.looked
            ),
            certified=sight.certificate if sight else None,
            remarks=(*found, *self._remarks(status, x)),
            error=self.failure,
        )

    def _judged(self, x: PyTree[Array]) -> Verdict:
        """What it means that the budget is spent here."""
        start, run, ledger = self.start, self.position.run, self.position.ledger
        if _has_no_solution(start.oracle.problem, x):
            return Verdict("infeasible_stationary")
        history = ledger.history()
        violations = np.asarray(history["feasibility"]) if "feasibility" in history else np.zeros(0)
        key = Randomness.VERDICTS.of(run.key)
        return judged(start.oracle, start.method, run.state, x, violations, key)

    def _diagnosis(self) -> list[str]:
        """Whether it was not the iterates but a sample."""
        start, run = self.start, self.position.run
        beat, next_one = start.settings.rhythm, self.position.iteration + 1
        place = next_one + beat.shift
        fed = start.feeder.nothing
        if start.feeder:
            found = start.feeder.block(place // beat.block * beat.block, beat.block, start.oracle.sample_counts)
            fed = jax.tree.map(lambda rows: rows[place % beat.block][None], found[0]) if found else fed
        finite = finite_next(start.oracle, start.method, run, jnp.int32(place), fed)
        bad = nonfinite(start.oracle, finite)
        if not bad:
            return []
        return [
            f"At x, {' and '.join(bad)} is not finite on the samples of iteration {next_one}, though x is sound: look "
            "for a bad row, or for log, sqrt or division at 0."
        ]

    def _remarks(self, status: str, x: PyTree[Array]) -> tuple[str, ...]:
        remarks = []
        if status == "diverged":
            remarks += self._diagnosis()
        start, run = self.start, self.position.run
        remark = start.method.remark(run.state, run.iteration)
        if remark and has_kinks(start.oracle, start.method, run.state, x, Randomness.VERDICTS.of(run.key)):
            remarks.append(remark)
        if self.failure is not None:
            remarks.append(_words(self.failure))
        if self.keeper and self.keeper.error:
            remarks.append(f"The end of the run could not be saved in {self.keeper.folder}: {self.keeper.error}.")
        elif self.keeper and status == "interrupted":
            remarks.append(f"It is saved: lx.resume({self.keeper.folder}, problem) goes on, in another process too.")
        return tuple(remarks)


def _words(error: Exception) -> str:
    return f"The Stream failed with {type(error).__name__}: {error}".rstrip(".") + "."


def _has_no_solution(problem: Problem, x: PyTree[Array]) -> bool:
    linear = [constraint for constraint in problem.constraints.values() if isinstance(constraint, Linear)]
    return bool(linear) and LinearSystem(linear, x).least_violation() > 0
