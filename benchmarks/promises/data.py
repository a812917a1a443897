"""Tables, and what is to be promised on them."""

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lariax.sklearn as ls
from lariax.gallery.fairness import people


@dataclass(frozen=True)
class Table:
    """A population: features, a label, a group of two."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray

    def at(self, index: np.ndarray) -> "Table":
        return Table(self.x[index], self.y[index], self.group[index])


@dataclass(frozen=True)
class Task:
    """One bound on one table, from so many rows."""

    table: str
    rows: int
    rate: str
    limit: Any

    @property
    def name(self) -> str:
        words = {"at_least": "at least", "at_most": "at most", "gap": "gap at most"}[type(self.limit).__name__]
        return f"{self.table}, {self.rows} rows: {self.rate} {words} {self.limit.bound:g}"


TASKS = (
    Task("adult", 2000, "recall", ls.at_least(0.8)),
    Task("adult", 2000, "selection_rate", ls.gap(0.1, by="group")),
    Task("german", 300, "recall", ls.at_least(0.9)),
    Task("german", 300, "selection_rate", ls.gap(0.2, by="group")),
    Task("compas", 1000, "recall", ls.at_least(0.7)),
    Task("compas", 1000, "selection_rate", ls.gap(0.15, by="group")),
    Task("a9a", 2000, "false_alarm", ls.at_most(0.05)),
    Task("a9a", 2000, "selection_rate", ls.gap(0.1, by="group")),
)


@cache
def table(name: str, folder: Path) -> Table | None:
    """None where a file is not there."""
    if name in ("adult", "german"):
        ready = people("adult" if name == "adult" else "german_credit")
        return Table(ready.inputs[:, :-1], ready.labels.astype(int), ready.groups)
    found = folder / {"compas": "compas_two_years.csv.gz", "a9a": "a9a.npz"}[name]
    if not found.is_file():
        return None
    return _compas(found) if name == "compas" else _a9a(found)


def _compas(path: Path) -> Table:
    import pandas as pd

    with gzip.open(path, "rt") as file:
        frame = pd.read_csv(file)
    frame = frame[frame["propublica_filter"] == 1]
    columns = [c for c in ("age", "priors_count", "juv_fel_count", "juv_misd_count", "juv_other_count") if c in frame]
    words = [c for c in ("sex", "c_charge_degree") if c in frame]
    numbers = frame[columns].to_numpy(float)
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    x = np.column_stack([numbers, pd.get_dummies(frame[words]).to_numpy(float)])
    return Table(x, frame["two_year_recid"].to_numpy(int), (frame["race"] == "African-American").to_numpy(int))


def _a9a(path: Path) -> Table:
    import scipy.sparse

    with np.load(path, allow_pickle=False) as z:
        x = scipy.sparse.csr_matrix((z["data"], z["indices"].astype("int32"), z["indptr"]), shape=tuple(z["shape"]))
        y = (z["y"] > 0).astype(int)
    dense = x.toarray().astype(float)
    shares = dense.mean(axis=0)
    pairs = [  # the one pair of columns that is a yes-or-no question answered by a third and two thirds: the sex
        (i, j)
        for i in range(len(shares))
        for j in range(i + 1, len(shares))
        if 0.3 < shares[i] < 0.36 and np.all(dense[:, i] + dense[:, j] == 1)
    ]
    if len(pairs) != 1:
        raise ValueError(f"{path}: expected one pair of columns that tells the sexes apart, found {pairs}.")
    (i, j), *_ = pairs
    return Table(np.delete(dense, [i, j], axis=1), y, dense[:, i].astype(int))
