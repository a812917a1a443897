"""Reading a run folder, which may be broken, or not be one: everything is checked, nothing is executed."""

import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lariax.certificate import Certificate
from lariax.loop import STATUSES
from lariax.runs._inference import inference_from_json
from lariax.runs._json import Reader, RunFolderError, as_array, as_float, certificate_from_json, loads
from lariax.runs._saved import Line, SavedInference, SavedRun
from lariax.runs._write import FORMAT, VERSION

LARGEST = 2**31  # bytes of a file that is still read
KINDS = ("bars", "lines", "scatter", "heatmap")
DTYPES = ("float32", "float64")


def load(folder: str | Path) -> SavedRun:
    """Read a run folder.

    Raises `RunFolderError`, in words, for a folder that is missing, incomplete, broken, or something else.

    >>> import tempfile, jax.numpy as jnp, lariax as lx
    >>> from lariax import runs
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=100)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     runs.load(runs.save(result, f"{parent}/first")).status
    'budget'
    """
    path = Path(folder)
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "does not exist"
        raise RunFolderError(f"{path} {found}. A run is a folder, as `lariax solve` leaves it under runs/.")
    try:
        return _load(path)
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from error
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from error


def load_settings(folder: str | Path) -> dict[str, Any]:
    """What a run was asked for, also of one that has not ended."""
    path = Path(folder)
    try:
        return _json(path / "settings.json")
    except (RunFolderError, OSError) as error:
        raise RunFolderError(f"{path} is not the folder of a run that could go on: {error}") from error


def _load(path: Path) -> SavedRun:
    head = _head(path)
    history = _history(path / "history.jsonl", head.count("records"))
    x, multipliers = _answer(path)
    return SavedRun(
        name=head.get("name", str),
        outcome=_outcome(head),
        history=history,
        x=x,
        multipliers=multipliers,
        certificate=_certificate(path),
        settings=_json(path / "settings.json"),
        versions=_json(path / "versions.json"),
        pictures=_pictures(path / "pictures.json"),
        inference=_inference(path),
    )


def is_unfinished(folder: str | Path) -> bool:
    """Whether it is the folder of a run that goes on, or was killed before it could write its answer."""
    path = Path(folder)
    return (path / "settings.json").exists() and not (path / "run.json").exists()


def _head(path: Path) -> Reader:
    if is_unfinished(path):
        raise RunFolderError(
            "there is no run.json, so the run has not ended, or was killed before it could write its answer. "
            f"`lariax solve --resume {path}` goes on with it."
        )
    if not (path / "run.json").exists():
        raise RunFolderError("this is not the folder of a run: there is no run.json. `lariax solve` makes one.")
    head = Reader(_json(path / "run.json"), "run.json")
    if head.get("format", str) != FORMAT:
        raise RunFolderError(f"this is not a run of Lariax: the format in run.json is not {FORMAT!r}.")
    if head.count("version") != VERSION:
        raise RunFolderError(
            f"it has version {head.count('version')} of the format, and this Lariax reads version {VERSION}. "
            "Read it with the Lariax that versions.json names."
        )
    return head


def _outcome(head: Reader) -> dict[str, Any]:
    status = head.get("status", str)
    if status not in STATUSES:
        raise RunFolderError(f"'status' in run.json must be one of {', '.join(STATUSES)}, found {status[:40]!r}.")
    outcome: dict[str, Any] = {"status": status, "success": head.get("success", bool)}
    outcome |= {name: head.count(name) for name in ("iterations", "draws", "evaluations")}
    outcome |= {"seconds": head.get("seconds", float)}
    outcome |= {name: head.get(name, str) for name in ("message", "created")}
    if head.has("no_certificate"):
        outcome["no_certificate"] = head.get("no_certificate", str)
    if head.has("measures"):
        measures = head.part("measures")
        outcome["measures"] = {name: measures.get(name, float) for name in head.get("measures", dict)}
    return outcome


def _check_plain(path: Path) -> None:
    """A regular file, not a link, a pipe or a device, of a bearable size."""
    try:
        about = path.lstat()
    except FileNotFoundError as error:
        raise RunFolderError(f"{path.name} is missing.") from error
    if not stat.S_ISREG(about.st_mode):
        raise RunFolderError(f"{path.name} is not a plain file.")
    if about.st_size > LARGEST:
        raise RunFolderError(f"{path.name} has {about.st_size:,} bytes, more than the {LARGEST:,} that are read.")


def _text(path: Path) -> str:
    _check_plain(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path.name} is not text.") from error


def _json(path: Path) -> dict[str, Any]:
    value = loads(_text(path), path.name)
    if not isinstance(value, dict):
        raise RunFolderError(f"{path.name} must hold an object with names.")
    return value


# --- history


def _history(path: Path, records: int) -> dict[Line, np.ndarray]:
    rows = _text(path).split("\n")[:-1]  # JSON has no line breaks of its own, but may have others in names
    if len(rows) != records:
        raise RunFolderError(
            f"{path.name} has {len(rows):,} lines, and run.json says {records:,}: it was cut or mixed."
        )
    columns: dict[Line, list[float]] = {}
    for i, text in enumerate(rows, start=1):
        where = f"line {i} of {path.name}"
        flat = dict(_flat(loads(text, where), (), where))
        if i == 1:
            columns = {line: [] for line in flat}
        if flat.keys() != columns.keys():
            raise RunFolderError(f"{where} has other columns than the lines before it.")
        for line, value in flat.items():
            columns[line].append(value)
    if records and any((name,) not in columns for name in ("iteration", "draws", "seconds", "objective")):
        raise RunFolderError(f"{path.name} lacks one of the columns iteration, draws, seconds, objective.")
    return {line: np.asarray(values) for line, values in columns.items()}


def _flat(value: Any, path: Line, where: str) -> Any:
    if isinstance(value, Mapping | list):
        if len(path) == 3:
            raise RunFolderError(f"{where} is nested too deeply.")
        for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(part, (*path, name), where)
    elif not path:
        raise RunFolderError(f"{where} must be an object with names.")
    else:
        yield path, as_float(value, where)


# --- the answer


def _answer(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    entries = Reader(_json(folder / "answer.json"), "answer.json").get("arrays", list)
    parts: dict[str, dict[str, np.ndarray]] = {"x": {}, "multipliers": {}}
    arrays = _arrays(folder / "answer.npz")
    for i, entry in enumerate(entries):
        reader = Reader(entry, f"entry {i} of answer.json")
        part, key = reader.get("part", str), reader.get("array", str)
        shape = reader.get("shape", list)
        if part not in parts:
            raise RunFolderError(f"'part' in entry {i} of answer.json must be x or multipliers, found {part[:40]!r}.")
        if key not in arrays or list(arrays[key].shape) != shape:
            raise RunFolderError(f"answer.npz has no array {key[:40]!r} of shape {shape}, which answer.json speaks of.")
        parts[part][reader.get("name", str)] = arrays[key]
    return parts["x"], parts["multipliers"]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of numbers, uncompressed, so that none is larger than the file."""
    _check_plain(path)
    try:
        with zipfile.ZipFile(path) as members:
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist())
        if packed:
            raise RunFolderError(f"{path.name} is compressed, which Lariax does not write.")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise RunFolderError(f"{path.name} is not a file of arrays: {str(error)[:200]}.") from error
    strange = [name for name, array in arrays.items() if str(array.dtype) not in DTYPES]
    if strange:
        raise RunFolderError(f"{path.name} must hold numbers of type {' or '.join(DTYPES)}.")
    return arrays


# --- certificate and pictures


def _certificate(folder: Path) -> Certificate | None:
    path = folder / "certificate.json"
    return certificate_from_json(_json(path), path.name) if path.exists() else None


def _inference(folder: Path) -> SavedInference | None:
    path = folder / "inference.json"
    return inference_from_json(_json(path), path.name) if path.exists() else None


def _pictures(path: Path) -> list[dict[str, Any]]:
    entries = Reader(_json(path), path.name).get("pictures", list)
    return [_picture(Reader(entry, f"picture {i} of {path.name}")) for i, entry in enumerate(entries)]


def _picture(reader: Reader) -> dict[str, Any]:
    kind = reader.get("kind", str)
    if kind not in KINDS:
        raise RunFolderError(f"a picture is one of {', '.join(KINDS)}, found {kind[:40]!r}.")
    series = {name: as_array(values, f"series {name[:40]!r}") for name, values in reader.get("series", dict).items()}
    categories = [str(category) for category in reader.get("categories", list)]
    wanted = {"bars": (len(categories),), "lines": (None, 2), "scatter": (None, 2), "heatmap": (None, None)}[kind]
    if kind in ("lines", "scatter"):  # JSON keeps no second axis of an array without rows
        series = {name: values if values.size else np.zeros((0, 2)) for name, values in series.items()}
    for name, values in series.items():
        fits = values.ndim == len(wanted) and all(w in (None, n) for w, n in zip(wanted, values.shape, strict=True))
        if not fits:
            raise RunFolderError(f"series {name[:40]!r} has the shape {values.shape}, which {kind} cannot show.")
    extent = reader.optional_array("extent")
    if extent is not None and extent.shape != (4,):
        raise RunFolderError(f"the extent of a picture has four numbers, found the shape {extent.shape}.")
    reference = reader.optional_array("reference")
    if reference is not None and reference.shape != ():
        raise RunFolderError("the reference of a picture is one number.")
    return {
        "title": reader.get("title", str),
        "kind": kind,
        "series": series,
        "x_label": reader.get("x_label", str),
        "y_label": reader.get("y_label", str),
        "categories": categories,
        "reference": None if reference is None else float(reference),
        "extent": extent,
    }
