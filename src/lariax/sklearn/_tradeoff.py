"""The price of a bound: what the objective would be for other bounds, from models that start at each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from lariax.sklearn._choose import decided, probabilities, turning
from lariax.sklearn._constraints import RATES
from lariax.sklearn._exact import Count, lower, upper
from lariax.sklearn._pool import (
    JUDGES,
    Asked,
    Trainer,
    cross_fitted,
    judged_on,
    moved,
    scores_at,
    sizes_of,
    tightened,
)
from lariax.sklearn._rates import Plan, Row
from lariax.sklearn._train import Rows
from lariax.utils import did_you_mean, needed_by

POINTS = 9


class FittedData(NamedTuple):
    """What a classifier was fitted on; not pickled with it."""

    rows: Rows
    plan: Plan
    trainer: Trainer
    asked: Asked


class Point(NamedTuple):
    """One bound: the objective of the model that would be taken, its interval, whether its rows show the bound with the
    confidence that is asked for, and the multiplier, which is the slope of the training loss in the bound."""

    bound: float
    objective: float
    low: float
    high: float
    shown: bool
    multiplier: float


def named(plan: Plan, name: str | None) -> str:
    """The constraint that is meant: the first, if none is named."""
    names = list(dict.fromkeys(row.name for row in plan.rows))
    if not names:
        raise ValueError("there are no constraints, so that no bound has a price.")
    if name is not None and name not in names:
        raise ValueError(f"there is no constraint {name!r}. {did_you_mean(name, names)}Found {', '.join(names)}.")
    name = names[0] if name is None else name
    kinds = {(row.sign, row.second is None) for row in plan.rows if row.name == name}
    if len(kinds) > 1:
        raise ValueError(f"{name!r} has two bounds, a lower and an upper one: their prices differ.")
    return name


def bound_of(plan: Plan, name: str) -> float:
    """The bound as the user gave it."""
    row = next(row for row in plan.rows if row.name == name)
    if row.second is not None and row.sign < 0:
        return row.slope
    base = plan.bases[row.first]
    return base.low + base.width * row.sign * row.bound


def _with_bound(plan: Plan, row: Row, bound: float) -> Row:
    if row.second is not None and row.sign < 0:
        return row._replace(slope=bound)
    base = plan.bases[row.first]
    return row._replace(bound=row.sign * (bound - base.low) / base.width)


def with_bound(plan: Plan, name: str, bound: float) -> Plan:
    """The same plan with another bound."""
    return replace(plan, rows=tuple(_with_bound(plan, row, bound) if row.name == name else row for row in plan.rows))


def bounds_to_try(plan: Plan, name: str, bounds: Sequence[float] | None) -> list[float]:
    """From the loosest to the tightest; by default around the one that was asked for, half way to what is trivial and
    half way to what cannot be."""
    row = next(row for row in plan.rows if row.name == name)
    high_is_loose = row.sign > 0
    if bounds is None:
        own, base = bound_of(plan, name), plan.bases[row.first]
        if base.rate not in RATES and (base.table is None or base.fun is not None) and own <= 0:
            raise ValueError(f"bounds around {own:g} could be any: say which ones to try.")
        is_share = base.rate in RATES or (base.table is not None and base.fun is None)
        ends = (base.low, base.low + base.width) if is_share else (0.0, np.inf)
        bounds = np.linspace(
            (own + ends[0]) / 2, min((own + ends[1]) / 2, 2 * own if own > 0 else np.inf), POINTS
        ).tolist()
    found = np.asarray(bounds, float).ravel()
    if not (len(found) and np.isfinite(found).all()):
        raise ValueError(f"bounds must be finite numbers, found {bounds!r}.")
    return sorted(set(found.tolist()), reverse=high_is_loose)


def price(
    seen: FittedData, name: str | None, bounds: Sequence[float] | None, random: np.random.RandomState
) -> list[Point]:
    """Models for all bounds, each from the one before, on all rows and fold by fold."""
    rows, plan, trainer, asked = seen
    name, error = named(plan, name), 1 - asked.confidence
    tries = bounds_to_try(plan, name, bounds)
    plans = [with_bound(plan, name, bound) for bound in tries]
    free = trainer.path(rows, plan, [None])[0]
    sizes = sizes_of(plan, rows, len(rows.y))
    rates = _rates(plan, rows, np.asarray(free.scores(rows.inputs)))
    level = float(-ndtri(error))
    targets = [None, *(tightened(one, rates, sizes, level) for one in plans)]
    models = trainer.path(rows, plan, targets)
    judged, scores = _judged(rows, plan, trainer, targets, random)
    points = []
    for bound, one, model in zip(tries, plans, models[1:], strict=True):
        found = judged_on(rows.at(judged), one.at(judged), scores, asked, sizes, trainer.steps)
        chosen = found.at(level)
        wrong = decided(moved(scores_at(scores, chosen.model), turning(plan), chosen.shift)) != rows.y[judged]
        count = _count(wrong, rows.y[judged], asked.objective)
        slope = sum(m for row, m in zip(plan.rows, model.multipliers, strict=True) if row.name == name)
        ends = (lower(count, error / 2), upper(count, error / 2))
        points.append(Point(bound, count.rate, *ends, bool(found.safest >= level), float(slope)))
    return points


def _rates(plan: Plan, rows: Rows, scores: np.ndarray) -> np.ndarray:
    return np.asarray([one.rate for one in plan.counts(decided(scores), rows.y, probabilities(scores))])


def _judged(
    rows: Rows, plan: Plan, trainer: Trainer, targets: Sequence[np.ndarray | None], random: np.random.RandomState
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows, and scores of them by models that did not see them."""
    if not trainer.flatters:
        return np.arange(len(rows.y)), cross_fitted(rows, plan, trainer, targets, random)
    judged, fitted = (np.sort(part) for part in np.split(random.permutation(len(rows.y)), [len(rows.y) // JUDGES]))
    models = trainer.path(rows.at(fitted), plan.at(fitted), targets)
    return judged, [np.asarray(one.scores(rows.inputs[judged])) for one in models]


def _count(wrong: np.ndarray, y: np.ndarray, objective: str) -> Count:
    own = wrong[y == 1] if objective == "miss" else wrong
    return Count(float(own.sum()), float(len(own)))


def frame_of(points: Sequence[Point]) -> Any:
    with needed_by("tradeoff"):
        import pandas as pd

    return pd.DataFrame([point._asdict() for point in points]).sort_values("bound", ignore_index=True)


def draw(frame: Any, names: Mapping[str, str], bound: float, ax: Any = None) -> Any:
    """The curve with its band; open circles where the rows cannot show the bound."""
    if ax is None:
        with needed_by("plot_tradeoff()"):
            import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(5, 3.5), layout="constrained")[1]
    ax.fill_between(frame["bound"], frame["low"], frame["high"], alpha=0.2, linewidth=0)
    ax.plot(frame["bound"], frame["objective"])
    for shown, face in ((True, None), (False, "white")):
        some = frame[frame["shown"] == shown]
        if some.empty:
            continue
        label = "can be promised" if shown else "too few rows to promise it"
        ax.scatter(some["bound"], some["objective"], color="C0", facecolor=face or "C0", zorder=3, label=label)
    ax.axvline(bound, color="grey", linestyle=":", linewidth=1, label="bound of this model")
    ax.set(xlabel=names["bound"], ylabel=names["objective"])
    ax.legend(frameon=False, fontsize="small")
    return ax
