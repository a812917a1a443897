"""What is too costly for every iteration: gradients sample by sample, the Jacobian, products with the Hessian."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from lariax.compilation import on_cpu
from lariax.oracle import Batch, Look, Oracle, Parts, Vector, for_each, occasionally, sum_over, uncounted
from lariax.problem import probes, units
from lariax.tuned.averaging import is_jump
from lariax.tuned.constants import JUMP_PART, PROBES
from lariax.tuned.filter import variance_of_mean
from lariax.tuned.shape import is_whitened
from lariax.tuned.units import LAST_TURN, HessianEstimate, diagonal_of, next_scales, pull_of

MOST_HELD = 2**22
"""Entries of vectors that are held to be compared; more are summed up one by one."""

# --- the units of x


def units_of(oracle: Oracle) -> Int[np.ndarray, " d"] | None:
    coordinates = oracle.coordinates
    like = jax.tree.unflatten(coordinates.structure, [np.zeros(shape) for shape in coordinates.shapes])
    return units(list(coordinates.shapes), jax.tree.leaves(oracle.problem.simple.tied(like)))


def scales_at(
    oracle: Oracle, point: Vector, batches: Batch, *, by_pull: bool = True
) -> tuple[Vector, HessianEstimate] | None:
    """Scales for the start, those that make the curvature equal along all axes, and the curvature there. None: all
    variables have one unit, or a function of the user can be differentiated only once (`jax.custom_vjp`).

    `by_pull`: where nothing is curved, by the gradients of constraints, which a penalty makes the curvature of."""
    labels = units_of(oracle)
    if labels is None:
        return None
    try:
        return _balanced_scales(oracle, point, batches, labels, by_pull)
    except (TypeError, ValueError) as error:
        if "jvp" not in str(error).lower():
            raise
        return None


def _balanced_scales(
    oracle: Oracle, point: Vector, batches: Batch, labels: Int[np.ndarray, " d"], by_pull: bool
) -> tuple[Vector, HessianEstimate]:
    weights = jnp.zeros(oracle.rows, oracle.dtype)
    gradients = objective_gradients(oracle, point, batches)
    slopes = _by_unit(jnp.mean(gradients**2, axis=0), labels)
    noise = _by_unit(jnp.var(gradients, axis=0, ddof=1 if gradients.shape[0] > 1 else 0), labels)
    rows = None
    if by_pull and oracle.rows and is_whitened(oracle.rows, point.size):
        rows = oracle.jacobian(point, batches.first)

    def turn(i: Array, carry: tuple[Vector, HessianEstimate]) -> tuple[Vector, HessianEstimate]:
        """All by one program, the last look included."""
        scales, _ = carry
        seen = hessian_at(replace(oracle, scaling=scales), point / scales, batches, weights, labels)
        pull = 0.0 * scales if rows is None else _by_unit(pull_of(jnp, rows * scales), labels)
        seen = seen._replace(slopes=scales**2 * slopes, noise=scales**2 * noise, pull=pull)
        return next_scales(jnp, i, scales, seen, point / scales), seen

    with occasionally(LAST_TURN + 2):
        first = jnp.ones_like(point), HessianEstimate.flat(jnp.zeros_like(point))._replace(pull=0.0 * point)
        return jax.lax.fori_loop(0, LAST_TURN + 2, turn, first)


def objective_gradients(oracle: Oracle, point: Vector, batches: Batch) -> Float[Array, "n d"]:
    """Sample by sample."""
    one, samples = oracle.singles(batches)
    return for_each(lambda sample: one.objective_gradient(point, sample), samples)


def square(vector: Array) -> Float[Array, ""]:
    return jnp.sum(vector**2)


def squares(oracle: Oracle, *vectors: Vector) -> list[Float[Array, ""]]:
    """`square` of each; where they are large, by one pass over all of them."""
    if not oracle.is_large:
        return list(map(square, vectors))
    nothing = (jnp.zeros((), oracle.dtype),) * len(vectors)
    add = lambda sums, more: tuple(map(operator.add, sums, more))  # noqa: E731
    return list(jax.lax.reduce(tuple(vector**2 for vector in vectors), nothing, add, (0,)))


def differences_at(
    oracle: Oracle, looks: tuple[Look, ...], weights: Sequence[Array], before: Parts, dx: Vector
) -> list[tuple[Array, Array, Array]]:
    """For each of several weights w, of D = grad f + J^T w - `before`: ||D||^2, dx.D, and the noise of D. Where x is
    large, by a loop, so that the vectors behind one are gone when the next is made: the compiler would hold them all.
    """

    def at(weights: Array) -> tuple[Array, Array, Array]:
        difference = oracle.gradient_of(looks, weights) - before
        return square(difference.mean), jnp.vdot(dx, difference.mean), difference.noise

    if dx.size <= MOST_HELD:
        return list(map(at, weights))
    rows = jnp.stack(weights)

    def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        i, found = carry
        return i + 1, found.at[i].set(jnp.stack(at(rows[i])))

    start = jnp.int32(0), jnp.zeros((len(weights), 3), dx.dtype)
    _, found = jax.lax.while_loop(lambda carry: carry[0] < len(weights), turn, start)
    return [(row[0], row[1], row[2]) for row in found]


class GradientMoments(NamedTuple):
    """Of a vector over samples."""

    mean: Vector
    error: Vector  # the variance of the mean, entry by entry
    samples: int


def gradient_moments(oracle: Oracle, point: Vector, batches: Batch) -> GradientMoments:
    """Of the objective's gradients, sample by sample; where x is large they are summed up as they come."""
    one, samples = oracle.singles(batches)
    count = next((leaf.shape[0] for leaf in jax.tree.leaves(samples)), 2)
    if count * point.size <= MOST_HELD or not jax.tree.leaves(samples):
        each = objective_gradients(oracle, point, batches)
        error = variance_of_mean(jnp, each) if count > 1 else jnp.zeros_like(point)  # a single sample is exact
        return GradientMoments(jnp.mean(each, axis=0), error, count)

    def add(sums: tuple[Array, Vector, Vector], sample: Batch) -> tuple[tuple[Array, Vector, Vector], None]:
        """Welford's way, which cancels nothing."""
        number, mean, squares = sums
        gradient = one.objective_gradient(point, sample)
        new = mean + (gradient - mean) / (number + 1)
        return (number + 1, new, squares + (gradient - mean) * (gradient - new)), None

    nothing = jnp.zeros((), point.dtype), jnp.zeros_like(point), jnp.zeros_like(point)
    (_, mean, squares), _ = jax.lax.scan(add, nothing, samples)
    return GradientMoments(mean, squares / (count * max(count - 1, 1)), count)


def mean_over(function: Callable[[Batch], Vector], batches: Batch) -> Vector:
    """The mean of a function of each of several stacked batches."""
    count = next((leaf.shape[0] for leaf in jax.tree.leaves(batches)), 0)
    with uncounted():
        like = jax.eval_shape(function, batches.first if count else batches)
    if count * like.size <= MOST_HELD:
        return jnp.mean(for_each(function, batches), axis=0)
    return sum_over(function, batches) / count


def hessian_at(
    oracle: Oracle,
    z: Vector,
    batches: Batch,
    weights: Float[Array, " m"],
    labels: Int[np.ndarray, " d"],
    span: Float[Array, ""] | None = None,
) -> HessianEstimate:
    """From products with the Hessian of the Lagrangian, on the mean over all batches.

    `span`: from differences over so much to both sides, where gradients of samples jump: the Hessian of one sample
    knows nothing of that.
    """
    count = next((leaf.shape[0] for leaf in jax.tree.leaves(batches)), 0)
    directions = jnp.asarray(probes(z.size), z.dtype)

    def slope(point: Vector, batch: Batch) -> Vector:
        return oracle.gradient_of(oracle.look_at_parts(point, batch, 1), weights).mean

    def look(directions: Float[Array, "n d"], _: None) -> tuple[Float[Array, "n d"], tuple[Array, ...]]:
        """Means of gradient, of its square, and of products; the next directions span these products."""

        def on(batch: Batch) -> tuple[Array, ...]:
            if span is None:
                gradient, product = jax.linearize(lambda point: slope(point, batch), z)
            else:
                gradient, product = slope(z, batch), lambda v: _difference(lambda p: slope(p, batch), z, v, span)
            return gradient, gradient**2, jax.vmap(product)(directions)

        means = jax.tree.map(lambda total: total / max(count, 1), sum_over(on, batches))
        return _orthonormal(means[2]), means

    with occasionally(2 * max(count, 1) * (1 + len(directions))):
        _, (mean, squares, products) = jax.lax.scan(look, directions, length=2)
    largest = spectral_norm(products[1])
    return HessianEstimate(
        diagonal=_by_unit(diagonal_of(jnp, directions, products[0], largest), labels),
        slopes=_by_unit(squares[0], labels),
        noise=_by_unit(jnp.maximum(squares[0] - mean[0] ** 2, 0), labels),
        largest=largest,
    )


def _orthonormal(rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Rows that span the same. On an accelerator, from their products with each other, as in `spectral_norm`."""
    if on_cpu():
        return jnp.linalg.qr(rows.T)[0].T
    scaled = rows / (jnp.max(jnp.abs(rows)) + jnp.finfo(rows.dtype).tiny)
    sizes, turns = jnp.linalg.eigh(scaled @ scaled.T)
    least = jnp.maximum(jnp.finfo(rows.dtype).eps * sizes[-1], jnp.finfo(rows.dtype).tiny)
    return (turns * jax.lax.rsqrt(jnp.maximum(sizes, least))).T @ scaled


def spectral_norm(rows: Float[Array, "n d"]) -> Float[Array, ""]:
    """Of a few rows: by the eigenvalues of their products with each other, which for a thousand small matrices at once
    take a GPU a two-thousandth of the time of singular values."""
    size = jnp.max(jnp.abs(rows)) + jnp.finfo(rows.dtype).tiny
    return size * jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh((rows / size) @ (rows / size).T)[-1], 0))


def _difference(slope: Callable[[Vector], Vector], z: Vector, v: Vector, span: Float[Array, ""]) -> Vector:
    """About H v, over `span` to both sides."""
    share = span / (jnp.linalg.norm(v) + jnp.finfo(v.dtype).tiny)
    return (slope(z + share * v) - slope(z - share * v)) / (2 * share)


def jumps_at(oracle: Oracle, z: Vector, step: Vector, batches: Batch, weights: Float[Array, " m"]) -> Float[Array, ""]:
    """How many samples have a gradient that jumps along the step, and is not just curved."""
    one, samples = oracle.singles(batches)

    def jumps(sample: Batch) -> Array:
        here, near, far = (
            one.gradient_of(one.look_at_parts(z + share * step, sample, 1), weights).mean
            for share in (1.0, 1 - 1 / JUMP_PART, 0.0)  # not from z on: it may be at a kink
        )
        norm, eps = jnp.linalg.norm, float(jnp.finfo(z.dtype).eps)
        return is_jump(norm(far - here), norm(near - here), norm(here) + norm(far), eps)

    return jnp.sum(for_each(jumps, samples)).astype(z.dtype)


def held_at(
    oracle: Oracle, z: Vector, beyond: Vector, eta: Float[Array, ""], labels: Int[np.ndarray, " d"]
) -> Bool[Array, " d"]:
    """Entries with a unit of their own that stay where they are, though a step goes on to `beyond`."""
    return (beyond != z) & (oracle.prox(beyond, eta) == z) & (np.bincount(labels)[labels] == 1)


def slopes_at(oracle: Oracle, z: Vector, batches: Batch, weights: Float[Array, " m"]) -> Vector:
    """Mean squares of the gradients of half batches."""

    def squares(batch: Batch) -> Vector:
        seen = oracle.gradient_of(oracle.look_at_parts(z, batch, 2), weights)
        return (seen.means[0] ** 2 + seen.means[1] ** 2) / 2

    return mean_over(squares, batches)


def _by_unit(values: Vector, labels: Int[np.ndarray, " d"]) -> Vector:
    """Means over the entries with a common unit."""
    if labels.max() + 1 == labels.size:
        return values
    sums = jax.ops.segment_sum(values, labels, int(labels.max()) + 1)
    return (sums / np.bincount(labels))[labels]


# --- the Jacobian

Face = Callable[[Array], Array]


def face_at(oracle: Oracle, beyond: Vector, eta: Float[Array, ""]) -> Face | None:
    """What a step that goes to `beyond` keeps of vectors, row by row: the derivative of the proximal map there. None
    where entries go by themselves, and have units for that."""
    if oracle.problem.simple.separable:
        return None
    along = jax.linearize(lambda z: oracle.prox(z, eta), beyond)[1]
    return lambda rows: jax.vmap(lambda row: along(row.astype(beyond.dtype)))(rows).astype(rows.dtype)


@dataclass(frozen=True)
class SampledJacobian:
    """The constraints' Jacobian at a point, on a few batches, stacked."""

    oracle: Oracle
    point: Vector
    batches: Batch
    key: Key[Array, ""]
    face: Face | None = None

    def on_face(self, rows: Array) -> Array | None:
        return None if self.face is None else self.face(rows)

    def empty(self) -> Array:
        return jnp.zeros((0, self.oracle.dimension), self.oracle.dtype)

    def jacobian(self) -> tuple[Array, Array, int]:
        """One sample's at a time."""
        oracle, point = self.oracle, self.point
        if not oracle.has_random_constraints:
            return oracle.jacobian(point, self.batches.first), jnp.zeros(oracle.rows, oracle.dtype), 1
        one, samples = oracle.singles(self.batches)
        count = jax.tree.leaves(samples)[0].shape[0]
        reference = one.jacobian(point, samples.first)  # sums of deviations from it cancel nothing

        def deviations(sample: Batch) -> tuple[Array, Array]:
            deviation = one.jacobian(point, sample) - reference
            return deviation, jnp.sum(deviation**2, axis=1)

        total, squares = sum_over(deviations, samples)
        mean = total / count
        variance = (squares - count * jnp.sum(mean**2, axis=1)) / (count - 1)
        return reference + mean, jnp.maximum(variance, 0), count

    def along(self) -> Float[Array, "batches probes m"]:
        probes = jax.random.normal(self.key, (PROBES, self.oracle.dimension), self.oracle.dtype)
        return for_each(lambda batch: jax.vmap(self._products_on(batch)[0])(probes), self.batches)

    def products(self) -> tuple[Callable[[Vector], Array], Callable[[Array], Vector]]:
        return self._products_on(self.batches.first)

    def repeat(self, function: Callable[[Array], Array], vector: Array, times: int) -> Array:
        return jax.lax.scan(lambda v, _: (function(v), None), vector, length=times)[0]

    def _products_on(self, batch: Batch) -> tuple[Callable[[Vector], Array], Callable[[Array], Vector]]:
        """v -> J v, w -> J^T w. The first is the transpose of the second: a user's rule for the way back is enough."""
        oracle = self.oracle
        _, pull = jax.vjp(lambda z: oracle.join(oracle.residuals(z, batch)), self.point)
        forward = jax.linear_transpose(lambda w: pull(w)[0], jnp.zeros(oracle.rows, oracle.dtype))
        return lambda v: forward(v)[0], lambda w: pull(w)[0]
