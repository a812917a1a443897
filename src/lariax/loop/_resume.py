"""`resume`: from a checkpoint back to a run."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.loop._archive import DTYPES, CheckpointError, Unknown
from lariax.loop._budget import Budget, check_budgets
from lariax.loop._checkpoint import Folder, Keeper, remember, remembered
from lariax.loop._drive import Drive, Position, Snapshot
from lariax.loop._feed import Feeder
from lariax.loop._fingerprint import differences, environment, functions_of, parts_of
from lariax.loop._looks import Looks, Sight
from lariax.loop._options import explains_options
from lariax.loop._progress import ProgressBar
from lariax.loop._result import Result
from lariax.loop._run import Run, begin_traced, rhythm
from lariax.loop._saved import Plan, Saved, Shaped, pieces_of, saved_in
from lariax.loop._start import DIVERGED, OUTPUTS, Start, last_iteration
from lariax.methods import AbstractMethod, in_precision, oracle_for, prepared
from lariax.oracle import Oracle
from lariax.problem import Problem, Stream, describe_shape, first_nonfinite, warn


@explains_options
def resume(
    folder: str | os.PathLike[str],
    problem: Problem | None = None,
    *,
    iterations: int | None = None,
    draws: int | None = None,
    seconds: float | None = None,
    progress: bool = False,
    callback: Callable[[Snapshot], Any] | None = None,
    x0: PyTree | None = None,
    method: AbstractMethod | None = None,
) -> Result:
    """Go on with a run from its newest checkpoint, to the same bits as if it had never stopped.

    Arguments:
        folder: what `lx.solve(..., checkpoint=folder)` was given. The run goes on being saved there.
        problem: the same problem again: a checkpoint holds no code and no data. It is compared with what the
            checkpoint knows of it. Not needed in the process that started the run, while the problem is still around.
            A `Stream` gives its rows from the beginning; those that the run has had are read over.
        iterations, draws, seconds: budgets from here on, in the place of what is left of the run's own.
        progress, callback: as for `solve`; a callback may see again what lies after the checkpoint.
        x0: anything of the structure of x, for structures of classes of your own, which a file cannot hold.
        method: the method, where it is one of your own that a file cannot hold.

    >>> import jax, jax.numpy as jnp, tempfile, lariax as lx
    >>> problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Distribution(jax.random.normal))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     half = lx.solve(problem, jnp.zeros(2), iterations=500, checkpoint=folder)
    ...     rest = lx.resume(folder, problem, iterations=500)
    >>> bool((rest.x == lx.solve(problem, jnp.zeros(2), iterations=1000).x).all())
    True
    """
    place = Folder(folder)
    if not place.path.is_dir():
        raise CheckpointError(f"there is no folder {place}.")
    given = (iterations, draws, seconds)
    afresh = any(limit is not None for limit in given)
    if afresh:
        check_budgets(*given)
    with place.locked():
        saved = place.newest(saved_in)
        problem = _problem(place, problem)
        plan = saved.plan
        budget = Budget(*given) if afresh else Budget(None, None, plan.seconds, saved.elapsed)
        with ProgressBar(progress, budget) as bar:
            start = restored(saved, problem, x0, method, budget.seconds)
            drive = _drive(saved, start, budget, afresh, bar, callback)
            if not drive.ended:
                plan = replace(plan, first=drive.first, last=drive.last, seconds=budget.seconds)
                drive.keeper = Keeper(place, plan.every, plan.keep, functools.partial(pieces_of, plan))
                remember(place, problem)
            return drive.go()


def origin_of(folder: str | os.PathLike[str]) -> Any:
    """The `origin` of the run in a folder."""
    try:
        return json.loads(Folder(folder).newest(saved_in).plan.origin)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"the origin noted in {Folder(folder)} is not JSON: {error}.") from error


def _problem(folder: Folder, problem: Any) -> Problem:
    problem = remembered(folder) if problem is None else problem
    if problem is None:
        raise CheckpointError(
            f"a checkpoint holds no code: pass the problem, lx.resume({folder}, problem). It is remembered only within "
            "the process that started the run, while somebody holds it."
        )
    if not isinstance(problem, Problem):
        raise TypeError(f"resume takes an lx.Problem, found {type(problem).__name__}.")
    return problem


def _drive(
    saved: Saved,
    start: Start,
    budget: Budget,
    afresh: bool,
    bar: ProgressBar,
    callback: Callable[[Snapshot], Any] | None,
) -> Drive:
    """From where the checkpoint stands, with the budget that the run had, or with a new one (`afresh`)."""
    plan, oracle, first = saved.plan, start.oracle, saved.iteration
    looked = replace(saved.looked, best=_sight(oracle, saved.looked.best))
    looks = None
    if plan.tolerance is not None or plan.settings.output == "best":
        looks = Looks(oracle, start.feeder, plan.tolerance, plan.confidence, start.run.key, looked)
    ledger = replace(
        saved.ledger,
        draws_per_iteration=oracle.draws_per_iteration,
        start=start.settings.rhythm.start,
        numbers=2 * oracle.rows + 8,
    )
    last = plan.last
    if afresh:
        if not start.run.finite:
            raise ValueError(DIVERGED)
        ledger = replace(ledger, seconds_before=ledger.seconds_before + saved.elapsed)
        last = last_iteration(start, budget, first, 0, looks)
    position = Position(start.run, first, saved.evaluations, ledger, looked, _sight(oracle, saved.sight))
    return Drive(start, position, budget, first if afresh else plan.first, last, looks, bar, callback)


def restored(
    saved: Saved,
    problem: Problem,
    x0: PyTree | None,
    method: AbstractMethod | None,
    patience: float | None = None,
) -> Start:
    """The run of a checkpoint, ready to go on; everything in the file is checked against the problem. `patience`: how
    many seconds to wait for the rows of a Stream."""
    _check_numbers(saved)
    plan = saved.plan
    x = _like_x(plan, x0)
    settings, found = plan.settings, _method(plan, method)
    feeder = _feeder(problem, saved, patience)
    samples = feeder.structures()
    oracle = _bound(problem, x, samples, settings.batch_size, found)
    if method is not None:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
        given = prepared(method, oracle, zeros, None)
        if isinstance(plan.method, AbstractMethod) and not eqx.tree_equal(given, in_precision(found, oracle.dtype)):
            raise CheckpointError("a resumed run keeps its method. Leave method= out, or start a new run.")
        found = given
    found = in_precision(found, oracle.dtype)
    _check_problem(plan, oracle, x, samples)
    beat = rhythm(oracle, found, samples)
    if beat != settings.rhythm:
        raise CheckpointError(
            f"this run keeps time as {settings.rhythm}, and with this problem and method it would be {beat}. Give the "
            "problem that the run was started with."
        )
    run = _run(saved, oracle, found, x, samples)
    if feeder:
        feeder.go_to(saved.place, beat.block, oracle.sample_counts)
    return Start(oracle, found, run, settings, feeder, saved.evaluations, False, plan.choice, None)


def _bound(
    problem: Problem, x: PyTree, samples: tuple[PyTree | None, ...], batch_size: int, method: AbstractMethod
) -> Oracle:
    try:
        return oracle_for(method, problem, x, samples, batch_size)
    except Exception as error:
        raise CheckpointError(
            f"the functions of this problem do not take the x of this run, {describe_shape(x)} ({error}). Give the "
            "problem that the run was started with."
        ) from error


def _check_numbers(saved: Saved) -> None:
    """What the types of the fields do not say."""
    plan, ledger = saved.plan, saved.ledger
    columns = {length for table in ledger.tables for length in _lengths(table)}
    sound = (
        plan.settings.batch_size >= 1
        and plan.settings.output in OUTPUTS
        and plan.keep >= 1
        and plan.every >= 0
        and saved.iteration >= 0
        and saved.evaluations >= 0
        and saved.elapsed >= 0
        and min(ledger.every, ledger.stride) >= 1
        and len(ledger.tables) <= 1
        and ledger.earlier_rows >= 0
        and len(columns) <= 1
        and -1 not in columns
        and all("iteration" in table for table in ledger.tables)
    )
    if not sound:
        raise CheckpointError("the numbers in this checkpoint contradict each other: it was not written by Lariax.")


def _lengths(table: Any) -> Iterator[int]:
    """Of the columns of a table; -1 for what is none."""
    for column in table.values() if isinstance(table, dict) else (table,):
        if isinstance(column, dict):
            yield from _lengths(column)
        else:
            yield len(column) if isinstance(column, np.ndarray) and column.ndim else -1


def _like_x(plan: Plan, x0: PyTree | None) -> PyTree:
    """The structure of x, with a shape and a type in the place of every array."""
    if x0 is None and plan.x is None:
        raise CheckpointError(
            "x is of a structure that a file cannot hold (classes of your own). Pass x0=, anything of that structure."
        )
    if x0 is not None:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), x0)

    def shaped(leaf: Any) -> jax.ShapeDtypeStruct:
        if not isinstance(leaf, Shaped) or leaf.dtype not in DTYPES or not all(type(n) is int for n in leaf.shape):
            raise CheckpointError(f"the checkpoint says that a part of x is {leaf!r}, which is no array.")
        if leaf.dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise CheckpointError(
                'this run is in float64, and JAX\'s 64-bit mode is off. Say jax.config.update("jax_enable_x64", True).'
            )
        return jax.ShapeDtypeStruct(leaf.shape, DTYPES[leaf.dtype])

    try:
        return jax.tree.map(shaped, plan.x, is_leaf=lambda node: isinstance(node, Shaped))
    except (ValueError, TypeError) as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"x is no structure: {error}") from error


def _method(plan: Plan, given: AbstractMethod | None) -> AbstractMethod:
    if isinstance(plan.method, AbstractMethod):
        return plan.method
    if not isinstance(given, AbstractMethod):
        name = plan.method.name if isinstance(plan.method, Unknown) else "a class of your own"
        raise CheckpointError(
            f"the method of this run ({name}) is not one that this program has loaded, or holds what a file cannot. "
            "Import it, or pass method=."
        )
    return given


def _feeder(problem: Problem, saved: Saved, patience: float | None) -> Feeder:
    streams = [i for i, source in enumerate(problem.sources) if isinstance(source, Stream)]
    if not streams:
        return Feeder(problem.sources)
    place = saved.place
    marks = place.get("marks")
    numbers = [place.get(name) for name in ("first", "complete", "sum")]
    marked = isinstance(marks, dict) and all(_is_mark(marks.get(i)) for i in streams)
    if marks is None or not marked or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise CheckpointError("the problem reads a Stream, and this checkpoint knows of no place in one.")
    for i in streams:
        source = problem.sources[i]
        if isinstance(source, Stream) and source.used_up and "state" not in marks.get(i, {}):
            raise CheckpointError(
                "the rows of this Stream are used up: it is a generator, or another iterator, that has been read. A "
                "resumed run reads over the rows that it has had: make the Stream, and the problem, again."
            )
    return Feeder(problem.sources, patience, marks)


def _is_mark(mark: Any) -> bool:
    if not isinstance(mark, dict) or "state" not in mark:
        return isinstance(mark, dict)
    return isinstance(mark.get("seen"), int) and isinstance(mark.get("ended"), bool) and "rows" in mark


def _check_problem(plan: Plan, oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...]) -> None:
    """An error if it is another problem, a warning if the bits will be others."""
    changed = differences(plan.parts, parts_of(oracle, x, samples))
    if changed:
        raise CheckpointError(
            f"this is not the problem that the run was started with: {'; '.join(changed)}. Give the same one, or start "
            "a new run."
        )
    functions = differences(plan.functions, functions_of(oracle, x, samples))
    where = differences(plan.environment, environment())
    if functions:
        names = ", ".join(text.split(" was ")[0] for text in functions)
        where.append(f"{names}: the code has changed")
    if where:
        warn(f"the run goes on, but not to the same bits as without a stop: {'; '.join(where)}.")


def _run(saved: Saved, oracle: Oracle, method: AbstractMethod, x: PyTree, samples: tuple[PyTree | None, ...]) -> Run:
    """The leaves of the file in the structure that the problem and the method have."""
    beat, pick = saved.plan.settings.rhythm, saved.plan.settings.output == "random"
    fed = tuple(
        jax.tree.map(lambda row, n=count: np.zeros((beat.start, n, *row.shape), row.dtype), sample)
        if source is not None and source.from_host
        else None
        for source, sample, count in zip(oracle.sources, samples, oracle.sample_counts, strict=True)
    )
    try:
        key = jax.random.wrap_key_data(jnp.asarray(saved.leaves[".key"]), impl=saved.generator)
        like = eqx.filter_eval_shape(begin_traced, oracle, method, x, key, fed, beat, pick)[0]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit the problem and the method: {error}") from error
    like = like._replace(key=jax.eval_shape(jax.random.key_data, key))
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        found = saved.leaves.get(jax.tree_util.keystr(path))
        if not isinstance(found, np.ndarray) or (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(
                f"the state of this run does not fit the problem and the method: {jax.tree_util.keystr(path)} should "
                f"be {describe_shape(leaf)}, found {describe_shape(found)}."
            )
        leaves.append(jnp.asarray(found))
    run = jax.tree.unflatten(structure, leaves)._replace(key=key)
    if first_nonfinite(run._replace(key=None)) or len(leaves) != len(saved.leaves):
        raise CheckpointError("the state of this run is not one that Lariax has written.")
    if int(run.iteration) != saved.iteration or saved.iteration >= min(int(run.next_pick), int(run.next_refresh)):
        raise CheckpointError("the checkpoint contradicts itself about the iteration that it was made after.")
    return run


def _sight(oracle: Oracle, saved: Sight | None) -> Sight | None:
    if saved is None:
        return None
    coordinates = oracle.coordinates
    if not isinstance(saved.x, list) or [np.shape(leaf) for leaf in saved.x] != list(coordinates.shapes):
        raise CheckpointError("the best point of this run does not have the structure of x.")
    return saved._replace(x=jax.tree.unflatten(coordinates.structure, map(jnp.asarray, saved.x)))
