"""The units in which a method moves, measured: x = scales * z."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lariax.formulas import ROUNDS, Curved, balanced, diagonal_of, first_scales, natural_length
from lariax.oracle import Batch, Oracle, Vector, for_each, occasionally
from lariax.problem import probes, units


def units_of(oracle: Oracle) -> Int[np.ndarray, " d"] | None:
    coordinates = oracle.coordinates
    like = jax.tree.unflatten(coordinates.structure, [np.zeros(shape) for shape in coordinates.shapes])
    return units(list(coordinates.shapes), jax.tree.leaves(oracle.problem.simple.tied(like)))


def curvature_at(
    oracle: Oracle, z: Vector, batches: Batch, weights: Float[Array, " m"], labels: Int[np.ndarray, " d"]
) -> Curved:
    """From products with the Hessian of the Lagrangian, on the mean over all batches."""
    count = next((leaf.shape[0] for leaf in jax.tree.leaves(batches)), 0)
    directions = jnp.asarray(probes(z.size), z.dtype)

    def slope(point: Vector, batch: Batch) -> Vector:
        return oracle.gradient_of(oracle.look_at_parts(point, batch, 1), weights).mean

    def look(directions: Float[Array, "n d"], _: None) -> tuple[Float[Array, "n d"], tuple[Array, ...]]:
        """Means of gradient, of its square, and of products; the next directions span these products."""

        def add(sums: tuple[Array, ...], batch: Batch) -> tuple[tuple[Array, ...], None]:
            gradient, product = jax.linearize(lambda point: slope(point, batch), z)
            return jax.tree.map(jnp.add, sums, (gradient, gradient**2, jax.vmap(product)(directions))), None

        nothing: tuple[Array, ...] = jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros_like(directions)
        sums, _ = jax.lax.scan(add, nothing, batches) if count else add(nothing, batches)
        means = jax.tree.map(lambda total: total / max(count, 1), sums)
        return jnp.linalg.qr(means[2].T)[0].T, means

    with occasionally(2 * max(count, 1) * (1 + len(directions))):
        _, (mean, squares, products) = jax.lax.scan(look, directions, length=2)
    largest = jnp.linalg.norm(products[1], ord=2)
    return Curved(
        diagonal=_by_unit(diagonal_of(jnp, directions, products[0], largest), labels),
        slopes=_by_unit(squares[0], labels),
        noise=_by_unit(jnp.maximum(squares[0] - mean[0] ** 2, 0), labels),
        largest=largest,
    )


def slopes_at(oracle: Oracle, z: Vector, batches: Batch, weights: Float[Array, " m"]) -> Vector:
    """Mean squares of the gradients of half batches."""

    def squares(batch: Batch) -> Vector:
        seen = oracle.gradient_of(oracle.look_at_parts(z, batch, 2), weights)
        return (seen.means[0] ** 2 + seen.means[1] ** 2) / 2

    return jnp.mean(for_each(squares, batches), axis=0)


def scales_at(oracle: Oracle, point: Vector, batches: Batch) -> tuple[Vector, Curved] | None:
    """Scales for the start, those that make the curvature equal along all axes, and the curvature there. None: all
    variables have one unit, or a function of the user can be differentiated only once (`jax.custom_vjp`)."""
    labels = units_of(oracle)
    if labels is None:
        return None
    try:
        return _balanced_scales(oracle, point, batches, labels)
    except (TypeError, ValueError) as error:
        if "jvp" not in str(error).lower():
            raise
        return None


def _balanced_scales(
    oracle: Oracle, point: Vector, batches: Batch, labels: Int[np.ndarray, " d"]
) -> tuple[Vector, Curved]:
    weights = jnp.zeros(oracle.rows, oracle.dtype)
    one, samples = oracle.singles(batches)
    gradients = for_each(lambda sample: one.objective_gradient(point, sample), samples)
    slopes, noise = (
        _by_unit(each, labels)
        for each in (
            jnp.mean(gradients**2, axis=0),
            jnp.var(gradients, axis=0, ddof=1 if gradients.shape[0] > 1 else 0),
        )
    )

    def turn(i: Array, carry: tuple[Vector, Curved]) -> tuple[Vector, Curved]:
        """First from gradients, then balanced, then for a length of 1; and a last look (all by one program)."""
        scales, _ = carry
        seen = curvature_at(replace(oracle, scaling=scales), point / scales, batches, weights, labels)
        seen = seen._replace(slopes=scales**2 * slopes, noise=scales**2 * noise)
        new = jnp.select(
            [i == 0, i <= ROUNDS, i == ROUNDS + 1],
            [
                first_scales(jnp, seen.slopes),
                balanced(jnp, scales, seen.diagonal, seen.slopes, seen.noise),
                scales * natural_length(jnp, scales, seen, point / scales),
            ],
            scales,
        )
        return new, seen

    with occasionally(ROUNDS + 3):
        return jax.lax.fori_loop(0, ROUNDS + 3, turn, (jnp.ones_like(point), Curved.flat(jnp.zeros_like(point))))


def _by_unit(values: Vector, labels: Int[np.ndarray, " d"]) -> Vector:
    """Means over the entries with a common unit."""
    if labels.max() + 1 == labels.size:
        return values
    sums = jax.ops.segment_sum(values, labels, int(labels.max()) + 1)
    return (sums / np.bincount(labels))[labels]
