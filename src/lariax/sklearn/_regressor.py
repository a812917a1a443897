"""A regressor that keeps a bound."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lariax.sklearn._certificate import RateCertificate, certificate_of
from lariax.sklearn._choose import Candidate, Judged
from lariax.sklearn._classifier import PromiseError
from lariax.sklearn._constraints import ERRORS, checked
from lariax.sklearn._exact import Count
from lariax.sklearn._groups import Columns
from lariax.sklearn._linear import LinearTrainer
from lariax.sklearn._promise import FEW, FEWEST, FIRST, FOLDS, KEPT, STATUSES, Tested, needed_rows, row_shown, start_of
from lariax.sklearn._rates import Plan
from lariax.sklearn._regression import (
    OTHERS,
    Fitted,
    Regression,
    counts,
    planned_means,
    restrictions,
    sweep_of,
)
from lariax.utils import check_among, check_confidence, is_number, warn

LEVELS = LinearTrainer.levels


class ConstrainedRegressor(RegressorMixin, BaseEstimator):
    """Linear least squares under constraints on its errors, which hold on new data, and on its coefficients.

    Arguments:
        constraints: a dict. Means of errors: "mean_error" (of prediction - y), "absolute_error", "squared_error",
            "coverage" (the share of rows with y up to the prediction), each with `at_least`, `at_most`, `gap`, `each`.
            Coefficients: "coef" and "coef_sum" with `between`, "monotone" with `increasing` or `decreasing`; or any
            name with SciPy's `Bounds`, `LinearConstraint` or `NonlinearConstraint` on the vector of coefficients.
        promise: "population": means hold on new data with `confidence`, shown on rows that are kept back; the test is
            exact for coverage and Student's for the others, whose values have no bound. "training": on the training
            rows.
        confidence: of the promise.
        alpha: how much coefficients of scaled features are held back.
        kept: the share of the rows that is kept back.
        raise_on_failure: raise a `PromiseError` instead of a warning if the promise cannot be made.
        random_state: which rows are kept back.

    >>> import numpy as np, lariax.sklearn as ls
    >>> x = np.random.default_rng(0).normal(size=(2000, 3))
    >>> y = x @ [1.0, -0.2, 0.5] + np.random.default_rng(1).normal(size=2000)
    >>> limits = {"coverage": ls.at_least(0.9), "monotone": ls.increasing((1,))}
    >>> model = ls.ConstrainedRegressor(limits, random_state=0).fit(x, y)
    >>> print(model.status_, model.coef_[1] >= 0)
    promised True
    """

    def __init__(
        self,
        constraints: Mapping[str, Any] | None = None,
        promise: str = "population",
        confidence: float = 0.95,
        *,
        alpha: float = 1e-4,
        kept: float | None = None,
        raise_on_failure: bool = False,
        random_state: Any = None,
    ):
        self.constraints = constraints
        self.promise = promise
        self.confidence = confidence
        self.alpha = alpha
        self.kept = kept
        self.raise_on_failure = raise_on_failure
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None) -> Self:
        """Train on X and y, and test the promise on rows of them that are kept back; arguments as of
        `ConstrainedClassifier.fit`."""
        check_among("promise", self.promise, ("population", "training"))
        check_confidence(self.confidence)
        if not (is_number(self.alpha) and self.alpha >= 0):
            raise ValueError(f"alpha must be at least 0, found {self.alpha!r}.")
        named = dict(self.constraints or {})
        on_coefficients = [name for name, limit in named.items() if name in OTHERS or _is_scipys(limit)]
        means = checked(self.constraints, ERRORS, on_coefficients)
        frame = X
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        y = y.astype(float)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        names = getattr(self, "feature_names_in_", range(X.shape[1]))
        on_coef = restrictions({name: named[name] for name in on_coefficients}, list(names))
        plan = planned_means(means, Columns(sensitive_features, frame, y), len(y))
        used = np.flatnonzero(weight > 0)
        problem = Regression(X[used], y[used], weight[used], plan.at(used), on_coef, float(self.alpha))
        self._settle(problem)
        return self

    def _settle(self, problem: Regression) -> None:
        n, plan = len(problem.y), problem.plan
        kept = round(n * (self.kept or KEPT))
        random = check_random_state(self.random_state)
        if not plan.rows:
            model = problem.path([None])[0]
            bound = "met" if model.converged else "out_of_reach"
            status = bound if problem.restricted else "unconstrained"
            self._take(plan, model, status, [model], Tested([], n, False))
        elif self.promise == "training" or n < FEWEST:
            self._on_training_rows(problem, short=self.promise != "training")
        else:
            shuffled = random.permutation(n)
            self._on_kept_rows(problem, np.sort(shuffled[kept:]), np.sort(shuffled[:kept]), random)

    def _on_training_rows(self, problem: Regression, short: bool) -> None:
        plan = problem.plan
        sizes = np.asarray([base.mask @ problem.weights for base in plan.bases])
        models = problem.path(_targets(problem, sizes, LEVELS[:3]))
        residuals = [model.predict(problem.inputs) - problem.y for model in models]
        options = []
        for number, one in enumerate(residuals):
            swept, margin = sweep_of(plan, one, problem.weights, sizes)
            for shift, m, cost in zip(swept.shifts, margin, swept.cost, strict=True):
                options.append((max(-float(m), 1e-9), float(cost), number, float(shift)))
        worst, cost, number, shift = min(options)
        model = _shifted(models[number], shift)
        seen = counts(plan, model.predict(problem.inputs) - problem.y, problem.weights)
        status = "met" if worst <= 1e-9 else "out_of_reach"
        if short:
            status = "not_shown"
        self._take(plan, model, status, models, Tested(seen, len(problem.y), False), FEWEST if short else None)

    def _on_kept_rows(
        self, problem: Regression, training: np.ndarray, kept: np.ndarray, random: np.random.RandomState
    ) -> None:
        own, rest = _part(problem, training), _part(problem, kept)
        sizes = np.asarray([base.mask.mean() * len(kept) for base in own.plan.bases])
        targets = _targets(own, sizes, LEVELS)
        models = own.path(targets)
        judged = _cross_fitted(own, targets, random) if len(training) < FEW else None
        residuals = judged or [model.predict(own.inputs) - own.y for model in models]
        swept = [sweep_of(own.plan, one, own.weights, sizes) for one in residuals]
        candidates = Judged([one for one, _ in swept], [margin for _, margin in swept], np.inf).sequence()
        error, plan = 1 - self.confidence, rest.plan

        def seen_of(candidate: Candidate) -> list[Count]:
            model = _shifted(models[candidate.model], candidate.shift)
            return counts(plan, model.predict(rest.inputs) - rest.y, np.ones(len(rest.y)))

        def passing(some: list[Candidate], level: float) -> int:
            for number, candidate in enumerate(some):
                if not all(row_shown(row, seen_of(candidate), level) for row in plan.rows):
                    return number
            return len(some)

        start = start_of(candidates, error, len(kept) / len(training))
        passed = passing(candidates[start:], FIRST * error)
        which = start + passed - 1 if passed else passing(candidates, (1 - FIRST) * error) - 1
        chosen = candidates[max(which, 0)]
        status = "promised" if which >= 0 else "not_shown" if candidates[0].margin > 0 else "out_of_reach"
        needed = None if which >= 0 else needed_rows(candidates[0], error, len(problem.y))
        tested = Tested(seen_of(chosen), len(kept), True)
        self._take(plan, _shifted(models[chosen.model], chosen.shift), status, models, tested, needed)

    def _take(
        self, plan: Plan, model: Fitted, status: str, models: list[Fitted], tested: Tested, needed: int | None = None
    ) -> None:
        self.coef_, self.intercept_ = model.coef, model.intercept
        self.status_, self.rows_needed_ = status, needed
        self.message_ = STATUSES[status] + (f" About {needed:,} rows would show it." if needed else "")
        holds = status in ("promised", "met")
        self.certificate_: RateCertificate = certificate_of(plan, tested, (), self.confidence, holds)
        names = dict.fromkeys(row.name for row in plan.rows)
        self.multipliers_ = {
            name: model.multipliers[[i for i, row in enumerate(plan.rows) if row.name == name]] for name in names
        }
        self.history_ = {
            "loss": np.asarray([one.loss for one in models]),
            "iterations": np.asarray([one.iterations for one in models]),
        }
        self.n_iter_ = max(1, sum(one.iterations for one in models))
        failed = status in ("not_shown", "out_of_reach") or not model.converged
        if failed:
            message = self.message_ if model.converged else f"{self.message_} {STUCK}"
            if self.raise_on_failure:
                raise PromiseError(message)
            warn(message)

    def predict(self, X: Any) -> np.ndarray:
        """X @ coef_ + intercept_"""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_ + self.intercept_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


STUCK = "No coefficients were found that meet every constraint on them: loosen one."


def _is_scipys(limit: Any) -> bool:
    import scipy.optimize as so

    one = limit[0] if isinstance(limit, list) and limit else limit
    return isinstance(one, so.Bounds | so.LinearConstraint | so.NonlinearConstraint)


def _part(problem: Regression, index: np.ndarray) -> Regression:
    return replace(
        problem,
        inputs=problem.inputs[index],
        y=problem.y[index],
        weights=problem.weights[index],
        plan=problem.plan.at(index),
    )


def _shifted(model: Fitted, shift: float) -> Fitted:
    return replace(model, intercept=model.intercept - shift)


def _targets(problem: Regression, sizes: np.ndarray, levels: tuple[float, ...]) -> list[np.ndarray | None]:
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


def _cross_fitted(
    problem: Regression, targets: list[np.ndarray | None], random: np.random.RandomState
) -> list[np.ndarray]:
    """Residuals of each row by models that were trained without it."""
    fold = random.permutation(np.arange(len(problem.y)) % FOLDS)
    found = [np.zeros(len(problem.y)) for _ in targets]
    for number in range(FOLDS):
        outside = np.flatnonzero(fold == number)
        for one, model in zip(found, _part(problem, np.flatnonzero(fold != number)).path(targets), strict=True):
            one[outside] = model.predict(problem.inputs[outside]) - problem.y[outside]
    return found
