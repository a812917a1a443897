"""Classifiers that keep a bound."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lariax.sklearn._batches import CheckedRows, columns_of, joined
from lariax.sklearn._certificate import RateCertificate, certificate_of
from lariax.sklearn._choose import decided, probabilities
from lariax.sklearn._constraints import Limit, at_most, checked
from lariax.sklearn._groups import Columns, missing
from lariax.sklearn._linear import LinearTrainer, one_thread
from lariax.sklearn._pool import Asked, Trainer
from lariax.sklearn._promise import Outcome, settled
from lariax.sklearn._rates import Plan, planned
from lariax.sklearn._tradeoff import FittedData, bound_of, draw, frame_of, named, price
from lariax.sklearn._train import Rows
from lariax.utils import check_among, check_confidence, helped_by, is_number, warn

LEFT_BEHIND = "a model leaves its rows behind when it is pickled: fit it again to see the price of a bound."


def check_hidden(hidden: Any) -> None:
    if not isinstance(hidden, tuple | list) or not all(is_number(width, int) and width > 0 for width in hidden):
        raise ValueError(f"hidden takes the widths of the hidden layers, such as (64, 32), found {hidden!r}.")


def _check_classes(y: np.ndarray) -> None:
    if y.dtype == object and missing(y):
        raise ValueError("y has missing values. Drop these rows.")
    check_classification_targets(y)


class PromiseError(RuntimeError):
    """The constraints could not be promised, and `raise_on_failure=True` asked for an exception.

    >>> import lariax.sklearn as ls
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(2000, n_features=5, class_sep=2.0, flip_y=0.0, random_state=0)
    >>> out_of_reach = {"recall": ls.at_least(0.999), "false_alarm": ls.at_most(0.001)}
    >>> try:
    ...     ls.ConstrainedClassifier(out_of_reach, raise_on_failure=True, random_state=0).fit(X, y)
    ... except ls.PromiseError:
    ...     print("not promised")
    not promised
    """


class _Classifier(ClassifierMixin, BaseEstimator):
    """What both classifiers share."""

    # set by the constructors of the classes below
    hidden: Any
    promise: Any
    confidence: Any
    C: Any
    kept: Any
    class_weight: Any
    raise_on_failure: Any
    random_state: Any

    def _limits(self) -> dict[str, tuple[str, Limit]]:
        raise NotImplementedError

    _objective = "error"
    _several = True  # classes

    @helped_by("promise")
    def fit(self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None) -> Self:
        """Train on X and y, and test the promise on rows of them that are kept back.

        Arguments:
            X: (rows, features), dense or sparse, an array or a frame.
            y: classes.
            sample_weight: weights of rows in training; a promise about new data counts rows as they come.
            sensitive_features: columns that tell groups apart, which the model does not see: a frame, a dict of
                columns, or one column. Columns of X can be named in constraints without this; the model sees those.
        """
        limits = self._checked()
        frame = X
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        _check_classes(y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.__dict__.pop("_batches", None)
        return self._fitted(limits, X, y, weight, sensitive_features, frame)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, sensitive_features: Any = None
    ) -> Self:
        """Fit on these rows and on all that came by `partial_fit` before: the model and its promise are those of `fit`
        on all of them. The rows are kept, and pickled with the estimator; `fit` forgets them.

        The promise of each call holds with the confidence that is asked for. That all of many calls are right is less
        sure.

        Arguments:
            classes: all classes that may come. There is no model until each has come; without it, until two have.
            X, y, sample_weight, sensitive_features: as of `fit`.
        """
        limits, frame = self._checked(), X
        batches = getattr(self, "_batches", [])
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=not batches)
        _check_classes(y)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        columns = columns_of(limits, Columns(sensitive_features, frame, y))
        rows = joined([*batches, CheckedRows(X, y, weight, columns)])
        if classes is not None and not np.isin(y, classes).all():
            raise ValueError(f"y has classes that are not among classes={list(classes)}.")
        self._batches = [rows]
        missing = np.setdiff1d([] if classes is None else classes, rows.y[rows.weights > 0])
        if len(missing) or len(np.unique(rows.y)) < 2:
            warn(f"there is no model yet: no row of class {', '.join(map(str, missing)) or 'another kind'} has come.")
            return self
        return self._fitted(limits, rows.inputs, rows.y, rows.weights, rows.columns, None)

    def tradeoff(self, bounds: Any = None, constraint: str | None = None) -> Any:
        """The price of a bound: a frame with the objective (the share of errors, or of misses) for each of several
        bounds, its interval, whether the rows can show the bound, and the multiplier. Models for all bounds are trained
        from each other, fold by fold; the objective is of rows that they did not see.

        Arguments:
            bounds: to try; by default nine around the one that was asked for.
            constraint: its name; by default the first.
        """
        with one_thread():
            return frame_of(price(self._known(), constraint, bounds, check_random_state(self.random_state)))

    def plot_tradeoff(self, bounds: Any = None, constraint: str | None = None, ax: Any = None) -> Any:
        """`tradeoff` as a curve with its band; returns the axes."""
        seen = self._known()
        name = named(seen.plan, constraint)
        words = {
            "bound": f"bound on {name}",
            "objective": f"share of {'errors' if self._objective == 'error' else 'misses'}",
        }
        return draw(self.tradeoff(bounds, name), words, bound_of(seen.plan, name), ax)

    def _known(self) -> FittedData:
        check_is_fitted(self, "status_")
        if not hasattr(self, "_seen"):
            raise ValueError(LEFT_BEHIND)
        return self._seen

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_seen"}

    def _checked(self) -> dict[str, tuple[str, Limit]]:
        """The constraints; everything else that the constructor was given is looked at too."""
        check_among("promise", self.promise, ("population", "training"))
        check_confidence(self.confidence)
        if not (is_number(self.C) and self.C > 0):
            raise ValueError(f"C must be positive, found {self.C!r}.")
        check_hidden(self.hidden)
        if self.kept is not None and not (is_number(self.kept) and 0 < self.kept < 1):
            raise ValueError(f"kept is a share of the rows, above 0 and below 1, or None, found {self.kept!r}.")
        return self._limits()

    def _fitted(
        self,
        limits: dict[str, tuple[str, Limit]],
        X: Any,
        y: np.ndarray,
        weight: np.ndarray | None,
        sensitive: Any,
        frame: Any,
    ) -> Self:
        weight = np.ones(len(y)) if weight is None else weight
        used = weight > 0
        self.classes_, codes = np.unique(y[used], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()}: there is nothing to tell apart.")
        if len(self.classes_) > 2 and not self._several:
            raise ValueError(f"Only binary classification is supported. Found {len(self.classes_)} classes in y.")
        columns = Columns(sensitive, frame, y)
        numbers = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        full = planned(limits, columns, numbers, self.classes_.tolist())
        plan = full.at(np.flatnonzero(used))
        own = compute_sample_weight(self.class_weight, y[used]) if self.class_weight is not None else 1.0
        rows = Rows(X[used], codes, weight[used] * own, weight[used])
        asked = Asked(self.promise, self.confidence, self.kept, self._objective)
        random = check_random_state(self.random_state)
        trainer = self._trainer(random)
        self._seen = FittedData(rows, plan, trainer, asked)
        with one_thread():
            outcome = settled(rows, plan, trainer, asked, random, self._tell)
        self._take(outcome, plan)
        return self

    def _trainer(self, random: np.random.RandomState) -> Trainer:
        if not self.hidden:
            return LinearTrainer(float(self.C))
        from lariax.sklearn._network import NetworkTrainer  # JAX is slow to import, and linear models do without

        return NetworkTrainer(tuple(self.hidden), float(self.C), int(random.randint(2**31 - 1)))

    def _take(self, outcome: Outcome, plan: Plan) -> None:
        """Set what the estimator shows, and say so if the promise could not be made."""
        self._model = outcome.model
        self.threshold_ = outcome.shift
        self.status_, self.message_, self.rows_needed_ = outcome.status, outcome.message, outcome.rows_needed
        holds = outcome.status in ("promised", "met")
        self.certificate_: RateCertificate = certificate_of(
            plan, outcome.tested, self.classes_.tolist(), self.confidence, holds
        )
        names = dict.fromkeys(row.name for row in plan.rows)
        at = {name: [i for i, row in enumerate(plan.rows) if row.name == name] for name in names}
        self.multipliers_ = {name: outcome.multipliers[numbers] for name, numbers in at.items()}
        self.history_ = {
            "loss": np.asarray([model.loss for model in outcome.models]),
            "iterations": np.asarray([model.iterations for model in outcome.models]),
            **{name: np.stack([model.values[numbers] for model in outcome.models]) for name, numbers in at.items()},
        }
        self.n_iter_ = max(1, sum(model.iterations for model in outcome.models))
        if outcome.status in ("not_shown", "out_of_reach") and not outcome.told:
            self._tell(outcome.message)

    def _tell(self, message: str) -> None:
        """That there is no promise."""
        if self.raise_on_failure:
            raise PromiseError(message)
        warn(message)

    def _part(self, linear: str, network: str, name: str) -> Any:
        check_is_fitted(self, "status_")
        for part in (linear, network):
            if part and hasattr(self._model, part):
                return getattr(self._model, part)
        kind = "a network: see coefs_ and intercepts_" if self.hidden else "linear: see coef_ and intercept_"
        raise AttributeError(f"{name} is not there: the model is {kind}.")

    @property
    def coef_(self) -> np.ndarray:
        """Of a linear model: (1, features) for two classes, else (classes, features)."""
        return np.ascontiguousarray(self._part("coef", "", "coef_").T)

    @property
    def intercept_(self) -> np.ndarray:
        """Of a linear model."""
        return np.asarray(self._part("intercept", "", "intercept_"))

    @property
    def coefs_(self) -> list[np.ndarray]:
        """Of a network: the weights of each layer, on scaled inputs."""
        return list(self._part("", "weights", "coefs_"))

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """Of a network: the biases of each layer."""
        return list(self._part("", "biases", "intercepts_"))

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "status_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(self._model.scores(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores; the threshold is 0, the one that was chosen being part of the intercept."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Classes: those of the promise."""
        decisions = decided(self._scores(X))
        return np.asarray(self.classes_[decisions])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`; `predict` takes the largest. Where the threshold
        was moved (`threshold_`) they are moved with it."""
        return probabilities(self._scores(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class ConstrainedClassifier(_Classifier):
    """A classifier under constraints on its rates, which hold on new data with the confidence that is asked for.

    Arguments:
        constraints: a dict, `{"recall": at_least(0.9), "selection_rate": gap(0.02, by="sex")}`; the rates are recall,
            false_alarm, miss, precision, selection_rate, coverage, error, accuracy, mean_score. Or any name with
            SciPy's `NonlinearConstraint(fun, low, high)`: the mean over rows of fun(y, decision).
        hidden: widths of hidden layers, (64, 32); () is a linear model.
        promise: "population": on new data, with `confidence`. "training": on the training rows, counted.
        confidence: of the promise.
        C: as of `sklearn.linear_model.LogisticRegression`, on scaled features.
        kept: the share of the rows that is kept back for the test. None: a half, but below 5,000 rows (of linear
            models) none: they are cross-fitted.
        class_weight: as of scikit-learn; for training, not for the rates.
        raise_on_failure: raise a `PromiseError` instead of a warning if the promise cannot be made.
        random_state: which rows are kept back, and of networks the first weights.

    After fit: `status_` (promised, met, not_shown, out_of_reach, unconstrained), `message_`, `rows_needed_`,
    `certificate_`, `multipliers_`, `history_`, `threshold_`, and `coef_`, `intercept_` or `coefs_`, `intercepts_`.

    >>> import lariax.sklearn as ls
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(2000, n_features=5, class_sep=2.0, flip_y=0.0, random_state=0)
    >>> model = ls.ConstrainedClassifier({"recall": ls.at_least(0.8)}, random_state=0).fit(X, y)
    >>> model.status_
    'promised'
    """

    def __init__(
        self,
        constraints: Mapping[str, Any] | None = None,
        hidden: tuple[int, ...] = (),
        promise: str = "population",
        confidence: float = 0.95,
        *,
        C: float = 1.0,
        kept: float | None = None,
        class_weight: Any = None,
        raise_on_failure: bool = False,
        random_state: Any = None,
    ):
        self.constraints = constraints
        self.hidden = hidden
        self.promise = promise
        self.confidence = confidence
        self.C = C
        self.kept = kept
        self.class_weight = class_weight
        self.raise_on_failure = raise_on_failure
        self.random_state = random_state

    def _limits(self) -> dict[str, tuple[str, Limit]]:
        return checked(self.constraints)


class NeymanPearsonClassifier(_Classifier):
    """The fewest misses at a bounded rate of false alarms, which holds on new data.

    >>> import lariax.sklearn as ls
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(2000, n_features=5, class_sep=2.0, flip_y=0.0, random_state=0)
    >>> model = ls.NeymanPearsonClassifier(max_false_alarm=0.2, random_state=0).fit(X, y)
    >>> model.status_
    'promised'
    """

    def __init__(
        self,
        max_false_alarm: float = 0.05,
        hidden: tuple[int, ...] = (),
        promise: str = "population",
        confidence: float = 0.95,
        *,
        C: float = 1.0,
        kept: float | None = None,
        class_weight: Any = None,
        raise_on_failure: bool = False,
        random_state: Any = None,
    ):
        self.max_false_alarm = max_false_alarm
        self.hidden = hidden
        self.promise = promise
        self.confidence = confidence
        self.C = C
        self.kept = kept
        self.class_weight = class_weight
        self.raise_on_failure = raise_on_failure
        self.random_state = random_state

    _objective = "miss"
    _several = False

    def _limits(self) -> dict[str, tuple[str, Limit]]:
        return checked({"false_alarm": at_most(self.max_false_alarm)})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
