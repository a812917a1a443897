"""What is promised, as data: `{"recall": at_least(0.9), "selection_rate": gap(0.02, by="sex")}`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize

from lariax.utils import did_you_mean, is_number

By: TypeAlias = str | int | Sequence[str | int]
Given: TypeAlias = Mapping[str, Any]

RATES = (
    "recall",
    "false_alarm",
    "miss",
    "precision",
    "selection_rate",
    "coverage",
    "error",
    "accuracy",
    "mean_score",
)
"""Rates of a classifier; all are between 0 and 1."""

ERRORS = ("mean_error", "absolute_error", "squared_error", "coverage")
"""Means of a regressor: of prediction - y, its size, its square; and the share of rows with y up to the prediction."""

POSITIVE = ("absolute_error", "squared_error")

OPPOSITE = {"miss": "recall", "error": "accuracy"}
"""Rates that are 1 less another."""

LABELLED = frozenset(RATES) - {"error", "accuracy"}
"""Rates of one class: of `label=`, by default of the second class of two, or of each class of several."""


@dataclass(frozen=True)
class at_least:
    """The rate is at least `bound`.

    Arguments:
        bound: between 0 and 1.
        given: rows that count, `{"race": "Black"}` or `{"y": 1}`: columns of the sensitive features, or y, and their
            value, or a list of values.
        label: the class that a rate is about.

    >>> import lariax.sklearn as ls
    >>> constraints = {"recall": ls.at_least(0.9, given={"sex": "f"})}
    """

    bound: float
    given: Given | None = None
    label: Any = None


@dataclass(frozen=True)
class at_most:
    """The rate is at most `bound`; arguments as of `at_least`.

    >>> import lariax.sklearn as ls
    >>> constraints = {"false_alarm": ls.at_most(0.05)}
    """

    bound: float
    given: Given | None = None
    label: Any = None


@dataclass(frozen=True)
class gap:
    """The rates of any two groups differ by at most `bound`.

    Arguments:
        bound: between 0 and 1.
        by: the column that tells groups apart, or several, `("sex", "race")`: then every combination is a group.
        given, label: as of `at_least`.

    >>> import lariax.sklearn as ls
    >>> constraints = {"selection_rate": ls.gap(0.02, by=("sex", "race"))}
    """

    bound: float
    by: By
    given: Given | None = None
    label: Any = None


@dataclass(frozen=True)
class ratio:
    """The lower of the rates of any two groups is at least `bound` times the higher one: 0.8 is the four-fifths rule.
    Arguments as of `gap`.

    >>> import lariax.sklearn as ls
    >>> constraints = {"selection_rate": ls.ratio(0.8, by="sex")}
    """

    bound: float
    by: By
    given: Given | None = None
    label: Any = None


@dataclass(frozen=True)
class each:
    """What is said of a rate holds in each group: `each(at_least(0.9), by="sex")`.

    >>> import lariax.sklearn as ls
    >>> constraints = {"recall": ls.each(ls.at_least(0.8), by="sex")}
    """

    limit: at_least | at_most
    by: By


@dataclass(frozen=True)
class between:
    """Of a regressor's coefficients, or of their sum: at least `low` and at most `high`; `features` says which ones.

    >>> import lariax.sklearn as ls
    >>> constraints = {"coef": ls.between(low=0.0, features=("age",)), "coef_sum": ls.between(1.0, 1.0)}
    """

    low: float = -np.inf
    high: float = np.inf
    features: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class increasing:
    """The prediction never falls when one of these features rises and the others stay.

    >>> import lariax.sklearn as ls
    >>> constraints = {"monotone": [ls.increasing(("rooms",)), ls.decreasing(("age",))]}
    """

    features: tuple[str | int, ...]


@dataclass(frozen=True)
class decreasing:
    """The prediction never rises when one of these features rises and the others stay.

    >>> import lariax.sklearn as ls
    >>> constraints = {"monotone": ls.decreasing(("age",))}
    """

    features: tuple[str | int, ...]


@dataclass(frozen=True)
class OnRows:
    """The mean over rows of fun(y, decision), or of fun(y, prediction), is between two bounds: a `NonlinearConstraint`
    of SciPy, or its dict with "type" and "fun"."""

    fun: Callable[[Any, Any], Any]
    low: float
    high: float
    given: None = None


Limit: TypeAlias = at_least | at_most | gap | ratio | each | OnRows


def on_rows(name: str, limit: Any) -> OnRows | None:
    """SciPy's ways to say it, where the function takes two arguments; None for everything else."""
    if isinstance(limit, scipy.optimize.NonlinearConstraint):
        fun, low, high = limit.fun, limit.lb, limit.ub
    elif isinstance(limit, Mapping) and "fun" in limit:
        fun, low = limit["fun"], 0.0
        kinds = {"ineq": np.inf, "eq": 0.0}
        if limit.get("type") not in kinds:
            raise ValueError(f"constraints[{name!r}]: type must be 'ineq' or 'eq', found {limit.get('type')!r}.")
        high = kinds[limit["type"]]
    else:
        return None
    if _arguments(fun) != 2:
        return None
    if np.size(low) != 1 or np.size(high) != 1 or float(np.ravel(low)[0]) > float(np.ravel(high)[0]):
        raise ValueError(f"constraints[{name!r}]: a mean over rows has one lower and one upper bound, in this order.")
    return OnRows(fun, float(np.ravel(low)[0]), float(np.ravel(high)[0]))


def _arguments(fun: Any) -> int:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(one.default is one.empty and one.kind in (0, 1) for one in parameters)


def checked(constraints: Any, rates: Sequence[str] = RATES, others: Sequence[str] = ()) -> dict[str, tuple[str, Limit]]:
    """Name of the constraint: its rate and its limit. Several limits of one rate are numbered. `others`: names that are
    looked after elsewhere, and only have to be known."""
    if constraints is None:
        return {}
    if not isinstance(constraints, Mapping):
        raise TypeError(
            f"constraints must be a dict such as {{'recall': at_least(0.9)}}, found {type(constraints).__name__}."
        )
    found: dict[str, tuple[str, Limit]] = {}
    for rate, limits in constraints.items():
        if rate in others:
            continue
        own = on_rows(rate, limits)
        if own is not None:
            found[rate] = (rate, own)
            continue
        if rate not in rates:
            hint, known = did_you_mean(rate, (*rates, *others)), ", ".join((*rates, *others))
            answer = "decision" if rates is RATES else "prediction"
            raise ValueError(
                f"there is no rate {rate!r}. {hint}The rates are {known}; one of your own is SciPy's "
                f"NonlinearConstraint(fun, low, high) with fun(y, {answer})."
            )
        several = list(limits) if isinstance(limits, list | tuple) else [limits]
        for number, limit in enumerate(several, 1):
            _check_limit(rate, limit, rate in RATES)
            found[rate if len(several) == 1 else f"{rate} {number}"] = (rate, limit)
    _check_contradictions(found)
    return found


def _check_limit(rate: str, limit: Any, is_share: bool) -> None:
    inner = limit.limit if isinstance(limit, each) else limit
    if not isinstance(inner, at_least | at_most) and (inner is not limit or not isinstance(inner, gap | ratio)):
        raise TypeError(
            f"constraints[{rate!r}] must be at_least, at_most, gap, ratio or each of at_least or at_most (or a list of "
            f"them), found {limit!r}."
        )
    if not (is_number(inner.bound) and np.isfinite(inner.bound)):
        raise ValueError(f"constraints[{rate!r}]: a bound is a finite number, found {inner.bound!r}.")
    if is_share and not 0 <= inner.bound <= 1:
        raise ValueError(
            f"constraints[{rate!r}]: a bound is a share between 0 and 1, found {inner.bound!r}: nothing can meet it."
        )
    if inner.bound < 0 and (isinstance(inner, gap) or (rate in POSITIVE and isinstance(inner, at_most))):
        raise ValueError(f"constraints[{rate!r}]: a bound below 0, found {inner.bound!r}: nothing can meet it.")
    if inner.given is not None and not isinstance(inner.given, Mapping):
        raise TypeError(f"constraints[{rate!r}]: given= takes a dict such as {{'y': 1}}, found {inner.given!r}.")


def _check_contradictions(found: Mapping[str, tuple[str, Limit]]) -> None:
    """Refuse what nothing can meet: a mean that is to be at least more than it may be at most."""
    ends: dict[Any, list[tuple[float, str]]] = {}
    for name, (rate, limit) in found.items():
        inner = limit.limit if isinstance(limit, each) else limit
        if not isinstance(inner, at_least | at_most):
            continue
        low, high = (inner.bound, np.inf) if isinstance(inner, at_least) else (-np.inf, inner.bound)
        about = "selection_rate" if rate == "coverage" else rate
        if rate in OPPOSITE:
            about, low, high = OPPOSITE[rate], 1 - high, 1 - low
        key = (about, str(inner.given), str(inner.label))
        ends.setdefault((*key, "low"), []).append((low, name))  # what holds in each group holds for all together
        ends.setdefault((*key, "high"), []).append((high, name))
        (floor, below), (ceiling, above) = max(ends[(*key, "low")]), min(ends[(*key, "high")])
        if floor > ceiling + 1e-12:
            raise ValueError(f"constraints[{below!r}] and constraints[{above!r}] contradict each other. Drop one.")
