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


SURE = 3.0
"""Standard errors by which the multiplier of an inequality has to stand out for the inequality to bind surely."""


SLOPE = 1e-2
"""A gradient of a row counts for at least this part of the longest that the row has had of late: where it vanishes, as
that of x.x at 0, neither penalty nor multiplier has anything to press on, however large it is."""


class Shape(NamedTuple):
    """Matrices of m x m, or their diagonals.

    max(0, y + M u) is the projection that multipliers of inequalities need only if M is diagonal in their rows: with a
    full M, multipliers of constraints with slack would stay where M u = 0. So a row of an inequality has entries beside
    the diagonal only while the inequality surely binds: then nothing is cut off, and it is as good as an equality.
    """

    penalty: Any  # M, about (J J^T)^-1
    dual: Any  # M without the directions of dependent rows
    apart: Any  # the two of them with every inequality by itself
    coupled: Any  # inequalities that have entries beside the diagonal
    gram: Any  # J J^T, no entry of its diagonal far below what it was
    longest: Any  # ||J_i||^2, the recent maximum
    jacobian: Any  # J, tracked from refresh to refresh; without rows in the diagonal case
    variance: Any  # of the errors in its rows

    @property
    def uncoupled(self) -> "Shape":
        """With every inequality by itself."""
        penalty, dual = self.apart
        return self._replace(penalty=penalty, dual=dual, coupled=self.coupled & False)

    @classmethod
    def empty(cls, jacobian: Any) -> "Shape":
        """Without rows; `jacobian` is 0 x d."""
        none, nothing = jacobian[:, :0], jacobian[:, 0]
        return cls(none, none, (none, none), nothing > 0, none, nothing, jacobian, nothing)


class Load(NamedTuple):
    """What the shape has to answer for, from the method's state. Everything of rows has one entry a row."""

    inequality: Any
    multipliers: Any
    slack: Any  # by how many standard errors the values of inequalities are below their bounds
    curvature: Any
    force: Any  # ||grad f||^2, recently
    gradient_error: Any  # of the estimate, and
    gradient_noise: Any  # of a batch
    value_noise: Any
    batch_size: int

    @classmethod
    def at_start(cls, inequality: Any, curvature: Any, force: Any, noise: Any, value_noise: Any, size: int) -> "Load":
        """Before there are multipliers."""
        return cls(inequality, 0 * value_noise, 0 * value_noise, curvature, force, noise, noise, value_noise, size)


def has_lost_coupling(xp: Any, shape: Shape, multipliers: Any) -> Any:
    """Whether an inequality that was surely active is so no longer: it has lost its multiplier."""
    return xp.sum(xp.where(shape.coupled & (multipliers <= 0), 1, 0)) > 0


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
    """A Kalman average of Jacobians, row by row, re-opened when it has moved; and the variance of its error.

    A row that is 0 on all samples of a look, as that of a rare class, tells nothing of one that has been seen.
    """
    tiny = xp.finfo(jacobian.dtype).tiny
    silent, unseen = (xp.all(rows == 0, axis=1) for rows in (jacobian, before.jacobian))
    moved = xp.sum((jacobian - before.jacobian) ** 2, axis=1)
    error = xp.maximum(before.variance, moved - 4 * noise)
    certain = error + noise <= 1e-14 * xp.sum(jacobian**2, axis=1)
    share = xp.where(certain | unseen, 1, xp.where(silent, 0, error / (error + noise + tiny)))
    left = xp.where(unseen, noise, xp.where(silent, before.variance, error * (1 - share)))
    return before.jacobian + share[:, None] * (jacobian - before.jacobian), left


def whitened(xp: Any, jacobian: Any, error: Any, variance: Any, load: Load, before: Shape | None = None) -> Shape:
    """M = S (B + N)^-1 S with S = diag 1/||J_i|| and B = S J J^T S, over equalities and surely active inequalities.

    Weak eigenvalues of B count for no less than the noise of J allows, zero ones are not inverted. A row without a
    gradient has no weight until it has one.
    """
    gram = jacobian @ jacobian.T
    alive, size, longest = sizes(xp, xp.diag(gram), before)
    gram = gram + xp.diag(xp.where(alive, size - xp.diag(gram), 0))
    outer = alive[:, None] * alive / xp.sqrt(size)[:, None] / xp.sqrt(size)
    scaled, damping = gram * outer, ridge(xp, size, variance, load)

    def inverses(together: Any) -> tuple[Any, Any]:
        penalty, dual = inverse(xp, scaled, together & alive, error / size, damping)
        return penalty * outer, dual * outer

    coupled = alive & surely_active(xp, scaled, size, load)
    apart = inverses(~load.inequality)
    return Shape(*inverses(~load.inequality | coupled), apart, coupled, gram, longest, jacobian, error)


def surely_active(xp: Any, scaled: Any, size: Any, load: Load) -> Any:
    """Inequalities whose multipliers stand out from their errors, independent of equalities and of each other.

    Candidates are taken in the order of their pressure ||J_i|| y_i, each only if its gradient is no
    combination of those before: a pivot of the Cholesky factor says so.
    """
    one = xp.eye(scaled.shape[0], dtype=scaled.dtype)
    candidate = load.inequality & (load.multipliers > 0) & (load.slack < SURE)
    pressure = load.multipliers * xp.sqrt(size)

    def among(rows: Any) -> Any:
        return xp.where(rows[:, None] & rows, scaled, one) + 1e-3 * REDUNDANT * one

    order = xp.argsort(xp.where(load.inequality, xp.where(candidate, -pressure, xp.inf), -xp.inf))
    factor = xp.linalg.cholesky(among(~load.inequality | candidate)[order][:, order])
    pivots = (xp.diag(factor) ** 2)[xp.argsort(order)]
    candidate = candidate & (pivots > REDUNDANT)
    uncertain = xp.diag(xp.linalg.inv(among(~load.inequality | candidate))) * load.gradient_error
    return candidate & (pressure**2 > SURE**2 * uncertain)


def inverse(xp: Any, scaled: Any, together: Any, error: Any, damping: Any) -> tuple[Any, Any]:
    """(B + N)^-1 over the rows that go together, 1 / (lambda_max + N_i) for the others; and the same without the
    directions of dependent rows."""
    one, block = xp.eye(scaled.shape[0], dtype=scaled.dtype), together[:, None] & together
    others = xp.where(~together[:, None] & ~together, scaled, 0)
    value, vector = xp.linalg.eigh(xp.where(block, scaled, one * xp.maximum(xp.linalg.eigvalsh(others)[-1], 1)))
    kept = value > REDUNDANT
    floor = xp.minimum(1, 4 * (vector**2).T @ error)
    value = xp.where(kept, xp.maximum(value, floor), 1)
    penalty = xp.linalg.inv((vector * value) @ vector.T + xp.diag(damping))
    dropped = (vector * ~kept) @ vector.T
    inner = xp.linalg.pinv(dropped @ penalty @ dropped, rtol=1e-10 if scaled.dtype == xp.float64 else 1e-5)
    dual = penalty - penalty @ dropped @ inner @ dropped @ penalty  # the Schur complement: 0 along dropped directions
    within = block | (one > 0)
    return xp.where(within, penalty, 0), xp.where(within, dual, 0)


def sizes(xp: Any, squares: Any, before: Shape | None) -> tuple[Any, Any, Any]:
    """Which rows have a gradient; ||J_i||^2, with 1 for those that have none, and not far below the recent maximum; and
    that maximum."""
    alive = squares > xp.sqrt(xp.finfo(squares.dtype).tiny)
    longest = squares if before is None else xp.maximum(squares, 0.8 * before.longest)
    return alive, xp.where(alive, xp.maximum(squares, SLOPE**2 * longest), 1), longest


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


def diagonal_shape(
    xp: Any, rows: tuple[Any, Any, Any], variance: Any, largest: Any, load: Load, jacobian: Any
) -> Shape:
    """M = diag 1 / (||J_i||^2 (lambda_max + N_i)), with `rows` from `sizes` and `largest` the largest eigenvalue of the
    row-scaled J J^T."""
    alive, size, longest = rows
    strength = largest + ridge(xp, size, variance, load)
    penalty = xp.where(alive, 1 / (size * xp.where(alive, strength, 1)), 0)
    return Shape(penalty, penalty, (penalty, penalty), load.inequality & False, size, longest, jacobian, 0 * size)
