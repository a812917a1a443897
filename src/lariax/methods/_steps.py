"""The two parts of a step of `TangentNormal`: the normal step, back to the constraints, and the tangential one.

Residuals are those of rows of length one, so that their norm, the violation, is about a distance.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lariax.methods._face import along_face
from lariax.methods._nearest import Bounds, Linearized, Near, Values, nearest, ridge
from lariax.oracle import Vector

TRIES = 16  # the most points that either part looks at
OFF = 0.2  # how far from the constraints a tangential step may lead, in units of its length
ROUNDS = 4  # how often the face is changed in the search for a step

Residuals = Callable[[Vector], Values]


class BasePoint(NamedTuple):
    """Where a step begins: x, its constraints to first order, and its bounds."""

    rows: Linearized
    bounds: Bounds
    residuals: Residuals  # of any point, scaled
    x: Vector
    values: Values  # residuals there
    size: Float[Array, ""]  # how large x and its steps are, recently: what rounding is relative to

    def violation(self, values: Values) -> Float[Array, ""]:
        return jnp.linalg.norm(self.rows.violation(values))

    def within(self, point: Vector) -> Vector:
        return jnp.clip(point, *self.bounds)

    @property
    def nothing(self) -> tuple[Vector, Values]:
        return jnp.zeros_like(self.x), jnp.zeros_like(self.values)

    @property
    def eps(self) -> float:
        return float(jnp.finfo(self.x.dtype).eps)

    @property
    def is_far(self) -> Bool[Array, ""]:
        """Nearer to the constraints a full step helps or none."""
        return self.violation(self.values) > self.eps**0.5 * self.size


# --- the normal step


class NormalStep(NamedTuple):
    """A step back that was tried: x' = x + step."""

    damping: Float[Array, ""]
    step: Vector
    point: Vector
    residuals: Values
    before: Float[Array, ""]  # violation squared: at x,
    hoped: Float[Array, ""]  # at x' to first order,
    after: Float[Array, ""]  # and at x'
    tries: Int[Array, ""]

    @property
    def length(self) -> Float[Array, ""]:
        return jnp.linalg.norm(self.step)

    @property
    def helps(self) -> Bool[Array, ""]:
        return (self.after < self.before) & (self.before - self.after >= 0.1 * (self.before - self.hoped))


def normal_step(base: BasePoint, reach: Array) -> tuple[NormalStep, Array]:
    """The step of Levenberg and Marquardt,  argmin ||J d + r||^2 + damping ||d||^2,  and the next `reach`.

    Without damping it is Gauss and Newton's, which is best near the constraints. It is damped until it is no longer
    than `reach` and the violation falls, as it must in the end unless J^T r = 0: that is how to get away from where
    rows nearly depend on each other, and Gauss and Newton's step is endless.
    """
    rows, (still, idle), far = base.rows, base.nothing, base.is_far
    before = base.violation(base.values) ** 2

    def at(damping: Array, count: Array) -> NormalStep:
        step = nearest(rows, base.values, still, base.bounds.around(base.x), idle, damping).step
        point = base.within(base.x + step)
        values = base.residuals(point)
        hoped = base.violation(base.values + rows.forward(step)) ** 2
        return NormalStep(damping, step, point, values, before, hoped, base.violation(values) ** 2, count)

    def again(last: NormalStep) -> NormalStep:
        # by as much as a step along one eigenvector of J^T J needs to become shorter
        along = jnp.sum(rows.forward(last.step) ** 2) / (last.length**2 + jnp.finfo(before.dtype).tiny)
        shorter = jnp.where(last.length > 1.5 * reach, last.length / reach, 4)
        return at(jnp.where(last.tries == 0, least, shorter * (last.damping + along) - along), last.tries + 1)

    def goes_on(last: NormalStep) -> Array:
        too_long = ~last.helps | (last.length > 1.5 * reach)
        return (last.tries == 0) | (far & too_long & (last.tries < TRIES))

    least = jnp.asarray(ridge(before.dtype), before.dtype)
    none = NormalStep(least, still, base.x, base.values, before, before, before, jnp.int32(0))
    last = jax.lax.while_loop(goes_on, again, none)
    good = last.before - last.after > 0.75 * (last.before - last.hoped)
    longer = jnp.where(last.helps, jnp.where(good, 4, 1), 0.25) * last.length
    tested = ~last.helps | (last.tries > 1) | (last.length > reach / 2)
    took = jax.tree.map(lambda a, b: jnp.where(last.helps, a, b), last, none)
    return took._replace(tries=last.tries), jnp.where(far & tested, longer, reach)


# --- the tangential step


def tangential_direction(
    base: BasePoint, back: NormalStep, gradient: Vector, model: Array, largest: Array, weights: Values
) -> tuple[Vector, Near]:
    """The step that the model wants along the linearised constraints, and the gradient step with its multipliers."""
    rows, around = base.rows, base.bounds.around(back.point)
    room = jnp.where(rows.inequality, jnp.maximum(-back.residuals, 0), 0)

    def gradient_step(step: Vector, weights: Values) -> Near:
        slope = gradient + (model @ step if model.ndim else model * step)
        return nearest(rows, -room, step - slope / largest, around, weights)

    if model.ndim == 0:
        near = gradient_step(jnp.zeros_like(gradient), weights)
        return near.step, near
    if rows.plain:
        near = gradient_step(jnp.zeros_like(gradient), weights)
        step = along_face(rows, gradient, model, room, around, near)
        return jnp.where(jnp.all(jnp.isfinite(step)), step, near.step), near

    def turn(carry: tuple[Vector, Near, Near, Array, Array]) -> tuple[Vector, Near, Near, Array, Array]:
        """A gradient step of the model, which may leave the face, and on along the new one."""
        step, first, last, count, _ = carry
        near = gradient_step(step, last.weights)
        new = along_face(rows, gradient, model, room, around, near)
        same = jnp.sum((new - step) ** 2) <= 1e-12 * jnp.sum(new**2)
        first = jax.tree.map(lambda a, b: jnp.where(count == 0, a, b), near, first)
        return new, first, near, count + 1, same

    still = jnp.zeros_like(gradient)
    none = Near(still, weights, still > 0, rows.inequality)
    begin = (still, none, none, jnp.int32(0), jnp.asarray(False))
    step, near, *_ = jax.lax.while_loop(lambda c: (c[3] < ROUNDS) & ~c[4], turn, begin)
    return jnp.where(jnp.all(jnp.isfinite(step)), step, near.step), near


class TangentialStep(NamedTuple):
    """A point that was tried, and corrected."""

    part: Float[Array, ""]  # of the step
    point: Vector
    violation: Float[Array, ""]
    shift: Float[Array, ""]  # how far the correction was
    fine: Bool[Array, ""]
    tries: Int[Array, ""]

    @property
    def taken(self) -> Float[Array, ""]:
        return jnp.where(self.fine, self.part, 0)


def tangential_step(base: BasePoint, back: NormalStep, step: Vector) -> TangentialStep:
    """x' + t and a step back, for the longest t that stays near the constraints; x' if there is none.

    Near is where one step back, no longer than `OFF` of t or than the normal step, removes half of the violation. Where
    steps back do not help, as where constraints contradict each other, t may undo half of what the normal step did.
    """
    rows, (still, idle) = base.rows, base.nothing
    length = jnp.linalg.norm(step)
    rounding = 8 * base.eps * base.size
    allowed = jnp.maximum((jnp.sqrt(back.before) + jnp.sqrt(back.after)) / 2, rounding)
    longest = jnp.maximum(back.length, rounding)

    def again(last: TangentialStep) -> TangentialStep:
        part = jnp.where(last.tries == 0, 1, last.part * jnp.clip(OFF / 2 * last.part * length / last.shift, 0.1, 0.5))
        point = base.within(back.point + part * step)
        values = base.residuals(point)
        shift = nearest(rows, values, still, base.bounds.held(point), idle).step
        other = base.within(point + shift)
        v1, v2, far = base.violation(values), base.violation(base.residuals(other)), jnp.linalg.norm(shift)
        better = v2 < v1
        violation = jnp.where(better, v2, v1)
        short = far <= jnp.maximum(OFF * part * length, longest)
        fine = short & ((v2 <= v1 / 2) | (violation <= allowed))
        return TangentialStep(part, jnp.where(better, other, point), violation, far, fine, last.tries + 1)

    none = jnp.zeros((), step.dtype)
    begin = TangentialStep(none, back.point, jnp.sqrt(back.after), none + 1, jnp.asarray(False), jnp.int32(0))

    def goes_on(last: TangentialStep) -> Array:
        return ~last.fine & ((last.tries == 0) | (last.part * length > rounding)) & (last.tries < TRIES)

    last = jax.lax.while_loop(goes_on, again, begin)
    return last._replace(point=jnp.where(last.fine, last.point, back.point))
