"""A regressor that keeps a bound."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lariax.sklearn._batches import CheckedRows, columns_of, joined
from lariax.sklearn._certificate import RateCertificate, certificate_of
from lariax.sklearn._choose import Candidate
from lariax.sklearn._classifier import LEFT_BEHIND, PromiseError, check_hidden
from lariax.sklearn._constraints import ERRORS, Limit, OnRows, checked, on_rows
from lariax.sklearn._exact import Count
from lariax.sklearn._fitted import Fitted
from lariax.sklearn._foreseen import Shortfall, too_few
from lariax.sklearn._groups import Columns
from lariax.sklearn._linear import LinearTrainer, one_thread
from lariax.sklearn._means import apart, cross_fitted, judged_models, part_of, price_of_means, shifted, targets_of
from lariax.sklearn._promise import FEW, FIRST, KEPT, STATUSES, Tested, needed_rows, row_shown, start_of
from lariax.sklearn._rates import Plan
from lariax.sklearn._regression import (
    OTHERS,
    Regression,
    counts,
    planned_means,
    restrictions,
    sweep_of,
)
from lariax.sklearn._tradeoff import bound_of, draw, frame_of, named
from lariax.utils import check_among, check_confidence, helped_by, is_number, warn

LINEAR_LEVELS, NETWORK_LEVELS = LinearTrainer.levels, (0.0, 2.0, 5.0, 9.0)
"""Margins that models are trained for, in standard errors of the rows kept back."""


class ConstrainedRegressor(RegressorMixin, BaseEstimator):
    """Least squares under constraints on its errors, which hold on new data, and on its coefficients.

    Arguments:
        constraints: a dict. Means of errors: "mean_error" (of prediction - y), "absolute_error", "squared_error",
            "coverage" (the share of rows with y up to the prediction), each with `at_least`, `at_most`, `gap`, `each`.
            Coefficients: "coef" and "coef_sum" with `between`, "monotone" with `increasing` or `decreasing`; or any
            name with SciPy's `Bounds`, `LinearConstraint` or `NonlinearConstraint` on the vector of coefficients. A
            `NonlinearConstraint` whose function takes two arguments, fun(y, prediction), is on its mean over rows.
        hidden: widths of hidden layers; () is a linear model. A network takes constraints on means of errors only.
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
        hidden: tuple[int, ...] = (),
        promise: str = "population",
        confidence: float = 0.95,
        *,
        alpha: float = 1e-4,
        kept: float | None = None,
        raise_on_failure: bool = False,
        random_state: Any = None,
    ):
        self.constraints = constraints
        self.hidden = hidden
        self.promise = promise
        self.confidence = confidence
        self.alpha = alpha
        self.kept = kept
        self.raise_on_failure = raise_on_failure
        self.random_state = random_state

    @helped_by("promise")
    def fit(self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None) -> Self:
        """Train on X and y, and test the promise on rows of them that are kept back; arguments as of
        `ConstrainedClassifier.fit`."""
        means, frame = self._checked(), X
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.__dict__.pop("_batches", None)
        return self._fitted(means, X, y.astype(float), weight, Columns(sensitive_features, frame, y))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None) -> Self:
        """Fit on these rows and on all that came by `partial_fit` before, as `ConstrainedClassifier.partial_fit`."""
        means, frame = self._checked(), X
        batches = getattr(self, "_batches", [])
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True, reset=not batches)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        own = CheckedRows(X, y.astype(float), weight, columns_of(means, Columns(sensitive_features, frame, y)))
        rows = joined([*batches, own])
        self._batches = [rows]
        return self._fitted(means, rows.inputs, rows.y, rows.weights, Columns(rows.columns, None, rows.y))

    def tradeoff(self, bounds: Any = None, constraint: str | None = None) -> Any:
        """The price of a bound on a mean of errors: as `ConstrainedClassifier.tradeoff`, with the mean squared error as
        the objective."""
        random = check_random_state(self.random_state)
        with one_thread():
            return frame_of(price_of_means(self._known(), constraint, bounds, self.confidence, random))

    def plot_tradeoff(self, bounds: Any = None, constraint: str | None = None, ax: Any = None) -> Any:
        """`tradeoff` as a curve with its band; returns the axes."""
        plan = self._known().plan
        name = named(plan, constraint)
        words = {"bound": f"bound on {name}", "objective": "mean squared error"}
        return draw(self.tradeoff(bounds, name), words, bound_of(plan, name), ax)

    def _known(self) -> Regression:
        check_is_fitted(self, "status_")
        if not hasattr(self, "_seen"):
            raise ValueError(LEFT_BEHIND)
        return self._seen

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_seen"}

    def _checked(self) -> dict[str, tuple[str, Limit]]:
        """The constraints on means; everything else that the constructor was given is looked at too."""
        check_among("promise", self.promise, ("population", "training"))
        check_confidence(self.confidence)
        check_hidden(self.hidden)
        if not (is_number(self.alpha) and self.alpha >= 0):
            raise ValueError(f"alpha must be at least 0, found {self.alpha!r}.")
        means = checked(self.constraints, ERRORS, tuple(dict.fromkeys((*OTHERS, *self._on_coefficients()))))
        functions = [name for name, (_, limit) in means.items() if isinstance(limit, OnRows)]
        if self.hidden and (functions or self._on_coefficients()):
            name = [*functions, *self._on_coefficients()][0]
            raise ValueError(f"constraints[{name!r}] is for linear models. A network takes {', '.join(ERRORS)}.")
        return means

    def _on_coefficients(self) -> list[str]:
        named = dict(self.constraints or {}) if isinstance(self.constraints, Mapping) else {}
        return [name for name, limit in named.items() if name in OTHERS or _is_scipys(name, limit)]

    def _fitted(
        self, means: dict[str, tuple[str, Limit]], X: Any, y: np.ndarray, weight: np.ndarray, columns: Columns
    ) -> Self:
        names = getattr(self, "feature_names_in_", range(X.shape[1]))
        given = dict(self.constraints or {})
        on_coef = restrictions({name: given[name] for name in self._on_coefficients()}, list(names))
        used = np.flatnonzero(weight > 0)
        plan = planned_means(means, columns, y).at(used)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1)) if self.hidden else 0
        own = (tuple(self.hidden), seed)
        self._seen = Regression(X[used], y[used], weight[used], plan, on_coef, float(self.alpha), *own)
        with one_thread():
            self._settle(self._seen, random)
        return self

    def _settle(self, problem: Regression, random: np.random.RandomState) -> None:
        n, plan = len(problem.y), problem.plan
        kept = round(n * (self.kept or KEPT))
        if not plan.rows:
            model = problem.path([None])[0]
            bound = "met" if model.converged else "out_of_reach"
            status = bound if problem.restricted else "unconstrained"
            self._take(plan, model, status, [model], Tested([], n, False))
            return
        shortfall = None if self.promise == "training" else _shortfall(plan, n, kept, 1 - self.confidence)
        if shortfall is not None:
            self._tell(shortfall.message)  # before anything is trained
        if self.promise == "training" or shortfall is not None:
            self._on_training_rows(problem, shortfall)
        else:
            shuffled = random.permutation(n)
            self._on_kept_rows(problem, np.sort(shuffled[kept:]), np.sort(shuffled[:kept]), random)

    def _on_training_rows(self, problem: Regression, shortfall: Shortfall | None) -> None:
        plan = problem.plan
        sizes = np.asarray([base.mask @ problem.weights for base in plan.bases])
        models = problem.path(targets_of(problem, sizes, LINEAR_LEVELS[:3]))
        residuals = [model.predict(problem.inputs) - problem.y for model in models]
        options = []
        for number, one in enumerate(residuals):
            swept, margin = sweep_of(plan, one, problem.weights, sizes)
            for shift, m, cost in zip(swept.shifts, margin, swept.cost, strict=True):
                options.append((max(-float(m), 1e-9), float(cost), number, float(shift)))
        worst, cost, number, shift = min(options)
        model = shifted(models[number], shift)
        seen = counts(plan, model.predict(problem.inputs) - problem.y, problem.weights)
        status = "met" if worst <= 1e-9 else "out_of_reach"
        self._take(plan, model, status, models, Tested(seen, len(problem.y), False), shortfall=shortfall)

    def _on_kept_rows(
        self, problem: Regression, training: np.ndarray, kept: np.ndarray, random: np.random.RandomState
    ) -> None:
        own, rest = part_of(problem, training), part_of(problem, kept)
        sizes = np.asarray([base.mask.mean() * len(kept) for base in own.plan.bases])
        targets = targets_of(own, sizes, NETWORK_LEVELS if problem.hidden else LINEAR_LEVELS)
        rows = np.arange(len(own.y))
        if problem.hidden:
            models, rows, residuals = apart(own, targets, random)
        else:
            models = own.path(targets)
            few = len(training) < FEW
            residuals = cross_fitted(own, targets, random) if few else [m.predict(own.inputs) - own.y for m in models]
        swept = [sweep_of(own.plan.at(rows), one, own.weights[rows], sizes) for one in residuals]
        candidates = judged_models(own.plan, swept).sequence()
        error, plan = 1 - self.confidence, rest.plan

        def seen_of(candidate: Candidate) -> list[Count]:
            model = shifted(models[int(candidate.model)], candidate.shift)
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
        needed = None if which >= 0 else needed_rows(candidates[0], error, len(kept), len(kept) / len(problem.y), False)
        tested = Tested(seen_of(chosen), len(kept), True)
        self._take(plan, shifted(models[int(chosen.model)], chosen.shift), status, models, tested, needed)

    def _take(
        self,
        plan: Plan,
        model: Fitted,
        status: str,
        models: list[Fitted],
        tested: Tested,
        needed: int | None = None,
        shortfall: Shortfall | None = None,
    ) -> None:
        self._model, self.intercept_ = model, model.intercept
        self.__dict__.pop("coef_", None)
        if model.network is None:
            self.coef_ = model.coef
        message = STATUSES[status] + (f" About {needed:,} rows would show it." if needed else "")
        self.status_, self.message_, self.rows_needed_ = shortfall or (status, message, needed)
        holds = self.status_ in ("promised", "met")
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
        stuck = self._seen.restricted and not model.converged
        if stuck or (shortfall is None and status in ("not_shown", "out_of_reach")):
            self._tell(f"{self.message_} {STUCK}" if stuck else self.message_)

    def _tell(self, message: str) -> None:
        """That there is no promise."""
        if self.raise_on_failure:
            raise PromiseError(message)
        warn(message)

    def predict(self, X: Any) -> np.ndarray:
        """X @ coef_ + intercept_, or the network."""
        check_is_fitted(self, "status_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return self._model.predict(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _shortfall(plan: Plan, given: int, kept: int, error: float) -> Shortfall | None:
    """Rows that are too few for coverages, whose test is exact, or for anything."""
    coverages = tuple(
        row for row in plan.rows if plan.bases[row.first].rate == "coverage" and plan.bases[row.first].fun is None
    )
    shares = [float(np.mean(base.mask)) for base in plan.bases]
    return too_few(replace(plan, rows=coverages), shares, given, kept, error)


STUCK = "No coefficients were found that meet every constraint on them: loosen one."


def _is_scipys(name: str, limit: Any) -> bool:
    """On the coefficients; a function of two arguments is on the rows."""
    one = limit[0] if isinstance(limit, list) and limit else limit
    return isinstance(one, Bounds | LinearConstraint | NonlinearConstraint) and on_rows(name, one) is None
