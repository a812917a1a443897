"""Pools of regressors, what rows that they did not see make of them, and the price of a bound on a mean of errors."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from lariax.sklearn._choose import DEAREST, JudgedModels, Sweep
from lariax.sklearn._exact import Count, lower, upper
from lariax.sklearn._fitted import Fitted
from lariax.sklearn._pool import FOLDS, JUDGES
from lariax.sklearn._rates import Plan
from lariax.sklearn._regression import Regression, counts, sweep_of
from lariax.sklearn._tradeoff import Point, bounds_to_try, named, with_bound


def part_of(problem: Regression, index: np.ndarray) -> Regression:
    return replace(
        problem,
        inputs=problem.inputs[index],
        y=problem.y[index],
        weights=problem.weights[index],
        plan=problem.plan.at(index),
    )


def shifted(model: Fitted, shift: float) -> Fitted:
    return replace(model, intercept=model.intercept - shift)


def targets_of(problem: Regression, sizes: np.ndarray, levels: tuple[float, ...]) -> list[np.ndarray | None]:
    """The bounds to train for: none, then tighter and tighter ones, by standard errors of a free model's means. For one
    bound on a coverage or a mean error, none: moving the intercept will do."""
    if len(problem.plan.rows) == 1 and problem.plan.bases[0].rate in ("coverage", "mean_error"):
        return [None]
    free = problem.path([None])[0]
    residuals = free.predict(problem.inputs) - problem.y
    seen = counts(problem.plan, residuals, problem.weights)
    variances = np.asarray([max(one.squares / one.rows - one.rate**2, 0) if one.squares else 0.25 for one in seen])
    variances = variances / np.maximum(sizes, 1)
    plan = problem.plan
    spread = np.sqrt([variances[r.first] + (0 if r.second is None else variances[r.second]) for r in plan.rows])
    share = np.asarray([plan.bases[row.first].rate == "coverage" and row.second is None for row in plan.rows])
    limit = np.where(share & (plan.bounds < 0), -1 + (1 + plan.bounds) / 4, np.where(share, plan.bounds / 4, -np.inf))
    return [None, *(np.maximum(plan.bounds - level * spread, limit) for level in levels)]


def cross_fitted(
    problem: Regression, targets: list[np.ndarray | None], random: np.random.RandomState
) -> list[np.ndarray]:
    """Residuals of each row by models that were trained without it."""
    fold = random.permutation(np.arange(len(problem.y)) % FOLDS)
    found = [np.zeros(len(problem.y)) for _ in targets]
    for number in range(FOLDS):
        outside = np.flatnonzero(fold == number)
        for one, model in zip(found, part_of(problem, np.flatnonzero(fold != number)).path(targets), strict=True):
            one[outside] = model.predict(problem.inputs[outside]) - problem.y[outside]
    return found


def judged(
    problem: Regression, targets: Sequence[np.ndarray | None], random: np.random.RandomState
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows, and residuals of them by models that did not see them; of networks on one part of the rows."""
    if not problem.hidden:
        return np.arange(len(problem.y)), cross_fitted(problem, list(targets), random)
    return apart(problem, targets, random)[1:]


def apart(
    problem: Regression, targets: Sequence[np.ndarray | None], random: np.random.RandomState
) -> tuple[list[Fitted], np.ndarray, list[np.ndarray]]:
    """Models of one part of the rows, the other part, and their residuals there."""
    split = np.split(random.permutation(len(problem.y)), [len(problem.y) // JUDGES])
    outside, inside = (np.sort(part) for part in split)
    models = part_of(problem, inside).path(targets)
    return models, outside, [model.predict(problem.inputs[outside]) - problem.y[outside] for model in models]


def judged_models(plan: Plan, seen: Sequence[tuple[Sweep, np.ndarray]]) -> JudgedModels:
    """From sweeps and their margins. What a mean must be may cost anything; two groups that are only to be alike are
    not made so by predictions that are of no use to either."""
    compared = all(row.second is not None for row in plan.rows)
    sweeps, margins = zip(*seen, strict=True)
    return JudgedModels(sweeps, margins, dearest=DEAREST if compared else np.inf)


def price_of_means(
    problem: Regression,
    name: str | None,
    bounds: Sequence[float] | None,
    confidence: float,
    random: np.random.RandomState,
) -> list[Point]:
    """As `_tradeoff.price`; the objective is the mean squared error, its interval Student's. Where moving the intercept
    is all that a bound takes, no model is trained under it, and there is no multiplier."""
    plan, error = problem.plan, 1 - confidence
    name, level = named(plan, name), float(-ndtri(error))
    tries = bounds_to_try(plan, name, bounds)
    plans = [with_bound(plan, name, bound) for bound in tries]
    sizes = np.asarray([float(base.mask.sum()) for base in plan.bases])
    targets: list[np.ndarray | None] = [None]
    targets += [targets_of(replace(problem, plan=one), sizes, (level,))[-1] for one in plans]
    models = problem.path(targets)
    rows, residuals = judged(problem, targets, random)
    points = []
    for number, (bound, one) in enumerate(zip(tries, plans, strict=True), 1):
        seen = [sweep_of(one.at(rows), each, problem.weights[rows], sizes) for each in residuals]
        found = judged_models(one, seen)
        chosen = found.at(level)
        squares = (residuals[int(chosen.model)] - chosen.shift) ** 2
        count = Count(float(squares.sum()), float(len(squares)), float(squares @ squares), bounded=False)
        prices = zip(plan.rows, models[number].multipliers, strict=True)
        slope = np.nan if targets[number] is None else sum(price for row, price in prices if row.name == name)
        ends = (lower(count, error / 2), upper(count, error / 2))
        points.append(Point(bound, count.rate, *ends, bool(found.safest >= level), float(slope)))
    return points
