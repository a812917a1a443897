"""The rule of `lx.Multipliers` as pure functions, for a loop of one's own in JAX."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from lariax.tuned import Pressure, Sizes, checked, limit_of, looked, passed, pressed, relaxed, spread, unit_of, unseen

Named = dict[str, Array]
RuleState = dict[str, tuple[Pressure, Sizes]]


class Look(NamedTuple):
    """What one look says of the gradients of objective and constraint."""

    products: tuple[Any, Any]  # of the gradients of two halves of a batch
    squares: tuple[Any, Any]  # of those of the whole batch


class MultiplierRule(NamedTuple):
    """`init(values)` gives a state from values of the right shapes; `update(state, values, ...)` gives multipliers by
    name, and the next state."""

    init: Callable[[Mapping[str, Any]], RuleState]
    update: Callable[..., tuple[Named, RuleState]]


def multiplier_rule(constraints: Mapping[str, Any], steps: int | None = None) -> MultiplierRule:
    """The rule of `lx.Multipliers` as a pair of pure functions, in the manner of optax: for jit, scan and vmap.

    `update(state, values, variances=None, objective_variance=None, looks=None)` takes means by name, the variances of
    those means and that of the mean objective where they are known, and now and then a `Look` by name. What is not
    finite is left out.

    Arguments:
        constraints: `Equal`, `AtMost` or `AtLeast` by name, without functions: `lx.AtMost(bound=0.02)`.
        steps: the number of updates that there will be.

    >>> import lariax as lx
    >>> rule = lx.multiplier_rule({"cost": lx.AtMost(bound=25.0)}, steps=200)
    >>> state = rule.init({"cost": 30.0})
    >>> for _ in range(50):
    ...     multipliers, state = rule.update(state, {"cost": 30.0}, {"cost": 1.0}, objective_variance=0.01)
    >>> bool(multipliers["cost"] > 0)
    True
    """
    checked(constraints, steps)

    def init(values: Mapping[str, Any]) -> RuleState:
        def start(value: Any) -> tuple[Pressure, Sizes]:
            like = jnp.asarray(value, jnp.result_type(float))
            zero = jnp.zeros((), like.dtype)
            pressure = relaxed(jnp.zeros_like(like))._replace(calls=zero, count=jnp.zeros_like(like))
            return pressure, Sizes(*(zero + number for number in unseen()))

        return {name: start(values[name]) for name in constraints}

    def update(
        state: RuleState,
        values: Mapping[str, Any],
        variances: Mapping[str, Any] | None = None,
        objective_variance: Any = None,
        looks: Mapping[str, Look] | None = None,
    ) -> tuple[Named, RuleState]:
        multipliers, new = {}, {}
        for name, constraint in constraints.items():
            pressure, sizes = state[name]
            if looks and name in looks:
                sizes = looked(jnp, sizes, pressure.calls + 1, *looks[name])
            value = jnp.asarray(values[name], pressure.level.dtype)
            variance = jnp.asarray((variances or {}).get(name, jnp.nan), value.dtype)
            noise = jnp.asarray(jnp.nan if objective_variance is None else objective_variance, value.dtype)
            new[name] = _moved(pressure, sizes, constraint, value, variance, noise, steps)
            pressure, sizes = new[name]
            multipliers[name] = constraint.sign * unit_of(jnp, sizes, pressure.widest) * pressure.units + 0.0
        return multipliers, new

    return MultiplierRule(init, update)


def _moved(
    old: Pressure, sizes: Sizes, constraint: Any, value: Array, variance: Array, noise: Array, steps: int | None
) -> tuple[Pressure, Sizes]:
    """State and sizes after a value; entries that are not finite keep theirs."""
    total = None if steps is None else float(steps)
    finite = jnp.isfinite(value)
    sizes = spread(jnp, sizes, jnp.max(old.count), noise, jnp.mean(variance))
    residual = constraint.sign * (value - constraint.bound)
    safe = jnp.where(finite, residual, old.level)
    new = pressed(jnp, old, constraint.inequality, safe, variance, total, limit_of(jnp, sizes))
    kept = passed(old)
    pairs = zip(new._replace(calls=kept.calls), kept, strict=True)
    return Pressure(*(jnp.where(finite, a, b) if jnp.ndim(b) else _scalar(finite, a, b) for a, b in pairs)), sizes


def _scalar(finite: Array, new: Any, old: Any) -> Any:
    return jnp.where(jnp.all(finite), new, old)
