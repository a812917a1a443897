"""`solve`: what is asked for, checked and set going."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lariax.certificate import RelativeTolerance, Tolerance
from lariax.loop._budget import Budget, check_budgets, is_number, record_interval
from lariax.loop._checkpoint import Checkpoint, Keeper, new_folder, remember
from lariax.loop._drive import Drive, Position, Snapshot
from lariax.loop._ledger import Ledger
from lariax.loop._looks import Looked, Looks
from lariax.loop._options import explains_options
from lariax.loop._progress import ProgressBar
from lariax.loop._result import History, Result, outcome
from lariax.loop._run import advance, conclude
from lariax.loop._saved import pieces_of, plan_of
from lariax.loop._start import Start, continued, fresh, last_iteration
from lariax.methods import AbstractMethod
from lariax.problem import Problem


@explains_options
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
        x0: any pytree of floating point arrays; the run keeps its precision. Or a `Result`: the run goes on where that
            one stopped, to the same bits as one longer run, with its method, batch size, seed and output.
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

    Ctrl-C and SIGTERM end the run at the end of a block, with the answer so far and status `interrupted`.

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
    value = tolerance.value if isinstance(tolerance, RelativeTolerance) else tolerance
    if value is not None and not (is_number(value) and value > 0):
        raise ValueError(f"tolerance must be positive, found {value!r}.")
    if not (is_number(confidence) and 0.5 <= confidence < 1):
        raise ValueError(f"confidence must be at least 0.5 and below 1, found {confidence!r}.")
    budget = Budget(iterations, draws, seconds)
    given = (method, batch_size, seed, output)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    with new_folder(checkpoint) as folder, ProgressBar(progress, budget) as bar:  # now: compiling takes seconds
        if isinstance(x0, Result):
            start = continued(problem, x0, *given)
        else:
            start = fresh(problem, x0, *given, budget)
        looking = tolerance is not None or start.settings.output == "best"
        if start.traced:
            watched = progress or looking or callback is not None or checkpoint is not None
            return _solve_traced(start, budget, record_every, watched)
        before = start.earlier.continuation.looked if start.earlier and start.earlier.continuation else Looked()
        per_iteration = start.oracle.draws_per_iteration
        looks = None
        if looking:
            looks = Looks(start.oracle, start.feeder, tolerance, confidence, start.run.key, before)
        first = int(start.run.iteration)
        taken = 0 if start.earlier else start.settings.rhythm.start * per_iteration
        last = last_iteration(start, budget, first, taken, looks)
        ledger = Ledger.of(start, record_every or record_interval(last, first))
        position = Position(start.run, first, start.evaluations, ledger, before)
        drive = Drive(start, position, budget, first, last, looks, bar, callback)
        if checkpoint is not None and folder is not None:
            plan = plan_of(start, checkpoint, budget, last, tolerance, confidence)
            drive.keeper = Keeper(folder, checkpoint.every, checkpoint.keep, functools.partial(pieces_of, plan))
            remember(folder, problem)
        return drive.go()


def _solve_traced(start: Start, budget: Budget, record_every: int | None, watched: bool) -> Result:
    """A run inside jit or vmap: the whole of it in one call, with nobody looking."""
    oracle = start.oracle
    per_iteration, beat = oracle.draws_per_iteration, start.settings.rhythm
    last = budget.last_iteration(0, per_iteration, beat.start * per_iteration)
    if last is None or budget.seconds is not None or watched or start.feeder:
        raise ValueError(
            "inside jit or vmap a run needs iterations= or draws=, and has no seconds=, progress=, callback=, "
            'checkpoint=, tolerance=, output="best" or Stream.'
        )
    every = record_every or record_interval(last, 0)
    run, records = advance(
        oracle,
        start.method,
        start.run,
        jnp.int32(last),
        jnp.int32(every),
        start.feeder.nothing,
        start.settings.rhythm,
        max(1, last // every),
    )
    rows = jax.tree.map(lambda column: column[: last // every], records.named(oracle.layout).rows)
    rows["draws"] = (rows["iteration"] + beat.start) * per_iteration
    x, multipliers = conclude(oracle, start.method, run)
    return Result(
        x=x,
        multipliers=multipliers,
        iterations=run.iteration,
        draws=(run.iteration + beat.start) * per_iteration,
        evaluations=start.evaluations + records.evaluations,
        seconds=jnp.zeros(()),
        history=History(rows),
        outcome=jnp.where(run.finite, outcome("budget"), outcome("diverged")),
        choice=start.choice,
        continuation=None,
    )
