"""The shape of the penalty: about (J J^T)^-1, so that neither scale nor correlation of the constraints matters."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from lariax.oracle import Batch, Oracle, Vector, for_each

WHITEN_ROWS = 256
"""With more constraint rows than this the shape is diagonal and matrix-free,"""

WHITEN_ENTRIES = 2**24
"""and so it is if the Jacobian would have more entries than this."""

REDUNDANT = 1e-3
"""Eigenvalue of the row-scaled Gram matrix below which rows count as dependent: no multiplier acts along them."""

DRIFT = 0.1
"""kappa: the noise that a penalty or a step may add, relative to the noise that averaging leaves. It costs a factor of
1 / (1 - kappa) in variance."""


class Shape(NamedTuple):
    """Matrices of m x m, or their diagonals."""

    penalty: Array  # M, about (J J^T)^-1
    dual: Array  # M without the directions of dependent rows
    gram: Array  # J J^T
    jacobian: Array  # J, tracked from refresh to refresh; without rows in the diagonal case
    variance: Float[Array, " m"]  # of the errors in its rows


class Load(NamedTuple):
    """What the shape has to answer for, from the method's state."""

    active: Bool[Array, " m"]  # equalities, and inequalities that matter now
    curvature: Float[Array, ""]
    force: Float[Array, ""]  # ||grad f||^2, recently
    gradient_noise: Float[Array, ""]
    value_noise: Float[Array, " m"]


def times(matrix: Array, vector: Array) -> Array:
    """A product with a matrix or a diagonal. With a small matrix it is written out, to fuse with its surroundings."""
    if matrix.ndim == 2 and vector.shape[0] > 16:
        return matrix @ vector
    return jnp.sum(matrix * vector, axis=-1) if matrix.ndim == 2 else matrix * vector


def diagonal(matrix: Array) -> Array:
    return jnp.diag(matrix) if matrix.ndim == 2 else matrix


def push(shape: Shape, weights: Float[Array, " m"]) -> Float[Array, ""]:
    """||J^T w||, from the Gram matrix."""
    return jnp.sqrt(jnp.abs(jnp.vdot(weights, times(shape.gram, weights))))


def is_whitened(oracle: Oracle) -> bool:
    return oracle.rows <= WHITEN_ROWS and oracle.rows * oracle.dimension <= WHITEN_ENTRIES


def shaped(
    oracle: Oracle, point: Vector, batches: Batch, load: Load, before: Shape | None, key: Key[Array, ""]
) -> Shape:
    """The shape at a point from a few batches, stacked; the Jacobian is averaged with the one before."""
    if oracle.rows == 0:
        none = jnp.zeros((0, 0), oracle.dtype)
        return Shape(none, none, none, jnp.zeros((0, oracle.dimension), oracle.dtype), jnp.zeros(0, oracle.dtype))
    if not is_whitened(oracle):
        return _diagonal_shape(oracle, point, batches, load, key)
    jacobian, variance, count = _jacobian(oracle, point, batches)
    error = variance / count
    if before is not None:
        jacobian, error = _averaged(before, jacobian, error)
    return _whitened(oracle, jacobian, error, variance, load)


def _jacobian(oracle: Oracle, point: Vector, batches: Batch) -> tuple[Array, Array, int]:
    """Mean Jacobian, variance of its rows from sample to sample, number of samples; one sample's at a time."""
    if not oracle.has_random_constraints:
        return oracle.jacobian(point, batches.first), jnp.zeros(oracle.rows, oracle.dtype), 1
    one, samples = oracle.singles(batches)
    count = jax.tree.leaves(samples)[0].shape[0]
    reference = one.jacobian(point, samples.first)  # sums of deviations from it cancel nothing

    def add(sums: tuple[Array, Array], sample: Batch) -> tuple[tuple[Array, Array], None]:
        deviation = one.jacobian(point, sample) - reference
        return (sums[0] + deviation, sums[1] + jnp.sum(deviation**2, axis=1)), None

    start = jnp.zeros_like(reference), jnp.zeros(oracle.rows, oracle.dtype)
    (total, squares), _ = jax.lax.scan(add, start, samples)
    mean = total / count
    variance = (squares - count * jnp.sum(mean**2, axis=1)) / (count - 1)
    return reference + mean, jnp.maximum(variance, 0), count


def _averaged(before: Shape, jacobian: Array, noise: Array) -> tuple[Array, Array]:
    """A Kalman average of Jacobians, row by row, re-opened when it has moved."""
    tiny = jnp.finfo(jacobian.dtype).tiny
    moved = jnp.sum((jacobian - before.jacobian) ** 2, axis=1)
    error = jnp.maximum(before.variance, moved - 4 * noise)
    certain = error + noise <= 1e-14 * jnp.sum(jacobian**2, axis=1)
    share = jnp.where(certain, 1, error / (error + noise + tiny))
    return before.jacobian + share[:, None] * (jacobian - before.jacobian), error * (1 - share)


def _whitened(oracle: Oracle, jacobian: Array, error: Array, variance: Array, load: Load) -> Shape:
    """M = S (B + N)^-1 S with S = diag 1/||J_i|| and B = S J J^T S.

    Weak eigenvalues of B count for no less than the noise of J allows, zero ones are not inverted. A row without a
    gradient has no weight until it has one.
    """
    gram = jacobian @ jacobian.T
    alive, size = _sizes(jnp.diag(gram))
    outer = alive[:, None] * alive / jnp.sqrt(size)[:, None] / jnp.sqrt(size)
    scaled = gram * outer
    both = (load.active & alive)[:, None] & load.active & alive
    scaled = jnp.where(both, scaled, jnp.eye(oracle.rows, dtype=gram.dtype) * jnp.linalg.eigvalsh(scaled)[-1])
    value, vector = jnp.linalg.eigh(scaled)
    kept = value > REDUNDANT
    floor = jnp.minimum(1, 4 * (vector**2).T @ (error / size))
    value = jnp.where(kept, jnp.maximum(value, floor), 1)
    penalty = jnp.linalg.inv((vector * value) @ vector.T + jnp.diag(_ridge(oracle, size, variance, load)))
    dropped = (vector * ~kept) @ vector.T
    inner = jnp.linalg.pinv(dropped @ penalty @ dropped, rtol=1e-10 if gram.dtype == jnp.float64 else 1e-5)
    dual = penalty - penalty @ dropped @ inner @ dropped @ penalty  # the Schur complement: 0 along dropped directions
    return Shape(penalty * outer, dual * outer, gram, jacobian, error)


def _sizes(squares: Array) -> tuple[Array, Array]:
    """Which rows have a gradient, and ||J_i||^2, with 1 for those that have none."""
    alive = squares > jnp.sqrt(jnp.finfo(squares.dtype).tiny)
    return alive, jnp.where(alive, squares, 1)


def _ridge(oracle: Oracle, size: Array, variance: Array, load: Load) -> Array:
    """N_i, such that the weight of row i brings at most DRIFT / m of the gradient's noise, whatever the Gram matrix.

    That noise is (rho M_ii)^2 2 / (B (B - 1)) var(c_i) var(J_i), and M_ii <= 1 / N_i. The gradient's noise is taken no
    smaller than what multipliers of natural size, ||J^T y|| = ||grad f||, will bring: otherwise a deterministic
    objective would forbid every penalty.
    """
    natural = load.force * jnp.mean(variance / size) / oracle.batch_size
    noise = jnp.maximum(load.gradient_noise, natural) + jnp.finfo(size.dtype).tiny
    spread = 2 / (oracle.batch_size - 1) * load.value_noise * variance / noise
    return load.curvature / size * jnp.sqrt(spread * oracle.rows / DRIFT)


def _diagonal_shape(oracle: Oracle, point: Vector, batches: Batch, load: Load, key: Key[Array, ""]) -> Shape:
    """M = diag 1 / (||J_i||^2 (lambda_max + N_i)), from products with J and J^T alone.

    ||J_i||^2 is taken to be the largest of (J_i v)^2 over eight normal v: rather too large (three times, on average),
    which slows a row down, than too small, which would throw it off. lambda_max of the row-scaled J J^T comes from
    power steps.
    """
    probes = jax.random.normal(key, (8, oracle.dimension), oracle.dtype)
    nothing = jnp.zeros(oracle.rows, oracle.dtype)

    def products(batch: Batch) -> tuple[Callable[[Vector], Array], Callable[[Array], Vector]]:
        """v -> J v, w -> J^T w. The first is the transpose of the second: a user's rule for the way back is enough."""
        _, pull = jax.vjp(lambda z: oracle.join(oracle.residuals(z, batch)), point)
        forward = jax.linear_transpose(lambda w: pull(w)[0], nothing)
        return lambda v: forward(v)[0], lambda w: pull(w)[0]

    along = for_each(lambda batch: jax.vmap(products(batch)[0])(probes), batches)  # (batches, 8, m)
    count = along.shape[0]
    alive, size = _sizes(jnp.max(jnp.mean(along, axis=0) ** 2, axis=0))
    variance = oracle.batch_size * jnp.mean(jnp.var(along, axis=0, ddof=1), axis=0) if count > 1 else 0 * size
    forward, backward = products(batches.first)

    def power(vector: Array, _: None) -> tuple[Array, None]:
        unit = vector / (jnp.linalg.norm(vector) + jnp.finfo(oracle.dtype).tiny)
        return forward(backward(unit / jnp.sqrt(size))) / jnp.sqrt(size), None

    vector, _ = jax.lax.scan(power, jnp.ones(oracle.rows, oracle.dtype), length=8)
    strength = jnp.linalg.norm(vector) + _ridge(oracle, size, variance, load)
    penalty = jnp.where(alive, 1 / (size * jnp.where(alive, strength, 1)), 0)
    return Shape(penalty, penalty, size, jnp.zeros((0, oracle.dimension), oracle.dtype), 0 * size)
