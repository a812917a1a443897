"""Which models and thresholds to try on the rows that were kept back, and in which order.

Every model is swept over its thresholds and judged on the rows that it was trained on (or on cross-fitted scores of
them). Its margin is the distance of the tightest constraint from its bound, in standard errors of the rows kept back.
A candidate is worth trying if no other has a larger margin and a lower objective: these, from the largest margin down,
are the sequence that is tested. Rows kept back have no say in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, softmax

from lariax.sklearn._rates import Plan

SAFEST, LEAST, STEP = 10.0, -1.0, 0.05
"""Margins to try, in standard errors: the first, the last, and the distance between two."""

DEAREST, NEAR = 2.0, 5.0
"""Candidates that cost more than so many times the cheapest one that meets the bounds, or misses them by so many
standard errors, and are nearer to a constant decision's cost than to its, are not taken for the sake of a promise: to
accept everybody keeps many a bound, and is of no use."""

MOST_THRESHOLDS = 800

SURE = (1.0, 2.0)
"""Standard errors by which trained models must cost less than a moved threshold to be taken for cheaper, and any model
with any threshold less than either."""


class Candidate(NamedTuple):
    """A model of the pool, with a threshold; 2.25 is three parts of model 2 and one of model 3."""

    model: float
    shift: float
    margin: float
    cost: float


@dataclass(frozen=True)
class Sweep:
    """Rates and costs of one model as its threshold moves."""

    shifts: np.ndarray  # (thresholds,)
    rates: np.ndarray  # (rates of the plan, thresholds)
    cost: np.ndarray  # (thresholds,)


def turning(plan: Plan) -> int | None:
    """The class whose score a threshold moves: the second of two; of several the one that all constraints are about."""
    if plan.classes == 2:
        return 1
    labels = {base.label for base in plan.bases if base.label >= 0}
    return labels.pop() if len(labels) == 1 else None


def decided(scores: np.ndarray) -> np.ndarray:
    """Numbers of the classes that scores decide for."""
    return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else np.argmax(scores, axis=1)


def probabilities(scores: np.ndarray) -> np.ndarray:
    if scores.shape[1] > 1:
        return np.asarray(softmax(scores, axis=1))
    p = expit(scores[:, 0])
    return np.stack([1 - p, p], axis=1)


def sweep(plan: Plan, y: np.ndarray, counted: np.ndarray, cost: np.ndarray, scores: np.ndarray, exact: bool) -> Sweep:
    """`cost`: (rows, classes), what each decision costs; `exact`: at every threshold rather than some hundreds."""
    label = turning(plan)
    if label is None:
        return unmoved(plan, y, counted, cost, scores)
    return _with_mean_scores(_sweep_one(plan, y, counted, cost, scores, label, exact), plan, counted, scores)


def unmoved(plan: Plan, y: np.ndarray, counted: np.ndarray, cost: np.ndarray, scores: np.ndarray) -> Sweep:
    """The model as it is, with its own threshold."""
    decisions = decided(scores)
    sums = [tuple(part @ counted for part in base.hard(decisions, y)) for base in plan.bases]
    rates = np.asarray([_ratio(above, below) for above, below in sums]).reshape(-1, 1)
    price = np.round(cost[np.arange(len(y)), decisions].sum(), 9)
    return _with_mean_scores(Sweep(np.zeros(1), rates, np.asarray([price])), plan, counted, scores)


def _with_mean_scores(found: Sweep, plan: Plan, counted: np.ndarray, scores: np.ndarray) -> Sweep:
    label = turning(plan)
    for b, base in enumerate(plan.bases):
        if base.rate == "mean_score":
            found.rates[b] = _mean_scores(base.label, base.mask * counted, scores, label, found.shifts)
    return found


def _ratio(above: Any, below: Any) -> np.ndarray:
    below = np.asarray(below, float)
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


def _sweep_one(
    plan: Plan, y: np.ndarray, counted: np.ndarray, cost: np.ndarray, scores: np.ndarray, label: int, exact: bool
) -> Sweep:
    n = len(y)
    if plan.classes == 2:
        z, other = scores[:, 0], np.zeros(n, int)
    else:
        rest = scores.copy()
        rest[:, label] = -np.inf
        z, other = scores[:, label] - rest.max(axis=1), np.argmax(rest, axis=1)
    order = np.argsort(-z, kind="stable")
    ordered = z[order]
    fresh = ordered[:-1] - ordered[1:] > 1e-9 * (1 + np.abs(ordered[1:]))
    places = np.concatenate([[0], 1 + np.flatnonzero(fresh), [n]])  # how many rows are above the threshold
    if not exact and len(places) > MOST_THRESHOLDS:
        places = places[np.unique(np.linspace(0, len(places) - 1, MOST_THRESHOLDS).astype(int))]
    edges = np.concatenate([[ordered[0] + 2], ordered, [ordered[-1] - 2]])
    shifts = (edges[places] + edges[places + 1]) / 2
    at_zero = int(np.sum(z > 0))
    places, shifts = np.append(places, at_zero), np.append(shifts, 0.0)

    def along(yes: np.ndarray, no: np.ndarray) -> np.ndarray:
        """Sums as rows cross over, from none above the threshold to all."""
        return no.sum() + np.concatenate([[0.0], np.cumsum((yes - no)[order])])[places]

    rates, own = [], np.full(n, label)
    for base in plan.bases:
        (above1, below1), (above0, below0) = base.hard(own, y), base.hard(other, y)
        rates.append(_ratio(along(above1 * counted, above0 * counted), along(below1 * counted, below0 * counted)))
    price = np.round(along(cost[:, label], cost[np.arange(n), other]), 9)
    return Sweep(shifts, np.reshape(rates, (len(plan.bases), len(places))), price)


def _mean_scores(
    which: int, weights: np.ndarray, scores: np.ndarray, label: int | None, shifts: np.ndarray
) -> np.ndarray:
    chosen = weights > 0
    weights, scores = weights[chosen] / weights.sum(), scores[chosen].copy()
    found = np.empty(len(shifts))
    for i, shift in enumerate(shifts):
        moved = scores.copy()
        if label is not None:
            moved[:, 0 if scores.shape[1] == 1 else label] -= shift
        found[i] = weights @ probabilities(moved)[:, which]
    return found


def deviations(plan: Plan, rates: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Standard errors of the rows of constraints, (rows, ...), for rates on so many rows each."""
    sizes = np.maximum(sizes.reshape(-1, *([1] * (rates.ndim - 1))), 1e-9)
    smooth = (rates * sizes + 1) / (sizes + 2)
    variances = smooth * (1 - smooth) / sizes
    return np.stack(
        [
            np.sqrt(variances[row.first] + (0 if row.second is None else row.slope**2 * variances[row.second]))
            for row in plan.rows
        ]
    )


def margins(plan: Plan, rates: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of the tightest constraint, in standard errors; minus infinity where a rate is not defined."""
    slack = plan.bounds.reshape(-1, *([1] * (rates.ndim - 1))) - plan.values(rates)
    found = np.min(slack / deviations(plan, rates, sizes), axis=0)
    return np.where(np.isnan(found), -np.inf, found)


class JudgedModels:
    """Every model of a pool at every threshold, as some rows see it: which of them to take for a margin.

    Among those that have the margin the cheapest is the best guess, and a lucky one. So costs are asked only once, for
    the line along which candidates are taken: the model without constraints, its threshold moved as far as it takes (if
    misses are what costs, the best that there is), or models with their own threshold, the least constrained that does.
    The first of these two is taken, unless the second or all others are cheaper by `SURE` standard errors. Along a line
    nothing is left to choose by but the margin.
    """

    def __init__(
        self,
        sweeps: Sequence[Sweep],
        margins: Sequence[np.ndarray],
        places: Sequence[float] | None = None,
        dearest: float = DEAREST,
        losses: Callable[[float, float], np.ndarray] | None = None,
        near_own: bool = True,
        level: float = 0.0,
        constants: Sequence[float] = (),
    ):
        """`places`: the models of the sweeps (None: one after another); `level`: the margin at which orders are
        compared; `constants`: the costs of deciding for one class always."""
        names = range(len(sweeps)) if places is None else places
        self.margin, self.cost = np.concatenate(margins), np.concatenate([one.cost for one in sweeps])
        self.shift = np.concatenate([one.shifts for one in sweeps])
        self.model = np.concatenate([np.full(len(one.shifts), i) for i, one in zip(names, sweeps, strict=True)])
        near = max(float(self.cost[self.margin >= min(-NEAR, float(self.margin.max()))].min()), 1e-300)
        useless = min(constants, default=near)
        affordable = self.cost <= max(dearest * near, (near + useless) / 2) + 1e-9
        self.margin = np.where(affordable, self.margin, -np.inf)
        self.safest = float(self.margin.max())
        self.cheapest = np.lexsort((np.abs(self.shift), -self.margin, self.cost))
        self.line = self.cheapest if losses is None else self._line(losses, near_own, level)

    def _line(self, losses: Callable[[float, float], np.ndarray], near_own: bool, level: float) -> np.ndarray:
        able = self.margin >= min(level, self.safest)
        plain = self.cheapest[self.model[self.cheapest] == 0]
        own = np.flatnonzero(self.shift == 0)
        own = own[np.argsort(self.model[own], kind="stable")]
        side = self.shift[plain[able[plain]][:1]]  # on which it is cheapest
        near = plain[np.argsort(np.abs(self.shift[plain]), kind="stable")]
        near = near[np.all(self.shift[near] * side[:, None] >= 0, axis=0)]
        lines = [line for line in ((near, own) if near_own else (plain,)) if able[line].any()]
        firsts = [int(line[able[line]][0]) for line in (*lines, self.cheapest)]
        best = len(lines)
        for number in reversed(range(len(lines))):  # from any to the simplest
            sure = SURE[1] if best == len(lines) else SURE[0]
            one, other = (losses(self.model[i].item(), float(self.shift[i])) for i in (firsts[number], firsts[best]))
            if self.cost[firsts[number]] - self.cost[firsts[best]] <= sure * np.linalg.norm(one - other):
                best = number
        return [*lines, self.cheapest][best]

    def at(self, level: float) -> Candidate:
        """The one to take for this margin, or for the largest that there is."""
        able = self.margin >= min(level, self.safest)
        line = self.line if able[self.line].any() else self.cheapest
        best = int(line[able[line]][0])
        model = self.model[best].item()
        return Candidate(model, float(self.shift[best]), float(self.margin[best]), float(self.cost[best]))

    def levels(self, safest: float = SAFEST) -> np.ndarray:
        first = min(safest, self.safest)
        return np.arange(first, min(LEAST, first) - STEP / 2, -STEP)

    def sequence(self) -> list[Candidate]:
        """Candidates from the safest to the cheapest; each costs less than all before it."""
        found: list[Candidate] = []
        for level in self.levels():
            one = self.at(level)
            if not found or one.cost < found[-1].cost:
                found.append(one)
        return found


def exactly(plan: Plan, sweeps: Sequence[Sweep]) -> tuple[Candidate, bool]:
    """The cheapest candidate that meets every bound on the rows of the sweeps, counted; else the one nearest to it."""
    options = []
    for i, one in enumerate(sweeps):
        worst = np.max(plan.values(one.rates) - plan.bounds[:, None], axis=0)
        worst = np.where(np.isnan(worst), np.inf, np.maximum(worst, 1e-12))
        best = np.lexsort((np.abs(one.shifts), one.cost, worst))[0]
        options.append((float(worst[best]), float(one.cost[best]), i, float(one.shifts[best])))
    worst, cost, model, shift = min(options)
    return Candidate(model, shift, 0.0 if worst <= 1e-12 else -worst, cost), worst <= 1e-12
