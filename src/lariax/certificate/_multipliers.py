"""Least-squares multipliers over the rows that may be active."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Key

from lariax.certificate._cone import Face, face_of, nearest_in_cone
from lariax.certificate._draws import PointMeans, SampledPoint, View, batch_means
from lariax.oracle import AbstractStructure, Oracle, Vector

MOST_JACOBIAN_ROWS = 512
MOST_JACOBIAN_ENTRIES = 2**22
ROWS_AT_ONCE = 32  # of the Jacobian, in one pass backwards
SAMPLED_ROWS = 32  # beyond which a sampled Jacobian is that of
PRODUCT_SAMPLES = 1024  # samples
PRODUCT_STEPS = 200
CLEARLY = 2.0  # standard errors by which a row is inactive before that counts for anything
NEAR = 0.05  # of its size: a row that is inactive by more gets no multiplier

Multipliers = Float[Array, " m"]


class Fit(NamedTuple):
    """Multipliers, the directions that they can take care of (None: not known), and the values of their samples."""

    multipliers: Multipliers
    face: Face | None
    seen: PointMeans | None


def forms_jacobian(structure: AbstractStructure) -> bool:
    """Whether the mean Jacobian is held as an array."""
    rows = structure.rows
    return rows <= MOST_JACOBIAN_ROWS and rows * structure.coordinates.size <= MOST_JACOBIAN_ENTRIES


def fit_multipliers(point: SampledPoint, residual: Callable[[Vector], Vector], sizes: Multipliers) -> Fit:
    """argmin over the allowed signs of  || R(grad f + J^T y) ||^2 / 2 + sum over inequalities of price_i y_i.

    A row that is clearly inactive has a price, and gets nothing where it is inactive by more than `NEAR` of its size.
    Where it is not too large the mean Jacobian is formed; otherwise J and J^T are products on at most `PRODUCT_SAMPLES`
    of the samples (deterministic constraints need none).
    """
    oracle = point.oracle
    dense = forms_jacobian(oracle)
    none = oracle.split(jnp.zeros(oracle.rows, oracle.dtype))
    together = dense and oracle.rows <= SAMPLED_ROWS

    def gradient(view: View) -> tuple[Vector, Float[Array, "m d"] | None]:
        return view.pull(none), _rows_of(oracle, view) if together else None

    means = batch_means(point, gradient, apart=False)
    slope, jacobian = means.gradient
    seen = means._replace(gradient=None)
    if dense:
        if jacobian is None:
            jacobian = _sampled_jacobian(point)
        return fit_dense(oracle, seen, slope, jacobian, residual, sizes)
    products = _matrix_free(point)
    near, may = _slacks(oracle, means.residuals, sizes)
    y = _by_products(oracle, slope, products, near, may, residual)
    return Fit(jnp.where(jnp.all(jnp.isfinite(y)), y, 0), None, seen)


def fit_dense(
    structure: AbstractStructure,
    seen: PointMeans,
    slope: Vector,
    jacobian: Float[Array, "m d"],
    residual: Callable[[Vector], Vector],
    sizes: Multipliers,
) -> Fit:
    """The same from batch means of the residuals, the mean gradient of f and the mean Jacobian."""
    near, may = _slacks(structure, seen.residuals, sizes)
    lengths = jnp.sqrt(jnp.sum(jacobian**2, axis=1))
    may &= lengths > 0
    unit = jacobian / jnp.where(lengths > 0, lengths, 1)[:, None]
    scaled = nearest_in_cone(slope, unit, near * _norm(residual(slope)), structure.inequality, may, residual)
    y = scaled / jnp.where(lengths > 0, lengths, 1)
    y = jnp.where(jnp.all(jnp.isfinite(y)), y, 0)
    at_work = may & ((y > 0) | ~structure.inequality)
    return Fit(y, face_of(slope + y @ jacobian, jnp.where(at_work[:, None], unit, 0), residual), seen)


def _slacks(
    structure: AbstractStructure, residuals: Float[Array, "k m"], sizes: Multipliers
) -> tuple[Multipliers, Bool[Array, " m"]]:
    """How far each inequality is surely inactive, in units of its size; and which rows may be active."""
    k = residuals.shape[0]
    mean = jnp.mean(residuals, axis=0)
    error = jnp.sqrt(jnp.sum((residuals - mean) ** 2, axis=0) / (k * max(k - 1, 1)))
    slack = jnp.where(structure.inequality, jnp.maximum(-mean - CLEARLY * error, 0), 0)
    near = slack / jnp.where(sizes > 0, sizes, 1)
    return near, near <= NEAR


def _norm(vector: Vector) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(vector**2))


# --- the Jacobian


def _rows_of(oracle: Oracle, view: View) -> Float[Array, "m d"]:
    """A step's part of the mean Jacobian."""
    identity = jnp.eye(oracle.rows, dtype=oracle.dtype)
    return jax.lax.map(lambda y: view.pull(oracle.split(y), objective=0.0), identity, batch_size=ROWS_AT_ONCE)


def _steps_of_products(point: SampledPoint) -> ArrayLike:
    """How many steps of the plan go into J: one, where nothing is random."""
    plan = point.plan
    if not point.oracle.has_random_constraints:
        return 1
    most = plan.batches * plan.steps
    if plan.batches == 1:  # all rows of the data, whose shares add up over all steps alone
        return most
    return jnp.minimum(most, -(-PRODUCT_SAMPLES // plan.count))


def _sampled_jacobian(point: SampledPoint) -> Float[Array, "m d"]:
    """The mean Jacobian over the first samples."""
    oracle, count = point.oracle, _steps_of_products(point)

    def add(step: Array, total: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return total + _rows_of(oracle, point.view(step + point.plan.first, count))

    return jax.lax.fori_loop(0, count, add, jnp.zeros((oracle.rows, oracle.dimension), oracle.dtype))


class _Products(NamedTuple):
    forward: Callable[[Vector], Multipliers]  # J v
    backward: Callable[[Multipliers], Vector]  # J^T y


def _matrix_free(point: SampledPoint) -> _Products:
    """J and J^T of the mean over the first samples, recomputed for each product."""
    oracle, z, count = point.oracle, point.z, _steps_of_products(point)

    def part(place: Vector, step: Array) -> Multipliers:
        at = step + point.plan.first
        return oracle.sum(point.shares(at, count)[1], oracle.residuals(place, point.batch(at)))

    def total(one: Callable[[Array], Array], like: Array) -> Array:
        return jax.lax.fori_loop(0, count, lambda step, sum_: sum_ + one(step), jnp.zeros_like(like))

    def forward(v: Vector) -> Multipliers:
        return total(lambda s: jax.jvp(lambda p: part(p, s), (z,), (v,))[1], jnp.zeros(oracle.rows, oracle.dtype))

    def backward(y: Multipliers) -> Vector:
        return total(lambda s: jax.vjp(lambda p: part(p, s), z)[1](y)[0], z)

    return _Products(forward, backward)


# --- without a Jacobian


def _by_products(
    oracle: Oracle,
    slope: Vector,
    products: _Products,
    near: Multipliers,
    may: Bool[Array, " m"],
    residual: Callable[[Vector], Vector],
) -> Multipliers:
    """Accelerated projected gradient with restarts, in multipliers of rows of about unit length."""
    dtype = slope.dtype

    def probed(key: Key[Array, ""]) -> Multipliers:
        return products.forward(jax.random.rademacher(key, slope.shape, dtype)) ** 2

    lengths = jnp.sqrt(jnp.mean(jax.lax.map(probed, jax.random.split(jax.random.key(0), 8)), axis=0))
    scale = jnp.where(may & (lengths > 0), 1 / jnp.where(lengths > 0, lengths, 1), 0)
    price = near * _norm(residual(slope))
    low = jnp.where(oracle.inequality, 0, -jnp.inf)

    def power(_: Array, t: Multipliers) -> Multipliers:
        image = scale * products.forward(products.backward(scale * t))
        return image / jnp.maximum(_norm(image), jnp.finfo(dtype).tiny)

    start = jax.random.normal(jax.random.key(1), near.shape, dtype)  # ones may be no part of the largest eigenvector
    top = jax.lax.fori_loop(0, 20, power, start)
    largest = _norm(scale * products.forward(products.backward(scale * top)))
    step = 1 / jnp.maximum(1.3 * largest, jnp.finfo(dtype).tiny)

    def improve(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        count, now, ahead, momentum, _ = carry
        left = residual(slope + products.backward(scale * ahead))  # the gradient of dist^2 / 2 is minus that
        new = jnp.maximum(ahead - step * (price - scale * products.forward(left)), low)
        forward = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        restart = jnp.vdot(ahead - new, new - now) > 0
        beyond = jnp.where(restart, new, new + (momentum - 1) / forward * (new - now))
        done = _norm(new - ahead) <= 8 * jnp.finfo(dtype).eps * _norm(new)
        return count + 1, new, beyond, jnp.where(restart, 1.0, forward).astype(dtype), done

    zero = jnp.zeros_like(near)
    begin = (jnp.int32(0), zero, zero, jnp.ones((), dtype), jnp.asarray(False))
    final = jax.lax.while_loop(lambda carry: (carry[0] < PRODUCT_STEPS) & ~carry[4], improve, begin)
    return scale * final[1]
