"""From constraints to one model, and what can be said of it.

`promise="population"`: rows are split at random. On one part a pool of models is trained, under bounds tightened by
several margins, and a sequence of candidates (model and threshold) is laid down, from the safest to the cheapest
(`_choose.py`). On the other part, which nothing so far has seen, the candidates are tested in this order until one
fails; the last that passed is the model.

Why that is a promise: let H be the first candidate in the sequence that breaks a constraint in the population. A false
promise needs H to pass, as a test is made only if all before it passed. H passes only if each of its constraints is
shown, among them one that is broken, and that one is shown with a chance of at most `error` (`_exact.py`). So a
sequence has one chance to be wrong, however many candidates and constraints there are, and none is corrected for.

There are two such sequences, which share 1 - confidence as 4 to 1. The first begins where the expected cost is least,
given how likely its first test is to fail; the second, if that fails, with the safest candidate of all.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from lariax.sklearn._choose import (
    DEAREST,
    Candidate,
    decided,
    exactly,
    probabilities,
    turning,
)
from lariax.sklearn._exact import Count, factor_needed, shown
from lariax.sklearn._foreseen import UNREACHABLE, Shortfall, shares_of, too_few, unreachable
from lariax.sklearn._pool import (
    JUDGES,
    Asked,
    Trainer,
    by_folds,
    cross_fitted,
    judged_on,
    model_at,
    moved,
    scores_at,
    sizes_of,
    swept,
    targets_for,
)
from lariax.sklearn._rates import Plan, Row
from lariax.sklearn._train import Rows

AROUND = (0.0, 0.0, 1.0, 2.0, 0.0)
"""Margins where the training rows are what counts: for the difference of soft decisions from hard ones, which is known
better from model to model."""

FEW = 4000
"""Rows for training below which candidates are judged on cross-fitted scores: models of few rows flatter themselves."""

FIRST = 0.8
"""Of the chance to be wrong, for the first sequence."""

KEPT = 0.5
"""Of the rows, to test on. More rows would test sharper, and train worse."""

CROSSED = 5000
"""Rows below which the test is on cross-fitted decisions of all rows."""

SAFE, PART = 6.0, 0.4
"""There: the margin that is tried first, in standard errors, and the part of the chance to be wrong that tests have."""


class Tested(NamedTuple):
    """What was seen of the model that was taken."""

    counts: list[Count]
    rows: int
    population: bool
    exact: bool = True


@dataclass(frozen=True)
class Outcome:
    """One model and what is known of it."""

    model: Any
    shift: float
    status: str
    message: str
    rows_needed: int | None
    tested: Tested
    models: list[Any]
    multipliers: np.ndarray  # the prices of the bounds for a model that was trained under them
    told: bool = False  # what is missing was said before training


def settled(
    rows: Rows,
    plan: Plan,
    trainer: Trainer,
    asked: Asked,
    random: np.random.RandomState,
    tell: Callable[[str], None],
) -> Outcome:
    """Train, choose, test. What makes a promise impossible is told before."""
    n = len(rows.y)
    if not plan.rows:
        model = trainer.path(rows, plan, [None])[0]
        tested, said = Tested([], n, False), STATUSES["unconstrained"]
        return Outcome(model, 0.0, "unconstrained", said, None, tested, [model], np.zeros(0))
    crossed = asked.kept is None and n < CROSSED and not trainer.flatters
    kept = n if crossed else round(n * (asked.kept or KEPT))
    shortfall = _shortfall(rows, plan, asked, kept)
    if shortfall is not None:
        tell(shortfall.message)
        status, message, needed = shortfall
        done = _counted(rows, plan, trainer, asked)
        return replace(done, status=status, message=message, rows_needed=needed, told=True)
    if asked.promise == "training":
        return _counted(rows, plan, trainer, asked)
    if crossed:
        return _crossed(rows, plan, trainer, asked, random)
    shuffled = random.permutation(n)
    return _shown(rows, plan, trainer, asked, np.sort(shuffled[kept:]), np.sort(shuffled[:kept]), random)


STATUSES = {
    "promised": "Every constraint holds on new data like these rows, with the confidence that was asked for.",
    "met": "Every constraint holds on the training rows, counted. Nothing is said of new data.",
    "not_shown": "The rows are too few to show that the constraints hold on new data; the model may still keep them.",
    "out_of_reach": "No model that was found meets the constraints, not even on the rows that it was trained on.",
    "unconstrained": "There are no constraints.",
}
"""What `status_` can be."""


def _shortfall(rows: Rows, plan: Plan, asked: Asked, kept: int) -> Shortfall | None:
    training = asked.promise == "training"
    if unreachable(plan, rows.y, rows.counted if training else np.ones(len(rows.y))):
        return UNREACHABLE
    if training:
        return None
    return too_few(plan, shares_of(plan, rows.y), len(rows.y), kept, 1 - asked.confidence)


def _counted(rows: Rows, plan: Plan, trainer: Trainer, asked: Asked) -> Outcome:
    """The cheapest model that meets every bound on these rows."""
    targets = targets_for(plan, rows, float(rows.counted.sum()), AROUND)
    models = list(trainer.path(rows, plan, targets))
    candidate, met = exactly(plan, swept(rows, plan, [one.scores(rows.inputs) for one in models], asked, True))
    status = "met" if met else "out_of_reach"
    return _outcome(models, [candidate], 0, plan, rows, status, STATUSES[status])


def _outcome(
    models: list[Any],
    candidates: list[Candidate],
    which: int,
    plan: Plan,
    seen: Rows,
    status: str,
    message: str,
    population: bool = False,
    rows_needed: int | None = None,
) -> Outcome:
    candidate = candidates[which]
    label = turning(plan)
    model = model_at(models, candidate.model)
    price = model.multipliers if candidate.model else models[1].multipliers
    model = model if label is None else model.shifted(label, candidate.shift)
    tested = Tested(_counts(model, plan, seen, population), len(seen.y), population)
    return Outcome(model, candidate.shift, status, message, rows_needed, tested, models, price)


def _counts(model: Any, plan: Plan, rows: Rows, population: bool) -> list[Count]:
    """Of new data rows are counted as they come; of the training rows with their weights."""
    scores = model.scores(rows.inputs)
    return plan.counts(decided(scores), rows.y, probabilities(scores), None if population else rows.counted)


def pool(
    rows: Rows, plan: Plan, trainer: Trainer, asked: Asked, kept: int, random: np.random.RandomState
) -> tuple[list[Any], list[Candidate]]:
    """Models trained for several margins, and the sequence of candidates; from training rows alone."""
    targets = targets_for(plan, rows, kept, trainer.levels)
    fitted = judged = np.arange(len(rows.y))
    if trainer.flatters:  # a part of the training rows is for judging alone
        shuffled = random.permutation(len(rows.y))
        judged, fitted = (np.sort(part) for part in np.split(shuffled, [len(shuffled) // JUDGES]))
    models = list(trainer.path(rows.at(fitted), plan.at(fitted), targets))
    if trainer.flatters or len(rows.y) >= FEW:
        scores = [one.scores(rows.inputs[judged]) for one in models]
    else:
        scores = cross_fitted(rows, plan, trainer, targets, random)
    sizes = sizes_of(plan, rows, kept)
    return models, judged_on(rows.at(judged), plan.at(judged), scores, asked, sizes, trainer.steps).sequence()


def _shown(
    rows: Rows,
    plan: Plan,
    trainer: Trainer,
    asked: Asked,
    training: np.ndarray,
    kept: np.ndarray,
    random: np.random.RandomState,
) -> Outcome:
    """The cheapest candidate that the rows kept back show to keep every bound."""
    models, candidates = pool(rows.at(training), plan.at(training), trainer, asked, len(kept), random)
    seen, seen_plan = rows.at(kept), plan.at(kept)
    which = chosen(candidates, models, seen_plan, seen, 1 - asked.confidence, len(kept) / len(training))
    if which is not None:
        return _outcome(models, candidates, which, seen_plan, seen, "promised", STATUSES["promised"], True)
    status = "not_shown" if candidates[0].margin > 0 else "out_of_reach"
    needed = needed_rows(candidates[0], 1 - asked.confidence, len(kept), len(kept) / len(rows.y), False)
    message = STATUSES[status]
    if status == "not_shown":
        message += f" About {needed:,} rows would show it; {len(rows.y):,} were given, {len(kept):,} of them kept back."
    return _outcome(models, candidates, 0, seen_plan, seen, status, message, True, needed)


def chosen(
    candidates: Sequence[Candidate], models: Sequence[Any], plan: Plan, rows: Rows, error: float, noise: float
) -> int | None:
    """The last candidate that passed, of the first sequence or else of the second; `noise`: the variance of a margin as
    it was judged, in units of that on the rows kept back."""
    start = start_of(candidates, error, noise)
    passed = passing(candidates[start:], models, plan, rows, FIRST * error)
    if passed:
        return start + passed - 1
    passed = passing(candidates, models, plan, rows, (1 - FIRST) * error)
    return passed - 1 if passed else None


def start_of(candidates: Sequence[Candidate], error: float, noise: float) -> int:
    """Where the expected cost is least: the candidate's own if it passes, else that of the safest one, and if that
    fails too, the dearest that would be paid for a promise."""
    margin, cost = (np.asarray([getattr(one, name) for one in candidates]) for name in ("margin", "cost"))
    chance = ndtr((margin + ndtri(FIRST * error)) / np.sqrt(1 + noise))
    second = float(ndtr((margin[0] + ndtri((1 - FIRST) * error)) / np.sqrt(1 + noise)))
    failed = second * cost[0] + (1 - second) * DEAREST * cost[-1]
    return int(np.argmin(chance * cost + (1 - chance) * failed))


def _crossed(rows: Rows, plan: Plan, trainer: Trainer, asked: Asked, random: np.random.RandomState) -> Outcome:
    """Where rows are few, all of them train and all of them test: each is decided by models that did not see it, and
    the model is trained on all rows in the same way.

    The rows that test also chose the candidate. Along one order of candidates there is hardly any luck in that: on a
    fold, a choice by the other folds is as much too strict or too loose as these differ from it, and over the folds the
    differences cancel. The model of all rows is not the mean of those of the folds, though: where features take few
    values, decisions flip for many rows at once. Rates are moved by this difference, seen on all rows, which the
    models of the folds flatter as much as the other (P. Burman, 1989). What is left has the rest of the chance to be
    wrong (`PART`): the first candidate along the line that passes is a little lucky, and the line was chosen on the
    same rows. With two fifths of 5 % a test has 2.05 standard errors to spare instead of 1.64.

    So this is not exact. `tests/sklearn/test_promise.py` and `benchmarks/promises` count how often such promises are
    broken.
    """
    error, n, sizes = 1 - asked.confidence, len(rows.y), sizes_of(plan, rows, len(rows.y))
    targets = targets_for(plan, rows, n, trainer.levels)
    models = list(trainer.path(rows, plan, targets))
    folds = [(outside, scores_of(path, rows)) for outside, path in by_folds(rows, plan, trainer, targets, random)]
    scores = [np.zeros_like(one) for one in folds[0][1]]
    for outside, found in folds:
        for one, seen in zip(scores, found, strict=True):
            one[outside] = seen[outside]
    whole = judged_on(rows, plan, scores, asked, sizes, trainer.steps)
    levels, label = whole.levels(SAFE), turning(plan)
    final = scores_of(models, rows)

    def counted(scores: Sequence[np.ndarray], one: Candidate) -> list[Count]:
        stand_in = moved(scores_at(scores, one.model), label, one.shift)
        return plan.counts(decided(stand_in), rows.y, probabilities(stand_in))

    def counts_of(one: Candidate) -> list[Count]:
        """Across folds, moved by the difference of the model of all rows from those of the folds, on the same rows."""
        of_folds = [counted(found, one) for _, found in folds]
        means = np.mean([[count.rate for count in counts] for counts in of_folds], axis=0)
        pairs = zip(counted(scores, one), counted(final, one), means, strict=True)
        return [count.moved(own.rate - mean) for count, own, mean in pairs]

    def fails(level: float) -> bool:
        found = counts_of(whole.at(level))
        return not all(row_shown(row, found, PART * error) for row in plan.rows)

    passed = bisect_left(levels.tolist(), True, key=fails)  # margins fall, and with them what counts show
    promised = passed > 0
    chosen = whole.at(levels[passed - 1] if promised else np.inf)
    status = "promised" if promised else "not_shown" if chosen.margin > 0 else "out_of_reach"
    needed = None if promised else needed_rows(chosen, error, n, KEPT, True)
    message = STATUSES[status]
    if status == "not_shown":
        message += f" About {needed:,} rows would show it; {n:,} were given."
    outcome = _outcome(models, [chosen], 0, plan, rows, status, message, True, needed)
    return replace(outcome, tested=Tested(counts_of(chosen), n, True, False))


def scores_of(models: Sequence[Any], rows: Rows) -> list[np.ndarray]:
    return [model.scores(rows.inputs) for model in models]


def passing(candidates: Sequence[Candidate], models: Sequence[Any], plan: Plan, rows: Rows, error: float) -> int:
    """How many candidates pass before the first that does not."""
    label = turning(plan)
    for number, candidate in enumerate(candidates):
        model = model_at(models, candidate.model)
        if label is not None:
            model = model.shifted(label, candidate.shift)
        counts = _counts(model, plan, rows, True)
        if not all(row_shown(row, counts, error) for row in plan.rows):
            return number
    return len(candidates)


def row_shown(row: Row, counts: Sequence[Count], error: float) -> bool:
    second = None if row.second is None else counts[row.second]
    return shown(counts[row.first], second, row.sign, row.slope, row.bound, error)


def needed_rows(safest: Candidate, error: float, tested: int, kept: float, across_folds: bool) -> int | None:
    """Rows that would show it in four of five cases, if the safest candidate is as good as it seemed on as many rows as
    are tested now; `kept`: the share that is tested, where it is not across folds."""
    if across_folds:
        needed = tested * max(factor_needed(safest.margin, 1.0, PART * error), 1.1)
        if needed < CROSSED:
            return int(np.ceil(needed))
    needed = max(tested * max(factor_needed(safest.margin, 1.0, FIRST * error), 1.1) / kept, CROSSED * across_folds)
    return int(np.ceil(needed)) if np.isfinite(needed) else None
