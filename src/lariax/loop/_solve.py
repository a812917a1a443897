"""`solve`: the host's side of a run."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.loop._budget import Budget, Pace, record_interval
from lariax.loop._feed import Feeder
from lariax.loop._ledger import Ledger
from lariax.loop._looks import Looked, Looks
from lariax.loop._progress import ProgressBar
from lariax.loop._result import Continuation, History, Result, Settings, outcome
from lariax.loop._run import NEVER, Run, advance, begin, begin_traced, conclude, rhythm
from lariax.methods import AbstractMethod, TrackedLagrangian
from lariax.oracle import Oracle, as_point, bind
from lariax.problem import Linear, LinearSystem, Problem, as_key

OUTPUTS = ("last", "random", "best")

P = ParamSpec("P")
R = TypeVar("R")


class Snapshot(NamedTuple):
    """What a callback sees, at every record."""

    iteration: int
    x: PyTree[Array]
    multipliers: dict[str, Array]
    record: dict[str, Any]


def _explains_options(function: Callable[P, R]) -> Callable[P, R]:
    """Say what was meant when an option is misspelt."""
    options = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in options:
                close = difflib.get_close_matches(name, options, n=1)
                hint = f"Did you mean {close[0]!r}? " if close else ""
                raise TypeError(f"{function.__name__} has no option {name!r}. {hint}It takes {', '.join(options)}.")
        return function(*args, **kwargs)

    return checked


@_explains_options
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
    tolerance: float | None = None,
    confidence: float = 0.95,
    record_every: int | None = None,
    progress: bool = False,
    callback: Callable[[Snapshot], Any] | None = None,
) -> Result:
    """Solve a problem from x0, or go on from an earlier result.

    Arguments:
        problem: what to solve.
        x0: any pytree of floating point arrays; the run keeps its precision. Or a `Result`: the run goes on where that
            one stopped, to the same bits as one longer run, with its method, batch size, seed and output.
        method: one of the methods of Lariax; "auto" chooses by the structure of the problem.
        iterations, draws, seconds: budgets, at least one; the first reached ends the run.
        batch_size: samples an iteration from each source, 1 by default.
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
    _check_budgets(iterations, draws, seconds, record_every)
    budget = Budget(iterations, draws, seconds)
    given = (method, batch_size, seed, output)
    with ProgressBar(progress, budget) as bar:  # from here on: compiling takes seconds
        if isinstance(x0, Result):
            start = _continued(problem, x0, *given)
        else:
            start = _fresh(problem, x0, *given)
        looking = tolerance is not None or start.settings.output == "best"
        if start.traced:
            return _solve_traced(start, budget, record_every, progress or callback is not None or looking)
        before = start.earlier.continuation.looked if start.earlier and start.earlier.continuation else Looked()
        per_iteration = start.oracle.draws_per_iteration
        looks = Looks(problem, tolerance, confidence, start.run.key, per_iteration, before) if looking else None
        return _solve_on_host(start, budget, record_every, bar, callback, looks, before)


class _Start(NamedTuple):
    """A run that is ready to go on."""

    oracle: Oracle
    method: AbstractMethod
    run: Run
    settings: Settings
    feeder: Feeder
    evaluations: Any
    traced: bool
    choice: str
    earlier: Result | None


def _fresh(problem: Problem, x0: PyTree, method: Any, batch_size: int | None, seed: Any, output: str | None) -> _Start:
    batch_size = 1 if batch_size is None else batch_size
    seed = 0 if seed is None else seed
    output = "last" if output is None else output
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, found {batch_size!r}.")
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, found {output!r}.")
    x = as_point(problem, x0)
    method, choice = _choose(method, problem)
    feeder = Feeder(problem.sources)
    structures = feeder.structures()
    batch_size = max(int(batch_size), method.smallest_batch)
    oracle = bind(problem, x, structures, batch_size=batch_size, copies=method.copies, has_slacks=method.wants_slacks)
    method = _in_precision(method.prepare(oracle, x), oracle.dtype)
    beat = rhythm(oracle, method, structures)
    fed = feeder.start(beat.start, beat.block, oracle.sample_counts)
    key = as_key(seed)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, key, method, oracle)))
    compiled = begin_traced if traced else begin
    run, finite, evaluations = compiled(oracle, method, x, key, fed, beat, output == "random")
    if not traced:
        _check_finite(finite)
    settings = Settings(batch_size, output, beat)
    return _Start(oracle, method, run, settings, feeder, evaluations, traced, choice, earlier=None)


def _continued(
    problem: Problem, earlier: Result, method: Any, batch_size: int | None, seed: Any, output: str | None
) -> _Start:
    before = earlier.continuation
    if before is None:
        raise ValueError("a run that was traced (jit, vmap) cannot be continued. Start a new run from result.x.")
    if earlier.status == "diverged":
        raise ValueError("a diverged run cannot go on. Start a new run from result.x with a smaller step size.")
    settings = before.settings
    if batch_size is not None and max(int(batch_size), before.method.smallest_batch) != settings.batch_size:
        raise ValueError(_keeps("batch_size", settings.batch_size, batch_size))
    if output not in (None, settings.output):
        raise ValueError(_keeps("output", settings.output, output))
    oracle = bind(
        problem,
        earlier.x,
        before.feeder.structures(),
        batch_size=before.settings.batch_size,
        copies=before.method.copies,
        has_slacks=before.method.wants_slacks,
    )
    if seed is not None and not eqx.tree_equal(jax.random.key_data(as_key(seed)), jax.random.key_data(before.run.key)):
        raise ValueError("a continued run keeps its seed. Start a new run from result.x to change it.")
    if not isinstance(method, str):
        given = _choose(method, problem)[0]
        if not eqx.tree_equal(_in_precision(given.prepare(oracle, earlier.x), oracle.dtype), before.method):
            raise ValueError("a continued run keeps its method. Start a new run from result.x to change it.")
    if (oracle.blocks, oracle.coordinates) != (before.oracle.blocks, before.oracle.coordinates):
        raise ValueError(
            f"this result belongs to a problem with constraints {_lengths(before.oracle)}, found {_lengths(oracle)}. "
            "Names, order and lengths must stay; start a new run from result.x otherwise."
        )
    return _Start(oracle, before.method, before.run, before.settings, before.feeder, 0, False, earlier.choice, earlier)


def _keeps(name: str, kept: Any, found: Any) -> str:
    return f"a continued run keeps its {name}={kept!r}, found {found!r}. Start a new run from result.x."


def _lengths(oracle: Oracle) -> dict[str, int]:
    return {block.name: block.size for block in oracle.blocks}


def _choose(method: Any, problem: Problem) -> tuple[AbstractMethod, str]:
    """The method, and a word on the choice if it was ours."""
    if isinstance(method, AbstractMethod):
        return method, ""
    if not (isinstance(method, str) and method == "auto"):
        raise TypeError(f'method must be "auto" or a method such as lx.TrackedLagrangian(), found {method!r}.')
    constraints = problem.constraints.values()
    if not constraints:
        why = "there are no constraints, and its momentum tunes itself"
    elif all(isinstance(constraint, Linear) for constraint in constraints):
        why = "all constraints are linear, and it needs no Lipschitz constant as LinearizedALM would"
    elif all(constraint.samples is None for constraint in constraints):
        why = "all constraints are deterministic, and it needs no step size or penalty"
    else:
        why = "constraints are random, and it is unbiased without a step size or penalty to choose"
    return TrackedLagrangian(), f'method="auto" took TrackedLagrangian: {why}.'


def _in_precision(method: AbstractMethod, dtype: Any) -> AbstractMethod:
    """Hyperparameters as arrays: they are traced, so other values do not compile again."""

    def convert(leaf: Any) -> Any:
        is_number = isinstance(leaf, float | int | np.ndarray | np.generic | jax.Array) and not isinstance(leaf, bool)
        return jnp.asarray(leaf, dtype) if is_number else leaf

    return jax.tree.map(convert, method)


def _check_budgets(iterations: int | None, draws: int | None, seconds: float | None, record_every: int | None) -> None:
    if iterations is None and draws is None and seconds is None:
        raise ValueError("say how long to run: iterations=, draws= or seconds=, at least one.")
    for name, value in (("iterations", iterations), ("draws", draws), ("record_every", record_every)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1 or value >= NEVER):
            raise ValueError(f"{name} must be a positive integer below 2^31, found {value!r}.")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds must be positive, found {seconds!r}.")


def _check_finite(finite: dict[str, Array]) -> None:
    bad = [what for what, is_finite in finite.items() if not is_finite]
    bad.sort(key=lambda what: what == "a gradient")  # blame a value first, if there is one to blame
    if bad:
        raise ValueError(
            f"{bad[0]} is not finite at x0 on the first batch of samples. Start from a point where every function is "
            "defined, and look for log, sqrt or division at 0 (also in gradients: sqrt and norm at 0)."
        )


def _has_no_solution(problem: Problem, x: PyTree[Array]) -> bool:
    linear = [constraint for constraint in problem.constraints.values() if isinstance(constraint, Linear)]
    return bool(linear) and LinearSystem(linear, x).least_violation() > 0


def _solve_traced(start: _Start, budget: Budget, record_every: int | None, watched: bool) -> Result:
    """A run inside jit or vmap: the whole of it in one call, with nobody looking."""
    oracle = start.oracle
    per_iteration, beat = oracle.draws_per_iteration, start.settings.rhythm
    last = budget.last_iteration(0, per_iteration, beat.start * per_iteration)
    if last is None or budget.seconds is not None or watched or start.feeder:
        raise ValueError(
            "inside jit or vmap a run needs iterations= or draws=, and has no seconds=, progress=, callback=, "
            'tolerance=, output="best" or Stream.'
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
    rows = jax.tree.map(lambda column: column[: last // every], records.rows)
    rows["draws"] = (rows["iteration"] + beat.start) * per_iteration
    x, multipliers, _ = conclude(oracle, start.method, run)
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


def _solve_on_host(
    start: _Start,
    budget: Budget,
    record_every: int | None,
    bar: ProgressBar,
    callback: Callable[[Snapshot], Any] | None,
    looks: Looks | None,
    before: Looked,
) -> Result:
    oracle, method, run, feeder = start.oracle, start.method, start.run, start.feeder
    beat = start.settings.rhythm
    first, per_iteration = int(run.iteration), oracle.draws_per_iteration
    last = budget.last_iteration(first, per_iteration, 0 if start.earlier else beat.start * per_iteration)
    if last is None and budget.seconds is None:
        raise ValueError(
            "nothing in this problem is random, so a budget of draws never ends. Say iterations= or seconds=."
        )
    if looks and last is not None and budget.draws is not None:
        last = looks.last_iteration(first, last, budget.draws - (0 if start.earlier else beat.start * per_iteration))
    every = record_every or record_interval(last, first)
    ledger = Ledger(start.earlier, per_iteration, beat.start, oracle.rows)
    pace = Pace()
    iteration, status, sight = first, "budget", None
    evaluations = int(start.earlier.evaluations if start.earlier else start.evaluations)
    bar.span(first, last, per_iteration)
    try:
        while (last is None or iteration < last) and not budget.out_of_time():
            fed, stop = feeder.nothing, pace.next_stop(iteration, last, budget)
            stop = min(stop, (iteration // every + (1 if callback else ledger.capacity)) * every)
            if looks:
                stop = min(stop, looks.next_after(iteration))
            if feeder:
                place = (iteration + beat.start) // beat.block * beat.block
                fed, available = feeder.block(place, beat.block, oracle.sample_counts)
                if available - beat.shift <= iteration:
                    status = "source_ended"
                    break
                stop = min(stop, available - beat.shift)
            began = budget.elapsed()
            run, records = jax.block_until_ready(
                advance(oracle, method, run, jnp.int32(stop), jnp.int32(every), fed, beat, ledger.capacity)
            )
            ended = budget.elapsed()
            evaluations += int(records.evaluations)
            pace.learn(stop - iteration, ended - began)
            ledger.add(records, iteration, stop, began, ended, looks.record.draws if looks else before.draws)
            iteration = int(run.iteration)
            bar.update(iteration, ledger.newest)
            sight = None
            if not run.finite:
                status = "diverged"
                break
            if looks and iteration == looks.next_after(iteration - 1):
                sight = looks.look(iteration, conclude(oracle, method, run)[0])
                if looks.accepts(sight):
                    status = "stationary"
                    break
            if callback and iteration % every == 0:
                x, multipliers, _ = conclude(oracle, method, run)
                if callback(Snapshot(iteration, x, multipliers, ledger.newest)):
                    status = "interrupted"
                    break
    except KeyboardInterrupt:
        status = "interrupted"
    x, multipliers, infeasible = conclude(oracle, method, run)
    if status == "budget" and (infeasible or _has_no_solution(oracle.problem, x)):
        status = "infeasible_stationary"
    if looks:
        if sight is None and run.finite:
            sight = looks.look(iteration, x)
            status = "stationary" if status == "budget" and looks.accepts(sight) else status
        before = looks.record
        sight = before.best if start.settings.output == "best" else sight
        if sight and (start.settings.output == "best" or status == "stationary"):
            x, multipliers = sight.x, sight.multipliers  # those that the certificate vouches for
    earlier = start.earlier
    return Result(
        x=x,
        multipliers=multipliers,
        iterations=iteration,
        draws=(iteration + beat.start) * per_iteration + before.draws,
        evaluations=evaluations,
        seconds=(earlier.seconds if earlier else 0.0) + budget.elapsed(),
        history=ledger.history(),
        outcome=outcome(status),
        choice=start.choice,
        continuation=Continuation(run, oracle, method, start.settings, feeder, before),
        certified=sight.certificate if sight else None,
    )
