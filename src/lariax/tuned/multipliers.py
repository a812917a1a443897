"""Multipliers for a loop with an optimizer of its own, in plain numbers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from lariax.tuned import host, pressure
from lariax.tuned.pressure import Kind, Pool, Pressure, Sizes
from lariax.utils import helped_by, warn

MISSED = 100  # calls after which a constraint that nobody has measured is worth a word
VERSION = 2  # of what `state_dict` holds
STUCK = 0.2  # share of the calls that a multiplier spends at its limit before that is worth a word
SURE = 3.0  # standard errors by which a bound is missed at the end: by chance one in 700 is said to be
HUGE = 1e100  # what is not below it counts as not finite: squares are taken
LAST = 10.0  # so many values tell what they are in the end


class ConstraintKind(Protocol):
    """What a constraint says of itself: those of the core and those of `lariax.torch` do."""

    sign: Any
    inequality: Any
    relation: Any
    bound: Any
    samples: Any


class ValueEstimate(NamedTuple):
    """Of a constraint's value, in the user's units."""

    level: Any
    trend: Any  # its change from one value to the next
    standard_error: Any  # of the level


def checked(constraints: Mapping[str, Any], steps: Any) -> None:
    """Refuse what are no constraints by name, or no number of steps."""
    if not isinstance(constraints, Mapping) or not constraints:
        raise TypeError(
            f'constraints are named, as in {{"gap": AtMost(bound=0.02)}}, found {constraints!r}. Give at least one.'
        )
    for name, constraint in constraints.items():
        if not (hasattr(constraint, "sign") and hasattr(constraint, "inequality")):
            raise TypeError(f"constraint {name!r} must be Equal, AtMost or AtLeast, found {constraint!r}.")
        if getattr(constraint, "indexed", None) is not None:
            raise NotImplementedError(
                f"constraint {name!r} is indexed: a multiplier for each training example weighs the gradient of its "
                "own loss, which plain values do not have. Use lariax.torch.Multipliers for it."
            )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps is the number of calls that there will be, or None, found {steps!r}.")


def kind_of(constraint: Any) -> Kind:
    return Kind(bool(constraint.inequality), getattr(constraint, "samples", False) is None)


class Multipliers:
    """Multipliers for a loop that has its own optimizer, from values alone, in any framework.

        L = f + sum y . value,      y >= 0 for AtMost, <= 0 for AtLeast

    Nothing is to be tuned: a multiplier moves by what its constraint's value will probably be at the end of training,
    compared with its noise, in units of ||grad f|| / ||grad c|| (`lariax.tuned.pressure` states the formulas). At rest
    a constraint holds, or its multiplier is 0 or at its limit; for a frozen network those are the only places of rest.

    Arguments:
        constraints: `Equal`, `AtMost` or `AtLeast` by name, without functions: `lx.AtMost(bound=25.0)`. With
            samples=None values are taken to be exact, which allows for a quicker rule.
        steps: the number of calls of `update` that there will be. Without it the rule looks ahead to twice those until
            now, which is less good.

    >>> import lariax as lx
    >>> multipliers = lx.Multipliers({"cost": lx.AtMost(bound=25.0)}, steps=200)
    >>> for _ in range(50):  # 30 is too much, and stays so
    ...     weights = multipliers.update({"cost": (30.0, 1.0)}, objective=(1.0, 0.1))
    >>> weights["cost"] > 0
    True
    """

    @helped_by("multipliers")
    def __init__(self, constraints: Mapping[str, Any], steps: int | None = None) -> None:
        checked(constraints, steps)
        self.constraints: dict[str, ConstraintKind] = dict(constraints)
        self.steps = steps
        self.calls = 0
        self.kinds = {name: kind_of(c) for name, c in self.constraints.items()}
        self._pools: dict[str, Pool] = {}
        self._pressures: dict[str, Pressure] = {}
        self._sizes: dict[str, Sizes] = {name: pressure.unseen() for name in constraints}
        self.bounds = {name: _plain(np.asarray(c.bound, float)) for name, c in self.constraints.items()}
        self._at_limit = dict.fromkeys(constraints, 0)
        self._said: set[str] = set()

    # --- values in, multipliers out

    def update(self, values: Mapping[str, Any], objective: Any = None) -> dict[str, Any]:
        """One call: values by name, each a mean or (mean, standard error), of those constraints that were measured.

        `objective`, likewise, lets the rule compare the sizes of objective and constraints where it sees no gradients.
        """
        self.advance(self.pairs(values), math.nan if objective is None else _pair("objective", objective)[1])
        return self.multipliers

    def pairs(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Values as (mean, variance of the mean), checked."""
        self.check_names("update", values)
        return {name: _pair(name, given) for name, given in values.items()}

    def check_names(self, where: str, values: Iterable[str]) -> None:
        unknown = sorted(set(values) - set(self.constraints))
        if unknown:
            raise ValueError(
                f"{where} has values for the unknown {unknown}; the constraints are {list(self.constraints)}. Use the "
                "same names in both places."
            )

    def advance(self, values: Mapping[str, tuple[Any, Any]], noise: Any) -> None:
        """One call: means and their variances (not a number: unknown), and the variance of the mean objective."""
        self.calls += 1
        if self.steps is not None and self.calls == self.steps + 1:
            self._say(
                "steps",
                f"this is call {self.calls} of steps={self.steps}: from here on multipliers go by present values, "
                "without a look ahead. Set multipliers.steps to the new number of calls if there will be more.",
            )
        for name, constraint in self.constraints.items():
            given = values.get(name)
            if given is None or not _is_finite(given[0]) or _is_infinite(given[1]):
                self._skip(name, given is not None)
                continue
            mean, variance = given
            pool = self._pools[name] if name in self._pools else self._first(name, mean)
            self._check_shape(name, pool, mean)
            if noise == noise:
                own = variance if isinstance(variance, float) else float(np.mean(variance))
                self._sizes[name] = pressure.spread(host, self._sizes[name], pool.count, noise, own)
            pool = pressure.pooled(host, pool, constraint.sign * (mean - self.bounds[name]), variance)
            self._pools[name] = self._press(name, pool) if self._is_full(name, pool) else pool
        self._check_end()

    def advance_by(self, count: int, values: Mapping[str, np.ndarray]) -> None:
        """Several calls at once, to the same bits: means by name, one after the other along the first axis, of unknown
        variance (0 of what is exact)."""
        if not self._is_plain(count, values):
            for i in range(count):
                one = {name: (_plain(each[i]), self._variance(name, each[i])) for name, each in values.items()}
                self.advance(one, math.nan)
            return
        self.calls += count
        for name, means in values.items():
            pool = self._several(name, self._pools[name], means)
            self._pools[name] = self._press(name, pool) if self._is_full(name, pool) else pool
        self._check_end()

    def _is_plain(self, count: int, values: Mapping[str, np.ndarray]) -> bool:
        """Whether these calls have values of everything, nothing to remark on, and fill no pool before the last."""
        return (
            len(values) == len(self.constraints) == len(self._pools)
            and not (self.steps is not None and self.calls <= self.steps < self.calls + count)
            and all(abs(np.add.reduce(each, axis=None)) < HUGE for each in values.values())
            and all(np.shape(self._pools[name].last) == each.shape[1:] for name, each in values.items())
            and self.idle(values) >= count - 1
        )

    def _several(self, name: str, pool: Pool, means: np.ndarray) -> Pool:
        """As `pooled`, one after the other: a sum in another order would have other bits."""
        n = len(means)
        chain = np.empty((n + 1, *means.shape[1:]))
        chain[0], chain[1:] = pool.last, self.constraints[name].sign * (means - self.bounds[name])
        last, scatter = _plain(chain[-1]), pool.scatter
        if not self.kinds[name].exact:
            change = chain[1:] - chain[:-1]
            scatter = _chained(pool.scatter, 0.5 * change * change)
        chain[0] = pool.total
        total = _plain(np.add.accumulate(chain)[-1])
        return Pool(pool.calls + n, pool.count + n, pool.size + n, total, scatter, last)

    def _variance(self, name: str, like: Any) -> Any:
        return _plain(np.full(np.shape(like), 0.0 if self.kinds[name].exact else math.nan))

    def _first(self, name: str, mean: Any) -> Pool:
        bound = self.bounds[name]
        if not isinstance(bound, float) and np.shape(bound) != np.shape(mean):
            raise ValueError(
                f"constraint {name!r} has values of shape {np.shape(mean)}, but its bound has shape "
                f"{np.shape(bound)}. Give one bound for all entries, or one for each."
            )
        self._pressures[name] = pressure.relaxed(mean)
        return pressure.empty(mean, float(self.calls - 1))

    def _check_shape(self, name: str, pool: Pool, mean: Any) -> None:
        both_plain = isinstance(mean, float) and isinstance(pool.last, float)
        if not both_plain and np.shape(mean) != np.shape(pool.last):
            raise ValueError(
                f"constraint {name!r} has values of shape {np.shape(mean)}, and had values of shape "
                f"{np.shape(pool.last)} before. Give all its entries in every call, or each a name of its own."
            )

    def _press(self, name: str, pool: Pool) -> Pool:
        """Move the multiplier by what is in the pool."""
        unit = self._unit(name)
        limit = pressure.limit_of(host, self._sizes[name]) * unit
        steps = None if self.steps is None else float(self.steps)
        new = pressure.pressed(host, self._pressures[name], pool, self.kinds[name], steps, unit, limit)
        self._pressures[name] = new
        self._check_limit(name, new, limit, pool.size)
        return pressure.emptied(pool)

    def _is_full(self, name: str, pool: Pool) -> bool:
        return bool(pressure.is_full(host, pool, self.kinds[name], self.steps))

    def idle(self, names: Iterable[str]) -> int:
        """For how many more calls with values of these names no multiplier moves."""
        known = ((self._pools[name], self.kinds[name]) for name in names if name in self._pools)
        return min((pressure.calls_left(host, pool, kind, self.steps) for pool, kind in known), default=1) - 1

    def exactly(self, name: str) -> tuple[Any, Any, Any]:
        """(multiplier, penalty, limit of the weight) of a constraint whose values are exact, for residuals r = 0 or
        r <= 0."""
        if name not in self._pressures:
            return 0.0, 0.0, 0.0
        state = self._pressures[name]
        return state.multiplier, state.penalty, pressure.weight_limit(host, state, self._sizes[name])

    def limit(self, name: str) -> Any:
        """What a multiplier may be."""
        known = name in self._pressures
        return pressure.limit_of(host, self._sizes[name]) * self._unit(name) if known else 0.0

    def look(self, name: str, products: tuple[float, float], squares: tuple[float, float]) -> None:
        """Take in lengths of the gradients of objective and constraint: products of those of two halves of a batch,
        and squares of those of the whole."""
        if all(map(_is_finite, (*products, *squares))):
            self._sizes[name] = pressure.looked(
                host, self._sizes[name], self.kinds[name], float(self.calls + 1), products, squares
            )

    def deviation(self, name: str) -> Any:
        """Of one value, as far as it is known; 0 of what is exact."""
        return np.sqrt(self._pressures[name].noise) if name in self._pressures else 0.0

    def looks(self, name: str) -> int:
        """How often gradients of a constraint were looked at."""
        return int(self._sizes[name].looks)

    # --- what is known

    @property
    def multipliers(self) -> dict[str, Any]:
        """By name, plain numbers or arrays; 0 before there is something to go by."""
        return {name: self[name] for name in self.constraints}

    def __getitem__(self, name: str) -> Any:
        if name not in self.constraints:
            raise KeyError(f"there is no constraint {name!r}; the constraints are {list(self.constraints)}.")
        if name not in self._pressures:
            return 0.0
        state, pool = self._pressures[name], self._pools[name]
        weight = pressure.weight_of(host, state, self.kinds[name], pool.last, self._sizes[name])
        return _plain(np.asarray(self.constraints[name].sign * weight + 0.0))

    @property
    def values(self) -> dict[str, ValueEstimate]:
        """By name: level, trend and standard error; not a number for what nobody has measured."""
        found = {}
        for name, constraint in self.constraints.items():
            state = self._pressures.get(name)
            if state is None:
                found[name] = ValueEstimate(math.nan, math.nan, math.nan)
                continue
            count = self._pools[name].count
            numbers = (
                constraint.sign * state.level + self.bounds[name],
                constraint.sign * state.slope,
                np.sqrt(state.noise / np.maximum(1.0, np.minimum(count, 10 + 0.05 * count))),
            )
            found[name] = ValueEstimate(*(_plain(np.asarray(number)) for number in numbers))
        return found

    def observe(self) -> dict[str, float]:
        """Numbers worth plotting; they never feed back. Of a vector, the entry farthest from its bound."""
        seen: dict[str, float] = {"calls": float(self.calls)}
        for name, state in self._pressures.items():
            worst = int(np.argmax(state.level if self.constraints[name].inequality else np.abs(state.level)))
            seen[f"{name}/multiplier"] = float(np.ravel(self[name])[worst])
            value = self.values[name]
            seen[f"{name}/value"] = float(np.ravel(value.level)[worst])
            seen[f"{name}/standard_error"] = float(np.ravel(value.standard_error)[worst])
            seen[f"{name}/violation_ahead"] = float(np.ravel(state.ahead)[worst])
            seen[f"{name}/standard_error_ahead"] = float(np.ravel(state.deviation)[worst])
            seen[f"{name}/unit"] = float(np.ravel(self._unit(name))[0])
        return seen

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next call needs: numbers, lists and texts, for JSON or any other file."""
        return {
            "lariax": "Multipliers",
            "version": VERSION,
            "calls": self.calls,
            "steps": self.steps,
            "constraints": list(self.constraints),
            "pools": {name: _lists(pool) for name, pool in self._pools.items()},
            "pressures": {name: _lists(state) for name, state in self._pressures.items()},
            "sizes": {name: _lists(sizes) for name, sizes in self._sizes.items()},
            "at_limit": dict(self._at_limit),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, to the same bits; steps stay as they are here."""
        if state.get("lariax") != "Multipliers" or state.get("constraints") != list(self.constraints):
            raise ValueError(
                f"the state is of constraints {state.get('constraints')}, and these are {list(self.constraints)}: use "
                "the same names, in the same order."
            )
        if state.get("version") != VERSION:
            raise ValueError(
                f"the state has version {state.get('version', 1)} and this rule has version {VERSION}, which keeps "
                "other numbers: continue it with the release that saved it, or begin with new multipliers."
            )
        self.calls = state["calls"]
        self._pools = {name: Pool(*_arrays(numbers)) for name, numbers in state["pools"].items()}
        self._pressures = {name: Pressure(*_arrays(numbers)) for name, numbers in state["pressures"].items()}
        self._sizes = {name: Sizes(*_arrays(numbers)) for name, numbers in state["sizes"].items()}
        self._at_limit = dict(state["at_limit"])

    # --- inside

    def _unit(self, name: str) -> Any:
        return pressure.unit_of(host, self._sizes[name], self._pressures[name].widest)

    def _skip(self, name: str, given: bool) -> None:
        if name in self._pools:
            self._pools[name] = pressure.passed(self._pools[name])
        if given:
            self._say(
                f"finite {name}",
                f"in call {self.calls} the value of constraint {name!r}, or its error, was not finite: it is left "
                "out, and its multiplier stays as it was.",
            )
        elif name not in self._pools and self.calls == MISSED:
            self._say(
                f"missed {name}",
                f"constraint {name!r} has not been measured in {self.calls} calls: its multiplier is 0. Give its value "
                "to update or lagrangian, or leave the constraint out.",
            )

    def _check_limit(self, name: str, state: Pressure, limit: Any, values: float) -> None:
        if f"limit {name}" in self._said:
            return
        stuck = np.any(pressure.is_at_limit(state, limit))
        self._at_limit[name] = self._at_limit[name] + int(values) if stuck else 0
        if self._at_limit[name] > max(MISSED, STUCK * (self.steps or 5 * self.calls)):
            constraint = self.constraints[name]
            self._say(
                f"limit {name}",
                f"the multiplier of {name!r} has been at its limit for {self._at_limit[name]} calls, and its value is "
                f"not {constraint.relation} its bound: perhaps it cannot be reached by this model in this time. Loosen "
                "the bound, train longer, or give the model more to learn from.",
            )

    def _check_end(self) -> None:
        """Whether bounds are kept in the last call, as far as noise lets it be seen."""
        for name, state in self._pressures.items() if self.calls == self.steps else ():
            pool, constraint = self._pools[name], self.constraints[name]
            if self.kinds[name].exact or f"limit {name}" in self._said:
                continue
            last, error = state.level, self.values[name].standard_error
            if pool.size >= LAST:  # values since the multiplier moved are the newest; they may be falling still
                last = pool.total / pool.size
                error = np.sqrt(state.noise / pool.size + ((state.level - last) / 4) ** 2)
            left = np.maximum(last, 0) if constraint.inequality else np.abs(last)
            missed = left > SURE * error
            if not np.any(missed):
                continue
            worst = int(np.argmax(np.where(missed, left, -1)))
            level = np.ravel(constraint.sign * last + self.bounds[name])[worst]
            self._say(
                f"end {name}",
                f"in the last call {name!r} is not {constraint.relation} its bound: it is {level:.4g} +- "
                f"{np.ravel(error)[worst]:.2g}. Train longer, or with a higher learning rate; move the bound by what "
                "is missing; of a Proxy, take a surrogate that is nearer to the values.",
            )

    def _say(self, what: str, words: str) -> None:
        if what not in self._said:
            self._said.add(what)
            warn(words, RuntimeWarning)


def _pair(name: str, given: Any) -> tuple[Any, Any]:
    """(mean, variance of the mean)"""
    pair = given if isinstance(given, tuple) and len(given) == 2 else (given, math.nan)
    try:  # a tensor that still has its graph is a number, too
        mean, error = (np.asarray(each.detach().cpu() if hasattr(each, "detach") else each, float) for each in pair)
    except (TypeError, ValueError) as wrong:
        raise TypeError(
            f"the value of {name!r} is a mean or (mean, standard error), in plain numbers, found {given!r}."
        ) from wrong
    return _plain(mean), _plain(np.broadcast_to(error**2, mean.shape))


def _chained(start: Any, terms: np.ndarray) -> Any:
    """The sum, term after term."""
    return _plain(np.add.accumulate(np.concatenate([np.asarray(start)[None], terms]))[-1])


def _plain(number: Any) -> Any:
    """A float where there is one number: a loop handles it ten times as fast."""
    return float(number) if number.ndim == 0 else number


def _is_finite(value: Any) -> bool:
    return abs(value) < HUGE if isinstance(value, float) else bool((np.abs(value) < HUGE).all())


def _is_infinite(variance: Any) -> bool:
    """Then a value says nothing; what is no number is not known."""
    return math.isinf(variance) if isinstance(variance, float) else bool(np.isinf(variance).any())


def _lists(numbers: Iterable[Any]) -> list[Any]:
    return [np.asarray(number, float).tolist() for number in numbers]


def _arrays(numbers: Iterable[Any]) -> list[Any]:
    return [_plain(np.asarray(number, float)) for number in numbers]
