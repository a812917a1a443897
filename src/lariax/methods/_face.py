"""The linear algebra of `TangentNormal`: steps within linearised constraints and bounds, without an evaluation.

    nearest     the point nearest to a target that satisfies  J d + r = 0,  J d + r <= 0  and  low <= d <= high
    along_face  from there to the minimum of a quadratic model on the face of what is active, as far as it is allowed
    bent        the model's matrix after a step, by a damped BFGS update

Rows of J have length one here, so that distances to constraints are distances in x. Dependent rows are met by a ridge,
which the length of the rows makes a relative one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, ArrayLike, Bool, Float

from lariax.formulas import is_whitened
from lariax.oracle import Oracle, Vector

NEWTON = 40  # the most steps towards the dual solution; two or three are usual once the active set has settled
HALVINGS = 12  # of one of them
CG_STEPS = 100  # the most products with J J^T of a solve beyond the dense limit
ROUNDS = 4  # how often the face is changed in the search for a step

Values = Float[Array, " m"]


class Linearized(NamedTuple):
    """Constraints at a point, to first order, with rows of length one."""

    forward: Callable[[Vector], Values]  # J v
    backward: Callable[[Values], Vector]  # J^T y
    solve: Callable[[Vector, Bool[Array, " m"], Array, Values], Values]  # (free, active, ridge, b) -> y, see `_dense`
    matrix: Float[Array, "m d"] | None  # J; None beyond the dense limit
    size: Values  # by which rows and residuals were divided
    length: Values  # of the rows before that
    inequality: Bool[Array, " m"]
    plain: bool  # neither inequalities nor bounds

    def scaled(self, residuals: Values) -> Values:
        return residuals / self.size

    def violation(self, residuals: Values) -> Values:
        """Of scaled residuals: about the distance to each constraint."""
        return jnp.where(self.inequality, jnp.maximum(residuals, 0), residuals)


class Bounds(NamedTuple):
    low: Vector
    high: Vector

    def around(self, x: Vector) -> "Bounds":
        """For steps from x."""
        return Bounds(jnp.minimum(self.low - x, 0), jnp.maximum(self.high - x, 0))

    def held(self, x: Vector) -> "Bounds":
        """For steps from x that leave entries where they are on a bound."""
        low, high = self.around(x)
        on = (low == 0) | (high == 0)
        return Bounds(jnp.where(on, 0, low), jnp.where(on, 0, high))


def unbounded(x: Vector) -> Bounds:
    return Bounds(jnp.full_like(x, -jnp.inf), jnp.full_like(x, jnp.inf))


class Near(NamedTuple):
    step: Vector
    weights: Values  # y of the scaled rows, with  step = clip(target - J^T y)
    free: Bool[Array, " d"]  # entries that no bound holds
    active: Bool[Array, " m"]


def ridge(dtype: jnp.dtype) -> float:
    """Eigenvalue of J J^T, with rows of length one, below which a direction counts as dependent."""
    return float(jnp.finfo(dtype).eps) ** 0.75


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
        if plain:  # the one question there is
            factor = cho_factor(_gram(matrix, jnp.ones_like(x), ~oracle.inequality, ridge(oracle.dtype)), lower=True)
        rows = Linearized(
            lambda v: matrix @ v,
            lambda y: y @ matrix,
            (lambda *question: cho_solve(factor, question[-1]))
            if plain
            else lambda *question: _dense(matrix, *question),
            matrix,
            size,
            length,
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
            lambda *question: _matrix_free(forward, backward, *question),
            None,
            size,
            size,
            oracle.inequality,
            plain,
        )
    return rows, rows.scaled(residuals)


def _dense(matrix: Float[Array, "m d"], free: Vector, active: Bool[Array, " m"], extra: Array, right: Values) -> Values:
    """(J_AF J_AF^T + ridge) y = b over the active rows and the free entries; y = b for the other rows."""
    return cho_solve(cho_factor(_gram(matrix, free, active, extra), lower=True), right)


def _gram(matrix: Float[Array, "m d"], free: Vector, active: Bool[Array, " m"], extra: ArrayLike) -> Array:
    some = active[:, None] * matrix
    return (some * free) @ some.T + jnp.diag(jnp.where(active, extra, 1))


def _matrix_free(
    forward: Callable[[Vector], Values],
    backward: Callable[[Values], Vector],
    free: Vector,
    active: Bool[Array, " m"],
    extra: Array,
    right: Values,
) -> Values:
    def product(y: Values) -> Values:
        inner = forward(free * backward(jnp.where(active, y, 0)))
        return jnp.where(active, inner + extra * y, y)

    return cg(product, right, tol=1e-12 if right.dtype == jnp.float64 else 1e-6, maxiter=CG_STEPS)[0]


def _largest(product: Callable[[Values], Values], like: Values) -> Array:
    """The square root of the largest eigenvalue, by power steps."""

    def power(_: Array, y: Values) -> Values:
        return y / (jnp.linalg.norm(y) + jnp.finfo(y.dtype).tiny)

    start = jax.random.normal(jax.random.key(0), like.shape, like.dtype)
    y = jax.lax.fori_loop(0, 8, lambda i, y: product(power(i, y)), start)
    return jnp.sqrt(jnp.linalg.norm(y)) + jnp.finfo(like.dtype).tiny


# --- the nearest point


def nearest(rows: Linearized, residuals: Values, target: Vector, bounds: Bounds, weights: Values) -> Near:
    """argmin ||d - target|| within linearised constraints and bounds, or as near to them as d can come.

    The dual is  max over y of  min over d in the bounds of  ||d - target||^2 / 2 + y . (J d + r) - ridge ||y||^2 / 2,
    with y >= 0 for inequalities. It is smooth and piecewise quadratic in m unknowns, and Newton's method for it,
    started from `weights`, ends after finitely many pieces.
    """
    small = ridge(target.dtype)
    if rows.matrix is not None:  # what has no gradient cannot be mended
        residuals = jnp.where(jnp.any(rows.matrix != 0, axis=1), residuals, 0)
    if rows.plain:
        every = jnp.ones_like(residuals, bool)
        free = jnp.ones_like(target)
        y = rows.solve(free, every, jnp.asarray(small), rows.forward(target) + residuals)
        step = target - rows.backward(y)
        more = rows.solve(free, every, jnp.asarray(small), rows.forward(step) + residuals)  # takes back the ridge
        return Near(step - rows.backward(more), y + more, free > 0, every)
    y = _ascent(rows, residuals, target, bounds, _allowed(rows, weights), small)
    inner = target - rows.backward(y)
    step = jnp.clip(inner, bounds.low, bounds.high)
    return Near(step, y, (inner > bounds.low) & (inner < bounds.high), ~rows.inequality | (y > 0))


def _allowed(rows: Linearized, y: Values) -> Values:
    return jnp.where(rows.inequality, jnp.maximum(y, 0), y)


class _Dual(NamedTuple):
    """The dual at a point: its value, its gradient, the entries that are free and the rows that are active there."""

    y: Values
    value: Float[Array, ""]
    slope: Values
    free: Vector
    active: Bool[Array, " m"]

    @property
    def gap(self) -> Values:
        """What is missing; 0 at the solution."""
        return jnp.where(self.active, self.slope, -self.y)


def _ascent(rows: Linearized, r: Values, target: Vector, bounds: Bounds, start: Values, small: float) -> Values:
    least, eps = 0.5**HALVINGS, jnp.finfo(target.dtype).eps
    enough = 8 * eps * (jnp.linalg.norm(r) + jnp.linalg.norm(rows.forward(target)))

    def at(y: Values) -> _Dual:
        inner = target - rows.backward(y)
        step = jnp.clip(inner, bounds.low, bounds.high)
        slope = rows.forward(step) + r - small * y
        value = jnp.sum((step - target) ** 2) / 2 + jnp.vdot(y, slope + small * y / 2)
        free = (inner > bounds.low) & (inner < bounds.high)
        return _Dual(y, value, slope, free.astype(y.dtype), ~rows.inequality | (y + slope > 0))

    def improve(carry: tuple[_Dual, Array, Array]) -> tuple[_Dual, Array, Array]:
        now, count, _ = carry
        error = jnp.linalg.norm(now.gap)
        # where bounds hold all entries of a row the dual is flat: a ridge that goes with the gap keeps steps in range
        extra = small + 0.01 * error / (error + jnp.linalg.norm(now.y) + jnp.finfo(r.dtype).tiny)
        move = rows.solve(now.free, now.active, extra, now.gap)

        def ahead(length: Array) -> tuple[Array, _Dual]:
            return length, at(_allowed(rows, now.y + length * move))

        def too_far(carry: tuple[Array, _Dual]) -> Array:
            length, new = carry
            wanted = 1e-4 * jnp.vdot(now.slope, new.y - now.y) - 4 * eps * jnp.abs(now.value)
            return ~(new.value - now.value >= wanted) & (length > least)

        length, new = jax.lax.while_loop(too_far, lambda c: ahead(c[0] / 2), ahead(jnp.ones((), r.dtype)))
        stuck = length <= least
        return jax.tree.map(lambda a, b: jnp.where(stuck, a, b), now, new), count + 1, stuck

    begin = (at(start), jnp.int32(0), jnp.asarray(False))
    last, _, _ = jax.lax.while_loop(
        lambda c: (jnp.linalg.norm(c[0].gap) > enough) & (c[1] < NEWTON) & ~c[2], improve, begin
    )
    return last.y


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
    # B + stiff J^T J is the same along the face, and sound across it
    matrix_here = free[:, None] * model * free + stiff * some.T @ some
    factor = cho_factor(matrix_here + jnp.diag(jnp.where(near.free, small * stiff, 1)), lower=True)
    slope = free * (gradient + model @ near.step)
    across = cho_solve(factor, some.T)  # B^-1 J^T
    inner = some @ across
    strength = jnp.trace(inner) / jnp.maximum(jnp.sum(near.active), 1)
    inner = inner + jnp.diag(jnp.where(jnp.diag(inner) > 0, small * strength, 1))  # rows without a gradient do nothing
    weights = cho_solve(cho_factor(inner, lower=True), some @ cho_solve(factor, slope)) if inner.size else room
    move = -cho_solve(factor, slope - weights @ some)
    move = move - some.T @ rows.solve(free, near.active, jnp.asarray(small), some @ move)  # what rounding left
    if rows.plain:
        return near.step + move
    outward = jnp.where(move > 0, bounds.high - near.step, near.step - bounds.low)
    reach = jnp.min(jnp.where(near.free & (move != 0), outward / jnp.where(move == 0, 1, jnp.abs(move)), jnp.inf))
    climb = rows.forward(move)
    left = jnp.maximum(room - rows.forward(near.step), 0)
    hit = rows.inequality & ~near.active & (climb > 0)
    reach = jnp.minimum(reach, jnp.min(jnp.where(hit, left / jnp.where(hit, climb, 1), jnp.inf), initial=jnp.inf))
    return jnp.clip(near.step + jnp.minimum(reach, 1) * move, bounds.low, bounds.high)


def bent(model: Float[Array, "d d"], step: Vector, change: Vector, noise: Array) -> Float[Array, "d d"]:
    """BFGS, for a change of gradient that is known up to a noise of this variance.

    Only the part of (change - B step) that noise does not explain is learnt: 1 - noise / ||change - B step||^2 of it. A
    step along which the change shows little or negative curvature counts with a fifth of the model's.
    """
    tiny = jnp.finfo(step.dtype).tiny
    image = model @ step
    gap = change - image
    trust = jnp.clip(1 - noise / (jnp.sum(gap**2) + tiny), 0, 1)
    change = image + trust * gap
    before, after = jnp.vdot(step, image), jnp.vdot(step, change)
    damped = jnp.where(after < 0.2 * before, 0.8 * before / (before - after + tiny), 1)
    change = damped * change + (1 - damped) * image
    after = jnp.vdot(step, change)
    new = model - jnp.outer(image, image) / (before + tiny) + jnp.outer(change, change) / (after + tiny)
    good = (before > tiny) & (after > tiny) & jnp.all(jnp.isfinite(new))
    return jnp.where(good, (new + new.T) / 2, model)
