"""What a checkpoint says: what was asked for, and where the run stands."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from lariax.certificate import Certificate, ConstraintReport, Interval, Relative, RelativeTolerance, Tolerance
from lariax.formulas import Exponents
from lariax.loop._archive import CheckpointError, Classes, DamagedError, UnsavableError, encoded, packed, unpacked
from lariax.loop._budget import Budget
from lariax.loop._checkpoint import Checkpoint
from lariax.loop._drive import Position
from lariax.loop._fingerprint import environment, functions_of, parts_of
from lariax.loop._ledger import Ledger
from lariax.loop._looks import Looked, Sight
from lariax.loop._result import Settings
from lariax.loop._run import Rhythm, Run
from lariax.loop._start import Start
from lariax.methods import AbstractMethod


@dataclass(frozen=True)
class Shaped:
    """In the place of an array."""

    dtype: str
    shape: tuple


@dataclass(frozen=True, eq=False)
class Plan:
    """What stays as it is for the whole run."""

    environment: dict[str, str]
    parts: dict[str, str]
    functions: dict[str, str]
    origin: str  # JSON
    x: Any  # the structure of x, with a shape and a type for every leaf; None: not one that a file can tell of
    method: Any  # as it was prepared; None: the same
    settings: Settings
    choice: str
    first: int
    last: int | None
    seconds: float | None
    tolerance: float | RelativeTolerance | None
    confidence: float
    every: float
    keep: int


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint."""

    plan: Plan
    leaves: dict[str, Any]  # of the `Run`, by their path; its key as plain numbers
    generator: str  # of random numbers
    iteration: int
    evaluations: int
    ledger: Ledger
    looked: Looked
    sight: Sight | None
    elapsed: float  # seconds since the budget began to count
    place: dict[str, Any]  # in the streams


_RECORDS = {
    "certificate": Certificate,
    "certified constraint": ConstraintReport,
    "exponents": Exponents,
    "interval": Interval,
    "ledger": Ledger,
    "looked": Looked,
    "plan": Plan,
    "relative": Relative,
    "relative tolerance": RelativeTolerance,
    "rhythm": Rhythm,
    "saved": Saved,
    "settings": Settings,
    "shaped": Shaped,
    "sight": Sight,
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


def plan_of(
    start: Start,
    checkpoint: Checkpoint,
    budget: Budget,
    last: int | None,
    tolerance: Tolerance | None,
    confidence: float,
) -> Plan:
    """Of a run that is about to start."""
    coordinates, samples = start.oracle.coordinates, start.feeder.structures()
    leaves = [Shaped(d.name, shape) for shape, d in zip(coordinates.shapes, coordinates.dtypes, strict=True)]
    like_x = jax.tree.unflatten(
        coordinates.structure, map(jax.ShapeDtypeStruct, coordinates.shapes, coordinates.dtypes)
    )
    try:
        origin = json.dumps(checkpoint.origin)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"origin= must be something that JSON can hold: {error}.") from error
    return Plan(
        environment=environment(),
        parts=parts_of(start.oracle, like_x, samples),
        functions=functions_of(start.oracle, like_x, samples),
        origin=origin,
        x=_if_savable(jax.tree.unflatten(coordinates.structure, leaves)),
        method=_if_savable(start.method),
        settings=start.settings,
        choice=start.choice,
        first=int(start.run.iteration),
        last=last,
        seconds=None if budget.seconds is None else float(budget.seconds),
        tolerance=tolerance if tolerance is None or isinstance(tolerance, RelativeTolerance) else float(tolerance),
        confidence=float(confidence),
        every=float(checkpoint.every),
        keep=int(checkpoint.keep),
    )


def _if_savable(value: Any) -> Any:
    try:
        encoded(value, classes(), [])
    except UnsavableError:
        return None
    return value


def pieces_of(plan: Plan, position: Position, elapsed: float, place: dict[str, Any]) -> Iterator[Any]:
    """The file."""
    best, ledger = position.looked.best, position.ledger
    saved = Saved(
        plan=plan,
        leaves=leaves_of(position.run),
        generator=str(jax.random.key_impl(position.run.key)),
        iteration=position.iteration,
        evaluations=position.evaluations,
        ledger=replace(ledger, tables=(ledger.history().columns,) if ledger.tables else (), newest={}),
        looked=replace(position.looked, best=best and _flat(best)),
        sight=position.sight and _flat(position.sight),
        elapsed=elapsed,
        place=place,
    )
    return packed(saved, classes())


def saved_in(file: bytes) -> Saved:
    """The checkpoint in a file."""
    saved = unpacked(file, classes())
    if not isinstance(saved, Saved):
        raise DamagedError(f"it holds a {type(saved).__name__}")
    return saved


def _flat(sight: Sight) -> Sight:
    return sight._replace(x=jax.tree.leaves(sight.x))


def leaves_of(run: Run) -> dict[str, Any]:
    """By path, the key as plain numbers."""
    plain = run._replace(key=jax.random.key_data(run.key))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(plain)}
