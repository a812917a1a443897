"""The shape of the penalty: about (J J^T)^-1, so that neither scale nor correlation of the constraints matters.

`xp` is the array library that the arguments belong to, in NumPy's terms.
"""

from typing import Any, NamedTuple

WHITEN_ROWS = 256
"""With more constraint rows than this the shape is diagonal and matrix-free,"""

WHITEN_ENTRIES = 2**24
"""and so it is if the Jacobian would have more entries than this."""

REDUNDANT = 1e-3
"""Eigenvalue of the row-scaled Gram matrix below which rows count as dependent: no multiplier acts along them."""

DRIFT = 0.1
"""kappa: the noise that a penalty or a step may add, relative to the noise that averaging leaves. It costs a factor of
1 / (1 - kappa) in variance."""

PROBES = 8
"""Random directions, and power steps, behind a diagonal shape."""


class Shape(NamedTuple):
    """Matrices of m x m, or their diagonals."""

    penalty: Any  # M, about (J J^T)^-1
    dual: Any  # M without the directions of dependent rows
    gram: Any  # J J^T
    jacobian: Any  # J, tracked from refresh to refresh; without rows in the diagonal case
    variance: Any  # of the errors in its rows


class Load(NamedTuple):
    """What the shape has to answer for, from the method's state."""

    active: Any  # equalities, and inequalities that matter now
    curvature: Any
    force: Any  # ||grad f||^2, recently
    gradient_noise: Any
    value_noise: Any  # one a row
    batch_size: int


def is_whitened(rows: int, dimension: int) -> bool:
    """Whether the Jacobian is formed."""
    return rows <= WHITEN_ROWS and rows * dimension <= WHITEN_ENTRIES


def times(xp: Any, matrix: Any, vector: Any) -> Any:
    """A product with a matrix or a diagonal. A compiler fuses one that is small and written out with what is around."""
    if matrix.ndim < 2:
        return matrix * vector
    if vector.shape[0] <= 16 and getattr(xp, "is_compiled", True):
        return xp.sum(matrix * vector, axis=-1)
    return matrix @ vector


def diagonal(xp: Any, matrix: Any) -> Any:
    return xp.diag(matrix) if matrix.ndim == 2 else matrix


def push(xp: Any, shape: Shape, weights: Any) -> Any:
    """||J^T w||, from the Gram matrix."""
    return xp.sqrt(abs(weights @ times(xp, shape.gram, weights)))


def averaged(xp: Any, before: Shape, jacobian: Any, noise: Any) -> tuple[Any, Any]:
    """A Kalman average of Jacobians, row by row, re-opened when it has moved; and the variance of its error."""
    tiny = xp.finfo(jacobian.dtype).tiny
    moved = xp.sum((jacobian - before.jacobian) ** 2, axis=1)
    error = xp.maximum(before.variance, moved - 4 * noise)
    certain = error + noise <= 1e-14 * xp.sum(jacobian**2, axis=1)
    share = xp.where(certain, 1, error / (error + noise + tiny))
    return before.jacobian + share[:, None] * (jacobian - before.jacobian), error * (1 - share)


def whitened(xp: Any, jacobian: Any, error: Any, variance: Any, load: Load) -> Shape:
    """M = S (B + N)^-1 S with S = diag 1/||J_i|| and B = S J J^T S.

    Weak eigenvalues of B count for no less than the noise of J allows, zero ones are not inverted. A row without a
    gradient has no weight until it has one.
    """
    gram = jacobian @ jacobian.T
    alive, size = sizes(xp, xp.diag(gram))
    outer = alive[:, None] * alive / xp.sqrt(size)[:, None] / xp.sqrt(size)
    scaled = gram * outer
    both = (load.active & alive)[:, None] & load.active & alive
    scaled = xp.where(both, scaled, xp.eye(gram.shape[0], dtype=gram.dtype) * xp.linalg.eigvalsh(scaled)[-1])
    value, vector = xp.linalg.eigh(scaled)
    kept = value > REDUNDANT
    floor = xp.minimum(1, 4 * (vector**2).T @ (error / size))
    value = xp.where(kept, xp.maximum(value, floor), 1)
    penalty = xp.linalg.inv((vector * value) @ vector.T + xp.diag(ridge(xp, size, variance, load)))
    dropped = (vector * ~kept) @ vector.T
    inner = xp.linalg.pinv(dropped @ penalty @ dropped, rtol=1e-10 if gram.dtype == xp.float64 else 1e-5)
    dual = penalty - penalty @ dropped @ inner @ dropped @ penalty  # the Schur complement: 0 along dropped directions
    return Shape(penalty * outer, dual * outer, gram, jacobian, error)


def sizes(xp: Any, squares: Any) -> tuple[Any, Any]:
    """Which rows have a gradient, and ||J_i||^2, with 1 for those that have none."""
    alive = squares > xp.sqrt(xp.finfo(squares.dtype).tiny)
    return alive, xp.where(alive, squares, 1)


def ridge(xp: Any, size: Any, variance: Any, load: Load) -> Any:
    """N_i, such that the weight of row i brings at most DRIFT / m of the gradient's noise, whatever the Gram matrix.

    That noise is (rho M_ii)^2 2 / (B (B - 1)) var(c_i) var(J_i), and M_ii <= 1 / N_i. The gradient's noise is taken no
    smaller than what multipliers of natural size, ||J^T y|| = ||grad f||, will bring: otherwise a deterministic
    objective would forbid every penalty.
    """
    natural = load.force * xp.mean(variance / size) / load.batch_size
    noise = xp.maximum(load.gradient_noise, natural) + xp.finfo(size.dtype).tiny
    spread = 2 / (load.batch_size - 1) * load.value_noise * variance / noise
    return load.curvature / size * xp.sqrt(spread * size.shape[0] / DRIFT)


def diagonal_shape(xp: Any, alive: Any, size: Any, variance: Any, largest: Any, load: Load, jacobian: Any) -> Shape:
    """M = diag 1 / (||J_i||^2 (lambda_max + N_i)), with `largest` the largest eigenvalue of the row-scaled J J^T."""
    strength = largest + ridge(xp, size, variance, load)
    penalty = xp.where(alive, 1 / (size * xp.where(alive, strength, 1)), 0)
    return Shape(penalty, penalty, size, jacobian, 0 * size)
