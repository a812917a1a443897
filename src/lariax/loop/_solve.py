"""`solve`: what is asked for, checked and set going."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lariax.certificate import Tolerance, check_tolerance
from lariax.checkpoint import Checkpoint, new_folder, remember
from lariax.loop._begin import RunChoices, certifier_for, from_earlier, from_point, last_iteration, recording
from lariax.loop._budget import Budget, check_budgets, record_interval
from lariax.loop._compiled import conclude, sweep
from lariax.loop._drive import Drive, Snapshot
from lariax.loop._history import History
from lariax.loop._interrupts import Interrupts
from lariax.loop._processes import Processes
from lariax.loop._progress import ProgressBar
from lariax.loop._result import Result, outcome
from lariax.loop._saved import RunPlan, described, keeper_in
from lariax.loop._state import RunState
from lariax.methods import AbstractMethod
from lariax.problem import Problem, automatic_axes
from lariax.risk import lift_of
from lariax.utils import check_confidence, explains_options


@explains_options("start")
@automatic_axes
def solve(
    problem: Problem,
    x0: PyTree | Result,
    method: AbstractMethod | str = "auto",
    *,
    iterations: int | None = None,
    draws: int | None = None,
    seconds: float | None = None,
    batch_size: int | None = None,
    seed: Any = None,
    output: str | None = None,
    tolerance: Tolerance | None = None,
    confidence: float = 0.95,
    record_every: int | None = None,
    progress: bool = False,
    callback: Callable[[Snapshot], Any] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
) -> Result:
    """Solve a problem from x0, or go on from an earlier result.

    Arguments:
        problem: what to solve.
        x0: any pytree of floating point arrays; the run keeps its precision. A module with functions and settings among
            its arrays, as those of equinox, is taken as it is. Or a `Result`: the run goes on where that one stopped,
            to the same bits as one longer run, with its method, batch size, seed and output.
        method: one of the methods of Lariax; "auto" chooses by the structure of the problem.
        iterations, draws, seconds: budgets, at least one; the first reached ends the run. Seconds count from when the
            first iteration can run, after compiling, and leave time for one iteration at least.
        batch_size: samples an iteration from each source, by default 1, or the fewest that the method takes.
        seed: the same seed gives the same bits. An integer, 0 by default.
        output: "last" (default); "random": the point after an iteration drawn uniformly, as the theorems want it; or
            "best": of the points that were looked at, the one with the lowest certified upper ends.
        tolerance: stop when a certificate says, on fresh draws, that stationarity, feasibility and complementarity are
            all at most this. Looks are made after 1,000, 2,000, 4,000, ... iterations and at the end; each takes a
            quarter of the draws so far (2,048 at least), and these are counted.
        confidence: that no look of the run is wrong, however many there are.
        record_every: iterations between two rows of history; by default some 200 rows.
        progress: show a progress bar.
        callback: called with a `Snapshot` at every record; the run stops when it returns True.
        checkpoint: a folder in which the run is saved on the way, or an `lx.Checkpoint`; `lx.resume(folder, problem)`
            goes on from there, to the same bits.

    Ctrl-C and SIGTERM end the run at the end of a block, with the answer so far and status `interrupted`; while a
    program is compiled, after that. A second one ends the process.

    `solve` can be traced: `jax.vmap(lambda seed: lx.solve(problem, x0, iterations=1000, seed=seed).x)(jnp.arange(8))`
    runs eight seeds in one compiled program, and the same goes for step sizes and penalties of the method.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
    ...     samples=lx.Distribution(lambda key: jnp.array([1.0, 3.0]) + jax.random.normal(key, (2,))),
    ...     constraints={"equal": lx.Equal(lambda x, z: x[0] - x[1])},
    ... )
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=10_000)
    >>> result.status
    'budget'
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"solve takes an lx.Problem first, found {type(problem).__name__}.")
    check_budgets(iterations, draws, seconds, record_every)
    check_tolerance(tolerance)
    check_confidence(confidence)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    request = _RunRequest(
        Budget(iterations, draws, seconds),
        RunChoices(method, batch_size, seed, output),
        tolerance,
        confidence,
        record_every,
        progress,
        callback,
        checkpoint,
    )
    lift = lift_of(problem)
    if lift is None:
        return request.run(problem, x0)
    earlier = isinstance(x0, Result)
    start = dataclasses.replace(x0, x=x0.point, lifted=None) if earlier else lift.point(x0)
    return request._replace(callback=lift.shown(callback)).run(lift.problem, start).with_risks(lift)


class _RunRequest(NamedTuple):
    """What a user asks of a run, checked."""

    budget: Budget
    asked: RunChoices
    tolerance: Tolerance | None
    confidence: float
    record_every: int | None
    progress: bool
    callback: Callable[[Snapshot], Any] | None
    checkpoint: Checkpoint | None

    def run(self, problem: Problem, x0: PyTree | Result) -> Result:
        processes = Processes.of((x0.continuation and x0.continuation.loop if isinstance(x0, Result) else x0, problem))
        own = self.checkpoint if processes.writes else None
        with (
            Interrupts() as interrupts,
            new_folder(own) as folder,
            ProgressBar(self.progress and processes.writes, self.budget) as bar,  # now: compiling takes seconds
        ):
            taken = 0
            if isinstance(x0, Result):
                run = from_earlier(problem, x0.x, x0.continuation, self.asked)
            else:
                run = from_point(problem, x0, self.asked, self.budget)
                taken = run.setup.blocks.start * run.oracle.draws_per_iteration
            if run.is_traced:
                if interrupts.asked:
                    raise KeyboardInterrupt
                return self._traced(run)
            certifier = certifier_for(run, self.tolerance, self.confidence)
            last = last_iteration(run, self.budget, certifier, taken)
            run = recording(run, self.record_every, last)
            keeper, saves = None, self.checkpoint is not None
            if self.checkpoint is not None:
                setup, seconds = described(run.setup), self.budget.seconds
                plan = RunPlan.of(self.checkpoint, run.iteration, last, seconds, self.tolerance, self.confidence)
                if folder is not None:
                    keeper = keeper_in(folder, setup, plan)
                    remember(folder, problem)
            return Drive(
                run=run,
                budget=self.budget,
                first=run.iteration,
                last=last,
                certifier=certifier,
                bar=bar,
                callback=self.callback,
                keeper=keeper,
                saves=saves,
                processes=processes,
                interrupts=interrupts,
            ).go()

    def _traced(self, run: RunState) -> Result:
        """A run inside jit or vmap: the whole of it in one call, with nobody looking."""
        oracle, method, blocks, budget = run.oracle, run.method, run.setup.blocks, self.budget
        per_iteration = oracle.draws_per_iteration
        last = budget.last_iteration(0, per_iteration, blocks.start * per_iteration)
        watched = self.progress or any(each is not None for each in (self.tolerance, self.callback, self.checkpoint))
        if last is None or budget.seconds is not None or watched or run.setup.output == "best" or run.setup.feeder:
            raise ValueError(
                "inside jit or vmap a run needs iterations= or draws=, and has no seconds=, progress=, callback=, "
                'checkpoint=, tolerance=, output="best" or Stream.'
            )
        every = self.record_every or record_interval(last, 0)
        loop, records = sweep(oracle, method, run.loop, last, every, blocks)
        rows = jax.tree.map(lambda column: column[: last // every], records.named(oracle.layout).rows)
        rows["draws"] = (rows["iteration"] + blocks.start) * per_iteration
        x, multipliers = conclude(oracle, method, loop)
        return Result(
            x=x,
            multipliers=multipliers,
            iterations=loop.iteration,
            draws=(loop.iteration + blocks.start) * per_iteration,
            evaluations=run.evaluations + records.evaluations,
            seconds=jnp.zeros(()),
            history=History(rows),
            outcome=jnp.where(loop.finite, outcome("budget"), outcome("diverged")),
            choice=run.setup.choice,
            continuation=None,
        )
