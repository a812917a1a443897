"""What people do today: with margins that they choose themselves, from their rows, and with margins of hindsight."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

from benchmarks.promises.data import Task

MARGINS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08)
"""In the units of the rate: a threshold, or a weight, is chosen for the bound with so much to spare."""

SHARES = (0.5, 0.35)
"""Of a gap, as the bound that ExponentiatedGradient is given: it bounds the distance from the rate of all, on either
side, so that half of the gap is what is asked for."""

TOLERANCES = (1.0, 0.75, 0.5, 0.35, 0.2)
"""The same for ThresholdOptimizer, which bounds the gap."""

OWN = "own margin"
"""The margin is the rival's own choice, for 95 %: the bootstrap's where it tunes on cross-validated scores, 1.645
standard errors where it does not."""

BOOTSTRAP, LEVEL = 200, 0.95

WEIGHTS = np.geomspace(0.1, 20, 12)

Predictor = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(features, groups) to (decisions, scores)"""


def value(task: Task, decisions: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Of the rate that is bounded; of a gap, the larger less the smaller."""
    if task.rate == "recall":
        return float(decisions[y == 1].mean())
    if task.rate == "false_alarm":
        return float(decisions[y == 0].mean())
    return float(abs(decisions[group == 1].mean() - decisions[group == 0].mean()))


def kept(task: Task, found: float, margin: float = 0.0) -> bool:
    bound = task.limit.bound
    return found >= bound + margin if task.rate == "recall" else found <= bound - margin


def rivals(task: Task, x: np.ndarray, y: np.ndarray, group: np.ndarray, seed: int) -> Iterator[tuple[str, Predictor]]:
    scaler = StandardScaler().fit(x)
    x = scaler.transform(x)
    yield from _thresholds(task, scaler, x, y, group, seed)
    yield from _reweighted(task, scaler, x, y, group, seed)
    if task.rate == "selection_rate":
        yield from _fairlearn(task, scaler, x, y, group, seed)


def _own_bounds(task: Task, decisions: np.ndarray, y: np.ndarray, group: np.ndarray, seed: int) -> np.ndarray:
    """What the rate is at worst, by the bootstrap of rows, for each column of decisions: a quantile of 95 %."""
    draws = np.random.default_rng(seed).multinomial(len(y), np.full(len(y), 1 / len(y)), BOOTSTRAP).astype(float)

    def rates(own: np.ndarray) -> np.ndarray:
        return np.asarray((draws[:, own] @ decisions[own]) / np.maximum(draws[:, own].sum(axis=1), 1)[:, None])

    if task.rate == "selection_rate":
        return np.quantile(np.abs(rates(group == 1) - rates(group == 0)), LEVEL, axis=0)
    return (
        np.quantile(rates(y == 1), 1 - LEVEL, axis=0) if task.rate == "recall" else np.quantile(rates(y == 0), LEVEL, 0)
    )


def _choices(task: Task, decisions: np.ndarray, y: Any, group: Any, seed: int) -> Iterator[tuple[str, int]]:
    """Of columns of cross-validated decisions the one with the most hits that keeps the bound: by each margin, and by
    the one that the rival chooses itself."""
    values = np.asarray([value(task, column, y, group) for column in decisions.T])
    hits = np.mean(decisions == y[:, None], axis=0)
    nearest = np.argmax(values) if task.rate == "recall" else np.argmin(values)  # where none keeps it
    ways = [(f"margin {margin:g}", values, margin) for margin in MARGINS]
    for name, seen, margin in [(OWN, _own_bounds(task, decisions, y, group, seed), 0.0), *ways]:
        able = np.asarray([kept(task, one, margin) for one in seen])
        yield name, int(np.argmax(np.where(able, hits, -1)) if able.any() else nearest)


def _thresholds(task: Task, scaler: Any, x: Any, y: Any, group: Any, seed: int) -> Iterator[tuple[str, Predictor]]:
    """Logistic regression on all rows; the threshold with the most hits of those that keep the bound on cross-validated
    scores."""
    plain = LogisticRegression(max_iter=500).fit(x, y)
    scores = cross_val_predict(LogisticRegression(max_iter=500), x, y, cv=5, method="decision_function")
    options = np.unique(np.quantile(scores, np.linspace(0, 1, 201)))
    options = np.concatenate([options[:1] - 1, options, options[-1:] + 1, [0.0]])
    for name, choice in _choices(task, (scores[:, None] > options).astype(float), y, group, seed):
        yield f"threshold, {name}", _of(plain, scaler, options[choice])


def _reweighted(task: Task, scaler: Any, x: Any, y: Any, group: Any, seed: int) -> Iterator[tuple[str, Predictor]]:
    """Class weights for a rate of one class: the one with the most hits that keeps the bound under cross-validation.
    For a gap, Kamiran and Calders' weights, which make group and label independent."""
    if task.rate == "selection_rate":
        weights = np.empty(len(y))
        for g in (0, 1):
            for label in (0, 1):
                own = (group == g) & (y == label)
                weights[own] = np.mean(group == g) * np.mean(y == label) / max(own.mean(), 1e-9)
        yield "reweighted", _of(LogisticRegression(max_iter=500).fit(x, y, sample_weight=weights), scaler)
        return
    models = [LogisticRegression(max_iter=500, class_weight={0: 1.0, 1: weight}) for weight in WEIGHTS]
    decisions = np.stack([cross_val_predict(model, x, y, cv=5) for model in models], axis=1).astype(float)
    for name, choice in _choices(task, decisions, y, group, seed):
        yield f"reweighted, {name}", _of(models[choice].fit(x, y), scaler)


def _of(model: Any, scaler: Any, threshold: float = 0.0) -> Predictor:
    def predict(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = model.decision_function(scaler.transform(x))
        return scores > threshold, scores

    return predict


def _fairlearn(task: Task, scaler: Any, x: Any, y: Any, group: Any, seed: int) -> Iterator[tuple[str, Predictor]]:
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient

    base = LogisticRegression(max_iter=500)
    spread = np.sqrt(sum(y.mean() * (1 - y.mean()) / max(np.sum(group == g), 1) for g in (0, 1)))
    own = max(task.limit.bound - 1.645 * spread, 0.01)
    for name, bound in [(OWN, own / 2), *((f"{share:g} of the bound", share * task.limit.bound) for share in SHARES)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reduced = ExponentiatedGradient(base, DemographicParity(difference_bound=bound))
            reduced.fit(x, y, sensitive_features=group)

        def predict(x: np.ndarray, group: np.ndarray, model: Any = reduced) -> tuple[np.ndarray, np.ndarray]:
            x = scaler.transform(x)
            return model.predict(x, random_state=seed) > 0, model._pmf_predict(x)[:, 1]

        yield f"ExponentiatedGradient, {name}", predict
    shares = [(f"{share:g} of the bound", share * task.limit.bound) for share in TOLERANCES]
    for name, bound in [(OWN, own), *shares, ("no gap", None)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = ThresholdOptimizer(estimator=base, predict_method="predict_proba", tol=bound)
            tuned.fit(x, y, sensitive_features=group)

        def by_group(x: np.ndarray, group: np.ndarray, model: Any = tuned) -> tuple[np.ndarray, np.ndarray]:
            x = scaler.transform(x)
            chances = model._pmf_predict(x, sensitive_features=group)[:, 1]
            return model.predict(x, sensitive_features=group, random_state=seed) > 0, chances

        yield f"ThresholdOptimizer, {name} (sees the group)", by_group
