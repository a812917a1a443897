"""The history of a run: the table that users see, and how it grows within bounds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from lariax.utils import needed_by

MOST_ROWS = 10_000
MOST_NUMBERS = 2**24  # in all rows of a run, where a row is long
MOST_TABLES = 32  # before they are joined
LEADING = ("iteration", "draws", "seconds", "objective", "feasibility", "stationarity", "constraints", "multipliers")


class History(eqx.Module):
    """A table with one row a record: iteration, draws, seconds, objective, feasibility, stationarity, constraints and
    multipliers by name, and what the method shows (step_size, penalty, ...). A column is `history["objective"]`, or
    `history["constraints"]["gap"]`; `to_pandas()` makes a flat table.

    The objective is measured on the batch of the recorded iteration. Constraints, feasibility and stationarity are the
    method's own estimates, from what it tracks; only a certificate says how far they can be trusted.

    >>> import jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> history = lx.solve(problem, jnp.zeros(2), iterations=100, record_every=50).history
    >>> history["iteration"].tolist(), history["constraints"]["sum"].shape
    ([50, 100], (2,))
    """

    columns: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.keys())}")
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """The names of the columns: time first, then results, then what the method shows."""
        return [n for n in LEADING if n in self.columns] + [n for n in self.columns if n not in LEADING]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.columns["iteration"]) if self.columns else 0

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; columns of vectors and of named things are spread out: `multipliers.gap`, `x[0]`."""
        with needed_by("to_pandas()"):
            import pandas as pd

        return pd.DataFrame(self._flat())

    def to_records(self) -> list[dict[str, float]]:
        """One dictionary of floats a record, with the names of `to_pandas`: what loggers of experiments take."""
        flat = {title: np.asarray(column, float).tolist() for title, column in self._flat().items()}
        return [dict(zip(flat, row, strict=True)) for row in zip(*flat.values(), strict=True)]

    def export(self, to: Any) -> None:
        """Every record into a logger of experiments, at the step of its iteration.

        `to`: a run of Weights & Biases, the module or a client's run of MLflow, a `SummaryWriter` of TensorBoard, or
        whatever else has `log_metrics(numbers, step=...)`, `add_scalar(name, number, step)` or `log(numbers,
        step=...)`. Names are those of `to_pandas`, with a dot before the number of an entry: `multipliers.gap.0`.

        >>> import jax.numpy as jnp, lariax as lx
        >>> class Logger:
        ...     def log(self, numbers, step):
        ...         print(step, round(numbers["constraints.sum"], 3))
        >>> problem = lx.Problem(
        ...     lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)}
        ... )
        >>> lx.solve(problem, jnp.zeros(2), iterations=100, record_every=100).history.export(Logger())
        100 1.0
        """
        for record in self.to_records():
            step = int(record["iteration"])
            numbers = {_plain_name(name): number for name, number in record.items()}
            if hasattr(to, "log_metrics"):
                to.log_metrics(numbers, step=step)
            elif hasattr(to, "add_scalar"):
                for name, number in numbers.items():
                    to.add_scalar(name, number, step)
            elif hasattr(to, "log"):
                to.log(numbers, step=step)
            else:
                raise TypeError(
                    "export takes a logger with log_metrics (MLflow), add_scalar (TensorBoard) or log (Weights & "
                    f"Biases), found {type(to).__name__}."
                )

    def _flat(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name in self.keys():
            column = self.columns[name]
            parts = (
                {f"{name}.{key}": part for key, part in column.items()} if isinstance(column, dict) else {name: column}
            )
            for title, part in parts.items():
                if np.ndim(part) == 1:
                    flat[title] = part
                else:
                    flat.update({f"{title}[{i}]": part[:, i] for i in range(part.shape[1])})
        return flat


def _plain_name(name: str) -> str:
    """In characters that every logger takes."""
    return re.sub(r"[^\w\-. :/]", "_", re.sub(r"\[(\d+)\]$", r".\1", name))


@dataclass(frozen=True, eq=False)
class Recorded:
    """The rows of history so far. It never changes: `added` makes another.

    Rows are evenly spaced. When there are too many, every second one goes, and so does every second one to come: the
    spacing doubles and the curves keep their shape. Which rows are left depends on how many there were, and on nothing
    else.
    """

    every: int  # iterations between two records,
    stride: int = 1  # one in so many of which is kept
    tables: tuple[PyTree, ...] = ()
    earlier_rows: int = 0  # of the run that this one continues; they have a spacing of their own
    newest: dict[str, Any] = field(default_factory=dict)  # the last record, kept or not

    def continued(self, every: int) -> Self:
        """For a run that goes on with another spacing."""
        whole = self.table
        return type(self)(every, tables=(whole,) if whole else (), earlier_rows=len(whole["iteration"]) if whole else 0)

    @property
    def spacing(self) -> int:
        """Iterations between two rows."""
        return self.every * self.stride

    @property
    def table(self) -> dict[str, Any]:
        """All rows in one; empty if there are none."""
        return _joined(self.tables)[0] if self.tables else {}

    @property
    def history(self) -> History:
        return History(self.table or {name: np.zeros(0) for name in LEADING[:4]})

    def added(self, rows: dict[str, Any], numbers: int) -> "Recorded":
        """With more records, of so many `numbers` each."""
        newest = jax.tree.map(lambda column: column[-1], rows)
        tables = (*self.tables, _rows_where(rows, rows["iteration"] % self.spacing == 0))
        joined = _joined(tables) if len(tables) > MOST_TABLES else tables
        return replace(self, tables=joined, newest=newest)._thinned(
            int(np.clip(MOST_NUMBERS // numbers, 16, MOST_ROWS))
        )

    def _thinned(self, limit: int) -> "Recorded":
        if sum(len(table["iteration"]) for table in self.tables) <= limit:
            return self
        table = self.table
        place = np.arange(len(table["iteration"]))
        kept = np.where(place < self.earlier_rows, place % 2 == 0, table["iteration"] % (2 * self.spacing) == 0)
        earlier = int(np.sum(kept[: self.earlier_rows]))
        thinner = replace(self, tables=(_rows_where(table, kept),), earlier_rows=earlier, stride=2 * self.stride)
        return thinner._thinned(limit)


def _rows_where(table: PyTree, kept: np.ndarray) -> PyTree:
    return table if kept.all() else jax.tree.map(lambda column: column[kept], table)


def _joined(tables: tuple[PyTree, ...]) -> tuple[PyTree]:
    return (jax.tree.map(lambda *columns: np.concatenate(columns), *tables),)
