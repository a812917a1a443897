"""Rates of a classifier in terms of its decisions, hard for counting and soft for training.

Each rate is a ratio of two sums over rows, of  a [d = L] + h [d = y] + a0  over  v [d = L] + v0,  where d is the
decision, y the truth and L the class that the rate is about. With the probabilities of a softened decision in the place
of the brackets the same table gives its smooth stand-in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lariax.sklearn._constraints import LABELLED, Limit, OnRows, at_least, at_most, each, gap
from lariax.sklearn._exact import Count
from lariax.sklearn._groups import Columns


class RateParts(NamedTuple):
    """Of a rate, one number a row (or one for all)."""

    a: Any = 0.0
    h: Any = 0.0
    a0: Any = 0.0
    v: Any = 0.0
    v0: Any = 0.0


def _parts(rate: str, own: np.ndarray) -> RateParts:
    """`own`: 1 where y is the class that the rate is about."""
    table = {
        "recall": RateParts(a=own, v0=own),
        "miss": RateParts(a=-own, a0=own, v0=own),
        "false_alarm": RateParts(a=1 - own, v0=1 - own),
        "precision": RateParts(a=own, v=1.0),
        "selection_rate": RateParts(a=1.0, v0=1.0),
        "coverage": RateParts(a=1.0, v0=1.0),
        "mean_score": RateParts(a=1.0, v0=1.0),
        "accuracy": RateParts(h=1.0, v0=1.0),
        "error": RateParts(h=-1.0, a0=1.0, v0=1.0),
    }
    return table[rate]


@dataclass(frozen=True)
class Base:
    """One rate on some rows, of some class (-1: of none). One that a function of the user's makes has a table of the
    values of its decisions, (rows, classes), between 0 and 1: `low` + `width` times them is what the user sees. A
    regressor calls the function, and has y in the place of the table."""

    rate: str
    label: int
    group: str
    mask: np.ndarray
    table: np.ndarray | None = None
    low: float = 0.0
    width: float = 1.0
    fun: Callable[[Any, Any], Any] | None = None

    def at(self, index: np.ndarray) -> "Base":
        return replace(self, mask=self.mask[index], table=None if self.table is None else self.table[index])

    @property
    def counts(self) -> bool:
        """Whether a row adds 0 or 1, and nothing in between."""
        return self.rate != "mean_score" and (self.table is None or bool(np.isin(self.table, (0, 1)).all()))

    def parts(self, y: np.ndarray) -> RateParts:
        if self.table is not None:
            return RateParts(*(np.broadcast_to(part, y.shape) for part in RateParts(v0=1.0)))
        return RateParts(
            *(np.broadcast_to(part, y.shape) for part in _parts(self.rate, (y == self.label).astype(float)))
        )

    def hard(self, decisions: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each row adds above and below the line, under these decisions."""
        if self.table is not None:
            return self.mask * self.table[np.arange(len(y)), decisions], self.mask.astype(float)
        parts, is_label, is_hit = self.parts(y), decisions == self.label, decisions == y
        above = parts.a * is_label + parts.h * is_hit + parts.a0
        return self.mask * above, self.mask * (parts.v * is_label + parts.v0)


class Row(NamedTuple):
    """sign (rate[first] - slope rate[second]) <= bound, for the rates of a plan; `second` may be None."""

    name: str
    first: int
    second: int | None
    sign: int
    slope: float
    bound: float


@dataclass(frozen=True)
class Plan:
    """The rates that matter, and the rows of constraints on them."""

    bases: tuple[Base, ...]
    rows: tuple[Row, ...]
    classes: int

    def at(self, index: np.ndarray) -> "Plan":
        """The same on some of the rows."""
        return replace(self, bases=tuple(base.at(index) for base in self.bases))

    def values(self, rates: np.ndarray) -> np.ndarray:
        """sign (rate - slope rate) of each constraint row; `rates`: (bases, ...)."""
        return np.stack(
            [
                row.sign * (rates[row.first] - (0 if row.second is None else row.slope * rates[row.second]))
                for row in self.rows
            ]
        )

    @property
    def bounds(self) -> np.ndarray:
        return np.asarray([row.bound for row in self.rows])

    def counts(
        self, decisions: np.ndarray, y: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None
    ) -> list[Count]:
        """Hits and rows of each rate, or their weights."""
        found = []
        for base in self.bases:
            if base.rate == "mean_score":
                above, below = base.mask * probabilities[:, base.label], base.mask.astype(float)
            else:
                above, below = base.hard(decisions, y)
            each = np.ones(len(y)) if weights is None else weights
            squares = None if base.counts else float(above**2 @ each)
            found.append(Count(float(above @ each), float(below @ each), squares))
        return found


def planned(constraints: dict[str, tuple[str, Limit]], columns: Columns, y: np.ndarray, classes: Sequence[Any]) -> Plan:
    """Constraints in terms of rates; `y`: numbers of the classes."""
    bases: list[Base] = []
    rows: list[Row] = []
    for name, (rate, limit) in constraints.items():
        if isinstance(limit, OnRows):
            base, more = _of_function(name, limit, y, classes)
            rows.extend(row._replace(first=len(bases)) for row in more)
            bases.append(base)
            continue
        inner = limit.limit if isinstance(limit, each) else limit
        words, chosen = columns.subset(inner.given)
        for label in _labels(name, rate, inner.label, classes):
            groups: Iterator[tuple[str, np.ndarray]] = iter([("", np.ones(len(y), bool))])
            if not isinstance(limit, at_least | at_most):
                groups = columns.groups(limit.by)
            first = len(bases)
            for group, mask in groups:
                title = ", ".join(word for word in (group, words) if word)
                bases.append(Base(rate, label, title, mask & chosen))
                _check_defined(bases[-1], y, classes)
            rows.extend(rows_of(name, inner, range(first, len(bases))))
    return Plan(tuple(bases), tuple(rows), len(classes))


def _of_function(name: str, limit: OnRows, y: np.ndarray, classes: Sequence[Any]) -> tuple[Base, list[Row]]:
    """A mean of fun(y, decision): what it is for each decision, and its bounds, in units of its range."""
    names = np.asarray(classes)
    columns = [np.asarray(limit.fun(names[y], np.full(len(y), one)), float) for one in names]
    table = np.stack(columns, axis=-1)
    if table.shape != (len(y), len(names)) or not np.isfinite(table).all():
        raise ValueError(f"constraints[{name!r}]: fun(y, decision) must give one finite number a row.")
    low, width = float(table.min()), float(np.ptp(table)) or 1.0
    rows = []
    for sign, bound in ((-1, limit.low), (1, limit.high)):
        share = (bound - low) / width
        if sign * share < min(sign, 0):
            raise ValueError(
                f"constraints[{name!r}]: fun is between {low:g} and {low + width:g}: nothing can meet {bound:g}."
            )
        if sign * share < max(sign, 0):  # else every decision meets it
            rows.append(Row(name, 0, None, sign, 0.0, sign * share))
    return Base(name, -1, "", np.ones(len(y), bool), (table - low) / width, low, width), rows


def _labels(name: str, rate: str, label: Any, classes: Sequence[Any]) -> list[int]:
    if rate not in LABELLED:
        return [-1]
    if label is None:
        return [1] if len(classes) == 2 else list(range(len(classes)))
    found = [i for i, known in enumerate(classes) if known == label]
    if not found:
        raise ValueError(f"constraints[{name!r}]: label={label!r} is none of the classes {list(classes)}.")
    return found


def rows_of(name: str, limit: Any, numbers: range) -> Iterator[Row]:
    if isinstance(limit, at_least):
        yield from (Row(name, i, None, -1, 0.0, -limit.bound) for i in numbers)
    elif isinstance(limit, at_most):
        yield from (Row(name, i, None, 1, 0.0, limit.bound) for i in numbers)
    else:
        pairs = [(i, j) for i in numbers for j in numbers if i != j]
        if isinstance(limit, gap):
            yield from (Row(name, i, j, 1, 1.0, limit.bound) for i, j in pairs)
        else:
            yield from (Row(name, i, j, -1, limit.bound, 0.0) for i, j in pairs)


def _check_defined(base: Base, y: np.ndarray, classes: Sequence[Any]) -> None:
    where = f" of the group {base.group}" if base.group else ""
    parts = base.parts(y)
    counted = y == base.label if base.rate == "precision" else parts.v0
    if not np.any(base.mask * counted):
        kind = {"recall": "with", "miss": "with", "precision": "with", "false_alarm": "other than"}.get(base.rate)
        about = f" {kind} y = {classes[base.label]!r}" if kind else ""
        raise ValueError(
            f"there are no rows{where}{about}: {base.rate} is not defined there. Join groups, or leave this constraint "
            "out."
        )


def soft_parts(base: Base, y: np.ndarray, weights: np.ndarray, classes: int) -> tuple[np.ndarray, ...]:
    """(U, u0, V, v0): what is above the line is sum U q + u0, with q the soft decision for the second class of two, or
    for each of several; and V, v0 the same below."""
    parts, own = base.parts(y), base.mask * weights
    if base.table is not None:
        none = np.zeros((len(y), 1 if classes == 2 else classes))
        if classes == 2:
            return own[:, None] * np.diff(base.table, axis=1), own * base.table[:, 0], none, own
        return own[:, None] * base.table, np.zeros(len(y)), none, own
    if classes == 2:
        turn = 1.0 if base.label != 0 else -1.0
        shift = 0.0 if base.label != 0 else 1.0
        above = (turn * parts.a + parts.h * (2.0 * y - 1))[:, None]
        return (
            own[:, None] * above,
            own * (parts.a0 + shift * parts.a + parts.h * (1 - y)),
            own[:, None] * (turn * parts.v)[:, None],
            own * (parts.v0 + shift * parts.v),
        )
    above, below = np.zeros((len(y), classes)), np.zeros((len(y), classes))
    if base.label >= 0:
        above[:, base.label], below[:, base.label] = parts.a, parts.v
    above[np.arange(len(y)), y] += parts.h
    return own[:, None] * above, own * parts.a0, own[:, None] * below, own * parts.v0
