"""Models for several margins, and what rows that they did not see make of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from lariax.sklearn._choose import JudgedModels, Sweep, decided, deviations, margins, sweep, turning, unmoved
from lariax.sklearn._rates import Base, Plan, Row
from lariax.sklearn._train import Rows

FOLDS, JUDGES = 5, 4
"""Parts of the rows for cross-fitting; and of how many one judges models that flatter themselves."""

STEPS = 8
"""From one linear model that was trained to the next, so that margins are some hundredths of a standard error apart."""


class Model(Protocol):
    """What a trainer makes: scores of two classes in one column, of several in one each."""

    @property
    def multipliers(self) -> np.ndarray: ...

    @property
    def values(self) -> np.ndarray: ...

    @property
    def loss(self) -> float: ...

    @property
    def iterations(self) -> int: ...

    def scores(self, inputs: Any) -> np.ndarray: ...

    def shifted(self, label: int, shift: float) -> Any: ...


class Trainer(Protocol):
    """
    Attributes:
        levels: margins that models are trained for, in standard errors of the rows kept back.
        flatters: whether models look much better on the rows that they were trained on, however many.
        steps: from one model to the next: more than 1 if models between two can be made of them (`mixed`).
    """

    @property
    def levels(self) -> tuple[float, ...]: ...

    @property
    def flatters(self) -> bool: ...

    @property
    def steps(self) -> int: ...

    def path(self, rows: Rows, plan: Plan, targets: Sequence[np.ndarray | None]) -> Sequence[Model]: ...


@dataclass(frozen=True)
class Asked:
    """What the estimator was asked for."""

    promise: str
    confidence: float
    kept: float | None  # a share of the rows; None: as many rows as there are decide
    objective: str  # "error" or "miss"


def costs(rows: Rows, plan: Plan, objective: str) -> np.ndarray:
    """(rows, classes): errors, or misses alone (and of equally many the fewer false alarms)."""
    wrong = rows.weights[:, None] * (np.arange(plan.classes) != rows.y[:, None])
    if objective == "miss":
        return wrong * np.where(rows.y == 1, 1.0, 1e-6)[:, None]
    return wrong


def sizes_of(plan: Plan, rows: Rows, kept: float) -> np.ndarray:
    """How many of the rows kept back count for each rate, about; of those that a precision counts, half."""
    counted = [base.mask * np.maximum(base.parts(rows.y).v0, 0.5 * base.parts(rows.y).v) for base in plan.bases]
    shares = [np.average(one, weights=rows.counted) for one in counted]
    return np.asarray(shares) * kept


def tightened(plan: Plan, rates: np.ndarray, sizes: np.ndarray, level: float) -> np.ndarray:
    """Bounds with a margin of so many standard errors, but never nearer to what cannot be than a quarter of the way
    (of a gap: a tenth)."""
    spread = deviations(plan, np.nan_to_num(rates, nan=0.5), sizes)
    found = []
    for row, deviation in zip(plan.rows, spread, strict=True):
        if row.second is None:
            nearest = row.bound - 0.75 * room(row)
        elif row.bound > 0:
            nearest = 0.1 * row.bound
        else:
            nearest = -0.9 * (1 - row.slope) * float(np.nan_to_num(rates[row.second], nan=0.5))
        found.append(max(row.bound - level * deviation, nearest))
    return np.asarray(found)


def targets_for(plan: Plan, rows: Rows, kept: float, levels: Sequence[float]) -> list[np.ndarray | None]:
    """The bounds to train for: none, then tighter and tighter ones."""
    rates = np.asarray([_guess(base, rows) for base in plan.bases])
    sizes = sizes_of(plan, rows, kept)
    return [None, *(tightened(plan, rates, sizes, level) for level in levels)]


def _guess(base: Base, rows: Rows) -> float:
    """About what a rate will be, before anything is trained: for the width of margins."""
    if base.rate in ("selection_rate", "coverage", "mean_score"):
        own = base.mask * rows.counted
        return float(np.average(rows.y == base.label, weights=own)) if own.any() else 0.5
    return 0.75 if base.rate in ("recall", "precision", "accuracy") else 0.25


def swept(rows: Rows, plan: Plan, scores: Sequence[np.ndarray], asked: Asked, exact: bool) -> list[Sweep]:
    cost = costs(rows, plan, asked.objective)
    return [sweep(plan, rows.y, rows.counted, cost, one, exact) for one in scores]


def judged_on(
    rows: Rows, plan: Plan, scores: Sequence[np.ndarray], asked: Asked, sizes: np.ndarray, steps: int
) -> JudgedModels:
    """Models at all thresholds, and those between them as they are."""
    sweeps = swept(rows, plan, scores, asked, False)
    cost, label, every = costs(rows, plan, asked.objective), turning(plan), np.arange(len(rows.y))
    places: list[float] = [*range(len(scores))]
    for place in np.arange(0, len(scores) - 1 + 1e-9, 1 / steps).tolist() if steps > 1 else []:
        if place != int(place):
            sweeps.append(unmoved(plan, rows.y, rows.counted, cost, scores_at(scores, place)))
            places.append(place)

    def losses(model: float, shift: float) -> np.ndarray:
        return cost[every, decided(moved(scores_at(scores, model), label, shift))]

    near_own = asked.objective == "error"  # of misses alone, the own threshold is not the best
    level = float(ndtri(asked.confidence))
    judged = [margins(plan, one.rates, sizes) for one in sweeps]
    constants = cost.sum(axis=0)[: 1 if asked.objective == "miss" else None].tolist()  # to miss nobody costs nothing
    return JudgedModels(sweeps, judged, places, losses=losses, near_own=near_own, level=level, constants=constants)


def scores_at(scores: Sequence[np.ndarray], place: float) -> np.ndarray:
    """Of a model, or of one between two."""
    number = int(place)
    share = place - number
    return scores[number] if not share else (1 - share) * scores[number] + share * scores[number + 1]


def model_at(models: Sequence[Any], place: float) -> Any:
    number = int(place)
    return models[number] if place == number else models[number].mixed(models[number + 1], place - number)


def moved(scores: np.ndarray, label: int | None, shift: float) -> np.ndarray:
    """With the score of one class less by `shift`."""
    if label is None:
        return scores
    found = scores.copy()
    found[:, 0 if found.shape[1] == 1 else label] -= shift
    return found


def cross_fitted(
    rows: Rows, plan: Plan, trainer: Trainer, targets: Sequence[np.ndarray | None], random: np.random.RandomState
) -> list[np.ndarray]:
    """Scores of each row by models that were trained without it."""
    outputs = 1 if plan.classes == 2 else plan.classes
    scores = [np.zeros((len(rows.y), outputs)) for _ in targets]
    for outside, models in by_folds(rows, plan, trainer, targets, random):
        for one, model in zip(scores, models, strict=True):
            one[outside] = model.scores(rows.inputs[outside])
    return scores


def by_folds(
    rows: Rows, plan: Plan, trainer: Trainer, targets: Sequence[np.ndarray | None], random: np.random.RandomState
) -> Iterator[tuple[np.ndarray, Sequence[Model]]]:
    """Of each fold the rows, and the models that were trained on all others."""
    fold = random.permutation(np.arange(len(rows.y)) % FOLDS)
    for number in range(FOLDS):
        inside = np.flatnonzero(fold != number)
        yield np.flatnonzero(fold == number), trainer.path(rows.at(inside), plan.at(inside), targets)


def room(row: Row) -> float:
    """The part of all answers that may go wrong."""
    if row.second is None:
        return 1.0 + row.bound if row.sign < 0 else row.bound
    return row.bound if row.slope == 1.0 and row.sign > 0 else 1 - row.slope
