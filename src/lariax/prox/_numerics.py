"""Numerics shared by terms and sets: norms, constants that follow x, one piecewise linear equation."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

matmul = partial(jnp.matmul, precision="highest")  # accelerators otherwise round float32 products to ten bits

Allowance: TypeAlias = Callable[[Array], ArrayLike]


def norm(tree: PyTree) -> Float[Array, ""]:
    """Euclidean norm over all entries, without the overflow or underflow of squaring large or small ones."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.size(leaf)]
    if not leaves:
        return jnp.zeros(())
    largest = jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]).max()
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    squares = jnp.stack([jnp.sum(jnp.square(leaf / unit)) for leaf in leaves])
    return jnp.where(largest == unit, largest * jnp.sqrt(squares.sum()), largest)


def cast(value: ArrayLike, like: Array) -> Array:
    """A constant in the precision of an array."""
    return jnp.asarray(value).astype(like.dtype)


def allowance(x: PyTree, tolerance: ArrayLike | None) -> Allowance:
    """How far apart two quantities of a given scale, computed from x, may be and still count as equal.

    That is `tolerance`, whatever the scale, or by default sixteen rounding errors of x's precision at that
    scale.
    """
    if tolerance is not None:
        return lambda scale: tolerance
    unit = 16 * max(float(jnp.finfo(jnp.result_type(leaf)).eps) for leaf in jax.tree.leaves(x))
    return lambda scale: unit * scale


def as_arrays(tree: PyTree[ArrayLike]) -> PyTree[Array]:
    """Arrays in place of plain numbers and lists of them, so that they are traced and not compiled in."""
    return jax.tree.map(jnp.asarray, tree)


def known(value: Array) -> np.ndarray | None:
    """The numbers of an array; None while it is being traced and they are not there to be checked."""
    return None if isinstance(value, jax.core.Tracer) else np.asarray(value)


def require_positive(owner: object, name: str, value: Array) -> None:
    """Refuses a size that is not one positive finite number."""
    if value.shape != ():
        raise ValueError(
            f"{type(owner).__name__} was given a {name} of shape {value.shape}, but it is one number: give a "
            "scalar (for several sizes at once build one set a size, for instance under jax.vmap)."
        )
    number = known(value)
    if number is not None and not (number > 0 and np.isfinite(number)):
        raise ValueError(
            f"{type(owner).__name__} was given {name}={number}, but it must be positive and finite: give a "
            "larger number, or leave the term out if nothing is to be restricted."
        )


def require_weight(owner: object, name: str, value: PyTree[Array]) -> None:
    """Refuses weights with an entry that is negative or not finite."""
    for leaf in jax.tree.leaves(value):
        numbers = known(leaf)
        if numbers is not None and not (np.all(numbers >= 0) and np.all(np.isfinite(numbers))):
            raise ValueError(
                f"{type(owner).__name__} was given {name}={numbers}, but weights must be finite and at least "
                "zero for the term to be convex: change those that are not."
            )


def spread(prefix: PyTree[ArrayLike], x: PyTree) -> PyTree[Array]:
    """A constant per entry of x, in its precision, from a tree whose structure is a prefix of that of x."""
    return jax.tree.map(
        lambda value, leaf: jnp.broadcast_to(cast(value, jnp.asarray(leaf)), jnp.shape(leaf)),
        jax.tree.broadcast(prefix, x),
        x,
    )


def spread_mismatch(name: str, prefix: PyTree[ArrayLike], x: PyTree) -> str | None:
    """None when `spread` can be used, else a sentence that says why not."""
    try:
        full = jax.tree.broadcast(prefix, x)
    except ValueError:
        return (
            f"{name} has the structure {jax.tree.structure(prefix)} and x has {jax.tree.structure(x)}: give "
            f"{name} as one number, or built like x (an array where x is an array; lists count as structure)."
        )
    for (path, leaf), value in zip(jax.tree.leaves_with_path(x), jax.tree.leaves(full), strict=True):
        try:
            fits = np.broadcast_shapes(np.shape(value), np.shape(leaf)) == np.shape(leaf)
        except ValueError:
            fits = False
        if not fits:
            return (
                f"{name} has shape {np.shape(value)} where x{jax.tree_util.keystr(path)} has shape "
                f"{np.shape(leaf)}: give {name} as one number or in the shape of x."
            )
    return None


def matrix_of(x: PyTree) -> tuple[Float[Array, "rows columns"], Callable[[Array], PyTree]]:
    """The one matrix in x, and how to put a matrix back in its place."""
    (matrix,), structure = jax.tree.flatten(x)
    return jnp.asarray(matrix), lambda changed: jax.tree.unflatten(structure, [changed])


def matrix_mismatch(owner: object, x: PyTree) -> str | None:
    """None when x holds one matrix and nothing else, else a sentence that says what it holds."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    if len(shapes) == 1 and len(shapes[0]) == 2:
        return None
    return (
        f"{type(owner).__name__} is about one matrix, but x holds arrays of the shapes {shapes}: give x as a "
        "single two-dimensional array, or use Product to apply it to one part of x."
    )


def soft_threshold(x: Array, threshold: Array) -> Array:
    """sign(x) max(|x| - threshold, 0), entry by entry."""
    return x - jnp.clip(x, -threshold, threshold)


def l1_subgradient(x: Array, direction: Array, weight: Array, tolerance: ArrayLike) -> Array:
    """The element of weight * subdifferential of ||.||_1 at x that is nearest to `direction`."""
    return jnp.where(jnp.abs(x) > tolerance, weight * jnp.sign(x), jnp.clip(direction, -weight, weight))


def level(values: Float[Array, " n"], total: ArrayLike, rigid: Bool[Array, " n"]) -> Float[Array, ""]:
    """The root t of  sum over rigid i of (v_i - t)  +  sum over the others of max(v_i - t, 0)  =  total.

    The left side is piecewise linear and decreasing. With the others in decreasing order, the pieces are
    those where the first j of them lie above t; on each the root is a mean, and the right j is found by
    comparing. Projections onto simplices and onto the normal cones of polyhedral and spectral balls all come
    down to this.
    """
    others = jnp.sort(jnp.where(rigid, -jnp.inf, values), descending=True)
    rigid_sum, rigid_count = jnp.sum(jnp.where(rigid, values, 0)), jnp.sum(rigid)
    counts = rigid_count + jnp.arange(1, values.size + 1)
    roots = (rigid_sum + jnp.cumsum(jnp.where(jnp.isneginf(others), 0, others)) - total) / counts
    above = jnp.sum(others > roots)
    only_rigid = (rigid_sum - total) / jnp.maximum(rigid_count, 1)
    return jnp.where(above > 0, roots[above - 1], only_rigid)


def onto_simplex(values: Float[Array, " n"], total: Array) -> Float[Array, " n"]:
    """The nearest point with entries at least zero that sum to `total`: max(v - t, 0) with t from `level`.

    A shift of all entries does not matter, nor do entries that lie more than `total` below the largest; so t
    is found from numbers of the size of `total`, kept in two parts, and corrected once for what rounding left
    of the sum.
    """
    largest = jnp.max(values)
    below = level(jnp.maximum(values - largest, -total), total, jnp.zeros(values.shape, bool))
    high = largest + below
    low = (largest - high) + below
    point = jnp.maximum((values - high) - low, 0)
    support = point > 0
    excess = (jnp.sum(point) - total) / jnp.maximum(jnp.sum(support), 1)
    return jnp.where(support, jnp.maximum(point - excess, 0), point)


def nuclear_subgradients(
    matrix: Float[Array, "rows columns"], direction: Float[Array, "rows columns"], allow: Allowance
) -> tuple[Float[Array, " n"], Bool[Array, " n"], Callable[[ArrayLike], Float[Array, "rows columns"]]]:
    """How `direction` stands to t * d||X||_*, the subdifferentials of the nuclear norm at X, for t >= 0.

    With X = U S V^T over its non-zero singular values, t * d||X||_* = {t U V^T + W : U^T W = 0, W V = 0,
    ||W|| <= t}.

    Returns `nearest(t)`, the nearest element for a given t, and (values, rigid) such that the best t is
    max(level(values, 0, rigid), 0): the diagonal of U^T D V, and the singular values of the part of D across.
    """
    left, sizes, right = jnp.linalg.svd(matrix, full_matrices=False)
    nonzero = sizes > allow(sizes[0] * max(matrix.shape) ** 0.5)
    left, right = left * nonzero, right * nonzero[:, None]
    along = jnp.sum(left * matmul(direction, right.T), axis=0)
    across = direction - matmul(left, matmul(left.T, direction))
    across = across - matmul(matmul(across, right.T), right)
    across_left, across_sizes, across_right = jnp.linalg.svd(across, full_matrices=False)

    def nearest(weight: ArrayLike) -> Array:
        clipped = across_left * jnp.minimum(across_sizes, weight)
        return jnp.asarray(weight) * matmul(left, right) + matmul(clipped, across_right)

    values = jnp.concatenate([along, across_sizes])
    return values, jnp.concatenate([nonzero, jnp.zeros_like(nonzero)]), nearest
