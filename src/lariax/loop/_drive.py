"""The host's side of a run: call after call of the compiled loop, until something ends it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from lariax.checkpoint import Keeper
from lariax.compilation import on_device
from lariax.loop._begin import explaining_memory
from lariax.loop._budget import Budget, CallLength
from lariax.loop._certifier import Certifier
from lariax.loop._compiled import Records, advance
from lariax.loop._feed import ReadFurtherError
from lariax.loop._finite import finite_next, nonfinite
from lariax.loop._interrupts import Interrupts
from lariax.loop._processes import Processes
from lariax.loop._programs import LoopState
from lariax.loop._progress import ProgressBar
from lariax.loop._result import Result, outcome
from lariax.loop._state import RunState
from lariax.loop._vectors import as_plain
from lariax.loop._verdict import Verdict, has_kinks, judged
from lariax.methods import Diagnosis
from lariax.problem import Linear, LinearSystem, Problem
from lariax.utils import warn


class Snapshot(NamedTuple):
    """What a callback sees, at every record.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> seen = []
    >>> def watch(now):
    ...     seen.append(now.iteration)
    >>> _ = lx.solve(problem, jnp.zeros(2), iterations=100, record_every=50, callback=watch)
    >>> seen
    [50, 100]
    """

    iteration: int
    x: PyTree[Array]
    multipliers: dict[str, Array]
    record: dict[str, Any]


@dataclass
class Drive:
    """Takes a run to its end."""

    run: RunState
    budget: Budget
    first: int  # the iteration from which the budget counts
    last: int | None  # and the one that it allows
    certifier: Certifier | None
    bar: ProgressBar
    callback: Callable[[Snapshot], Any] | None
    keeper: Keeper | None = None
    saves: bool = False  # whether the run is saved, by this process or another
    processes: Processes = field(default_factory=Processes)
    interrupts: Interrupts = field(default_factory=Interrupts)
    failure: Exception | None = None  # of a Stream

    def go(self) -> Result:
        setup = self.run.setup
        self.bar.span(self.first, self.last, setup.oracle.draws_per_iteration)
        setup.feeder.give_up = lambda: self.interrupts.asked or self.budget.out_of_time()
        if self.saves:
            place = self._place
            if self.keeper:
                self.keeper.begin(*place)
        with self.interrupts:
            try:
                status = self._until_it_ends()
            except KeyboardInterrupt:
                if self.interrupts.asked:  # and asked again
                    raise
                status = "interrupted"
            finally:
                if self.saves:
                    self._save(wait=True)
        return self._result(status)

    def _save(self, wait: bool = False) -> None:
        place = self._place
        if self.keeper:
            self.keeper.save(*place, wait=wait)

    @property
    def _place(self) -> tuple[RunState, float, dict[str, Any]]:
        """What a checkpoint holds: where the run, the clock and the streams are."""
        feeder, run = self.run.setup.feeder, self.run
        run = replace(run, loop=as_plain(run.setup, run.loop, self.processes))
        return run, self.budget.elapsed(), feeder.place() if feeder else {}

    def ended(self) -> str | None:
        """How the run has ended, as far as its state tells."""
        run = self.run
        if not run.loop.finite:
            return "diverged"
        if self.certifier and run.certified and self.certifier.accepts(run.certified):
            return "stationary"
        if self.last is not None and run.iteration >= self.last:
            return "budget"
        if self.processes.any(self.budget.out_of_time()):
            return "budget"
        return "interrupted" if self.processes.any(self.interrupts.asked) else None

    def _until_it_ends(self) -> str:
        status, length = self.ended(), CallLength()
        if status is None:  # compile, by a call for no iterations, and start the clock
            self._called(self.run.iteration, self.run.setup.feeder.latest)
            self.interrupts.waits_for = ""
            self.run = replace(self.run, seconds=self.run.seconds + self.budget.begin())
        while status is None:
            if self.saves and self.processes.agreed(self.keeper is not None and self.keeper.due):
                self._save()
            status = self._advance(length) or self._shown() or self.ended()
        return status

    def _called(self, stop: int, fed: tuple[PyTree, ...]) -> tuple[LoopState, Records]:
        """The compiled loop, up to an iteration."""
        run, setup, every = self.run, self.run.setup, on_device(self._interval, np.int32)
        to, capacity = on_device(stop, np.int32), setup.record_capacity
        with explaining_memory():
            return jax.block_until_ready(
                advance(setup.oracle, setup.method, run.loop, to, every, fed, setup.blocks, capacity)
            )

    def _advance(self, length: CallLength) -> str | None:
        """One call of the compiled loop, and the check that may be due after it."""
        run, stop = self.run, self._next_stop(length)
        fed, blocks, iteration = run.setup.feeder.nothing, run.setup.blocks, run.iteration
        if run.setup.feeder:
            found = self._fed(blocks.block_after(iteration))
            if found is None:
                return self.ended() or "source_ended"
            fed, available = found
            stop = min(stop, available - blocks.start + 1)
            if stop <= iteration:
                return "source_ended"
            if self.last is None or stop < self.last:
                run.setup.feeder.read_ahead(blocks.length, run.setup.oracle.sample_counts)
        began = self.budget.elapsed()
        loop, records = self._called(stop, fed)
        ended = self.budget.elapsed()
        length.learn(stop - iteration, ended - began)
        run = replace(
            run,
            loop=loop,
            iteration=int(loop.iteration),
            evaluations=run.evaluations + int(records.evaluations),
            history=run.recorded(records, stop, began, ended),
            certified=None,
        )
        if self.certifier and loop.finite and run.iteration == self.certifier.next_after(run.iteration - 1):
            run = self._checked(run)
        self.run = run
        self.bar.update(run.iteration, run.history.newest)
        return None

    def _fed(self, place: int) -> tuple[tuple[PyTree, ...], int] | None:
        """A block of rows; None: they do not come, or come to an error, which then goes with the answer."""
        setup = self.run.setup
        try:
            return setup.feeder.block(place, setup.blocks.length, setup.oracle.sample_counts)
        except ReadFurtherError:
            raise
        except Exception as error:
            self.failure = error
            warn(f"{_words(error)} The run ends here, with the answer so far.")
            return None

    @property
    def _interval(self) -> int:
        """Iterations between two records: for the history, or for whoever watches."""
        return self.run.history.every if self.callback else self.run.history.spacing

    def _next_stop(self, length: CallLength) -> int:
        iteration, every = self.run.iteration, self._interval
        rows = 1 if self.callback else self.run.setup.record_capacity
        stop = min(length.next_stop(iteration, self.last, self.budget), (iteration // every + rows) * every)
        return self.processes.agreed(min(stop, self.certifier.next_after(iteration)) if self.certifier else stop)

    def _checked(self, run: RunState) -> RunState:
        assert self.certifier
        checks, certified = self.certifier.check(run.checks, run.iteration, *run.conclude())
        return replace(run, checks=checks, certified=certified)

    def _shown(self) -> str | None:
        """What the callback says to it."""
        run = self.run
        if not self.callback or run.iteration % self._interval or self.ended() in ("diverged", "stationary"):
            return None
        return "interrupted" if self.processes.any(bool(self.callback(self._snapshot()))) else None

    def _snapshot(self) -> Snapshot:
        x, multipliers = self.run.conclude()
        return Snapshot(self.run.iteration, self.run.closed(x), multipliers, self.run.history.newest)

    # --- the result

    def _result(self, status: str) -> Result:
        run = self.run
        x, multipliers = run.conclude()
        known = run.method.diagnose(run.oracle, run.loop.state, run.loop.iteration)
        found: tuple[str, ...] = ()
        doubt = ""
        if status == "budget":
            status, found, draws, doubt = _judged(run, known, x, multipliers)
            run = replace(run, checks=replace(run.checks, draws=run.checks.draws + draws))
        point = run.certified
        if self.certifier:
            if point is None and run.loop.finite:
                run = self._checked(run)
                point = run.certified
                status = "stationary" if status == "budget" and point and self.certifier.accepts(point) else status
            best = run.setup.output == "best"
            point = run.checks.best if best else point
            if point and (best or status == "stationary"):
                x, multipliers = point.x, point.multipliers  # those that the certificate vouches for
        run = replace(run, seconds=run.seconds + self.budget.elapsed())
        return Result(
            x=run.closed(x),
            multipliers=multipliers,
            iterations=run.iteration,
            draws=run.draws,
            evaluations=run.evaluations + run.checks.evaluations,
            seconds=run.seconds,
            history=run.history.history,
            outcome=outcome(status),
            choice=run.setup.choice,
            continuation=run,
            certified=point.certificate if point else None,
            remarks=(*found, *self._remarks(status, known, x)),
            doubt=doubt if status == "budget" else "",
            error=self.failure,
            has_tolerance=self.certifier is not None and self.certifier.tolerance is not None,
        )

    def _remarks(self, status: str, known: Diagnosis, x: PyTree[Array]) -> list[str]:
        run, remarks = self.run, []
        if status == "diverged":
            remarks += _bad_samples(run)
        if known.note and status == "budget":
            remarks.append(known.note)
        if known.remark and has_kinks(run.oracle, known, x, run.loop.key):
            remarks.append(known.remark)
        if self.failure is not None:
            remarks.append(_words(self.failure))
        if self.keeper and self.keeper.error:
            remarks.append(f"The end of the run could not be saved in {self.keeper.folder}: {self.keeper.error}.")
        elif self.keeper and status == "interrupted":
            remarks.append(f"It is saved: lx.resume({self.keeper.folder}, problem) goes on, in another process too.")
        return remarks


def _words(error: Exception) -> str:
    return f"The Stream failed with {type(error).__name__}: {error}".rstrip(".") + "."


def _judged(run: RunState, known: Diagnosis, x: PyTree[Array], multipliers: dict[str, Array]) -> Verdict:
    """What it means that the budget is spent here."""
    if _has_no_solution(run.oracle.problem, x):
        return Verdict("infeasible_stationary")
    history = {name: np.asarray(values) for name, values in run.history.table.items()}
    return judged(run.oracle, known, x, multipliers, history, run.loop.key, run.draws)


def _bad_samples(run: RunState) -> list[str]:
    """Whether it was not the iterates but a sample."""
    setup, next_one = run.setup, run.iteration + 1
    blocks, place, fed = setup.blocks, setup.blocks.place_of(next_one), setup.feeder.nothing
    if setup.feeder:
        found = setup.feeder.block(blocks.block_after(run.iteration), blocks.length, setup.oracle.sample_counts)
        fed = jax.tree.map(lambda rows: rows[place % blocks.length][None], found[0]) if found else fed
    finite = finite_next(setup.oracle, setup.method, run.loop, on_device(place, np.int32), fed)
    bad = nonfinite(setup.oracle, finite)
    if not bad:
        return []
    return [
        f"At x, {' and '.join(bad)} is not finite on the samples of iteration {next_one}, though x is sound: look "
        "for a bad row, or for log, sqrt or division at 0."
    ]


def _has_no_solution(problem: Problem, x: PyTree[Array]) -> bool:
    linear = [constraint for constraint in problem.constraints.values() if isinstance(constraint, Linear)]
    return bool(linear) and LinearSystem(linear, x).least_violation() > 0
