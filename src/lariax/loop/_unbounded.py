"""Whether the objective falls without end: a run that has gone far is followed much further, on fresh samples."""

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


def falls_without_end(oracle: Oracle, z: Vector, first: Batch, second: Batch, strict: bool) -> bool:
    """Whether some ray from z lets the objective fall like a line while (strict) constraints hold.

    Rays: the one that comes from 0, and those that it becomes when it is turned into the directions in which the
    objective has no curvature and constraints do not change, as the second batch shows them. The first batch judges.
    """
    ray = np.asarray(z, float) / float(jnp.linalg.norm(z))
    falls, left = _followed(oracle, z, ray, first)
    if falls and not (strict and left.any()):
        return True
    bends = _bends(oracle, z, second)
    if bends is None or not strict:
        return False
    hessian, rows = bends
    follows = ~np.asarray(oracle.inequality)
    for _ in range(TURNS):
        turned = _turned(ray, hessian, rows[follows])
        falls, left = _followed(oracle, z, turned, first)
        if not left.any():
            return falls
        follows = follows | left
    return False


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


def _followed(oracle: Oracle, z: Vector, ray: np.ndarray, batch: Batch) -> tuple[bool, np.ndarray]:
    """Whether the objective falls like a line from z on along the ray, and which rows do not hold there."""
    seen = _along(oracle, z, jnp.asarray(ray, z.dtype), batch)
    objective, left, slope = (np.asarray(each) for each in seen)
    finite = np.isfinite(objective)
    falls = np.diff(objective[finite])
    is_line = len(falls) > 1 and np.all(falls < 0) and np.all(falls[1:] < LINEAR * falls[:-1])
    return bool(is_line and falls[0] < -HELD * slope * np.linalg.norm(z)), left[finite].any(axis=0)


@compiled(once=True)
def _along(
    oracle: Oracle, z: Vector, ray: Vector, batch: Batch
) -> tuple[Float[Array, " n"], Bool[Array, "n m"], Float[Array, ""]]:
    """At points along a ray from z, each twice as far from it: the objective, and which rows no longer hold; and how
    steep the objective is at z."""
    length, regularizer = jnp.linalg.norm(z), oracle.problem.regularizer
    here = oracle.residual_rows(z, batch)
    before, steep = jnp.mean(here, axis=0), _steepness(oracle, z, batch, here)
    rounding = 100 * jnp.finfo(oracle.dtype).eps * (jnp.max(jnp.abs(here), axis=0) + steep * length)

    def at(step: Array) -> tuple[Array, Array]:
        point = oracle.prox(z + step * ray, 0.0)
        change = oracle.residual_rows(point, batch) - here
        error = jnp.std(change, axis=0) / jnp.sqrt(change.shape[0] / 2)  # the ray has one of its own
        grown = _violation(oracle, before + jnp.mean(change, axis=0)) - _violation(oracle, before)
        allowed = jnp.maximum(HELD * steep * step, jnp.minimum(SURE * error, DOUBT * steep * step))
        objective = oracle.objective(point, batch) + regularizer.value(oracle.x_of(point))
        return objective, grown > allowed + rounding

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
