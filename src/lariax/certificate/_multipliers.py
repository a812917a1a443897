"""Least-squares multipliers over the allowed signs."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Key

from lariax.certificate._draws import Feeds, Plan, View, batch_means, batch_of, shares
from lariax.oracle import Oracle, Vector

MOST_JACOBIAN_ROWS = 32
MOST_JACOBIAN_ENTRIES = 2**22
PRODUCT_SAMPLES = 1024  # behind J and J^T where the Jacobian is not formed
DENSE_STEPS = 400
PRODUCT_STEPS = 60

Multipliers = Float[Array, " m"]


def forms_jacobian(oracle: Oracle) -> bool:
    """Whether the mean Jacobian is held as an array."""
    return oracle.rows <= MOST_JACOBIAN_ROWS and oracle.rows * oracle.dimension <= MOST_JACOBIAN_ENTRIES


def fit_multipliers(
    oracle: Oracle,
    feeds: Feeds,
    z: Vector,
    key: Key[Array, ""],
    plan: Plan,
    residual: Callable[[Vector], Vector],
) -> Multipliers:
    """argmin over the allowed signs of  || R(grad f + J^T y) ||^2 + sum over inequalities of (r_i y_i)^2.

    The second term is what y costs in complementarity; a row that is clearly inactive and farther from its bound than a
    step of length one could reach gets 0. With few rows the mean Jacobian is formed; otherwise J and J^T are products
    on at most `PRODUCT_SAMPLES` of the samples (deterministic constraints need none).
    """
    dense = forms_jacobian(oracle)
    identity = jnp.eye(oracle.rows, dtype=oracle.dtype)

    def gradient(view: View) -> tuple[Vector, Float[Array, "m d"] | None]:
        jacobian = jax.vmap(lambda y: view.pull(oracle.split(y), objective=0.0))(identity) if dense else None
        return view.pull(oracle.split(jnp.zeros(oracle.rows, oracle.dtype))), jacobian

    means = batch_means(oracle, feeds, z, key, plan, gradient, apart=False)
    slope, jacobian = means.gradient
    if dense:
        return fit_dense(oracle, means.residuals, slope, jacobian, residual)
    products = _matrix_free(oracle, feeds, z, key, plan)
    price, free = _prices(oracle, means.residuals, None)
    y = _least_squares(slope, products, price, free, _Scaling(lambda t: t, lambda y: y), residual, PRODUCT_STEPS)
    return jnp.where(jnp.all(jnp.isfinite(y)), y, 0)


def fit_dense(
    oracle: Oracle,
    residuals: Float[Array, "k m"],
    slope: Vector,
    jacobian: Float[Array, "m d"],
    residual: Callable[[Vector], Vector],
) -> Multipliers:
    """The same from batch means of the residuals, the mean gradient of f and the mean Jacobian."""
    products = _Products(lambda v: jacobian @ v, lambda y: y @ jacobian)
    price, free = _prices(oracle, residuals, jnp.sqrt(jnp.sum(jacobian**2, axis=1)))
    y = _least_squares(slope, products, price, free, _scaling(oracle, jacobian, price), residual, DENSE_STEPS)
    return jnp.where(jnp.all(jnp.isfinite(y)), y, 0)


class _Products(NamedTuple):
    forward: Callable[[Vector], Multipliers]  # J v
    backward: Callable[[Multipliers], Vector]  # J^T y


class _Scaling(NamedTuple):
    """y = S t: in t the problem is better conditioned, and the signs of inequalities are the same."""

    apply: Callable[[Multipliers], Multipliers]
    transposed: Callable[[Multipliers], Multipliers]


class _Free(NamedTuple):
    low: Multipliers
    high: Multipliers


def _prices(oracle: Oracle, residuals: Float[Array, "k m"], sizes: Multipliers | None) -> tuple[Multipliers, _Free]:
    """What a multiplier costs in complementarity, and the values it may take."""
    k = residuals.shape[0]
    mean = jnp.mean(residuals, axis=0)
    error = jnp.sqrt(jnp.sum((residuals - mean) ** 2, axis=0) / (k * max(k - 1, 1)))
    price = jnp.where(oracle.inequality, mean, 0)
    beyond: Bool[Array, " m"] = oracle.inequality & (mean + 3 * error < 0)
    beyond &= (jnp.abs(mean) > sizes) if sizes is not None else (jnp.abs(mean) > 1)
    low = jnp.where(oracle.inequality, 0, -jnp.inf)
    return price, _Free(low, jnp.where(beyond, 0, jnp.inf))


def _scaling(oracle: Oracle, jacobian: Float[Array, "m d"], price: Multipliers) -> _Scaling:
    """Equalities are made orthonormal, inequalities are scaled to length one."""
    equality = jnp.where(oracle.inequality[:, None], 0, jacobian)
    values, vectors = jnp.linalg.eigh(jnp.matmul(equality, equality.T, precision="highest"))
    kept = values > oracle.rows * jnp.finfo(oracle.dtype).eps * jnp.max(values, initial=0)
    whiten = (vectors * jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)) @ vectors.T
    lengths = jnp.sqrt(jnp.sum(jacobian**2, axis=1) + price**2)
    diagonal = jnp.where(oracle.inequality & (lengths > 0), 1 / jnp.where(lengths > 0, lengths, 1), 0)
    matrix = whiten + jnp.diag(diagonal)
    return _Scaling(lambda t: matrix @ t, lambda y: matrix.T @ y)


def _matrix_free(oracle: Oracle, feeds: Feeds, z: Vector, key: Key[Array, ""], plan: Plan) -> _Products:
    """J and J^T of the mean over the first samples, recomputed for each product."""
    count: ArrayLike = 1
    if oracle.has_random_constraints:  # a plan of one batch is for all rows, whose shares add up over all steps alone
        most = plan.batches * plan.steps
        count = most if plan.batches == 1 else jnp.minimum(most, -(-PRODUCT_SAMPLES // plan.count))

    def part(point: Vector, step: Array) -> Multipliers:
        _, rows = shares(oracle, feeds, step, plan.count, count)
        seen = oracle.residuals(point, batch_of(feeds, key, step, plan.count))
        return jnp.concatenate([jnp.sum(share * r, axis=0) for share, r in zip(rows, seen, strict=True)])

    def total(one: Callable[[Array], Array], like: Array) -> Array:
        return jax.lax.fori_loop(0, count, lambda step, sum_: sum_ + one(step), jnp.zeros_like(like))

    def forward(v: Vector) -> Multipliers:
        return total(lambda s: jax.jvp(lambda p: part(p, s), (z,), (v,))[1], jnp.zeros(oracle.rows, oracle.dtype))

    def backward(y: Multipliers) -> Vector:
        return total(lambda s: jax.vjp(lambda p: part(p, s), z)[1](y)[0], z)

    return _Products(forward, backward)


def _least_squares(
    slope: Vector,
    products: _Products,
    price: Multipliers,
    free: _Free,
    scale: _Scaling,
    residual: Callable[[Vector], Vector],
    most: int,
) -> Multipliers:
    """Accelerated projected gradient with restarts, in scaled multipliers."""

    def curvature(t: Multipliers) -> Multipliers:
        y = scale.apply(t)
        return scale.transposed(products.forward(products.backward(y)) + price**2 * y)

    def power(_: Array, t: Multipliers) -> Multipliers:
        image = curvature(t)
        return image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(image.dtype).tiny)

    start = jax.random.normal(
        jax.random.key(0), price.shape, price.dtype
    )  # rows of length one have eigenvectors of ones
    largest = jnp.linalg.norm(curvature(jax.lax.fori_loop(0, 20, power, start)))
    step = 1 / jnp.maximum(1.3 * largest, jnp.finfo(price.dtype).tiny)

    def gradient(t: Multipliers) -> Multipliers:
        y = scale.apply(t)  # the gradient of dist^2 / 2 is minus the residual
        return scale.transposed(-products.forward(residual(slope + products.backward(y))) + price**2 * y)

    def improve(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        count, now, ahead, momentum, _ = carry
        descent = gradient(ahead)
        new = jnp.clip(ahead - step * descent, free.low, free.high)
        forward = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        restart = jnp.vdot(ahead - new, new - now) > 0
        beyond = jnp.where(restart, new, new + (momentum - 1) / forward * (new - now))
        moved = jnp.linalg.norm(new - ahead)
        done = moved <= 8 * jnp.finfo(now.dtype).eps * (1 + jnp.linalg.norm(new))
        return count + 1, new, beyond, jnp.where(restart, 1.0, forward).astype(now.dtype), done

    zero = jnp.zeros_like(price)
    begin = (jnp.int32(0), zero, zero, jnp.ones((), price.dtype), jnp.asarray(False))
    final = jax.lax.while_loop(lambda carry: (carry[0] < most) & ~carry[4], improve, begin)
    return scale.apply(final[1])
