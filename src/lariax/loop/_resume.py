"""`resume`: from a checkpoint back to a run."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.checkpoint import (
    CheckpointError,
    Folder,
    Unknown,
    differences,
    environment,
    functions_of,
    parts_of,
    remember,
    remembered,
)
from lariax.loop._begin import DIVERGED, certifier_for, last_iteration
from lariax.loop._budget import Budget, check_budgets
from lariax.loop._certifier import CertifiedPoint
from lariax.loop._compiled import block_layout
from lariax.loop._drive import Drive, Snapshot
from lariax.loop._feed import Feeder
from lariax.loop._processes import Processes
from lariax.loop._programs import LoopState
from lariax.loop._progress import ProgressBar
from lariax.loop._result import Result
from lariax.loop._saved import Saved, SavedSetup, keeper_in, saved_in
from lariax.loop._state import OUTPUTS, RunState, Setup
from lariax.loop._vectors import from_plain, like_loop
from lariax.methods import AbstractMethod, in_precision, oracle_for, prepared
from lariax.oracle import Oracle
from lariax.problem import (
    Problem,
    Stream,
    arrays_of,
    automatic_axes,
    describe_shape,
    first_nonfinite,
    home_of,
    is_sharded,
    opened,
)
from lariax.risk import lift_of
from lariax.utils import explains_options, warn


@explains_options("start")
@automatic_axes
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
        x0: anything of the structure of x, for structures of classes of your own, which a file cannot hold; and arrays
            on a mesh, where x is to be on one. That may have another number of devices than before.
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
    limits = (iterations, draws, seconds)
    afresh = any(limit is not None for limit in limits)
    if afresh:
        check_budgets(*limits)
    problem = _problem(place, problem)
    lift = lift_of(problem)
    if lift is not None:
        problem, callback = lift.problem, lift.shown(callback)
    processes = Processes.of((x0, problem))
    with place.locked() if processes.writes else nullcontext():
        saved = place.newest(saved_in)
        plan = replace(saved.plan, first=processes.agreed(saved.plan.first))  # all have read it when the first one has
        budget = Budget(*limits) if afresh else Budget(None, None, plan.seconds, saved.elapsed)
        with ProgressBar(progress and processes.writes, budget) as bar:
            run = restored(saved, problem, x0, method, budget.seconds)
            certifier = certifier_for(run, plan.tolerance, plan.confidence)
            if afresh:
                if not run.loop.finite:
                    raise ValueError(DIVERGED)
                run = replace(run, seconds=run.seconds + saved.elapsed)
                last = last_iteration(run, budget, certifier)
                plan = replace(plan, first=run.iteration, last=last, seconds=budget.seconds)
            drive = Drive(run, budget, plan.first, plan.last, certifier, bar, callback, processes=processes)
            drive.saves = drive.ended() is None
            if drive.saves and processes.writes:
                here = replace(saved.setup, environment=environment(run.oracle))  # for the next one to compare with
                drive.keeper = keeper_in(place, here, plan)
                remember(place, problem)
            result = drive.go()
            return result if lift is None else result.with_risks(lift)


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


def restored(
    saved: Saved,
    problem: Problem,
    x0: PyTree | None,
    method: AbstractMethod | None,
    patience: float | None = None,
) -> RunState:
    """Where the run of a checkpoint stands; everything in the file is checked against the problem. `patience`: how
    many seconds to wait for the rows of a Stream."""
    _check_numbers(saved)
    known, run, home = saved.setup, saved.run, home_of(arrays_of(x0))
    if x0 is not None:
        problem, x0 = opened(problem, x0)
    x = _like_x(known, x0)
    place = _own_place(saved.place, problem)
    feeder = _feeder(problem, place, patience)
    samples = feeder.structures()
    oracle, found = _fitted(known, problem, x, samples, method)
    _check_problem(known, oracle, x, samples)
    blocks = block_layout(oracle, found, samples)
    if blocks != known.blocks:
        raise CheckpointError(
            f"this run draws its samples by {known.blocks}, and with this problem and method it would be {blocks}. "
            "Give the problem that the run was started with."
        )
    home = () if oracle.placement is None else home or (None,) * len(oracle.coordinates.shapes)
    setup = Setup(oracle, found, known.output, blocks, feeder, known.choice, known.iterations, home)
    loop = _loop(saved, setup, x)
    if feeder:
        feeder.go_to(place, blocks.length, oracle.sample_counts)
    return replace(
        run,
        setup=setup,
        loop=loop,
        checks=replace(run.checks, best=_point(oracle, run.checks.best)),
        certified=_point(oracle, run.certified),
    )


def _fitted(
    known: SavedSetup,
    problem: Problem,
    x: PyTree,
    samples: tuple[PyTree | None, ...],
    given: AbstractMethod | None,
) -> tuple[Oracle, AbstractMethod]:
    """The problem and the method of the file, or the one given where a file cannot hold it."""
    kept = known.method if isinstance(known.method, AbstractMethod) else None
    method = kept or given
    if not isinstance(method, AbstractMethod):
        name = known.method.name if isinstance(known.method, Unknown) else "a class of your own"
        raise CheckpointError(
            f"the method of this run ({name}) is not one that this program has loaded, or holds what a file cannot. "
            "Import it, or pass method=."
        )
    try:
        oracle = oracle_for(method, problem, x, samples, known.batch_size)
    except Exception as error:
        raise CheckpointError(
            f"the functions of this problem do not take the x of this run, {describe_shape(x)} ({error}). Give the "
            "problem that the run was started with."
        ) from error
    method = in_precision(method, oracle.dtype)
    if given is not None:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
        again = prepared(given, oracle, zeros, known.iterations)
        if kept is not None and not eqx.tree_equal(again, method):
            raise CheckpointError("a resumed run keeps its method. Leave method= out, or start a new run.")
        method = again
    return oracle, method


def _check_numbers(saved: Saved) -> None:
    """What the types of the fields do not say."""
    plan, run, history = saved.plan, saved.run, saved.run.history
    columns = {length for table in history.tables for length in _lengths(table)}
    sound = (
        saved.setup.batch_size >= 1
        and saved.setup.output in OUTPUTS
        and plan.keep >= 1
        and min(plan.every, run.iteration, run.seconds, saved.elapsed, history.earlier_rows) >= 0
        and isinstance(run.evaluations, int)
        and run.evaluations >= 0
        and min(history.every, history.stride) >= 1
        and len(history.tables) <= 1
        and len(columns) <= 1
        and -1 not in columns
        and all("iteration" in table for table in history.tables)
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


def _like_x(known: SavedSetup, x0: PyTree | None) -> PyTree:
    """The structure of x, with a shape and a type in the place of every array."""
    if x0 is not None:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), x0)
        return jax.tree.map(lambda leaf, shape: leaf if is_sharded(leaf) else shape, x0, shapes)
    if known.x is None:
        raise CheckpointError(
            "x is of a structure that a file cannot hold (classes of your own). Pass x0=, anything of that structure."
        )
    leaves = jax.tree.leaves(known.x)
    if not all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise CheckpointError("the checkpoint says that a part of x is no array.")
    if any(leaf.dtype == np.float64 for leaf in leaves) and not jax.config.read("jax_enable_x64"):
        raise CheckpointError(
            'this run is in float64, and JAX\'s 64-bit mode is off. Say jax.config.update("jax_enable_x64", True).'
        )
    return known.x


def _own_place(place: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """Where the streams of this process are."""
    each, here = place.get("processes"), 1
    if any(isinstance(source, Stream) and source.mesh is not None for source in problem.sources):
        here = jax.process_count()
    there = len(each) if isinstance(each, list) else 1
    if there != here:
        raise CheckpointError(
            f"the Stream of this run was read by {there} processes, each of which had rows of its own, and here it is "
            f"{here}. Resume with as many."
        )
    own = each[jax.process_index()] if isinstance(each, list) else {}
    return place | own if isinstance(own, dict) else place


def _feeder(problem: Problem, place: dict[str, Any], patience: float | None) -> Feeder:
    streams = [i for i, source in enumerate(problem.sources) if isinstance(source, Stream)]
    if not streams:
        return Feeder(problem.sources)
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


def _check_problem(known: SavedSetup, oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...]) -> None:
    """An error if it is another problem, a warning if the bits will be others."""
    changed = differences(known.parts, parts_of(oracle, x, samples))
    if changed:
        raise CheckpointError(
            f"this is not the problem that the run was started with: {'; '.join(changed)}. Give the same one, or start "
            "a new run."
        )
    functions = differences(known.functions, functions_of(oracle, x, samples))
    where = differences(known.environment, environment(oracle))
    if functions:
        names = ", ".join(text.split(" was ")[0] for text in functions)
        where.append(f"{names}: the code has changed")
    if where:
        warn(f"the run goes on, but not to the same bits as without a stop: {'; '.join(where)}.")


def _loop(saved: Saved, setup: Setup, x: PyTree) -> LoopState:
    """The leaves of the file in the structure that the problem and the method have."""
    oracle, iteration, found = setup.oracle, saved.run.iteration, dict(saved.leaves)
    plain = replace(oracle, coordinates=oracle.coordinates.plain)
    try:
        key = jax.random.wrap_key_data(jnp.asarray(found[".key"]), impl=saved.generator)
        like = like_loop(setup, plain, x, key)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit the problem and the method: {error}") from error
    like = like._replace(key=jax.eval_shape(jax.random.key_data, key))
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        value = found.get(jax.tree_util.keystr(path))
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(
                f"the state of this run does not fit the problem and the method: {jax.tree_util.keystr(path)} should "
                f"be {describe_shape(leaf)}, found {describe_shape(value)}."
            )
        leaves.append(jnp.asarray(value))
    loop = jax.tree.unflatten(structure, leaves)._replace(key=key)
    if first_nonfinite(loop._replace(key=None)) or len(leaves) != len(found):
        raise CheckpointError("the state of this run is not one that Lariax has written.")
    if int(loop.iteration) != iteration or iteration >= min(int(loop.next_pick), int(loop.next_refresh)):
        raise CheckpointError("the checkpoint contradicts itself about the iteration that it was made after.")
    return from_plain(setup, loop)


def _point(oracle: Oracle, saved: CertifiedPoint | None) -> CertifiedPoint | None:
    if saved is None:
        return None
    coordinates = oracle.coordinates
    if not isinstance(saved.x, list) or [np.shape(leaf) for leaf in saved.x] != list(coordinates.shapes):
        raise CheckpointError("the best point of this run does not have the structure of x.")
    return saved._replace(x=jax.tree.unflatten(coordinates.structure, map(jnp.asarray, saved.x)))
