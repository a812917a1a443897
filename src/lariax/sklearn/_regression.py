"""Linear regression under constraints on means of errors, which are promised, and on coefficients, which just hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy.special import expit

from lariax.sklearn._choose import Sweep
from lariax.sklearn._constraints import Limit, OnRows, at_least, at_most, between, decreasing, each, increasing
from lariax.sklearn._exact import Count
from lariax.sklearn._fitted import Fitted
from lariax.sklearn._groups import Columns
from lariax.sklearn._linear import scaled, scaling
from lariax.sklearn._rates import Base, Plan, Row, rows_of
from lariax.utils import did_you_mean

SOFT = 0.1
"""The width of a soft step or corner, in standard deviations of y."""

MOST_SHIFTS = 201
OTHERS = ("coef", "coef_sum", "monotone")


def errors_of(base: Base, residuals: np.ndarray) -> np.ndarray:
    """What a rate averages; `residuals`: prediction - y."""
    if base.fun is not None and base.table is not None:
        found = np.asarray(base.fun(base.table, base.table + residuals), float)
        if found.shape != residuals.shape:
            raise ValueError(f"constraints[{base.rate!r}]: fun(y, prediction) must give one number a row.")
        return found
    return {
        "mean_error": residuals,
        "absolute_error": np.abs(residuals),
        "squared_error": residuals**2,
        "coverage": (residuals >= 0).astype(float),
    }[base.rate]


def _soft(base: Base, r: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """A smooth stand-in and its derivative; that of a function of the user's by differences."""
    kind = base.rate
    if base.fun is not None:
        step = 1e-3 * width
        above, below = errors_of(base, r + step), errors_of(base, r - step)
        return errors_of(base, r), (above - below) / (2 * step)
    if kind == "coverage":
        q = expit(r / width)
        return q, q * (1 - q) / width
    if kind == "absolute_error":
        size = np.sqrt(r**2 + width**2)
        return size, r / size
    return (r, np.ones_like(r)) if kind == "mean_error" else (r**2, 2 * r)


def counts(plan: Plan, residuals: np.ndarray, weights: np.ndarray) -> list[Count]:
    found = []
    for base in plan.bases:
        values, own = errors_of(base, residuals)[base.mask], weights[base.mask]
        share = base.rate == "coverage" and base.fun is None
        squares = None if share else float(own @ values**2)
        found.append(Count(float(own @ values), float(own.sum()), squares, bounded=share))
    return found


def planned_means(constraints: Mapping[str, tuple[str, Limit]], columns: Columns, y: np.ndarray) -> Plan:
    bases: list[Base] = []
    limits: list[Any] = []
    rows = len(y)
    for name, (rate, limit) in constraints.items():
        if isinstance(limit, OnRows):
            ends = ((-1, limit.low), (1, limit.high))
            limits.extend(Row(name, len(bases), None, s, 0.0, s * end) for s, end in ends if np.isfinite(end))
            bases.append(Base(rate, -1, "", np.ones(rows, bool), table=y, fun=limit.fun))
            errors_of(bases[-1], np.zeros(rows))  # a wrong shape is told before anything long starts
            continue
        inner = limit.limit if isinstance(limit, each) else limit
        words, chosen = columns.subset(inner.given)
        first = len(bases)
        groups = [("", np.ones(rows, bool))] if isinstance(limit, at_least | at_most) else columns.groups(limit.by)
        for group, mask in groups:
            bases.append(Base(rate, -1, ", ".join(word for word in (group, words) if word), mask & chosen))
            if not bases[-1].mask.any():
                raise ValueError(f"constraints[{name!r}]: no row is given. Look at given=.")
        limits.extend(rows_of(name, inner, range(first, len(bases))))
    return Plan(tuple(bases), tuple(limits), 0)


class Restrictions(NamedTuple):
    """On the coefficients, in the user's units: bounds, and constraints in SciPy's terms."""

    low: np.ndarray
    high: np.ndarray
    others: tuple[Any, ...]


def restrictions(constraints: Mapping[str, Any] | None, names: Sequence[Any]) -> Restrictions:
    """What is said of coefficients."""
    d = len(names)
    low, high, others = np.full(d, -np.inf), np.full(d, np.inf), []

    def numbers(features: Any) -> list[int]:
        chosen = range(d) if features is None else [features] if isinstance(features, str | int) else features
        return [_number(feature, names) for feature in chosen]

    for name, limits in (constraints or {}).items():
        for limit in limits if isinstance(limits, list) else [limits]:
            _check_width(name, limit, d)
            if isinstance(limit, scipy.optimize.Bounds):
                low, high = np.maximum(low, limit.lb), np.minimum(high, limit.ub)
            elif isinstance(limit, scipy.optimize.LinearConstraint | scipy.optimize.NonlinearConstraint):
                others.append(limit)
            elif isinstance(limit, increasing | decreasing):
                own = numbers(limit.features)
                (low if isinstance(limit, increasing) else high)[own] = 0.0
            elif isinstance(limit, between) and name == "coef_sum":
                row = np.zeros((1, d))
                row[0, numbers(limit.features)] = 1.0
                others.append(scipy.optimize.LinearConstraint(row, limit.low, limit.high))
            elif isinstance(limit, between):
                own = numbers(limit.features)
                low[own], high[own] = np.maximum(low[own], limit.low), np.minimum(high[own], limit.high)
            elif name in OTHERS:
                raise TypeError(
                    f"constraints[{name!r}] takes between, increasing, decreasing or SciPy's constraints, found "
                    f"{limit!r}."
                )
    if np.any(low > high):
        raise ValueError(
            f"constraints on coefficients contradict each other for {names[int(np.argmax(low > high))]!r}."
        )
    return Restrictions(low, high, tuple(others))


def _check_width(name: str, limit: Any, features: int) -> None:
    widths = []
    if isinstance(limit, scipy.optimize.Bounds):
        widths = [np.size(end) for end in (limit.lb, limit.ub) if np.size(end) != 1]
    elif isinstance(limit, scipy.optimize.LinearConstraint):
        widths = [np.shape(np.atleast_2d(limit.A))[1]]
    for width in widths:
        if width != features:
            raise ValueError(f"constraints[{name!r}] is on {width} coefficients, and X has {features} features.")


def _number(feature: Any, names: Sequence[Any]) -> int:
    if isinstance(feature, int | np.integer) and 0 <= feature < len(names):
        return int(feature)
    if feature in list(names):
        return list(names).index(feature)
    raise ValueError(f"there is no feature {feature!r}. {did_you_mean(feature, map(str, names))}Found {list(names)}.")


@dataclass(frozen=True)
class Regression:
    """Mean squared error + alpha ||w||^2, w of scaled features, under restrictions and bounds on soft means."""

    inputs: Any
    y: np.ndarray
    weights: np.ndarray
    plan: Plan
    restrictions: Restrictions
    alpha: float
    hidden: tuple[int, ...] = ()
    seed: int = 0

    def path(self, targets: Sequence[np.ndarray | None]) -> list[Fitted]:
        """One model for each vector of bounds, each from the one before."""
        if self.hidden:
            from lariax.sklearn._network_regression import path  # JAX is slow to import, and linear models do without

            return path(self, targets)
        inputs = self.inputs.toarray() if hasattr(self.inputs, "toarray") else self.inputs
        middle, spread = scaling(inputs, self.weights)
        x, share = scaled(inputs, middle, spread), self.weights / self.weights.sum()
        gram = x.T @ (x * share[:, None])
        penalty = np.full(x.shape[1], self.alpha)
        penalty[-1] = 0.0
        gram[np.arange(len(gram)), np.arange(len(gram))] += penalty
        cross = x.T @ (share * self.y)
        theta = np.linalg.lstsq(gram, cross, rcond=None)[0]
        found = []
        for bounds in targets:
            multipliers, iterations, good = np.zeros(len(self.plan.rows)), 1, True
            if bounds is not None or self.restricted:
                theta, multipliers, iterations, good = self._solve(x, gram, cross, theta, bounds, middle, spread)
            coef = theta[:-1] / spread
            loss = float(share @ (x @ theta - self.y) ** 2)
            found.append(Fitted(coef, float(theta[-1] - middle @ coef), multipliers, loss, iterations, good))
        return found

    @property
    def restricted(self) -> bool:
        low, high, others = self.restrictions
        return bool(np.isfinite(low).any() or np.isfinite(high).any() or others)

    def _solve(
        self,
        x: np.ndarray,
        gram: np.ndarray,
        cross: np.ndarray,
        theta: np.ndarray,
        bounds: np.ndarray | None,
        middle: np.ndarray,
        spread: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, int, bool]:
        """By SLSQP, to some seven digits; with bounds alone by active sets, exactly."""
        low, high, others = self.restrictions
        if bounds is None and not others:
            root = np.linalg.cholesky(gram + 1e-14 * np.trace(gram) * np.eye(len(gram))).T
            ends = np.append(low * spread, -np.inf), np.append(high * spread, np.inf)
            exact = scipy.optimize.lsq_linear(root, np.linalg.solve(root.T, cross), ends, method="bvls")
            return exact.x, np.zeros(len(self.plan.rows)), int(exact.nit), bool(exact.success)
        limits = [(a * s, b * s) for a, b, s in zip(low, high, spread, strict=True)] + [(-np.inf, np.inf)]
        constraints = [one for other in others for one in _in_scaled_terms(other, spread)]
        if bounds is not None and len(bounds):
            constraints.insert(0, self._means(x, bounds))
        unit = max(_spread(self.y, self.weights) ** 2, 1e-300)
        found = scipy.optimize.minimize(
            lambda t: float(t @ gram @ t / 2 - cross @ t) / unit,
            np.clip(theta, [a for a, _ in limits], [b for _, b in limits]),
            jac=lambda t: (gram @ t - cross) / unit,
            method="SLSQP",
            bounds=limits,
            constraints=constraints,
            options={"maxiter": 300, "ftol": 1e-12},
        )
        prices = np.zeros(len(self.plan.rows))
        if bounds is not None and len(bounds) and hasattr(found, "multipliers"):
            equalities = sum(np.size(one["fun"](found.x)) for one in constraints if one["type"] == "eq")
            prices = np.asarray(found.multipliers)[equalities : equalities + len(bounds)] * 2 * unit
        return found.x, prices, int(found.nit), bool(found.success)

    def _means(self, x: np.ndarray, bounds: np.ndarray) -> dict[str, Any]:
        width = SOFT * _spread(self.y, self.weights) + 1e-12

        def parts(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            residuals = x @ theta - self.y
            rates, slopes = [], []
            for base in self.plan.bases:
                own = base.mask * self.weights / max(float(base.mask @ self.weights), 1e-300)
                value, slope = _soft(base, residuals, width)
                rates.append(own @ value)
                slopes.append(x.T @ (own * slope))
            return np.asarray(rates), np.asarray(slopes)

        return {
            "type": "ineq",
            "fun": lambda theta: bounds - self.plan.values(parts(theta)[0]),
            "jac": lambda theta: -self.plan.values(parts(theta)[1]),
        }


def _spread(values: np.ndarray, weights: np.ndarray) -> float:
    share = weights / weights.sum()
    return float(np.sqrt(share @ (values - share @ values) ** 2))


def _in_scaled_terms(constraint: Any, spread: np.ndarray) -> list[dict[str, Any]]:
    """SciPy's constraints on coefficients as SLSQP takes them, on scaled ones."""

    def values(theta: np.ndarray) -> np.ndarray:
        coef = theta[:-1] / spread
        if isinstance(constraint, scipy.optimize.LinearConstraint):
            return np.atleast_1d(np.asarray(constraint.A) @ coef)
        return np.atleast_1d(np.asarray(constraint.fun(coef), float))

    some = values(np.zeros(len(spread) + 1))
    low, high = np.broadcast_to(constraint.lb, some.shape), np.broadcast_to(constraint.ub, some.shape)
    same = low == high
    found: list[dict[str, Any]] = []

    def add(kind: str, fun: Callable[[np.ndarray], np.ndarray], some: np.ndarray) -> None:
        if some.any():
            found.append({"type": kind, "fun": fun})

    add("eq", lambda t: (values(t) - low)[same], same)
    add("ineq", lambda t: (values(t) - low)[~same & np.isfinite(low)], ~same & np.isfinite(low))
    add("ineq", lambda t: (high - values(t))[~same & np.isfinite(high)], ~same & np.isfinite(high))
    return found


def sweep_of(plan: Plan, residuals: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> tuple[Sweep, np.ndarray]:
    """Means, cost and margin as the intercept moves; it moves only where that is what a bound asks for."""
    shifts = np.zeros(1)
    if any(_turns(plan.bases[row.first], row) for row in plan.rows):
        values = np.sort(residuals)
        values = values[np.append(True, np.diff(values) > 1e-9 * (1 + np.abs(values[1:])))]
        ends = np.concatenate([values[:1] - 1, values, values[-1:] + 1])
        steps = (ends[1:] + ends[:-1]) / 2
        some = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_SHIFTS)).astype(int))
        shifts = np.append(steps[some], 0.0)
    margins, rates, cost = [], [], []
    total = weights.sum()
    for shift in shifts:
        seen = counts(plan, residuals - shift, weights)
        means = np.asarray([one.rate for one in seen])
        variances = np.asarray([_variance(one) for one in seen]) / np.maximum(sizes, 1)
        spread = [
            variances[row.first] + (0 if row.second is None else row.slope**2 * variances[row.second])
            for row in plan.rows
        ]
        margins.append(np.min((plan.bounds - plan.values(means)) / np.sqrt(np.maximum(spread, 1e-300))))
        rates.append(means)
        cost.append(weights @ (residuals - shift) ** 2 / total)
    return Sweep(shifts, np.stack(rates, axis=1), np.asarray(cost)), np.asarray(margins)


def _turns(base: Base, row: Row) -> bool:
    """Whether a shift of all predictions changes what is bounded: not the difference of two mean errors."""
    return base.rate == "coverage" or (base.rate == "mean_error" and (row.second is None or row.slope != 1.0))


def _variance(count: Count) -> float:
    if count.squares is not None:
        return max(count.squares / count.rows - count.rate**2, 0.0) if count.rows else 1.0
    smooth = (count.hits + 1) / (count.rows + 2)
    return smooth * (1 - smooth)
