"""Tables of people: the ones that come with Lariax, others from a CSV file, and how their columns become features."""

import csv
import gzip
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.problem import Dataset

Table = Mapping[str, np.ndarray]
"""Columns by name: numbers, or words."""

MISSING = "?"
RARE = 0.01
"""Words in less than this share of the training rows have no indicator."""

SKEWED = 10.0
"""A non-negative column whose largest training value is so many standard deviations from the mean is taken as
log(1 + value)."""


def embedded(name: str) -> dict[str, np.ndarray]:
    """A table that comes with the package: "adult" or "german_credit"."""
    with resources.files("lariax.gallery").joinpath("data", f"{name}.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return {
            column: stored[f"{column}.words"][stored[column]] if f"{column}.words" in stored else stored[column]
            for column in stored
            if not column.endswith(".words")
        }


def read_csv(path: str | Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file with a header, gzipped or not. Columns in which every entry is a number are numbers."""
    path = found(path, "a CSV file with a header")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    uneven = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if uneven is not None:
        raise ValueError(
            f"{path}: row {uneven + 2} has {len(rows[uneven])} entries, the header has {len(header)}. Mend the file."
        )
    return {name: _column(list(values)) for name, values in zip(header, zip(*rows, strict=True), strict=True)}


def dataset(rows: PyTree) -> Dataset:
    """Rows in the precision that JAX is in: tables are made ready in float64, whoever runs them."""
    return Dataset(jax.tree.map(jnp.asarray, rows))


def found(path: str | Path, what: str) -> Path:
    """The path, if there is a file."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; expected {what}. Give its path.")
    return path


def _column(values: list[str]) -> np.ndarray:
    try:
        return np.asarray([float(value) for value in values])
    except ValueError:
        return np.asarray([value or MISSING for value in values])


@dataclass(frozen=True)
class People:
    """A table made ready for a model.

    Attributes:
        inputs: (rows, d): numbers standardised (skewed ones on a logarithmic scale), words as indicators (rare ones
            without), and a last column of ones. Means, deviations and what is rare come from the training rows alone.
        names: of the columns of `inputs`.
        labels: 0 or 1.
        groups: 0 or 1, which of the two groups a row belongs to; `group_names` says which is which.
        training: which rows are for training; the others are for testing.
    """

    inputs: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray
    groups: np.ndarray
    group_names: tuple[str, str]
    training: np.ndarray


def prepared(
    table: Table, *, target: str, sensitive: str, group: str | float, without: Collection[str], training: np.ndarray
) -> People:
    """Group 1 is where the column `sensitive` is `group` (from that number on, for numbers); group 0 is everybody
    else. Neither the target nor the sensitive column nor those in `without` become features."""
    column = table[sensitive]
    if column.dtype.kind == "U":
        member, names = column == group, (f"not {group}", str(group))
        if len(np.unique(column)) == 2:
            names = (str(next(word for word in np.unique(column) if word != group)), str(group))
    else:
        member, names = column >= float(group), (f"{sensitive} < {group}", f"{sensitive} >= {group}")
    if not 0 < member[training].mean() < 1:
        words = ", ".join(map(str, np.unique(column)[:8]))
        raise ValueError(f"no training row, or every one, is in group {group!r} of {sensitive!r}; found {words}.")
    used = [name for name in table if name not in {target, sensitive, *without}]
    pieces = [_features(name, table[name], training) for name in used]
    inputs = np.concatenate([*(piece for _, piece in pieces), np.ones((len(training), 1))], axis=1)
    return People(
        inputs=inputs,
        names=(*(name for titles, _ in pieces for name in titles), "intercept"),
        labels=(table[target] > 0).astype(float),
        groups=member.astype(int),
        group_names=names,
        training=training,
    )


def _features(name: str, column: np.ndarray, training: np.ndarray) -> tuple[list[str], np.ndarray]:
    if column.dtype.kind != "U":
        values = column.astype(float)
        seen = values[training]
        if seen.min() >= 0 and seen.max() - seen.mean() > SKEWED * seen.std():
            values = np.log1p(values)
        mean, deviation = values[training].mean(), values[training].std()
        return [name], ((values - mean) / (deviation or 1.0))[:, None]
    words, counts = np.unique(column[training], return_counts=True)
    common = words[counts >= RARE * training.sum()]
    return [f"{name}={word}" for word in common], (column[:, None] == common).astype(float)
