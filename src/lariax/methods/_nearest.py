"""The point nearest to a target within linearised constraints and bounds.

    minimise  ||d - target||^2 / 2   subject to   J d + r = 0,   J d + r <= 0,   low <= d <= high

or as near to them as d can come. Rows of J have length one, so that weights, steps and distances to constraints have
one unit. Dependent rows, more rows than unknowns and rows that contradict each other are met by a relative ridge.

The dual is smooth and piecewise quadratic in m unknowns. Newton's method for it is exact as soon as it knows the active
set, which the last iteration nearly tells. From far away, where many rows compete for few unknowns, it may wander: then
an interior path brings it near.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lariax.methods._gram import gram_solve
from lariax.methods._interior import InteriorPath, inner_weights
from lariax.oracle import Vector

NEWTON = 12  # the most steps towards the dual solution; two or three are usual once the active set has settled
PATIENCE = 40  # the most where there is no other way
HALVINGS = 12  # of one of them

Values = Float[Array, " m"]


class Linearized(NamedTuple):
    """Constraints at a point, to first order, with rows of length one."""

    forward: Callable[[Vector], Values]  # J v
    backward: Callable[[Values], Vector]  # J^T y
    solve: Callable[[Bool[Array, " m"], Vector, Array, Values], Values]  # (active, free, ridge, b) -> y, see `dense`
    ready: Callable[[Values], Values] | None  # b -> y over all rows and entries, where that is all that is ever asked
    matrix: Float[Array, "m d"] | None  # J; None beyond the dense limit
    size: Values  # by which rows and residuals were divided
    length: Values  # of the rows before that
    alive: Bool[Array, " m"]  # rows that have a gradient; the others are left out, since nothing is known of them
    inequality: Bool[Array, " m"]
    plain: bool  # neither inequalities nor bounds

    def scaled(self, residuals: Values) -> Values:
        return jnp.where(self.alive, residuals / self.size, 0)

    def least(self, active: Bool[Array, " m"], free: Vector, right: Values) -> Values:
        """(J J^T + ridge) y = b over the active rows and the free entries."""
        if self.ready is not None:
            return self.ready(right)
        return self.solve(active, free, jnp.asarray(ridge(right.dtype), right.dtype), right)

    def violation(self, residuals: Values) -> Values:
        """Of scaled residuals: about the distance to each constraint."""
        return jnp.where(self.inequality, jnp.maximum(residuals, 0), residuals)


class Bounds(NamedTuple):
    low: Vector
    high: Vector

    def around(self, x: Vector) -> "Bounds":
        """For steps from x."""
        return Bounds(jnp.minimum(self.low - x, 0), jnp.maximum(self.high - x, 0))

    def held(self, x: Vector) -> "Bounds":
        """For steps from x that leave entries where they are on a bound."""
        low, high = self.around(x)
        on = (low == 0) | (high == 0)
        return Bounds(jnp.where(on, 0, low), jnp.where(on, 0, high))


def unbounded(x: Vector) -> Bounds:
    return Bounds(jnp.full_like(x, -jnp.inf), jnp.full_like(x, jnp.inf))


class Near(NamedTuple):
    """What `nearest` found."""

    step: Vector
    weights: Values  # y of the scaled rows, with  step = clip(target - J^T y)
    free: Bool[Array, " d"]  # entries that no bound holds
    active: Bool[Array, " m"]


def ridge(dtype: jnp.dtype) -> float:
    """Eigenvalue of J J^T, with rows of length one, below which a direction counts as dependent."""
    return float(jnp.finfo(dtype).eps) ** 0.75


def nearest(
    rows: Linearized,
    residuals: Values,
    target: Vector,
    bounds: Bounds,
    weights: Values,
    damping: Array | None = None,
) -> Near:
    """argmin ||d - target|| within linearised constraints and bounds, or as near to them as d can come.

    The dual is  max over y of  min over d in the bounds of  ||d - target||^2 / 2 + y . (J d + r) - ridge ||y||^2 / 2,
    with y >= 0 for inequalities; `weights` are a guess at y. With target 0 and a `damping` instead of the ridge, d is
    the step of Levenberg and Marquardt,  argmin ||J d + r||^2 + damping ||d||^2.
    """
    if rows.plain:
        every, free = jnp.ones_like(residuals, bool), jnp.ones_like(target)
        right = rows.forward(target) + residuals
        if damping is None:
            y = rows.least(every, free, right)
            y = y + rows.least(every, free, right - rows.forward(rows.backward(y)))  # takes back the ridge
        else:
            y = rows.solve(every, free, damping, right)
        return Near(target - rows.backward(y), y, free > 0, every)
    small = jnp.asarray(ridge(target.dtype), target.dtype)
    dual = _Dual(rows, residuals, target, bounds, small if damping is None else damping)
    y = _maximum(dual, dual.allowed(weights))
    inner = target - rows.backward(y)
    step = jnp.clip(inner, bounds.low, bounds.high)
    return Near(step, y, (inner > bounds.low) & (inner < bounds.high), ~rows.inequality | (y > 0))


class _Point(NamedTuple):
    """The dual at a point: its value, its gradient, the entries that are free there."""

    y: Values
    value: Float[Array, ""]
    slope: Values
    free: Vector


class _Dual(NamedTuple):
    """The dual problem, and how far from its solution a point is."""

    rows: Linearized
    residuals: Values
    target: Vector
    bounds: Bounds
    ridge: Array

    def at(self, y: Values) -> _Point:
        inner = self.target - self.rows.backward(y)
        step = jnp.clip(inner, self.bounds.low, self.bounds.high)
        slope = self.rows.forward(step) + self.residuals - self.ridge * y
        value = jnp.sum((step - self.target) ** 2) / 2 + jnp.vdot(y, slope + self.ridge * y / 2)
        free = (inner > self.bounds.low) & (inner < self.bounds.high)
        return _Point(y, value, slope, free.astype(y.dtype))

    def allowed(self, y: Values) -> Values:
        return jnp.where(self.rows.inequality, jnp.maximum(y, 0), y)

    def missing(self, point: _Point) -> Array:
        """How far from the maximum, in units of rounding."""
        known = jnp.linalg.norm(self.residuals) + jnp.linalg.norm(self.rows.forward(self.target))
        gap = self.allowed(point.y + point.slope) - point.y
        return jnp.linalg.norm(gap) / (jnp.finfo(known.dtype).eps * known + jnp.finfo(known.dtype).tiny)


def _maximum(dual: _Dual, start: Values) -> Values:
    """Newton's method from the start; if that does not get there, from where the interior path leads."""
    matrix = dual.rows.matrix
    if matrix is None:
        return _ascent(dual, start, PATIENCE)

    def attempt(carry: tuple[Values, Array, Array]) -> tuple[Values, Array, Array]:
        y, count, _ = carry
        path = InteriorPath(matrix, dual.residuals, dual.target, *dual.bounds, dual.ridge, dual.rows.inequality)
        other = inner_weights(path, needed=count > 0)
        y = jnp.where((count > 0) & (dual.at(other).value > dual.at(y).value), other, y)
        y = _ascent(dual, y, NEWTON)
        return y, count + 1, dual.missing(dual.at(y)) <= 256

    begin = (start, jnp.int32(0), jnp.asarray(False))
    return jax.lax.while_loop(lambda c: (c[1] < 2) & ~c[2], attempt, begin)[0]


# --- Newton's method for the dual


def _ascent(dual: _Dual, start: Values, most: int) -> Values:
    rows, least, eps = dual.rows, 0.5**HALVINGS, jnp.finfo(start.dtype).eps

    def improve(carry: tuple[_Point, Array, Array]) -> tuple[_Point, Array, Array]:
        now, count, _ = carry
        # weights that fall to 0 go there at once; Newton's step for the others, cut off where they reach 0
        active = ~rows.inequality | (now.y + now.slope > 0)
        gap = jnp.where(active, now.slope, -now.y)
        # where rows outnumber free entries the dual is flat: a ridge that goes with the gap keeps steps in range
        error = jnp.linalg.norm(gap)
        extra = dual.ridge + 0.01 * error / (error + jnp.linalg.norm(now.y) + jnp.finfo(eps.dtype).tiny)
        move = rows.solve(active, now.free, extra, gap)

        def ahead(length: Array) -> tuple[Array, _Point]:
            return length, dual.at(dual.allowed(now.y + length * move))

        def too_far(carry: tuple[Array, _Point]) -> Array:
            length, new = carry
            wanted = 1e-4 * jnp.vdot(now.slope, new.y - now.y) - 4 * eps * jnp.abs(now.value)
            return ~(new.value - now.value >= wanted) & (length > least)

        length, new = jax.lax.while_loop(too_far, lambda c: ahead(c[0] / 2), ahead(jnp.ones((), start.dtype)))
        stuck = length <= least
        return jax.tree.map(lambda a, b: jnp.where(stuck, a, b), now, new), count + 1, stuck

    begin = (dual.at(start), jnp.int32(0), jnp.asarray(False))
    last, _, _ = jax.lax.while_loop(lambda c: (dual.missing(c[0]) > 8) & (c[1] < most) & ~c[2], improve, begin)
    return last.y


def dense(matrix: Float[Array, "m d"], active: Bool[Array, " m"], free: Vector, extra: Array, right: Values) -> Values:
    """(J_AF J_AF^T + ridge) y = b over the active rows and the free entries; y = b for the other rows."""
    return gram_solve(active[:, None] * matrix * free, jnp.where(active, extra, 1), right)
