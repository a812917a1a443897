"""A run outside of the process that made it."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from lariax.certificate import Certificate
from lariax.inference import TableLine
from lariax.loop import History, Result, summary
from lariax.problem import arrays_of, visible
from lariax.runs._json import plain
from lariax.utils import narrow_table

LONGEST = 16  # entries of a vector that the history holds one by one
PACKAGES = ("lariax", "jax", "jaxlib", "equinox", "numpy", "scipy", "optax")
Line = tuple[str | int, ...]  # ("objective",), ("constraints", "gap"), ("multipliers", "flow", 3 or "least")


@dataclass(frozen=True, eq=False)
class SavedInference:
    """The error bars of a run: what they are about, and one entry for each number."""

    about: str
    confidence: float
    draws: int
    warnings: tuple[str, ...]
    entries: tuple[TableLine, ...]


@dataclass(frozen=True, eq=False)
class SavedRun:
    """What a run folder holds.

    Attributes:
        name: of the run.
        outcome: status, success, message, iterations, draws, evaluations, seconds, created; and measures, where the
            problem has some of its own (an accuracy on test rows).
        history: one array of numbers for each line that can be plotted.
        x: the arrays of x, by their paths in its structure.
        multipliers: by constraint name.
        certificate: None where none could be made; outcome["no_certificate"] says why.
        settings, versions: what was asked for, and with which software.
        inference: error bars, where `lariax inference` has made them.
        pictures: of the problem itself: title, kind, series, x_label, y_label, categories, reference, extent.

    >>> import jax.numpy as jnp, lariax as lx
    >>> from lariax import runs
    >>> result = lx.solve(lx.Problem(lambda x: jnp.sum((x - 1) ** 2)), jnp.zeros(2), iterations=100)
    >>> run = runs.saved(result)  # as `runs.load(folder)` gives it
    >>> run.status
    'budget'
    """

    name: str
    outcome: Mapping[str, Any]
    history: Mapping[Line, np.ndarray]
    x: Mapping[str, np.ndarray]
    multipliers: Mapping[str, np.ndarray]
    certificate: Certificate | None
    settings: Mapping[str, Any]
    versions: Mapping[str, Any]
    pictures: Sequence[Mapping[str, Any]] = ()
    inference: SavedInference | None = None

    @property
    def status(self) -> str:
        return str(self.outcome["status"])

    @property
    def title(self) -> str:
        problem = self.settings.get("problem")
        found = problem.get("title") or problem.get("name") if isinstance(problem, Mapping) else None
        return str(found or self.name)

    def __len__(self) -> int:
        """The number of records."""
        return len(next(iter(self.history.values()), ()))

    def __rich__(self) -> RenderableType:
        outcome = self.outcome
        cost = f"{outcome['iterations']:,} iterations, {outcome['draws']:,} draws, {outcome['seconds']:.2f} s"
        found = self.certificate or Text(
            visible(f"No certificate. {outcome.get('no_certificate', '')}"), style="yellow"
        )
        answer = narrow_table("", "name", "value", words=3)
        for name, array in self.x.items():
            answer.add_row("x", Text(visible("" if name == "x" else name)), summary(array))
        for name, array in self.multipliers.items():
            answer.add_row("multiplier", Text(visible(name)), summary(array))
        lines = [f"{name}: {value:.4g}" for name, value in outcome.get("measures", {}).items()]
        lines.append(str(outcome["message"]))
        head = Text(visible(f"{self.title}: {self.status} after {cost}"))
        return Group(head, answer, found, *(Text(visible(line)) for line in lines))


def saved(
    result: Result,
    name: str = "run",
    settings: Mapping[str, Any] | None = None,
    pictures: Sequence[Any] = (),
    certificate: Certificate | None = None,
    no_certificate: str = "",
    measures: Mapping[str, float] | None = None,
) -> SavedRun:
    """A result as a `SavedRun`, with nothing computed anew."""
    known = result.certified is not None or "certificate" in vars(result)  # else it would be made
    outcome = {
        "status": result.status,
        "success": known and result.success,
        "message": result.message,
        "iterations": int(result.iterations),
        "draws": int(result.draws),
        "evaluations": int(result.evaluations),
        "seconds": float(result.seconds),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if no_certificate:
        outcome["no_certificate"] = no_certificate
    if measures:
        outcome["measures"] = {name: float(value) for name, value in measures.items()}
    return SavedRun(
        name=name,
        outcome=outcome,
        history=lines_of(result.history),
        x=leaves_of(result.x),
        multipliers={key: np.asarray(value) for key, value in result.multipliers.items()},
        certificate=certificate,
        settings=plain({**(settings or {}), **settings_of(result)}),
        versions=versions(),
        pictures=[picture_of(picture) for picture in pictures],
    )


def leaves_of(x: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by path; low precisions that other programs do not know become single."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays_of(x))
    arrays = {jax.tree_util.keystr(path) or "x": np.asarray(leaf) for path, leaf in leaves}
    return {path: a if a.dtype in (np.float32, np.float64) else a.astype(np.float32) for path, a in arrays.items()}


def lines_of(history: History) -> dict[Line, np.ndarray]:
    """A history as lines, each an array with one number a record."""
    lines: dict[Line, np.ndarray] = {}
    for name in history:
        column = history[name]
        parts = (
            {(name, key): part for key, part in column.items()} if isinstance(column, Mapping) else {(name,): column}
        )
        for line, part in parts.items():
            lines.update(_spread(line, np.asarray(part)))
    return lines


def _spread(line: Line, values: np.ndarray) -> dict[Line, np.ndarray]:
    if values.ndim == 1:
        return {line: values}
    rows = values.reshape(len(values), -1)
    if rows.shape[1] <= LONGEST:
        return {(*line, i): rows[:, i] for i in range(rows.shape[1])}
    return {
        (*line, "least"): rows.min(axis=1),
        (*line, "largest"): rows.max(axis=1),
        (*line, "length"): np.linalg.norm(rows, axis=1),
    }


def settings_of(result: Result) -> dict[str, Any]:
    """What a result knows of how it was made."""
    if result.continuation is None:
        return {}
    method, kept = result.continuation.method, result.continuation.setup
    parameters = {field.name: getattr(method, field.name) for field in fields(method)} if is_dataclass(method) else {}
    return {
        "method": {"name": type(method).__name__, **{k: v for k, v in parameters.items() if v is not None}},
        "batch_size": kept.oracle.batch_size,
        "output": kept.output,
        "precision": sorted({str(leaf.dtype) for leaf in jax.tree.leaves(arrays_of(result.x))}),
        "choice": result.choice,
    }


def versions() -> dict[str, str]:
    """Software and device."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    device = jax.devices()[0]
    return {**found, "device": f"{device.platform} ({device.device_kind}), {jax.device_count()} in all"}


def picture_of(picture: Any) -> dict[str, Any]:
    names = ("title", "kind", "series", "x_label", "y_label", "categories", "reference", "extent")
    return {name: getattr(picture, name) for name in names}
