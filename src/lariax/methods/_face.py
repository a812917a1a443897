"""The linear algebra of `TangentNormal`: constraints to first order, and steps of a quadratic model along them.

linearized  the constraints around a point, with rows of length one
along_face  from a step to the minimum of a quadratic model on the face of what is active, as far as it is allowed
bent        the model's matrix after a step, by a damped BFGS update
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lariax.methods._nearest import Bounds, Linearized, Near, Values, dense, ridge
from lariax.oracle import Oracle, Vector
from lariax.tuned.shape import is_whitened

SLANT = (
    0.01  # the least cosine between a step and the change of gradient that is learnt: stretched by 1 / SLANT at most
)
CG_STEPS = 100  # the most products with J J^T of a solve beyond the dense limit


def linearized(oracle: Oracle, x: Vector, plain: bool, usual: Values) -> tuple[Linearized, Values]:
    """The constraints around x, and their residuals there, scaled.

    `usual` is how long the rows of J have been: one that has almost vanished beside that says nothing of a direction.
    """
    residuals, pull = oracle.exact_residuals(x)
    if is_whitened(oracle.rows, oracle.dimension):
        matrix = jax.vmap(pull)(jnp.eye(oracle.rows, dtype=oracle.dtype))
        length = jnp.sqrt(jnp.sum(matrix**2, axis=1))
        alive = length > jnp.sqrt(jnp.finfo(oracle.dtype).eps) * usual
        size = jnp.where(alive, length, 1)
        matrix = jnp.where(alive[:, None], matrix / size[:, None], 0)
        factor = None
        if plain:
            whole = matrix @ matrix.T + ridge(oracle.dtype) * jnp.eye(oracle.rows, dtype=oracle.dtype)
            factor = jax.scipy.linalg.cho_factor(whole, lower=True)
        rows = Linearized(
            lambda v: matrix @ v,
            lambda y: y @ matrix,
            lambda *args: dense(matrix, *args),
            None if factor is None else lambda right: jax.scipy.linalg.cho_solve(factor, right),
            matrix,
            size,
            length,
            alive,
            oracle.inequality,
            plain,
        )
    else:
        push = jax.linear_transpose(pull, residuals)  # a user's rule for the way back is enough
        size = jnp.full_like(residuals, _largest(lambda y: push(pull(y))[0], residuals))

        def forward(v: Vector) -> Values:
            return push(v)[0] / size

        def backward(y: Values) -> Vector:
            return pull(y / size)

        rows = Linearized(
            forward,
            backward,
            lambda *args: _matrix_free(forward, backward, *args),
            None,
            None,
            size,
            size,
            jnp.ones_like(residuals, bool),
            oracle.inequality,
            plain,
        )
    return rows, rows.scaled(residuals)


def _matrix_free(
    forward: Callable[[Vector], Values],
    backward: Callable[[Values], Vector],
    active: Bool[Array, " m"],
    free: Vector,
    extra: Array,
    right: Values,
) -> Values:
    def product(y: Values) -> Values:
        inner = forward(free * backward(jnp.where(active, y, 0)))
        return jnp.where(active, inner + extra * y, y)

    return jax.scipy.sparse.linalg.cg(
        product, right, tol=1e-12 if right.dtype == jnp.float64 else 1e-6, maxiter=CG_STEPS
    )[0]


def _largest(product: Callable[[Values], Values], like: Values) -> Array:
    """The square root of the largest eigenvalue, by power steps."""

    def power(_: Array, y: Values) -> Values:
        return y / (jnp.linalg.norm(y) + jnp.finfo(y.dtype).tiny)

    start = jax.random.normal(jax.random.key(0), like.shape, like.dtype)
    y = jax.lax.fori_loop(0, 8, lambda i, y: product(power(i, y)), start)
    return jnp.sqrt(jnp.linalg.norm(y)) + jnp.finfo(like.dtype).tiny


# --- the model


def along_face(
    rows: Linearized, gradient: Vector, model: Float[Array, "d d"], room: Values, bounds: Bounds, near: Near
) -> Vector:
    """From a step to the minimum of  g . t + t^T B t / 2  on its face, or to where the face ends.

    `room` is what J t may reach for inequalities. On the way the model only falls.
    """
    matrix = rows.matrix
    assert matrix is not None
    free = near.free.astype(gradient.dtype)
    some = near.active[:, None] * matrix * free
    small = ridge(gradient.dtype)
    stiff = jnp.sqrt(jnp.sum(model**2))
    # B + stiff J^T J is the same along the face, and sound across it; where rows outnumber entries it is stiff enough
    # to keep steps on the face, up to what is taken back below
    wide = some.shape[0] > some.shape[1]
    strong = stiff / jnp.sqrt(jnp.finfo(stiff.dtype).eps) if wide else stiff
    matrix_here = free[:, None] * model * free + strong * some.T @ some
    factor = jax.scipy.linalg.cho_factor(matrix_here + jnp.diag(jnp.where(near.free, small * stiff, 1)), lower=True)
    slope = free * (gradient + model @ near.step)
    pull = jnp.zeros_like(slope) if wide or not some.size else _held(factor, some, slope, near.active) @ some
    move = -jax.scipy.linalg.cho_solve(factor, slope - pull)
    move = move - some.T @ rows.least(near.active, free, some @ move)  # what rounding left
    if rows.plain:
        return near.step + move
    outward = jnp.where(move > 0, bounds.high - near.step, near.step - bounds.low)
    reach = jnp.min(jnp.where(near.free & (move != 0), outward / jnp.where(move == 0, 1, jnp.abs(move)), jnp.inf))
    climb = rows.forward(move)
    left = jnp.maximum(room - rows.forward(near.step), 0)
    hit = rows.inequality & ~near.active & (climb > 0)
    reach = jnp.minimum(reach, jnp.min(jnp.where(hit, left / jnp.where(hit, climb, 1), jnp.inf), initial=jnp.inf))
    return jnp.clip(near.step + jnp.minimum(reach, 1) * move, bounds.low, bounds.high)


def _held(factor: tuple[Array, bool], some: Float[Array, "m d"], slope: Vector, active: Bool[Array, " m"]) -> Values:
    """The multipliers of J t = 0 for  slope . t + t^T B t / 2,  with B by its factor."""
    inner = some @ jax.scipy.linalg.cho_solve(factor, some.T)  # J B^-1 J^T
    strength = jnp.trace(inner) / jnp.maximum(jnp.sum(active), 1)
    least = ridge(slope.dtype) * strength
    inner = inner + jnp.diag(jnp.where(jnp.diag(inner) > 0, least, 1))  # rows without a gradient do nothing
    return jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(inner, lower=True), some @ jax.scipy.linalg.cho_solve(factor, slope)
    )


def bent(model: Float[Array, "d d"], step: Vector, change: Vector, noise: Array) -> Float[Array, "d d"]:
    """BFGS, for a change of gradient that is known up to a noise of this variance.

    Only the part of (change - B step) that noise does not explain is learnt: 1 - noise / ||change - B step||^2 of it. A
    step along which the change shows little or negative curvature counts with a fifth of the model's. A change nearly
    across the step, as at a saddle, is turned towards it, or the model would be stretched beyond all that was seen.
    """
    tiny = jnp.finfo(step.dtype).tiny
    image = model @ step
    gap = change - image
    trust = jnp.clip(1 - noise / (jnp.sum(gap**2) + tiny), 0, 1)
    change = image + trust * gap
    before, after = jnp.vdot(step, image), jnp.vdot(step, change)
    damped = jnp.where(after < 0.2 * before, 0.8 * before / (before - after + tiny), 1)
    change = damped * change + (1 - damped) * image
    length, turned = jnp.linalg.norm(step), SLANT * jnp.linalg.norm(change)
    change = change + jnp.maximum(turned - jnp.vdot(step, change) / (length + tiny), 0) * step / (length + tiny)
    after = jnp.vdot(step, change)
    new = model - jnp.outer(image, image) / (before + tiny) + jnp.outer(change, change) / (after + tiny)
    good = (before > tiny) & (after > tiny) & jnp.all(jnp.isfinite(new))
    return jnp.where(good, (new + new.T) / 2, model)
