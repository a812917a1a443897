"""Whether the objective falls without end: a run that has gone far is followed much further, on fresh samples."""

from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from lariax.compilation import compiled
from lariax.oracle import Batch, Oracle, Vector

DOUBLINGS = 13
"""A ray is followed 2^13 times as far as the run has come."""

LINEAR = 1.5
"""What a function that falls like a line falls by, each time the distance doubles, is 2 times as much as before. One
that approaches a limit falls by less each time."""

AGAIN, FEW = 0.8, 4
"""One that falls like a logarithm falls by as much again, or at least by this part of that. A few doublings have to do:
further out the ray may leave the valley. What approaches a limit falls by less; a slight slope that is left of another
direction falls like a line."""

HELD = 1e-3
"""The objective falls along a ray if it does so by more than this part of its slope; a constraint holds there if its
violation grows by less,"""

SURE = 4.0
"""or by less than so many standard errors of that,"""

DOUBT = 0.05
"""which must be less than this part of its slope."""

PROBES = 8
"""Random directions that show how steep a row is."""

DENSE = 512
"""With more variables than this the Hessian is not formed, and only the ray through x is followed."""

FLAT = 1e-4
"""Curvature below this part of the largest is none."""

TURNS = 4
"""How often constraints that a ray has left are added to those that it must follow."""


class Fall(Enum):
    """How the objective falls along a ray, while constraints hold: like a line, at first like a logarithm, or as what
    has an end."""

    LINE = "line"
    LOGARITHM = "logarithm"
    NONE = "none"


def fall_from(oracle: Oracle, z: Vector, first: Batch, second: Batch, strict: bool) -> Fall:
    """How the objective falls along some ray from z on which (strict) constraints hold.

    Rays: the one that comes from 0, and those that it becomes when it is turned into the directions in which the
    objective has no curvature and constraints do not change, as the second batch shows them. The first batch judges.
    """
    ray = np.asarray(z, float) / float(jnp.linalg.norm(z))
    fall, left = _followed(oracle, z, ray, first)
    if fall is not Fall.NONE and not (strict and left.any()):
        return fall
    bends = _bends(oracle, z, second)
    if bends is None or not strict:
        return Fall.NONE
    hessian, rows = bends
    follows = ~np.asarray(oracle.inequality)
    for _ in range(TURNS):
        turned = _turned(ray, hessian, rows[follows])
        fall, left = _followed(oracle, z, turned, first)
        if not left.any():
            return fall
        follows = follows | left
    return Fall.NONE


def _turned(ray: np.ndarray, hessian: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The ray turned to where the objective has no curvature and, among such directions, these rows change least."""
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    flat = vectors[:, np.abs(values) <= FLAT * np.abs(values).max()]
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    slopes = rows / (size + (size == 0)) @ flat
    part = flat @ np.linalg.solve(slopes.T @ slopes + FLAT**3 * np.eye(flat.shape[1]), flat.T @ ray)
    length = np.linalg.norm(part)
    return part / length if length > 0 else ray


def _bends(oracle: Oracle, z: Vector, batch: Batch) -> tuple[np.ndarray, np.ndarray] | None:
    """Hessian of the objective and Jacobian of the constraints; None: too large, or differentiable only once."""
    if z.size > DENSE:
        return None
    try:
        hessian = _hessian(oracle, z, batch)
    except TypeError:  # jax.custom_vjp has no derivative along a direction
        return None
    return np.asarray(hessian, float), np.asarray(_jacobian(oracle, z, batch), float)


@compiled(once=True)
def _hessian(oracle: Oracle, z: Vector, batch: Batch) -> Float[Array, "d d"]:
    def product(direction: Vector) -> Vector:
        return jax.jvp(lambda point: oracle.objective_gradient(point, batch), (z,), (direction,))[1]

    return jax.lax.map(product, jnp.eye(z.size, dtype=z.dtype))


@compiled(once=True)
def _jacobian(oracle: Oracle, z: Vector, batch: Batch) -> Float[Array, "m d"]:
    return oracle.jacobian(z, batch)


def _followed(oracle: Oracle, z: Vector, ray: np.ndarray, batch: Batch) -> tuple[Fall, np.ndarray]:
    """How the objective falls from z on along the ray, and which rows do not hold there."""
    objective, error, left, slope = map(np.asarray, _along(oracle, z, jnp.asarray(ray, z.dtype), batch))
    finite = np.isfinite(objective)
    falls, left = np.diff(objective[finite]), left[finite].any(axis=0)
    length, first = np.linalg.norm(z), falls[:FEW]
    is_line = len(falls) > 1 and np.all(falls < 0) and np.all(falls[1:] < LINEAR * falls[:-1])
    if is_line and falls[0] < -HELD * slope * length:
        return Fall.LINE, left
    if len(first) < FEW or not np.all(first < -SURE * error[1:][:FEW]):
        return Fall.NONE, left
    again = first[1:] / first[:-1]
    return Fall.LOGARITHM if np.all((again > AGAIN) & (again < LINEAR)) else Fall.NONE, left


@compiled(once=True)
def _along(
    oracle: Oracle, z: Vector, ray: Vector, batch: Batch
) -> tuple[Float[Array, " n"], Float[Array, " n"], Bool[Array, "n m"], Float[Array, ""]]:
    """At points along a ray from z, each twice as far from it: the objective, the standard error of its change since
    half as far, and which rows no longer hold; and how steep the objective is at z."""
    length, regularizer = jnp.linalg.norm(z), oracle.problem.regularizer
    here = oracle.residual_rows(z, batch)
    before, steep = jnp.mean(here, axis=0), _steepness(oracle, z, batch, here)
    rounding = 100 * jnp.finfo(oracle.dtype).eps * (jnp.max(jnp.abs(here), axis=0) + steep * length)

    def objectives(step: Array) -> Array:
        point = oracle.prox(z + step * ray, 0.0)
        return oracle.look(point, batch).objective + regularizer.value(oracle.x_of(point))

    def at(step: Array) -> tuple[Array, Array, Array]:
        point = oracle.prox(z + step * ray, 0.0)
        change = oracle.residual_rows(point, batch) - here
        error = jnp.std(change, axis=0) / jnp.sqrt(change.shape[0] / 2)  # the ray has one of its own
        grown = _violation(oracle, before + jnp.mean(change, axis=0)) - _violation(oracle, before)
        allowed = jnp.maximum(HELD * steep * step, jnp.minimum(SURE * error, DOUBT * steep * step))
        each = objectives(step)
        fallen = jnp.std(each - objectives((step - length) / 2)) / jnp.sqrt(each.shape[0])
        return jnp.mean(each), fallen, grown > allowed + rounding

    slope = jnp.linalg.norm(oracle.objective_gradient(z, batch))
    return *jax.lax.map(at, length * (2.0 ** jnp.arange(DOUBLINGS + 1) - 1)), slope


def _steepness(oracle: Oracle, z: Vector, batch: Batch, here: Float[Array, "n m"]) -> Float[Array, " m"]:
    """How fast rows change between z and random points as far from it as z is from 0."""
    length = jnp.linalg.norm(z)

    def change(key: Key[Array, ""]) -> Float[Array, " m"]:
        probe = jax.random.normal(key, z.shape, z.dtype)
        return jnp.mean(oracle.residual_rows(z + length * probe / jnp.linalg.norm(probe), batch) - here, axis=0)

    changes = jax.lax.map(change, jax.random.split(jax.random.key(0), PROBES))  # one at a time: x may be large
    return jnp.sqrt(z.size * jnp.mean(changes**2, axis=0)) / length


def _violation(oracle: Oracle, values: Float[Array, " m"]) -> Float[Array, " m"]:
    return jnp.where(oracle.inequality, jnp.maximum(values, 0), jnp.abs(values))
