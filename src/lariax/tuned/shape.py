"""The shape of the penalty: M, about (J J^T)^-1, so that neither scale nor correlation of the constraints matters."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lariax.tuned.constants import (
    CERTAIN,
    EIGENVALUE_NOISE,
    FACE_REACH,
    FACE_SHARE,
    GRADIENT_MEMORY,
    KAPPA,
    MOVED,
    PIVOT,
    PROBES,
    PSEUDOINVERSE,
    REAL_ROUNDING,
    REDUNDANT,
    SLOPE_SHARE,
    SMALL,
    SURE,
    WHITEN_ENTRIES,
    WHITEN_ROWS,
)
from lariax.tuned.filter import Filter


class PenaltyShape(NamedTuple):
    """Matrices of m x m, or their diagonals.

    max(0, y + M u) is the projection that multipliers of inequalities need only if M is diagonal in their rows: with a
    full M, multipliers of constraints with slack would stay where M u = 0. So a row of an inequality has entries beside
    the diagonal only while the inequality surely binds: then nothing is cut off, and it is as good as an equality.
    """

    penalty: Any  # M, about (J J^T)^-1
    dual: Any  # M_d: M without the directions of dependent rows
    uncoupled: Any  # the two of them with every inequality by itself
    coupled: Any  # inequalities that have entries beside the diagonal
    gram: Any  # J J^T, no entry of its diagonal far below what it was
    longest: Any  # ||J_i||^2, the recent maximum
    jacobian: Any  # J, averaged from refresh to refresh; without rows in the diagonal case
    variance: Any  # of the errors in its rows
    scatter: Any = ()  # and of its rows from sample to sample, as it has been of late; where iterates are averaged

    @classmethod
    def empty(cls, jacobian: Any) -> "PenaltyShape":
        """Without rows; `jacobian` is 0 x d."""
        none, nothing = jacobian[:, :0], jacobian[:, 0]
        return cls(none, none, (none, none), nothing > 0, none, nothing, jacobian, nothing)

    def scaled(self, xp: Any, change: Any) -> "PenaltyShape":
        """With what is known of J in units that are `change` times as long; the rest is to be made anew."""
        if self.jacobian.shape[0] == 0:
            return self
        jacobian = self.jacobian * change
        before, now = (xp.sum(rows**2, axis=1) for rows in (self.jacobian, jacobian))
        ratio = xp.where(before > 0, now / xp.where(before > 0, before, 1), 1)
        scatter = () if isinstance(self.scatter, tuple) else self.scatter * ratio
        return self._replace(jacobian=jacobian, longest=self.longest * ratio, scatter=scatter)


class ShapeInputs(NamedTuple):
    """What the shape depends on besides the Jacobian. Everything of rows has one entry a row."""

    inequality: Any
    multipliers: Any
    slack: Any  # by how many standard errors the values of inequalities are below their bounds
    curvature: Any
    max_gradient: Any  # ||grad f||^2, recently
    gradient_error: Any  # of the estimate, and
    gradient_noise: Any  # of a batch
    value_noise: Any
    batch_size: int
    kinked: Any = None  # rows of J jump: of few samples none may show by how much; None: they never do

    @classmethod
    def at_start(
        cls, inequality: Any, curvature: Any, max_gradient: Any, noise: Any, value_noise: Any, size: int, averages: bool
    ) -> "ShapeInputs":
        """Before there are multipliers."""
        none = 0 * value_noise
        kinked = False if averages else None
        return cls(inequality, none, none, curvature, max_gradient, noise, noise, value_noise, size, kinked)


def violation(xp: Any, inequality: Any, multipliers: Any, constraints: Any) -> Any:
    """Constraint values, less what an inequality without a multiplier has to spare."""
    return xp.where(inequality & (multipliers <= 0), xp.maximum(constraints, 0), constraints)


def slack_of(xp: Any, values: Any, filter: Filter, reach: Any, eps: float, tiny: float) -> Any:
    """By how many standard errors the values of inequalities are below their bounds.

    A value without noise is off its bound by something all the way to a solution. It counts as at its bound as long as
    its multiplier presses harder than that takes off: y + L u / ||J||^2 > 0, or -u < `reach`.
    """
    exact = xp.sqrt(filter.noise) <= REAL_ROUNDING * eps * reach
    return xp.where(exact & (-values < reach), 0, -values / (xp.sqrt(filter.error) + tiny))


class JacobianSamples(Protocol):
    """The constraints' Jacobian at a point, on a few batches."""

    def empty(self) -> Any:
        """0 x d."""

    def on_face(self, rows: Any) -> Any:
        """What is left of the rows of J along the face of the set that x is on; None: all of them."""

    def jacobian(self) -> tuple[Any, Any, Any]:
        """Its mean over the samples, the variance of its rows from sample to sample, and the number of samples."""

    def along(self) -> Any:
        """J v for PROBES normal v on each batch: (batches, PROBES, m)."""

    def products(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """v -> J v and w -> J^T w on the first batch."""

    def repeat(self, function: Callable[[Any], Any], vector: Any, times: int) -> Any:
        """A function applied so many times."""


def shape_at(xp: Any, samples: JacobianSamples, rows: int, inputs: ShapeInputs, before: PenaltyShape | None) -> Any:
    """The shape at a point; the Jacobian is averaged with the one before."""
    none = samples.empty()
    if rows == 0:
        return _with_scatter(PenaltyShape.empty(none), none[:, 0], inputs)
    if not is_whitened(rows, none.shape[1]):
        return _matrix_free(xp, samples, inputs, before)
    jacobian, variance, count = samples.jacobian()
    if before is not None and inputs.kinked is not None:
        variance = xp.where(inputs.kinked, xp.maximum(variance, GRADIENT_MEMORY * before.scatter), variance)
    error = variance / count
    if before is not None:
        jacobian, error = average_jacobian(xp, before, jacobian, error)
    shape = whitened(xp, jacobian, error, variance, inputs, before, samples.on_face(jacobian))
    return _with_scatter(shape, variance, inputs)


def _with_scatter(shape: PenaltyShape, variance: Any, inputs: ShapeInputs) -> PenaltyShape:
    return shape if inputs.kinked is None else shape._replace(scatter=variance)


def face_step(xp: Any, eta: Any, gradient: Any, size: Any) -> Any:
    """eta, or less, for a step along g, with g.g = `gradient` and x.x = `size`, that shows which face of a set x is on,
    and not how the set is bent."""
    return xp.minimum(eta, FACE_REACH * (1 + xp.sqrt(size)) / xp.sqrt(gradient + xp.finfo(float).tiny))


def is_whitened(rows: int, dimension: int) -> bool:
    """Whether the Jacobian is formed."""
    return rows <= WHITEN_ROWS and rows * dimension <= WHITEN_ENTRIES


def multiply(xp: Any, matrix: Any, vector: Any) -> Any:
    """A product with a matrix or a diagonal. A compiler fuses one that is small and written out with what is around."""
    if matrix.ndim < 2:
        return matrix * vector
    if vector.shape[0] <= SMALL and getattr(xp, "is_compiled", True):
        return xp.sum(matrix * vector, axis=-1)
    return matrix @ vector


def multiply_rows(xp: Any, matrix: Any, rows: Any) -> Any:
    """`multiply`, for each of several rows (or for one), with a symmetric matrix."""
    if matrix.ndim < 2:
        return rows * matrix
    if hasattr(xp, "multiply_rows"):  # the library has a way of its own
        return xp.multiply_rows(matrix, rows)
    return xp.sum(matrix * rows[..., None, :], axis=-1) if rows.shape[-1] <= SMALL else rows @ matrix


def diagonal(xp: Any, matrix: Any) -> Any:
    return xp.diag(matrix) if matrix.ndim == 2 else matrix


def jacobian_norm(xp: Any, shape: PenaltyShape, weights: Any) -> Any:
    """||J^T w||, from the Gram matrix."""
    return xp.sqrt(abs(weights @ multiply(xp, shape.gram, weights)))


def has_lost_coupling(xp: Any, shape: PenaltyShape, multipliers: Any) -> Any:
    """Whether an inequality that was surely active is so no longer: it has lost its multiplier."""
    return xp.sum(xp.where(shape.coupled & (multipliers <= 0), 1, 0)) > 0


def average_jacobian(xp: Any, before: PenaltyShape, jacobian: Any, noise: Any) -> tuple[Any, Any]:
    """A Kalman average of Jacobians, row by row, re-opened when it has moved; and the variance of its error.

    A row that is 0 on all samples of a look, as that of a rare class, tells nothing of one that has been seen.
    """
    tiny = xp.finfo(jacobian.dtype).tiny
    silent, unseen = (xp.all(rows == 0, axis=1) for rows in (jacobian, before.jacobian))
    moved = xp.sum((jacobian - before.jacobian) ** 2, axis=1)
    error = xp.maximum(before.variance, moved - MOVED * noise)
    certain = error + noise <= CERTAIN * xp.sum(jacobian**2, axis=1)
    share = xp.where(certain | unseen, 1, xp.where(silent, 0, error / (error + noise + tiny)))
    left = xp.where(unseen, noise, xp.where(silent, before.variance, error * (1 - share)))
    return before.jacobian + share[:, None] * (jacobian - before.jacobian), left


def whitened(
    xp: Any,
    jacobian: Any,
    error: Any,
    variance: Any,
    inputs: ShapeInputs,
    before: PenaltyShape | None = None,
    on_face: Any = None,
) -> PenaltyShape:
    """M = S (B + N)^-1 S with S = diag 1/||J_i|| and B = S J J^T S, over equalities and surely active inequalities.

    Weak eigenvalues of B count for no less than the noise of J allows, zero ones are not inverted. A row without a
    gradient has no weight until it has one. Where a set ties entries of x together, J J^T is that of J along the face
    that x is on (`on_face`), which is what the penalty presses along.
    """
    gram = jacobian @ jacobian.T
    whole = xp.diag(gram)
    if on_face is not None:
        gram = on_face @ jacobian.T + FACE_SHARE * xp.diag(whole)
    nonzero, size, longest = _row_sizes(xp, xp.diag(gram), before)
    gram = gram + xp.diag(xp.where(nonzero, size - xp.diag(gram), 0))
    outer = nonzero[:, None] * nonzero / xp.sqrt(size)[:, None] / xp.sqrt(size)
    scaled, damping = gram * outer, _ridge(xp, size, xp.maximum(size, whole), variance, inputs)

    def inverses(together: Any) -> tuple[Any, Any]:
        penalty, dual = _inverse(xp, scaled, together & nonzero, error / size, damping)
        return penalty * outer, dual * outer

    coupled = nonzero & _surely_binding(xp, scaled, size, inputs)
    uncoupled = inverses(~inputs.inequality)
    return PenaltyShape(*inverses(~inputs.inequality | coupled), uncoupled, coupled, gram, longest, jacobian, error)


def _surely_binding(xp: Any, scaled: Any, size: Any, inputs: ShapeInputs) -> Any:
    """Inequalities whose multipliers stand out from their errors, independent of equalities and of each other.

    Candidates are taken in the order of their pressure ||J_i|| y_i, each only if its gradient is no
    combination of those before: a pivot of the Cholesky factor says so.
    """
    one = xp.eye(scaled.shape[0], dtype=scaled.dtype)
    candidate = inputs.inequality & (inputs.multipliers > 0) & (inputs.slack < SURE)
    pressure = inputs.multipliers * xp.sqrt(size)

    def among(rows: Any) -> Any:
        return xp.where(rows[:, None] & rows, scaled, one) + PIVOT * REDUNDANT * one

    order = xp.argsort(xp.where(inputs.inequality, xp.where(candidate, -pressure, xp.inf), -xp.inf))
    factor = xp.linalg.cholesky(among(~inputs.inequality | candidate)[order][:, order])
    pivots = (xp.diag(factor) ** 2)[xp.argsort(order)]
    candidate = candidate & (pivots > REDUNDANT)
    uncertain = xp.diag(xp.linalg.inv(among(~inputs.inequality | candidate))) * inputs.gradient_error
    return candidate & (pressure**2 > SURE**2 * uncertain)


def _inverse(xp: Any, scaled: Any, together: Any, error: Any, damping: Any) -> tuple[Any, Any]:
    """(B + N)^-1 over the rows that go together, 1 / (lambda_max + N_i) for the others; and the same without the
    directions of dependent rows."""
    one, block = xp.eye(scaled.shape[0], dtype=scaled.dtype), together[:, None] & together
    others = xp.where(~together[:, None] & ~together, scaled, 0)
    value, vector = xp.linalg.eigh(xp.where(block, scaled, one * xp.maximum(xp.linalg.eigvalsh(others)[-1], 1)))
    kept = value > REDUNDANT
    floor = xp.minimum(1, EIGENVALUE_NOISE * (vector**2).T @ error)
    value = xp.where(kept, xp.maximum(value, floor), 1)
    penalty = xp.linalg.inv((vector * value) @ vector.T + xp.diag(damping))
    dropped = (vector * ~kept) @ vector.T
    inner = xp.linalg.pinv(dropped @ penalty @ dropped, rtol=PSEUDOINVERSE[scaled.dtype.name])
    dual = penalty - penalty @ dropped @ inner @ dropped @ penalty  # the Schur complement: 0 along dropped directions
    within = block | (one > 0)
    return xp.where(within, penalty, 0), xp.where(within, dual, 0)


def _row_sizes(xp: Any, squares: Any, before: PenaltyShape | None) -> tuple[Any, Any, Any]:
    """Which rows have a gradient; ||J_i||^2, with 1 for those that have none, and not far below the recent maximum; and
    that maximum."""
    nonzero = squares > xp.sqrt(xp.finfo(squares.dtype).tiny)
    longest = squares if before is None else xp.maximum(squares, GRADIENT_MEMORY * before.longest)
    return nonzero, xp.where(nonzero, xp.maximum(squares, SLOPE_SHARE**2 * longest), 1), longest


def _ridge(xp: Any, size: Any, whole: Any, variance: Any, inputs: ShapeInputs) -> Any:
    """N_i, such that the weight of row i brings at most KAPPA / m of the gradient's noise, whatever the Gram matrix.

    That noise is (rho M_ii)^2 2 / (B (B - 1)) var(c_i) var(J_i), and M_ii <= 1 / N_i. The gradient's noise is taken no
    smaller than what multipliers of natural size, ||J^T y|| = ||grad f||, will bring: otherwise a deterministic
    objective would forbid every penalty. At a minimum of it there is no gradient either, and natural is the one that it
    has as far away as the noise of the values reaches, L sqrt(var(c_i)) / ||J_i||. On a face of a set both gradients
    are shorter: what is left of J_i (`size`) is not compared with the whole of grad f, but J_i (`whole`) is.
    """
    has_gradient = inputs.max_gradient + inputs.gradient_noise > 0
    away = inputs.curvature**2 * xp.mean(inputs.value_noise / whole)
    square = xp.where(has_gradient, inputs.max_gradient, away)
    natural = square * xp.mean(variance / whole) / inputs.batch_size
    noise = xp.maximum(inputs.gradient_noise, natural) + xp.finfo(size.dtype).tiny
    spread = 2 / (inputs.batch_size - 1) * inputs.value_noise * variance / noise
    return inputs.curvature / size * xp.sqrt(spread * size.shape[0] / KAPPA)


def _matrix_free(xp: Any, samples: JacobianSamples, inputs: ShapeInputs, before: PenaltyShape | None) -> PenaltyShape:
    """M = diag 1 / (||J_i||^2 (lambda_max + N_i)), from products with J and J^T alone.

    ||J_i||^2 is taken to be the largest of (J_i v)^2 over eight normal v: rather too large (three times, on average),
    which slows a row down, than too small, which would throw it off. lambda_max of the row-scaled J J^T comes from
    power steps.
    """
    along = samples.along()
    nonzero, size, longest = _row_sizes(xp, xp.max(xp.mean(along, axis=0) ** 2, axis=0), before)
    variance, root = 0 * size, xp.sqrt(size)
    if along.shape[0] > 1:
        variance = inputs.batch_size * xp.mean(xp.var(along, axis=0, ddof=1), axis=0)
    forward, backward = samples.products()

    def power(vector: Any) -> Any:
        unit = vector / (xp.linalg.norm(vector) + xp.finfo(size.dtype).tiny)
        return forward(backward(unit / root)) / root

    largest = xp.linalg.norm(samples.repeat(power, xp.ones(size.shape[0], dtype=size.dtype), PROBES))
    strength = largest + _ridge(xp, size, size, variance, inputs)
    penalty = xp.where(nonzero, 1 / (size * xp.where(nonzero, strength, 1)), 0)
    none = inputs.inequality & False
    shape = PenaltyShape(penalty, penalty, (penalty, penalty), none, size, longest, samples.empty(), 0 * size)
    return _with_scatter(shape, 0 * size, inputs)
