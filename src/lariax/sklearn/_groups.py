"""Columns that tell groups apart, and the rows of each group."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lariax.sklearn._constraints import By
from lariax.utils import did_you_mean

MOST_GROUPS = 64
MOST_TOLD = 10  # values of a column, in a message
UNCUT = " Cross-validation does not cut a dict into folds: give a frame."


class Columns:
    """Columns by name: of the sensitive features, else of X where X is a frame, and y."""

    def __init__(self, sensitive: Any, frame: Any, y: np.ndarray):
        self._rows = len(y)
        self._columns: dict[Any, np.ndarray] = {"y": y}
        self._frame = frame if hasattr(frame, "columns") else None
        self._unnamed: np.ndarray | None = None
        for name, column in _named(sensitive):
            values = np.asarray(column)
            if values.shape != (self._rows,):
                raise ValueError(
                    f"sensitive_features must have one value a row, {self._rows} in all, found a shape of "
                    f"{values.shape} (column {name!r}).{UNCUT if isinstance(sensitive, Mapping) else ''}"
                )
            self._columns[name] = values
            if name is None:
                self._unnamed = values

    def __getitem__(self, name: str | int) -> np.ndarray:
        if name in self._columns:
            values = self._columns[name]
        elif self._unnamed is not None:
            values = self._unnamed
        elif self._frame is not None and name in list(self._frame.columns):
            values = np.asarray(self._frame[name])
        else:
            known = [column for column in self._columns if column is not None]
            known += [] if self._frame is None else list(self._frame.columns)
            raise ValueError(
                f"there is no column {name!r} to tell groups apart. {did_you_mean(name, map(str, known))}Found "
                f"{', '.join(map(repr, known))}. Give it to fit as sensitive_features= (a frame, a dict of columns, or "
                "one column), or have it in X."
            )
        if values.dtype.kind in "fO" and missing(values):
            raise ValueError(f"column {name!r}, which tells groups apart, has missing values. Fill or drop them.")
        return values

    def _levels(self, name: str | int) -> np.ndarray:
        values = self[name]
        return np.unique(values.astype(str) if values.dtype == object else values)

    def subset(self, given: Mapping[str, Any] | None) -> tuple[str, np.ndarray]:
        """The rows where each column has the value, or one of the values, that is given."""
        mask, words = np.ones(self._rows, bool), []
        for name, value in (given or {}).items():
            values = list(value) if isinstance(value, list | tuple | set | frozenset | np.ndarray) else [value]
            own = np.isin(self[name], values)
            if not own.any():
                known = [str(one) for one in self._levels(name)]
                hints = " ".join(did_you_mean(one, known) for one in values).strip()
                raise ValueError(
                    f"given={{{name!r}: {value!r}}}: no row has it. {hints}{' ' if hints else ''}There are "
                    f"{', '.join(known[:MOST_TOLD])}{', ...' if len(known) > MOST_TOLD else ''}."
                )
            mask = mask & own
            words.append(f"{name}={'|'.join(map(str, values))}")
        return ", ".join(words), mask

    def groups(self, by: By) -> Iterator[tuple[str, np.ndarray]]:
        """Each group's name and rows."""
        names = tuple(by) if isinstance(by, tuple | list) else (by,)
        if not names:
            raise ValueError("by=() names no column: nothing tells groups apart.")
        levels = [self._levels(name) for name in names]
        count = int(np.prod([len(level) for level in levels]))
        if count > MOST_GROUPS:
            raise ValueError(
                f"{' and '.join(map(repr, names))} make {count} groups, more than {MOST_GROUPS}. Cut them into bands."
            )
        if count < 2:
            raise ValueError(f"all rows are in one group of {names[0]!r}: there is nothing to compare.")
        for place in np.ndindex(*(len(level) for level in levels)):
            mask, words = np.ones(self._rows, bool), []
            for name, level, i in zip(names, levels, place, strict=True):
                column = self[name].astype(str) if self[name].dtype == object else self[name]
                mask = mask & (column == level[i])
                words.append(f"{name}={level[i]}")
            if mask.any():  # a combination that nobody has is no group
                yield ", ".join(words), mask


def _named(sensitive: Any) -> Iterator[tuple[Any, Any]]:
    """Columns and their names; a single one without a name has the name None."""
    if sensitive is None:
        return
    if isinstance(sensitive, Mapping):
        yield from sensitive.items()
    elif hasattr(sensitive, "columns"):
        for name in sensitive.columns:
            yield name, sensitive[name]
    elif getattr(sensitive, "name", None) is not None:
        yield sensitive.name, sensitive
    else:
        values = np.asarray(sensitive)
        if values.ndim == 2 and values.shape[1] > 1:
            yield from ((i, values[:, i]) for i in range(values.shape[1]))
        else:
            yield None, values.reshape(len(values)) if values.ndim == 2 else values


def missing(values: np.ndarray) -> bool:
    """Whether there is a None, NaN, NaT, or pandas' NA, whose comparison with itself is no bool."""
    return any(
        value is None or not isinstance(differs := value != value, bool | np.bool_) or differs for value in values
    )
