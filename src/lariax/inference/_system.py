"""The optimality conditions around a solution, to first order, with given rows active.

    F(x, y) = ( grad f + J_A^T y ,  r_A ) = 0,          K = F' = [ H  J_A^T ; J_A  0 ]

With N a basis of the null space of J_A, Z = N (N^T H N)^-1 N^T and J^+ the pseudo-inverse of J_A,

    K^-1 = [ Z          (1 - Z H) J^+               ]
           [ transposed   -J^+^T (H - H Z H) J^+    ]

which asks H to be positive definite along the null space alone: the second-order condition of a minimum.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

import scipy
from lariax.inference._errors import InferenceError

Vector = np.ndarray
FLAT = 1e-10  # curvature, beside the largest, that counts as none
DEPENDENT = 1e-9  # a singular value of rows of length one that counts as none
MOST_EXCHANGES = 5  # of rows in the working set, for each row


class Local(NamedTuple):
    """The problem at a point, to second order. The first rows are the constraints, the others are those of the set.

    Attributes:
        objective: E f.
        slope: the gradient without any row's multiplier.
        hessian: of the Lagrangian, and of the set where that bends.
        bend: the set's part of it.
        rows, values, inequality: gradients and residuals of all rows, and which are r <= 0.
        noise: the covariance of the means (E f, gradient of the Lagrangian, residuals of the constraints).
        skew: the third cumulant of the estimate of the objective.
    """

    objective: float
    slope: Vector
    hessian: Float[np.ndarray, "d d"]
    bend: Float[np.ndarray, "d d"]
    rows: Float[np.ndarray, "M d"]
    values: Vector
    inequality: Bool[np.ndarray, " M"]
    noise: Float[np.ndarray, "p p"]
    skew: float

    @property
    def constraints(self) -> int:
        """How many of the rows are constraints."""
        return len(self.noise) - 1 - self.slope.size

    def moved(self, step: Vector) -> "Local":
        """After a small step."""
        return self._replace(slope=self.slope + self.hessian @ step, values=self.values + self.rows @ step)


class ActiveModel(NamedTuple):
    """The solution if just these rows are active: a step from the point, multipliers, and what noise does to them.

    Attributes:
        active: which rows.
        step: of x.
        multipliers: of all rows, 0 for those that are not active.
        response: the derivative of (E f, x, y, r at the solution) in the means (E f, gradient, residuals).
        determined: which multipliers are; those of rows that depend on each other are not.
    """

    active: Bool[np.ndarray, " M"]
    step: Vector
    multipliers: Vector
    response: Float[np.ndarray, "q p"]
    determined: Bool[np.ndarray, " M"]

    def covariance(self, noise: Float[np.ndarray, "p p"]) -> Float[np.ndarray, "q q"]:
        return self.response @ noise @ self.response.T

    def second_order(self, noise: Float[np.ndarray, "p p"]) -> tuple[float, float]:
        """Of F^T K^-1 F / 2, which the noise F takes off the least value on the samples: mean and standard deviation.

        They are tr(M) / 2 and (tr(M^2) / 2)^(1/2), with M = K^-1 cov F.
        """
        p = len(noise) - 1  # of x and of the constraints' multipliers, which come first
        matrix = -self.response[1 : 1 + p, 1:] @ noise[1:, 1:]
        return float(np.trace(matrix)) / 2, float(np.sqrt(max(np.sum(matrix * matrix.T), 0) / 2))


def _held(local: Local, active: Bool[np.ndarray, " M"]) -> tuple[Vector, Vector]:
    """Entries that a row of the set holds by itself, as a bound does, and how far they are off: without rounding."""
    set_rows = np.flatnonzero(active)
    set_rows = set_rows[set_rows >= local.constraints]
    alone = set_rows[np.count_nonzero(local.rows[set_rows], axis=1) == 1]
    entries = np.argmax(local.rows[alone] != 0, axis=1)
    return entries, 0.0 - local.values[alone] / local.rows[alone, entries]


def solved(local: Local, active: Bool[np.ndarray, " M"], with_response: bool = True) -> ActiveModel:
    """Of the quadratic model with the active rows as equalities."""
    d, rows = local.slope.size, local.rows[active]
    null, back, determined = _split(rows)
    inner = _inverse(null, local.hessian)
    across = -back @ local.values[active]
    step = across - inner @ (local.slope + local.hessian @ across)
    entries, exact = _held(local, active)
    step[entries] = exact
    own = -back.T @ (local.slope + local.hessian @ step)
    multipliers = np.zeros(active.size)
    multipliers[active] = own
    known = np.ones(active.size, bool)
    known[active] = determined
    if not with_response:
        return ActiveModel(active, step, multipliers, np.zeros((0, 0)), known)
    xy = back - inner @ local.hessian @ back
    yy = -back.T @ local.hessian @ xy
    m = local.constraints
    noisy = np.flatnonzero(active)[:, None] == np.arange(m)  # rows of a set have no noise
    of_x = -np.hstack([np.zeros((d, 1)), inner, xy @ noisy])
    of_y = np.zeros((active.size, 1 + d + m))
    of_y[active] = -np.hstack([np.zeros((len(rows), 1)), xy.T, yy @ noisy])
    of_r = local.rows @ of_x
    of_r[:m, 1 + d :] += np.eye(m)
    of_r[active] = 0  # the row holds, whatever the noise
    of_f = -multipliers @ local.rows @ of_x  # grad f = -J^T y
    of_f[0] += 1
    return ActiveModel(active, step, multipliers, np.vstack([of_f, of_x, of_y, of_r]), known)


def settled(local: Local, active: Bool[np.ndarray, " M"]) -> ActiveModel:
    """The model whose active rows are those of the quadratic problem.

    Found as a point of least distance (C. L. Lawson, R. J. Hanson, "Solving Least Squares Problems", 1974), where H is
    positive definite without any inequality; then, or else from a first guess, rows are exchanged one by one.
    """
    found = _by_least_distance(local)
    active = (active if found is None else found) | ~local.inequality
    lengths = np.linalg.norm(local.rows, axis=1)
    least = 1e-12 * (np.abs(local.values) + lengths)
    for _ in range(MOST_EXCHANGES * (active.size + 1)):
        model = solved(local, active, with_response=False)
        after = np.where(active, -np.inf, local.values + local.rows @ model.step)
        pushed = np.where(local.inequality & active, model.multipliers * lengths, np.inf)
        if np.any(after > least):
            active = active.copy()
            active[np.argmax(after / np.where(lengths > 0, lengths, 1))] = True
        elif np.any(pushed < 0):
            active = active.copy()
            active[np.argmin(pushed)] = False
        else:
            return solved(local, active)
    raise InferenceError(
        "no set of active rows explains the point: rows may contradict each other, or x is far from a solution. Solve "
        "longer, or drop constraints that repeat each other."
    )


def _by_least_distance(local: Local) -> Bool[np.ndarray, " M"] | None:
    """The active rows of the quadratic problem; None where it is not convex."""
    own, rows, values = ~local.inequality, local.rows[local.inequality], local.values[local.inequality]
    null, back, _ = _split(local.rows[own])
    if not rows.size or null.shape[1] == 0:
        return None
    across = -back @ local.values[own]
    try:
        root = np.linalg.cholesky(null.T @ local.hessian @ null)
    except np.linalg.LinAlgError:
        return None
    free = scipy.linalg.cho_solve((root, True), null.T @ (local.slope + local.hessian @ across))
    normals = scipy.linalg.solve_triangular(root, (rows @ null).T, lower=True)
    excess = values + rows @ (across - null @ free)
    lengths = np.sqrt(np.sum(normals**2, axis=0))
    lengths = np.where(lengths > 0, lengths, 1)
    matrix = np.vstack([-normals, excess]) / lengths
    try:
        weights, _ = scipy.optimize.nnls(matrix, np.eye(len(matrix))[-1])
    except RuntimeError:  # too many iterations
        return None
    active = np.zeros(own.size, bool)
    active[local.inequality] = weights > 0
    return active


def _split(rows: Float[np.ndarray, "a d"]) -> tuple[np.ndarray, np.ndarray, Bool[np.ndarray, " a"]]:
    """A basis of the null space, the pseudo-inverse, and which rows depend on no others."""
    lengths = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(lengths > 0, lengths, 1)[:, None]
    left, sizes, right = np.linalg.svd(unit, full_matrices=True)
    rank = int(np.sum(sizes > DEPENDENT))
    back = (right[:rank].T / sizes[:rank]) @ left[:, :rank].T / np.where(lengths > 0, lengths, 1)
    share = np.sum(left[:, :rank] ** 2, axis=1)  # of the row, in what the others do not repeat
    return right[rank:].T, back, share > 1 - 1e-6


def _inverse(null: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """N (N^T H N)^-1 N^T"""
    if null.shape[1] == 0:
        return np.zeros_like(hessian)
    values, vectors = np.linalg.eigh(null.T @ hessian @ null)
    if values[0] <= FLAT * max(values[-1], np.max(np.abs(hessian)), np.finfo(float).tiny):
        raise InferenceError(
            f"the Lagrangian does not curve upwards in every direction that the active rows leave free (least "
            f"curvature {values[0]:.3g}, largest {values[-1]:.3g}), so x is not a minimum, or "
            "the samples do not determine it. Kinks (max, abs) hide curvature; redundant variables have none: fix or "
            "penalise them."
        )
    basis = null @ vectors
    return (basis / values) @ basis.T
