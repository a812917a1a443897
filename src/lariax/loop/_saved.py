"""What a checkpoint says: what the run is, what was asked for, and where it stands."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import jax

from lariax.certificate import Certificate, ConstraintReport, Interval, Relative, RelativeTolerance, Tolerance
from lariax.checkpoint import (
    Checkpoint,
    CheckpointError,
    Classes,
    DamagedError,
    Folder,
    Keeper,
    UnsavableError,
    encoded,
    environment,
    functions_of,
    packed,
    parts_of,
    unpacked,
)
from lariax.formulas import Exponents
from lariax.loop._certifier import CertifiedPoint, Checks
from lariax.loop._history import Recorded
from lariax.loop._programs import BlockLayout
from lariax.loop._state import RunState, Setup
from lariax.loop._vectors import like_x
from lariax.methods import AbstractMethod


@dataclass(frozen=True, eq=False)
class SavedSetup:
    """A `Setup` as far as a file can hold it, and what is known of the rest."""

    environment: dict[str, str]
    parts: dict[str, str]  # of the problem
    functions: dict[str, str]
    x: Any  # the structure of x, with a shape and a type for every leaf; None: not one that a file can tell of
    method: Any  # as it was prepared; None: the same
    batch_size: int
    output: str
    blocks: BlockLayout
    choice: str
    iterations: int | None


@dataclass(frozen=True, eq=False)
class RunPlan:
    """What one call of `solve` or `resume` asks for."""

    first: int  # the iteration from which the budget counts
    last: int | None
    seconds: float | None
    tolerance: float | RelativeTolerance | None
    confidence: float
    every: float
    keep: int
    origin: str  # JSON

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        first: int,
        last: int | None,
        seconds: float | None,
        tolerance: Tolerance | None,
        confidence: float,
    ) -> Self:
        try:
            origin = json.dumps(checkpoint.origin)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"origin= must be something that JSON can hold: {error}.") from error
        seconds = None if seconds is None else float(seconds)
        if not isinstance(tolerance, RelativeTolerance | None):
            tolerance = float(tolerance)
        every, keep = float(checkpoint.every), int(checkpoint.keep)
        return cls(first, last, seconds, tolerance, float(confidence), every, keep, origin)


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint."""

    setup: SavedSetup
    plan: RunPlan
    run: RunState  # without its setup and its loop
    leaves: dict[str, Any]  # of the loop, by their path; its key as plain numbers
    generator: str  # of random numbers
    elapsed: float  # seconds since the budget began to count
    place: dict[str, Any]  # in the streams


_RECORDS = {
    "blocks": BlockLayout,
    "certificate": Certificate,
    "certified constraint": ConstraintReport,
    "certified point": CertifiedPoint,
    "checks": Checks,
    "exponents": Exponents,
    "interval": Interval,
    "plan": RunPlan,
    "recorded": Recorded,
    "relative": Relative,
    "relative tolerance": RelativeTolerance,
    "run": RunState,
    "saved": Saved,
    "setup": SavedSetup,
}
"""Tags are part of the file's format: they stay when a class is renamed or moved."""


def classes() -> Classes:
    """What a checkpoint may consist of: these, and the methods that the program has loaded."""
    found: dict[str, type] = dict(_RECORDS)
    waiting: list[type] = [AbstractMethod]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        found[_method_tag(cls)] = cls
    return Classes(found)


def _method_tag(cls: type) -> str:
    """Ours by their public name, others by where they come from."""
    own = cls.__module__.partition(".")[0] == "lariax"
    return f"method {cls.__qualname__ if own else f'{cls.__module__}.{cls.__qualname__}'}"


def described(setup: Setup) -> SavedSetup:
    samples, x = setup.feeder.structures(), like_x(setup.oracle)
    return SavedSetup(
        environment=environment(setup.oracle),
        parts=parts_of(setup.oracle, x, samples),
        functions=functions_of(setup.oracle, x, samples),
        x=_if_savable(x),
        method=_if_savable(setup.method),
        batch_size=setup.oracle.batch_size,
        output=setup.output,
        blocks=setup.blocks,
        choice=setup.choice,
        iterations=setup.iterations,
    )


def _if_savable(value: Any) -> Any:
    try:
        encoded(value, classes(), [])
    except UnsavableError:
        return None
    return value


def keeper_in(folder: Folder, setup: SavedSetup, plan: RunPlan) -> Keeper:
    """Who saves the run."""
    return Keeper(folder, plan.every, plan.keep, functools.partial(_pieces, setup, plan))


def _pieces(setup: SavedSetup, plan: RunPlan, run: RunState, elapsed: float, place: dict[str, Any]) -> Iterator[Any]:
    """The file."""
    plain = run.loop._replace(key=jax.random.key_data(run.loop.key))
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(plain)}
    nothing: Any = None
    saved = replace(
        run,
        setup=nothing,
        loop=nothing,
        history=replace(run.history, tables=(run.history.table,) if run.history.tables else (), newest={}),
        checks=replace(run.checks, best=_flat(run.checks.best)),
        certified=_flat(run.certified),
    )
    generator = str(jax.random.key_impl(run.loop.key))
    return packed(Saved(setup, plan, saved, leaves, generator, elapsed, place), classes())


def _flat(point: CertifiedPoint | None) -> CertifiedPoint | None:
    return point and point._replace(x=jax.tree.leaves(point.x))


def saved_in(file: bytes) -> Saved:
    """The checkpoint in a file."""
    saved = unpacked(file, classes())
    if not isinstance(saved, Saved):
        raise DamagedError(f"it holds a {type(saved).__name__}")
    return saved
