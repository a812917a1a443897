"""What is clear before anything is trained: bounds that no decisions meet, and rows that are too few."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from lariax.sklearn._exact import ENDLESS, fewest
from lariax.sklearn._pool import room
from lariax.sklearn._rates import Base, Plan, Row

FEWEST = 100
"""Rows below which none are kept back: nothing worth promising could be shown."""


class Shortfall(NamedTuple):
    """Why there will be no promise."""

    status: str
    message: str
    rows_needed: int | None


UNREACHABLE = Shortfall(
    "out_of_reach",
    "No decisions meet all of these constraints on these rows, not even those of a classifier that knows every answer. "
    "Loosen one.",
    None,
)
IMPOSSIBLE = Shortfall(
    "not_shown", "A bound that leaves nothing to go wrong cannot be shown on any number of rows.", None
)


def too_few(plan: Plan, shares: Sequence[float], given: int, kept: int, error: float) -> Shortfall | None:
    """Whether so many rows are too few if all goes as well as it can; `shares`: the part of the rows that counts for
    each rate."""
    needed = FEWEST
    for row in plan.rows:
        for number in (row.first,) if row.second is None else (row.first, row.second):
            tested = max(shares[number] * kept, 1 / given) / given  # of a row
            needed = max(needed, int(np.ceil(fewest(room(row), error) / tested)))
    if needed >= ENDLESS:
        return IMPOSSIBLE
    if needed <= given:
        return None
    message = (
        "The rows are too few to show that the constraints hold on new data; the model may still keep them. About "
        f"{needed:,} rows would be needed at least, {given:,} were given."
    )
    return Shortfall("not_shown", message, needed)


def shares_of(plan: Plan, y: np.ndarray) -> list[float]:
    """The part of the rows that counts for each rate of decisions."""
    return [float(np.mean(base.mask * (base.parts(y).v0 if base.rate != "precision" else 1.0))) for base in plan.bases]


def unreachable(plan: Plan, y: np.ndarray, counted: np.ndarray) -> bool:
    """Whether no decisions whatsoever meet the bounds on these rows, not even random ones that know y.

    Rows that all rates count alike are one cell, and what matters of its decisions is the share for each class: a
    linear program. Left out of it are mean scores, the user's functions, and comparisons of two precisions.
    """
    known = [row for row in plan.rows if all(_is_linear(plan.bases[i], row) for i in _numbers(row))]
    if len({row.name for row in known}) < 2:  # one constraint alone can be met
        return False
    masks = np.stack([base.mask for base in plan.bases], axis=1)
    keys = np.column_stack([y, np.packbits(masks, axis=1)])
    _, first, cell = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    weights = np.bincount(cell.ravel(), counted)
    sums = [_sums(base.at(first), y[first], weights, plan.classes) for base in plan.bases]
    table, bounds = zip(*(_row(row, sums) for row in known), strict=True)
    if not np.isfinite(table).all():  # a rate that no row counts for
        return False
    once = np.kron(np.eye(len(first)), np.ones(plan.classes))
    found = scipy.optimize.linprog(
        np.zeros(once.shape[1]), np.stack(table), np.asarray(bounds) + 1e-9, once, np.ones(len(first)), (0, 1)
    )
    return bool(found.status == 2)


def _numbers(row: Row) -> tuple[int, ...]:
    return (row.first,) if row.second is None else (row.first, row.second)


def _is_linear(base: Base, row: Row) -> bool:
    return base.table is None and base.rate != "mean_score" and (base.rate != "precision" or row.second is None)


class _Sums(NamedTuple):
    """Above and below the line: numbers that shares of decisions are multiplied with, and constants."""

    above: np.ndarray
    above0: float
    below: np.ndarray
    below0: float


def _sums(base: Base, y: np.ndarray, weights: np.ndarray, classes: int) -> _Sums:
    parts, own = base.parts(y), base.mask * weights
    above, below = np.zeros((len(y), classes)), np.zeros((len(y), classes))
    if base.label >= 0:
        above[:, base.label], below[:, base.label] = parts.a, parts.v
    above[np.arange(len(y)), y] += parts.h
    above, below = own[:, None] * above, own[:, None] * below
    return _Sums(above.ravel(), float(own @ parts.a0), below.ravel(), float(own @ parts.v0))


def _row(row: Row, sums: Sequence[_Sums]) -> tuple[np.ndarray, float]:
    """Coefficients and the bound of  sign (rate - slope rate) <= bound,  times what is below the line."""
    one = sums[row.first]
    if row.second is None:
        return row.sign * one.above - row.bound * one.below, row.bound * one.below0 - row.sign * one.above0
    other = sums[row.second]
    slope = row.sign * (one.above / one.below0 - row.slope * other.above / other.below0)
    constant = row.sign * (one.above0 / one.below0 - row.slope * other.above0 / other.below0)
    return slope, row.bound - constant
