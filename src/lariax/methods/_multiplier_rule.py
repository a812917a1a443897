"""The rule of `lx.Multipliers` as pure functions, for a loop of one's own in JAX."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from lariax.tuned import pressure
from lariax.tuned.multipliers import checked, kind_of
from lariax.tuned.pressure import Kind, Pool, Pressure, Sizes

Named = dict[str, Array]


class Ruled(NamedTuple):
    """One constraint's part of the state."""

    pool: Pool
    pressure: Pressure
    sizes: Sizes


RuleState = dict[str, Ruled]


class GradientLook(NamedTuple):
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
    those means and that of the mean objective where they are known, and now and then a `GradientLook` by name. What is
    not finite is left out.

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
        return {name: started(jnp.asarray(values[name], jnp.result_type(float))) for name in constraints}

    def update(
        state: RuleState,
        values: Mapping[str, Any],
        variances: Mapping[str, Any] | None = None,
        objective_variance: Any = None,
        looks: Mapping[str, GradientLook] | None = None,
    ) -> tuple[Named, RuleState]:
        multipliers, new = {}, {}
        for name, constraint in constraints.items():
            old, kind = state[name], kind_of(constraint)
            if looks and name in looks:
                old = old._replace(sizes=pressure.looked(jnp, old.sizes, kind, old.pool.calls + 1, *looks[name]))
            value = jnp.asarray(values[name], old.pressure.level.dtype)
            variance = jnp.asarray((variances or {}).get(name, jnp.nan), value.dtype)
            noise = jnp.asarray(jnp.nan if objective_variance is None else objective_variance, value.dtype)
            sizes = pressure.spread(jnp, old.sizes, old.pool.count, noise, jnp.mean(variance))
            residual = constraint.sign * (value - constraint.bound)
            new[name] = turned(old._replace(sizes=sizes), residual, variance, kind, steps)
            multipliers[name] = constraint.sign * weighed(new[name], kind) + 0.0
        return multipliers, new

    return MultiplierRule(init, update)


def started(like: Array) -> Ruled:
    """Before the first value."""
    zero = jnp.zeros((), like.dtype)
    shaped = jnp.zeros_like(like)
    pool = pressure.empty(shaped)._replace(calls=zero, count=zero, size=zero)
    return Ruled(
        pool, pressure.relaxed(shaped)._replace(pools=zero), Sizes(*(zero + number for number in pressure.unseen()))
    )


def turned(old: Ruled, residual: Array, variance: Any, kind: Kind, steps: Any) -> Ruled:
    """After a value; one that is not finite is left out."""
    finite = jnp.all(jnp.isfinite(residual)) & ~jnp.any(jnp.isinf(variance))
    pool = pressure.pooled(jnp, old.pool, jnp.where(finite, residual, old.pool.last), variance)
    pool = _chosen(finite, pool, pressure.passed(old.pool))
    total = None if steps is None else jnp.asarray(steps, residual.dtype)
    full = pressure.is_full(jnp, pool, kind, total) & finite
    unit = pressure.unit_of(jnp, old.sizes, old.pressure.widest)
    new = pressure.pressed(jnp, old.pressure, pool, kind, total, unit, pressure.limit_of(jnp, old.sizes) * unit)
    return Ruled(_chosen(full, pressure.emptied(pool), pool), _chosen(full, new, old.pressure), old.sizes)


def weighed(state: Ruled, kind: Kind, residual: Any = None) -> Array:
    """The multiplier, in the Lagrangian of residuals: at `residual` if that is known exactly, else at the last one."""
    return pressure.weight_of(jnp, state.pressure, kind, state.pool.last if residual is None else residual, state.sizes)


def _chosen(first: Array, one: Any, other: Any) -> Any:
    return type(one)(*(jnp.where(first, a, b) for a, b in zip(one, other, strict=True)))
