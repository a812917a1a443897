"""Rows of history as they come off the device, and how their number is kept within bounds."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.loop._result import History
from lariax.loop._run import Records
from lariax.loop._start import Start

MOST_ROWS = 10_000
MOST_NUMBERS = 2**24  # in all rows of a run, where a row is long
MOST_TABLES = 32  # before they are joined


@dataclass(frozen=True, eq=False)
class Ledger:
    """The records so far, with the draws and seconds that the compiled loop does not know of. It never changes: `added`
    makes another.

    Rows are evenly spaced. When there are too many, every second one goes, and so does every second one to come: the
    spacing doubles and the curves keep their shape. Which rows are left depends on how many there were, and on nothing
    else.
    """

    tables: tuple[PyTree, ...]
    earlier_rows: int  # of the run that this one continues; they have a spacing of their own
    every: int  # iterations between two records,
    stride: int  # one in so many of which is kept
    seconds_before: float
    draws_per_iteration: int
    start: int
    numbers: int  # in a row, about
    newest: dict[str, Any] = field(default_factory=dict)  # the last record, kept or not

    @classmethod
    def of(cls, start: Start, every: int) -> Self:
        earlier = start.earlier
        rows = len(earlier.history) if earlier else 0
        return cls(
            tables=(dict(earlier.history.columns),) if earlier and rows else (),
            earlier_rows=rows,
            every=every,
            stride=1,
            seconds_before=float(earlier.seconds) if earlier else 0.0,
            draws_per_iteration=start.oracle.draws_per_iteration,
            start=start.settings.rhythm.start,
            numbers=2 * start.oracle.rows + 8,
        )

    @property
    def spacing(self) -> int:
        """Iterations between two rows."""
        return self.every * self.stride

    @property
    def capacity(self) -> int:
        """How many records one compiled call can return."""
        return int(np.clip(2**21 // self.numbers, 1, 1024))

    @property
    def limit(self) -> int:
        """How many rows there can be."""
        return int(np.clip(MOST_NUMBERS // self.numbers, 16, MOST_ROWS))

    def added(self, records: Records, first: int, last: int, began: float, ended: float, beside: int) -> "Ledger":
        """With the records of one call, which took the run from iteration `first` to `last`, and from `began` to
        `ended`; `beside`: draws by looks."""
        count = int(records.filled)
        if not count:
            return self
        rows = jax.tree.map(lambda column: np.asarray(column)[:count], records.rows)
        iteration = rows["iteration"].astype(np.int64)
        share = (iteration - first) / max(last - first, 1)
        rows["iteration"] = iteration
        rows["draws"] = (iteration + self.start) * self.draws_per_iteration + beside
        rows["seconds"] = self.seconds_before + began + share * (ended - began)
        newest = jax.tree.map(lambda column: column[-1], rows)
        tables = (*self.tables, _rows_where(rows, iteration % self.spacing == 0))
        return replace(self, tables=_joined(tables) if len(tables) > MOST_TABLES else tables, newest=newest)._thinned()

    def _thinned(self) -> "Ledger":
        if sum(len(table["iteration"]) for table in self.tables) <= self.limit:
            return self
        (table,) = _joined(self.tables)
        place = np.arange(len(table["iteration"]))
        kept = np.where(place < self.earlier_rows, place % 2 == 0, table["iteration"] % (2 * self.spacing) == 0)
        earlier = int(np.sum(kept[: self.earlier_rows]))
        thinner = replace(self, tables=(_rows_where(table, kept),), earlier_rows=earlier, stride=2 * self.stride)
        return thinner._thinned()

    def history(self) -> History:
        """The whole table."""
        if not self.tables:
            return History({name: np.zeros(0) for name in ("iteration", "draws", "seconds", "objective")})
        return History(_joined(self.tables)[0])


def _rows_where(table: PyTree, kept: np.ndarray) -> PyTree:
    return table if kept.all() else jax.tree.map(lambda column: column[kept], table)


def _joined(tables: tuple[PyTree, ...]) -> tuple[PyTree]:
    return (jax.tree.map(lambda *columns: np.concatenate(columns), *tables),)
