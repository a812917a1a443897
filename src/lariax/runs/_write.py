"""Writing a run folder, so that it is never half there."""

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lariax.certificate import Certificate
from lariax.inference import Inference
from lariax.loop import Result
from lariax.runs._inference import inference_to_json
from lariax.runs._json import RunFolderError, certificate_to_json, dumps, plain
from lariax.runs._saved import Line, SavedRun, saved, versions
from lariax.utils import write_atomically

FORMAT, VERSION = "lariax run", 1


class TakenError(RunFolderError):
    """There is something of that name."""


@dataclass(frozen=True)
class ClaimedFolder:
    """A folder that is ours, made before the run so that a bad place is found out early."""

    folder: Path
    made: tuple[Path, ...] = ()  # folders above it that were not there before
    is_new: bool = False

    def write(self, run: SavedRun) -> Path:
        """All files, `run.json` last; in a folder of a run that goes on, in the place of what was there."""
        (self.folder / "run.json").unlink(missing_ok=True)
        leaves = [("x", path, array) for path, array in run.x.items()]
        leaves += [("multipliers", name, array) for name, array in run.multipliers.items()]
        keys = [f"array{i}" for i in range(len(leaves))]
        entries = [
            {"part": part, "name": name, "array": key, "shape": array.shape, "dtype": str(array.dtype)}
            for key, (part, name, array) in zip(keys, leaves, strict=True)
        ]
        arrays = {key: array for key, (_, _, array) in zip(keys, leaves, strict=True)}
        write_atomically(self.folder / "answer.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))
        _write_json(self.folder / "answer.json", {"arrays": entries})
        write_atomically(self.folder / "history.jsonl", lambda file: file.writelines(_lines(run.history)))
        if run.certificate is not None:
            _write_json(self.folder / "certificate.json", certificate_to_json(run.certificate))
        self.announce(run.settings)
        _write_json(self.folder / "versions.json", run.versions)
        _write_json(self.folder / "pictures.json", {"pictures": run.pictures})
        _write_json(
            self.folder / "run.json",
            {"format": FORMAT, "version": VERSION, "name": run.name, "records": len(run), **run.outcome},
        )
        return self.folder

    def announce(self, settings: Mapping[str, Any]) -> None:
        """What is about to be done, for whoever finds the folder after a crash."""
        _write_json(self.folder / "settings.json", settings)
        _write_json(self.folder / "versions.json", versions())

    def give_up(self) -> None:
        """Remove the folder, which holds nothing but what was announced."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in self.made:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                parent.rmdir()


def claim(folder: str | Path) -> ClaimedFolder:
    """Make a new folder for a run. One that exists is never touched."""
    path = Path(folder)
    made = tuple(parent for parent in path.parents if not parent.exists())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError as error:
            raise TakenError(f"{path} exists already, and a run needs a new folder. Choose another name.") from error
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {path}: {error.strerror}.") from error
    return ClaimedFolder(path, made, is_new=True)


def claim_next(parent: str | Path, name: str) -> ClaimedFolder:
    """parent/name-1, or the first of -2, -3, ... that is free, also when others look for one at the same time."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[:60].strip("-") or "run"
    for i in itertools.count(1):
        with contextlib.suppress(TakenError):
            return claim(Path(parent) / f"{stem}-{i}")
    raise AssertionError("one of all numbers is free")


def save(
    result: Result,
    folder: str | Path,
    settings: Mapping[str, Any] | None = None,
    pictures: Sequence[Any] = (),
) -> Path:
    """Write a result as a new run folder, with its certificate.

    Arguments:
        result: of `lx.solve`.
        folder: where; it must not exist.
        settings: anything worth keeping about how the run was made, added to what the result knows itself.
        pictures: of the problem at result.x, such as `case.pictures(result.x)` of the gallery.

    >>> import tempfile, jax.numpy as jnp, lariax as lx
    >>> from lariax import runs
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=100)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = runs.save(result, f"{parent}/first")
    ...     sorted(path.name for path in folder.iterdir() if path.suffix == ".npz")
    ['answer.npz']
    """
    if result.continuation is None:
        raise ValueError("a run that was traced (jit, vmap) has no certificate and no history of its own to save.")
    certificate, why = None, ""
    place = claim(folder)
    try:
        certificate = result.certificate
    except ValueError as error:  # a Stream that has ended, or too few rows
        why = str(error)
    try:
        return place.write(saved(result, place.folder.name, settings, pictures, certificate, why))
    except OSError as error:
        place.give_up()
        raise RunFolderError(f"cannot write {place.folder}: {error.strerror}.") from error


def keep_certificate(folder: str | Path, certificate: Certificate) -> None:
    """Put a newer certificate in the place of the one in a run folder."""
    path = Path(folder) / "certificate.json"
    try:
        _write_json(path, certificate_to_json(certificate))
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}.") from error


def keep_inference(folder: str | Path, inference: Inference) -> None:
    """Put error bars into a run folder, in the place of older ones."""
    path = Path(folder) / "inference.json"
    try:
        _write_json(path, inference_to_json(inference))
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}.") from error


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, lambda file: file.write((dumps(value, indent=1) + "\n").encode()))


def _lines(history: Mapping[Line, np.ndarray]) -> Iterable[bytes]:
    """Rows as JSON, one a line."""
    paths = list(history)
    for values in zip(*(plain(np.asarray(column)) for column in history.values()), strict=True):
        row: dict[str, Any] = {}
        for path, value in zip(paths, values, strict=True):
            _place(row, path, value)
        yield (json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n").encode()


def _place(row: dict[str, Any], path: Line, value: Any) -> None:
    *names, last = path
    spot: Any = row
    for depth, name in enumerate(names, start=1):
        spot = spot.setdefault(name, [] if isinstance(path[depth], int) else {})
    if isinstance(last, int):
        spot.append(value)
    else:
        spot[last] = value
