"""JSON in and out: numbers that JSON lacks, arrays, certificates. Reading checks everything and believes nothing."""

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np

from lariax.certificate import HOLDS, Certificate, ConstraintReport, Interval, Relative
from lariax.utils import HelpfulError

T = TypeVar("T")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MEASURES = ("stationarity", "feasibility", "complementarity", "natural_residual", "objective")
_RELATIVE = ("stationarity", "feasibility", "complementarity")
_FLAGS = ("fitted", "population", "exact")
_NUMBERS = ("outside", "confidence", "tolerance")


class RunFolderError(HelpfulError):
    """A run folder that cannot be read or written, in words for the person who asked.

    >>> from lariax import runs
    >>> try:
    ...     runs.load("no-such-folder")
    ... except runs.RunFolderError as error:
    ...     print("refused")
    refused
    """

    topic = "folders"


# --- out


def number(value: Any) -> float | int | str:
    """A number for JSON; the shortest decimal that the value's own precision can tell from its neighbours."""
    if isinstance(value, int | np.integer):
        return int(value)
    wide = float(value)
    if not math.isfinite(wide):
        return "NaN" if math.isnan(wide) else ("Infinity" if wide > 0 else "-Infinity")
    return float(str(value)) if isinstance(value, np.float32) else wide


def plain(value: Any) -> Any:
    """Whatever it is, as JSON can hold it."""
    if value is None or isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, int | float | np.number):
        return number(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return plain(array.tolist()) if array.dtype != np.float32 else _singles(array)
    return repr(value)


def _singles(array: np.ndarray) -> Any:
    return number(array[()]) if array.ndim == 0 else [_singles(part) for part in array]


def dumps(value: Any, **options: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, **options)


def certificate_to_json(certificate: Certificate) -> dict[str, Any]:
    """Everything in it, and the verdict."""
    relative = certificate.relative

    def interval(value: Interval) -> dict[str, Any]:
        return plain({"estimate": value.estimate, "low": value.low, "high": value.high})

    def constraint(report: ConstraintReport) -> dict[str, Any]:
        return plain({name: getattr(report, name) for name in ("value", "low", "high", "relation", "bound", "holds")})

    return {
        "verdict": certificate.verdict,
        **{name: interval(getattr(certificate, name)) for name in _MEASURES},
        "relative": relative and {name: interval(getattr(relative, name)) for name in _RELATIVE},
        "constraints": {name: constraint(report) for name, report in certificate.constraints.items()},
        "multipliers": plain(certificate.multipliers),
        **{name: bool(getattr(certificate, name)) for name in _FLAGS},
        **{name: number(getattr(certificate, name)) for name in _NUMBERS},
        "about": certificate.about,
        "draws": int(certificate.draws),
        "warnings": list(certificate.warnings),
        "heldout": None if certificate.heldout is None else certificate_to_json(certificate.heldout),
    }


# --- in


def loads(text: str, where: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{where} is not JSON: {str(error)[:200]}.") from error


class Reader:
    """One object of a JSON file, and what is wanted of it."""

    def __init__(self, value: Any, where: str):
        if not isinstance(value, dict):
            raise RunFolderError(f"{where} must be an object with names, found {_kind(value)}.")
        self._value, self._where = value, where

    def get(self, name: str, kind: type[T]) -> T:
        """The entry of a name, of one type: str, bool, int, float (words for NaN and infinity too), list or dict."""
        if name not in self._value:
            raise RunFolderError(f"{self._where} has no {name!r}.")
        value, place = self._value[name], f"{name!r} in {self._where}"
        if kind is float:
            return as_float(value, place)  # type: ignore[return-value]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RunFolderError(f"{place} must be of type {kind.__name__}, found {_kind(value)}.")
        return value

    def count(self, name: str) -> int:
        found = self.get(name, int)
        if found < 0:
            raise RunFolderError(f"{name!r} in {self._where} must not be negative, found {found}.")
        return found

    def part(self, name: str) -> "Reader":
        return Reader(self.get(name, dict), f"{name!r} in {self._where}")

    def parts(self, name: str) -> dict[str, "Reader"]:
        return {key: Reader(value, f"{key!r} in {self._where}") for key, value in self.get(name, dict).items()}

    def has(self, name: str) -> bool:
        return name in self._value

    def array(self, name: str) -> np.ndarray:
        return as_array(self._value.get(name), f"{name!r} in {self._where}")

    def optional_array(self, name: str) -> np.ndarray | None:
        return None if self._value.get(name) is None else self.array(name)


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def as_float(value: Any, place: str) -> float:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RunFolderError(f"{place} must be a number, found {_kind(value)}.")
    try:
        return float(value)
    except OverflowError as error:
        raise RunFolderError(f"{place} is too large for a number.") from error


def as_array(value: Any, place: str) -> np.ndarray:
    """A number, or equally long lists of numbers, up to four deep."""

    def walk(part: Any, depth: int) -> Any:
        if not isinstance(part, list):
            return as_float(part, place)
        if depth == 4:
            raise RunFolderError(f"{place} is nested too deeply for an array.")
        return [walk(entry, depth + 1) for entry in part]

    try:
        return np.asarray(walk(value, 0), float)
    except ValueError as error:
        raise RunFolderError(f"{place} is not an array: its rows differ in length.") from error


def certificate_from_json(value: Any, where: str, beside: bool = True) -> Certificate:
    reader = Reader(value, where)

    def interval(name: str, within: Reader = reader) -> Interval:
        part = within.part(name)
        return Interval(*(part.get(end, float) for end in ("estimate", "low", "high")))

    def constraint(part: Reader) -> ConstraintReport:
        arrays = {name: part.array(name) for name in ("value", "low", "high", "bound")}
        if len({array.shape for array in arrays.values()}) != 1 or not arrays["value"].size:
            raise RunFolderError(f"the arrays of a constraint in {where} differ in shape, or are empty.")
        holds = part.get("holds", str)
        if holds not in HOLDS:
            raise RunFolderError(f"'holds' in {where} must be one of {', '.join(HOLDS)}, found {holds[:40]!r}.")
        return ConstraintReport(**arrays, relation=part.get("relation", str), holds=holds)

    multipliers = reader.get("multipliers", dict)
    constraints = {name: constraint(part) for name, part in reader.parts("constraints").items()}
    heldout = None
    if beside and value.get("heldout") is not None:
        heldout = certificate_from_json(value["heldout"], f"'heldout' in {where}", beside=False)
        if _sizes(heldout.constraints) != _sizes(constraints):
            raise RunFolderError(f"the constraints on samples and held out in {where} are not the same.")
    simple: dict[str, Any] = {name: interval(name) for name in _MEASURES}
    relative = reader.part("relative") if value.get("relative") is not None else None
    simple["relative"] = relative and Relative(*(interval(name, relative) for name in _RELATIVE))
    simple |= {name: reader.get(name, bool) for name in _FLAGS} | {name: reader.get(name, float) for name in _NUMBERS}
    return Certificate(
        **simple,
        constraints=constraints,
        multipliers={name: as_array(part, f"multiplier {name!r}") for name, part in multipliers.items()},
        about=reader.get("about", str),
        heldout=heldout,
        draws=reader.count("draws"),
        warnings=tuple(str(note) for note in reader.get("warnings", list)),
    )


def _sizes(constraints: Mapping[str, ConstraintReport]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, report.value.shape) for name, report in constraints.items()]
