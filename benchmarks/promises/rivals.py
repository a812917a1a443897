"""What people do today, with a margin that is chosen in hindsight: of several margins the least that kept the bound."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

from benchmarks.promises.data import Task

MARGINS = (0.0, 0.01, 0.02, 0.03, 0.045, 0.06)
"""In the units of the rate: a threshold, or a weight, is chosen for the bound with so much to spare."""

SHARES = (1.0, 0.5)
"""Of a gap, as the bound that fairlearn is given."""

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
    plain = LogisticRegression(max_iter=500).fit(x, y)
    yield from _thresholds(task, scaler, plain, x, y, group)
    yield from _reweighted(task, scaler, x, y, group)
    if task.rate == "selection_rate":
        yield from _fairlearn(task, scaler, x, y, group, seed)


def _thresholds(task: Task, scaler: Any, plain: Any, x: Any, y: Any, group: Any) -> Iterator[tuple[str, Predictor]]:
    """Logistic regression on all rows; the threshold with the most hits of those that keep the bound on cross-validated
    scores."""
    scores = cross_val_predict(LogisticRegression(max_iter=500), x, y, cv=5, method="decision_function")
    options = np.unique(np.quantile(scores, np.linspace(0, 1, 201)))
    options = np.concatenate([options[:1] - 1, options, options[-1:] + 1])
    values = np.asarray([value(task, scores > t, y, group) for t in options])
    hits = np.asarray([np.mean((scores > t) == y) for t in options])
    for margin in MARGINS:
        able = np.asarray([kept(task, one, margin) for one in values])
        threshold = options[np.argmax(np.where(able, hits, -1))]

        def predict(x: np.ndarray, group: np.ndarray, t: float = threshold) -> tuple[np.ndarray, np.ndarray]:
            scores = plain.decision_function(scaler.transform(x))
            return scores > t, scores

        yield f"threshold, margin {margin:g}", predict


def _reweighted(task: Task, scaler: Any, x: Any, y: Any, group: Any) -> Iterator[tuple[str, Predictor]]:
    """Class weights for a rate of one class: the one with the most hits that keeps the bound under cross-validation.
    For a gap, Kamiran and Calders' weights, which make group and label independent."""
    if task.rate == "selection_rate":
        weights = np.empty(len(y))
        for g in (0, 1):
            for label in (0, 1):
                own = (group == g) & (y == label)
                weights[own] = np.mean(group == g) * np.mean(y == label) / max(own.mean(), 1e-9)
        model = LogisticRegression(max_iter=500).fit(x, y, sample_weight=weights)
        yield "reweighted", _of(model, scaler)
        return
    found = []
    for weight in WEIGHTS:
        model = LogisticRegression(max_iter=500, class_weight={0: 1.0, 1: weight})
        decisions = cross_val_predict(model, x, y, cv=5)
        found.append((model, value(task, decisions, y, group), np.mean(decisions == y)))
    for margin in MARGINS:
        able = [one for one in found if kept(task, one[1], margin)] or [found[-1 if task.rate == "recall" else 0]]
        best = max(able, key=lambda one: one[2])[0]
        yield f"reweighted, margin {margin:g}", _of(best.fit(x, y), scaler)


def _of(model: Any, scaler: Any) -> Predictor:
    def predict(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = model.decision_function(scaler.transform(x))
        return scores > 0, scores

    return predict


def _fairlearn(task: Task, scaler: Any, x: Any, y: Any, group: Any, seed: int) -> Iterator[tuple[str, Predictor]]:
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient

    for share in SHARES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reduced = ExponentiatedGradient(
                LogisticRegression(max_iter=500), DemographicParity(difference_bound=share * task.limit.bound)
            )
            reduced.fit(x, y, sensitive_features=group)

        def predict(x: np.ndarray, group: np.ndarray, model: Any = reduced) -> tuple[np.ndarray, np.ndarray]:
            x = scaler.transform(x)
            return model.predict(x, random_state=seed) > 0, model._pmf_predict(x)[:, 1]

        yield f"ExponentiatedGradient, {share:g} of the bound", predict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = ThresholdOptimizer(estimator=LogisticRegression(max_iter=500), predict_method="predict_proba")
        tuned.fit(x, y, sensitive_features=group)

    def by_group(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = scaler.transform(x)
        chances = tuned._pmf_predict(x, sensitive_features=group)[:, 1]
        return tuned.predict(x, sensitive_features=group, random_state=seed) > 0, chances

    yield "ThresholdOptimizer (sees the group)", by_group
