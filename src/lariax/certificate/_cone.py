"""The point of a cone that is nearest, where the cone is spanned by rows: the solver behind fitted multipliers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

MOST_STEPS = 60  # some twenty do

Vector = Float[Array, " d"]
Weights = Float[Array, " m"]
Face = Float[Array, "m d"]
"""Orthonormal rows, or zeros."""


class _State(NamedTuple):
    y: Weights
    z: Weights  # the gradient in y, for those that must not be negative
    best: Weights
    least: Float[Array, ""]
    done: Bool[Array, ""]


def nearest_in_cone(
    slope: Vector,
    rows: Float[Array, "m d"],
    price: Weights,
    positive: Bool[Array, " m"],
    may: Bool[Array, " m"],
    residual: Callable[[Vector], Vector],
) -> Weights:
    """argmin over y of  || R(g + rows^T y) ||^2 / 2 + price . y,  with y >= 0 where `positive` and 0 unless it `may`.

    R is the residual of a projection on a convex cone: firmly non-expansive, piecewise smooth. By an interior-point
    method with predictor and corrector, whose systems are as small as the smaller side of `rows` (of length one or
    zero). Dependent, repeated and opposite rows do no harm: of many solutions it ends amid them.
    """
    rows = jnp.where(may[:, None], rows, 0)
    held = positive & may
    count = jnp.maximum(jnp.sum(held), 1).astype(slope.dtype)
    eps, tiny = jnp.finfo(slope.dtype).eps, jnp.finfo(slope.dtype).tiny
    size = jnp.maximum(_norm(residual(slope)), tiny**0.5)

    def value(y: Weights) -> Float[Array, ""]:
        return jnp.sum(residual(slope + y @ rows) ** 2) / 2 + price @ y

    def step(state: _State) -> _State:
        y, z = state.y, state.z
        left, moved = _linearized(residual, slope + y @ rows, rows)
        ahead = jnp.where(may, price - rows @ left - z, 0)
        gap = jnp.sum(jnp.where(held, y * z, 0)) / count
        safe = jnp.where(held, y, 1)
        solve = _system(moved, jnp.where(may, jnp.where(held, z / safe, 0) + 64 * eps, 1))

        def direction(target: Float[Array, ""], bent: Weights) -> tuple[Weights, Weights]:
            dy = jnp.where(may, solve(jnp.where(held, (target - bent) / safe - z, 0) - ahead), 0)
            return dy, jnp.where(held, (target - bent - z * dy) / safe - z, 0)

        dy, dz = direction(jnp.zeros_like(gap), jnp.zeros_like(y))
        room = jnp.minimum(1, _room(held, y, z, dy, dz))
        after = jnp.sum(jnp.where(held, (y + room * dy) * (z + room * dz), 0)) / count
        dy, dz = direction(gap * (after / jnp.maximum(gap, tiny)) ** 3, dy * dz)
        room = jnp.minimum(1, 0.99 * _room(held, y, z, dy, dz))
        y, z = y + room * dy, jnp.where(held, z + room * dz, 0)
        sound = jnp.all(jnp.isfinite(y)) & jnp.all(jnp.isfinite(z))
        clean = jnp.where(held & (y < z), 0, y)  # of two that multiply to nothing, the smaller one is nothing
        new = value(clean)
        better = sound & (new < state.least)
        done = ~sound | (jnp.maximum(_norm(ahead), jnp.sqrt(gap)) <= 16 * eps * size)
        return _State(y, z, jnp.where(better, clean, state.best), jnp.where(better, new, state.least), done)

    start, none = jnp.where(held, size, 0), jnp.zeros_like(price)
    begin = _State(start, start, none, value(none), jnp.asarray(False))
    final = jax.lax.while_loop(
        lambda carry: (carry[0] < MOST_STEPS) & ~carry[1].done,
        lambda carry: (carry[0] + 1, step(carry[1])),
        (jnp.int32(0), begin),
    )
    return final[1].best


def face_of(gradient: Vector, rows: Float[Array, "m d"], residual: Callable[[Vector], Vector]) -> Face:
    """What R lets through of the rows, orthonormalised."""
    _, moved = _linearized(residual, gradient, rows)
    gram = jnp.matmul(moved, moved.T, precision="highest")
    values, vectors = jnp.linalg.eigh(gram)
    kept = values > rows.shape[0] * jnp.finfo(rows.dtype).eps * jnp.max(values, initial=0)
    scale = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)
    return jnp.matmul(scale[:, None] * vectors.T, moved, precision="highest")


def _linearized(
    residual: Callable[[Vector], Vector], at: Vector, rows: Float[Array, "m d"]
) -> tuple[Vector, Float[Array, "m d"]]:
    """R, and minus its derivative along the rows; where there is none (coinciding singular values), the rows."""
    left, derivative = jax.linearize(residual, at)
    moved = -jax.vmap(derivative)(rows)
    return left, jnp.where(jnp.all(jnp.isfinite(moved)), moved, rows)


def _system(moved: Float[Array, "m d"], diagonal: Weights) -> Callable[[Weights], Weights]:
    """Solves (diagonal + moved moved^T) y = b, through whichever of moved moved^T and moved^T moved is smaller."""
    root = 1 / jnp.sqrt(diagonal)
    scaled = root[:, None] * moved
    m, d = moved.shape
    wide = m <= d
    matrix = (
        jnp.matmul(scaled, scaled.T, precision="highest") if wide else jnp.matmul(scaled.T, scaled, precision="highest")
    )
    factor = jax.scipy.linalg.cho_factor(jnp.eye(min(m, d), dtype=moved.dtype) + matrix, lower=True)

    def solve(right: Weights) -> Weights:
        right = root * right
        if wide:
            return root * jax.scipy.linalg.cho_solve(factor, right)
        return root * (right - scaled @ jax.scipy.linalg.cho_solve(factor, scaled.T @ right))

    return solve


def _room(held: Bool[Array, " m"], y: Weights, z: Weights, dy: Weights, dz: Weights) -> Float[Array, ""]:
    """How far one may go before an entry becomes negative."""

    def until(now: Weights, move: Weights) -> Float[Array, ""]:
        falls = held & (move < 0)
        return jnp.min(jnp.where(falls, -now / jnp.where(falls, move, -1), np.inf), initial=np.inf)

    return jnp.minimum(until(y, dy), until(z, dz))


def _norm(vector: Array) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(vector**2))
