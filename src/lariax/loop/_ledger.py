"""Rows of history as they come off the device."""

from typing import Any

import jax
import numpy as np

from lariax.loop._result import History, Result
from lariax.loop._run import Records


class Ledger:
    """Collects records, with the draws and seconds that the compiled loop does not know of."""

    def __init__(self, earlier: Result | None, draws_per_iteration: int, start: int, rows: int):
        self._tables = [dict(earlier.history.columns)] if earlier and len(earlier.history) else []
        self._seconds_before = earlier.seconds if earlier else 0.0
        self._draws_per_iteration, self._start = draws_per_iteration, start
        self.capacity = int(np.clip(2**21 // (2 * rows + 8), 1, 1024))  # rows of history in one compiled call

    def add(self, records: Records, first: int, last: int, began: float, ended: float, beside: int) -> None:
        """The rows of one call, which took the run from iteration `first` to `last`, with `beside` draws by looks."""
        count = int(records.filled)
        if not count:
            return
        rows = jax.tree.map(lambda column: np.asarray(column)[:count], records.rows)
        iteration = rows["iteration"].astype(np.int64)
        share = (iteration - first) / max(last - first, 1)
        rows["iteration"] = iteration
        rows["draws"] = (iteration + self._start) * self._draws_per_iteration + beside
        rows["seconds"] = self._seconds_before + began + share * (ended - began)
        self._tables.append(rows)

    @property
    def newest(self) -> dict[str, Any]:
        """The last row."""
        return jax.tree.map(lambda column: column[-1], self._tables[-1]) if self._tables else {}

    def history(self) -> History:
        """The whole table."""
        if not self._tables:
            return History({name: np.zeros(0) for name in ("iteration", "draws", "seconds", "objective")})
        return History(jax.tree.map(lambda *columns: np.concatenate(columns), *self._tables))
