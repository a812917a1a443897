"""The file of a checkpoint. It is parsed, never executed.

    "lariax checkpoint" and a line feed | version, 4 bytes | length of the header, 8 bytes | header, JSON
    | arrays as they lie in memory, one after the other | SHA-256 of all of that

The header holds plain values: numbers, texts, lists, dictionaries, shapes, records of classes that the reader knows by
a tag, and references to arrays. A tag stays the same wherever its class is moved. Nothing in a file can make the reader
take more memory than the file is long.
"""

import dataclasses
import functools
import hashlib
import json
import math
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from lariax.utils import HelpfulError

MAGIC = b"lariax checkpoint\n"
VERSION = 3
PREFIX = struct.Struct("<IQ")
DIGEST = hashlib.sha256().digest_size
DTYPES = {
    jax.numpy.dtype(name).name: jax.numpy.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    )
}


class Classes:
    """The classes of records, by their tags."""

    def __init__(self, by_tag: Mapping[str, type]) -> None:
        self.by_tag = dict(by_tag)
        self.tags = {cls: tag for tag, cls in self.by_tag.items()}


class CheckpointError(HelpfulError, ValueError):
    """A checkpoint that cannot be written, read or used. Nothing was changed on disk.

    >>> import lariax as lx
    >>> try:
    ...     lx.resume("no-such-folder")
    ... except lx.CheckpointError as error:
    ...     print("refused")
    refused
    """

    topic = "resume"


class DamagedError(CheckpointError):
    """A file that is not, or no longer, a checkpoint."""


class UnsavableError(CheckpointError, TypeError):
    """A value that a checkpoint cannot hold."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A record of a class that the reader does not know."""

    name: str


def raw(array: np.ndarray) -> Any:
    """The bytes of an array, for whoever takes a buffer."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# --- writing


def packed(value: Any, classes: Classes) -> Iterator[Any]:
    """The file of a value, piece by piece."""
    digest = hashlib.sha256()
    for piece in _pieces(value, classes):
        digest.update(piece)
        yield piece
    yield digest.digest()


def _pieces(value: Any, classes: Classes) -> Iterator[Any]:
    arrays: list[np.ndarray] = []
    content = encoded(value, classes, arrays)
    table = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
    header = json.dumps({"content": content, "arrays": table}).encode()
    yield MAGIC + PREFIX.pack(VERSION, len(header)) + header
    for array in arrays:
        yield raw(array)


def encoded(value: Any, classes: Classes, arrays: list[np.ndarray]) -> Any:
    """A value in terms of JSON; its arrays are appended to `arrays`."""
    if isinstance(value, np.generic):
        return {"scalar": encoded(np.asarray(value), classes, arrays)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | jax.Array):
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        if array.dtype.name not in DTYPES:
            raise UnsavableError(f"a checkpoint holds no arrays of {array.dtype}.")
        arrays.append(array)
        return {"array": len(arrays) - 1}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, jax.ShapeDtypeStruct):
        return {"like": {"dtype": value.dtype.name, "shape": value.shape}}
    if (tag := classes.tags.get(type(value))) is not None:
        fields = {key: encoded(part, classes, arrays) for key, part in _fields(value).items()}
        return {"class": tag, "fields": fields}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encoded(part, classes, arrays) for part in value]}
    if isinstance(value, dict) and _are_names(list(value)):
        return {"dict": [[key, encoded(part, classes, arrays)] for key, part in value.items()]}
    raise UnsavableError(
        "a checkpoint holds numbers, texts, arrays, lists, tuples and dictionaries of these, found "
        f"{type(value).__module__}.{type(value).__qualname__}."
    )


def _are_names(keys: list[Any]) -> bool:
    return all(type(key) is str for key in keys) or all(type(key) is int for key in keys)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return dict(zip(type(value).__annotations__, value, strict=True))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


# --- reading


def unpacked(file: bytes, classes: Classes) -> Any:
    """The value of a file; `DamagedError` if it is not one, `CheckpointError` if a later Lariax wrote it."""
    start = len(MAGIC) + PREFIX.size
    if not file.startswith(MAGIC):
        raise DamagedError("it does not begin like a checkpoint of Lariax")
    if len(file) < start + DIGEST:
        raise DamagedError("it is cut short")
    version, length = PREFIX.unpack(file[len(MAGIC) : start])
    if version < VERSION:
        raise CheckpointError(
            f"it is of version {version}, which only the Lariax that wrote it can resume; this one reads version "
            f"{VERSION}. Resume it there, or start a new run."
        )
    if version > VERSION:
        raise CheckpointError(
            f"it is of version {version}, and this Lariax reads version {VERSION}. Install a newer one."
        )
    if hashlib.sha256(memoryview(file)[:-DIGEST]).digest() != file[-DIGEST:]:
        raise DamagedError("its checksum is wrong: it is cut short or changed")
    try:
        header = json.loads(file[start : start + length].decode())
        arrays = _arrays(memoryview(file)[start + length : -DIGEST], header["arrays"])
        return decoded(header["content"], classes, arrays)
    except (Exception, RecursionError) as error:  # whatever is in it: a file is not to be trusted
        raise DamagedError(f"its content makes no sense ({type(error).__name__}: {str(error)[:200]})") from error


def _arrays(data: memoryview, table: list[dict[str, Any]]) -> list[np.ndarray]:
    arrays, place = [], 0
    for entry in table:
        dtype, shape = DTYPES[entry["dtype"]], _shape(entry["shape"])
        size = dtype.itemsize * math.prod(shape)
        if place + size > len(data):
            raise ValueError("an array beyond the end of the file")
        arrays.append(np.frombuffer(data[place : place + size], np.uint8).view(dtype).reshape(shape))
        place += size
    if place != len(data):
        raise ValueError(f"{len(data) - place} bytes too many")
    return arrays


def _shape(sides: Any) -> tuple[int, ...]:
    if not all(type(side) is int and side >= 0 for side in sides):
        raise ValueError(f"a shape of {sides}")
    return tuple(sides)


def decoded(content: Any, classes: Classes, arrays: list[np.ndarray]) -> Any:
    """What `encoded` was given."""
    if content is None or isinstance(content, bool | int | float | str):
        return content
    if content.keys() == {"class", "fields"}:
        if content["class"] not in classes.by_tag:
            return Unknown(str(content["class"]))
        cls = classes.by_tag[content["class"]]
        fields = {key: decoded(part, classes, arrays) for key, part in content["fields"].items()}
        hints = _hints(cls)
        for key, part in fields.items():
            if not _fits(part, hints[key], classes):
                raise ValueError(f"{content['class']}.{key} cannot be {type(part).__name__}")
        return cls(**fields)
    ((kind, inner),) = content.items()
    if kind == "array":
        if not isinstance(inner, int) or inner < 0:
            raise ValueError(f"array number {inner!r}")
        return arrays[inner]
    if kind == "scalar":
        return decoded(inner, classes, arrays)[()]
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "like":
        return jax.ShapeDtypeStruct(_shape(inner["shape"]), DTYPES[inner["dtype"]])
    if kind == "dict":
        if not _are_names([key for key, _ in inner]):
            raise ValueError("names that are not all texts, or all integers")
        return {key: decoded(part, classes, arrays) for key, part in inner}
    return {"list": list, "tuple": tuple}[kind](decoded(part, classes, arrays) for part in inner)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any, classes: Classes) -> bool:
    """Whether a value is of the type that a field is declared to be, as far as that can be told."""
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, each, classes) for each in typing.get_args(hint))
    if kind is float:
        return isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if kind is np.ndarray:
        return isinstance(value, np.ndarray | np.generic)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in (bool, str, dict, list, tuple, type(None), Mapping) or kind in classes.tags:
        return isinstance(value, kind)
    return True
