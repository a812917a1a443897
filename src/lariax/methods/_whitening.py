"""The shape of the penalty: about (J J^T)^-1, so that neither scale nor correlation of the constraints matters."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from lariax.formulas import PROBES, Load, Shape, averaged, diagonal_shape, is_whitened, sizes, whitened
from lariax.oracle import Batch, Oracle, Vector, for_each


def shaped(
    oracle: Oracle, point: Vector, batches: Batch, load: Load, before: Shape | None, key: Key[Array, ""]
) -> Shape:
    """The shape at a point from a few batches, stacked; the Jacobian is averaged with the one before."""
    if oracle.rows == 0:
        return Shape.empty(jnp.zeros((0, oracle.dimension), oracle.dtype))
    if not is_whitened(oracle.rows, oracle.dimension):
        return _diagonal_shape(oracle, point, batches, load, before, key)
    jacobian, variance, count = _jacobian(oracle, point, batches)
    error = variance / count
    if before is not None:
        jacobian, error = averaged(jnp, before, jacobian, error)
    return whitened(jnp, jacobian, error, variance, load, before)


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


def _diagonal_shape(
    oracle: Oracle, point: Vector, batches: Batch, load: Load, before: Shape | None, key: Key[Array, ""]
) -> Shape:
    """The shape from products with J and J^T alone.

    ||J_i||^2 is taken to be the largest of (J_i v)^2 over eight normal v: rather too large (three times, on average),
    which slows a row down, than too small, which would throw it off. lambda_max of the row-scaled J J^T comes from
    power steps.
    """
    probes = jax.random.normal(key, (PROBES, oracle.dimension), oracle.dtype)
    nothing = jnp.zeros(oracle.rows, oracle.dtype)

    def products(batch: Batch) -> tuple[Callable[[Vector], Array], Callable[[Array], Vector]]:
        """v -> J v, w -> J^T w. The first is the transpose of the second: a user's rule for the way back is enough."""
        _, pull = jax.vjp(lambda z: oracle.join(oracle.residuals(z, batch)), point)
        forward = jax.linear_transpose(lambda w: pull(w)[0], nothing)
        return lambda v: forward(v)[0], lambda w: pull(w)[0]

    along = for_each(lambda batch: jax.vmap(products(batch)[0])(probes), batches)  # (batches, 8, m)
    count = along.shape[0]
    rows = sizes(jnp, jnp.max(jnp.mean(along, axis=0) ** 2, axis=0), before)
    size = rows[1]
    variance = oracle.batch_size * jnp.mean(jnp.var(along, axis=0, ddof=1), axis=0) if count > 1 else 0 * size
    forward, backward = products(batches.first)

    def power(vector: Array, _: None) -> tuple[Array, None]:
        unit = vector / (jnp.linalg.norm(vector) + jnp.finfo(oracle.dtype).tiny)
        return forward(backward(unit / jnp.sqrt(size))) / jnp.sqrt(size), None

    vector, _ = jax.lax.scan(power, jnp.ones(oracle.rows, oracle.dtype), length=PROBES)
    no_jacobian = jnp.zeros((0, oracle.dimension), oracle.dtype)
    return diagonal_shape(jnp, rows, variance, jnp.linalg.norm(vector), load, no_jacobian)
