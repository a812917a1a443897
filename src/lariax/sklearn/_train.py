"""Training of linear models: the mean loss under bounds on soft rates, on all rows at once.

    minimise    sum_i c_i loss(s_i, y_i) / sum c  +  ||w||^2 / (2 C sum c)          s_i = w . x_i + b
    subject to  sign (rate_i - slope rate_j) <= bound,      rates of soft decisions, softmax(s / temperature)

by Newton's method on the augmented Lagrangian. A linear model has few unknowns and all its rows are at hand, so this is
exact, takes no seed, and nothing is compiled. Networks are trained by `lariax.solve` (`_network.py`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
from scipy.special import expit, log_softmax, softmax

from lariax.sklearn._rates import Plan, soft_parts

TEMPERATURE = 1.0
"""Of soft decisions: smaller is nearer to hard decisions, and learns more of the noise of the rows. At 1 they are the
probabilities of the model; `_linear.py` sees to it that hard rates come out as asked."""

MOST_UNKNOWNS = 1500
"""For which a Hessian is formed; beyond, L-BFGS."""

PENALTY, GROWTH = 10.0, 4.0
OUTER, INNER = 8, 20
CLOSE = 3e-4  # of a rate to its bound
FLAT, FLATTER = 3e-5, 1e-9  # the largest entry of a gradient at which a solve ends, with constraints and without


class Trained(NamedTuple):
    """A linear model on inputs as they are in `Rows`, and how it came about."""

    theta: np.ndarray  # (unknowns, outputs): the intercept is the last row
    multipliers: np.ndarray  # of the rows of the plan
    values: np.ndarray  # of the rows of the plan, soft
    loss: float
    iterations: int


@dataclass(frozen=True)
class Rows:
    """What is trained on: inputs with a last column of ones (dense, or sparse), numbers of classes, weights."""

    inputs: Any
    y: np.ndarray
    weights: np.ndarray  # of the loss
    counted: np.ndarray  # of the rates

    def at(self, index: np.ndarray) -> "Rows":
        return Rows(self.inputs[index], self.y[index], self.weights[index], self.counted[index])


class PointValues(NamedTuple):
    """What is seen at one point."""

    loss: float
    rates: np.ndarray  # (bases,), soft
    by_scores: np.ndarray  # (rows, outputs): derivative of the loss,
    rate_slopes: np.ndarray  # (bases, rows, outputs): and of each rate,
    rate_bends: np.ndarray  # (bases, rows): and for one output its second derivative


def mixing(plan: Plan) -> np.ndarray:
    """The matrix that takes rates to the values of the rows of constraints."""
    mix = np.zeros((len(plan.rows), len(plan.bases)))
    for number, row in enumerate(plan.rows):
        mix[number, row.first] += row.sign
        if row.second is not None:
            mix[number, row.second] -= row.sign * row.slope
    return mix


class Objective:
    """Loss and soft rates of a linear model on some rows."""

    def __init__(self, rows: Rows, plan: Plan, ridge: float):
        self.rows, self.plan, self.ridge = rows, plan, ridge
        self.outputs = 1 if plan.classes == 2 else plan.classes
        self.mean = rows.weights / rows.weights.sum()
        share = rows.counted / rows.counted.sum()
        shape = (len(plan.bases), len(rows.y), self.outputs)
        parts = [soft_parts(base, rows.y, share, plan.classes) for base in plan.bases]
        self.above, self.below = (np.reshape([part[i] for part in parts], shape) for i in (0, 2))
        self.above0, self.below0 = (np.asarray([part[i].sum() for part in parts]) for i in (1, 3))
        sharp = np.asarray([base.rate != "mean_score" for base in plan.bases], bool)
        families = ((TEMPERATURE, np.flatnonzero(sharp)), (1.0, np.flatnonzero(~sharp)))
        self.families = [(temperature, members) for temperature, members in families if len(members)]
        self.mix = mixing(plan)

    def look(self, theta: np.ndarray) -> PointValues:
        scores, y = np.asarray(self.rows.inputs @ theta), self.rows.y
        if self.outputs == 1:
            losses = np.logaddexp(0, scores[:, 0]) - y * scores[:, 0]
            by_scores = self.mean[:, None] * (expit(scores) - y[:, None])
        else:
            losses = -log_softmax(scores, axis=1)[np.arange(len(y)), y]
            by_scores = self.mean[:, None] * (softmax(scores, axis=1) - np.eye(self.outputs)[y])
        loss = float(self.mean @ losses + self.ridge / 2 * np.sum(theta[:-1] ** 2))
        rates, slopes = np.zeros(len(self.above)), np.zeros_like(self.above)
        bends = np.zeros(self.above.shape[:2])
        for temperature, members in self.families:
            q = expit(scores / temperature) if self.outputs == 1 else softmax(scores / temperature, axis=1)
            below = np.maximum(self.below0[members] + np.einsum("bnk,nk->b", self.below[members], q), 1e-12)
            rates[members] = (self.above0[members] + np.einsum("bnk,nk->b", self.above[members], q)) / below
            by_q = (self.above[members] - rates[members, None, None] * self.below[members]) / below[:, None, None]
            if self.outputs == 1:
                slopes[members] = by_q * (q * (1 - q) / temperature)
                bends[members] = slopes[members, :, 0] * ((1 - 2 * q[:, 0]) / temperature)
            else:
                slopes[members] = q * (by_q - np.sum(by_q * q, axis=2, keepdims=True)) / temperature
        return PointValues(loss, rates, by_scores, slopes, bends)

    def pulled_back(self, by_scores: np.ndarray) -> np.ndarray:
        """X^T of (rows, ...)."""
        flat = by_scores.reshape(len(by_scores), -1)
        return np.asarray(self.rows.inputs.T @ flat).reshape(-1, *by_scores.shape[1:])

    def loss_curvature(self, theta: np.ndarray) -> np.ndarray:
        """(rows, outputs, outputs)"""
        scores = np.asarray(self.rows.inputs @ theta)
        if self.outputs == 1:
            p = expit(scores[:, 0])
            return (self.mean * p * (1 - p))[:, None, None]
        p = softmax(scores, axis=1)
        return self.mean[:, None, None] * (p[:, :, None] * np.eye(self.outputs) - p[:, :, None] * p[:, None, :])

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """X^T W X for (rows, outputs, outputs) weights, as a matrix over (unknowns, outputs)."""
        inputs, k = self.rows.inputs, self.outputs
        d = inputs.shape[1]
        total = np.zeros((d, k, d, k))
        for i in range(k):
            for j in range(i + 1):
                own = weights[:, i, j]
                sparse = scipy.sparse.issparse(inputs)
                block = inputs.T @ (scipy.sparse.diags_array(own) @ inputs if sparse else inputs * own[:, None])
                total[:, i, :, j] = block.toarray() if sparse else block
                total[:, j, :, i] = total[:, i, :, j]
        return total.reshape(d * k, d * k)


class Lagrangian:
    """The augmented Lagrangian at given multipliers, penalty and bounds."""

    def __init__(self, objective: Objective, multipliers: np.ndarray, penalty: float, bounds: np.ndarray):
        self.objective, self.multipliers, self.penalty, self.bounds = objective, multipliers, penalty, bounds

    def pressed(self, look: PointValues) -> np.ndarray:
        return np.maximum(self.multipliers + self.penalty * (self.objective.mix @ look.rates - self.bounds), 0)

    def value_of(self, look: PointValues) -> float:
        return look.loss + float(np.sum(self.pressed(look) ** 2 - self.multipliers**2) / (2 * self.penalty))

    def gradient(self, theta: np.ndarray, look: PointValues) -> np.ndarray:
        weights = self.pressed(look) @ self.objective.mix
        gradient = self.objective.pulled_back(look.by_scores + np.tensordot(weights, look.rate_slopes, axes=1))
        gradient[:-1] += self.objective.ridge * theta[:-1]
        return gradient

    def hessian(self, theta: np.ndarray, look: PointValues) -> np.ndarray:
        """Of one output exact; of several without the second derivatives of the rates."""
        objective, pressed = self.objective, self.pressed(look)
        curvature = objective.loss_curvature(theta)
        if objective.outputs == 1 and len(pressed):
            curvature = curvature + ((pressed @ objective.mix) @ look.rate_bends)[:, None, None]
        matrix = objective.gram(curvature)
        size = theta.size
        ridge = np.full(theta.shape, objective.ridge)
        ridge[-1] = 1e-10 if objective.outputs == 1 else 1e-4  # a common shift of all scores changes nothing
        matrix[np.arange(size), np.arange(size)] += ridge.ravel()
        active = np.flatnonzero(pressed > 0)
        if len(active):
            slopes = np.moveaxis(objective.pulled_back(np.moveaxis(look.rate_slopes, 0, 1)), 1, 0)
            jacobian = (objective.mix @ slopes.reshape(len(slopes), -1))[active]
            matrix += self.penalty * jacobian.T @ jacobian
        return matrix


def _direction(matrix: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """-H^-1 g, with H made positive definite where it is not."""
    try:
        return -scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix), gradient)
    except (scipy.linalg.LinAlgError, ValueError):
        values, vectors = np.linalg.eigh(matrix)
        values = np.maximum(np.abs(values), 1e-8 * max(float(np.abs(values).max()), 1e-8))
        return -vectors @ ((vectors.T @ gradient) / values)


def _descend(lagrangian: Lagrangian, theta: np.ndarray, flat: float) -> tuple[np.ndarray, PointValues, int]:
    """Newton's method with backtracking."""
    look = lagrangian.objective.look(theta)
    for iteration in range(INNER):
        gradient = lagrangian.gradient(theta, look)
        if np.abs(gradient).max() < flat:
            return theta, look, iteration
        step = _direction(lagrangian.hessian(theta, look), gradient.ravel()).reshape(theta.shape)
        slope, value, length = float(np.sum(step * gradient)), lagrangian.value_of(look), 1.0
        while True:
            there = lagrangian.objective.look(theta + length * step)
            if lagrangian.value_of(there) <= value + 1e-4 * length * slope + 1e-15 * abs(value):
                break
            length /= 2
            if length < 1e-9:
                return theta, look, iteration
        theta, look = theta + length * step, there
    return theta, look, INNER


def _descend_large(lagrangian: Lagrangian, theta: np.ndarray, flat: float) -> tuple[np.ndarray, PointValues, int]:
    """L-BFGS, where a Hessian would be too large."""

    def both(vector: np.ndarray) -> tuple[float, np.ndarray]:
        at = vector.reshape(theta.shape)
        look = lagrangian.objective.look(at)
        return lagrangian.value_of(look), lagrangian.gradient(at, look).ravel()

    found = scipy.optimize.minimize(
        both, theta.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": flat}
    )
    theta = found.x.reshape(theta.shape)
    return theta, lagrangian.objective.look(theta), int(found.nit)


def train(objective: Objective, bounds: np.ndarray | None, start: Trained | None = None) -> Trained:
    """A local solution under these bounds (None: without constraints), from an earlier one."""
    shape = (objective.rows.inputs.shape[1], objective.outputs)
    theta = np.zeros(shape) if start is None else start.theta
    descend = _descend if theta.size <= MOST_UNKNOWNS else _descend_large
    rows = len(objective.plan.rows)
    if bounds is None or not rows:
        free = Lagrangian(objective, np.zeros(rows), 1.0, np.full(rows, np.inf))
        theta, look, iterations = descend(free, theta, FLATTER)
        return Trained(theta, np.zeros(rows), objective.mix @ look.rates, look.loss, iterations)
    multipliers = np.zeros(rows) if start is None else start.multipliers
    penalty, before, iterations = PENALTY, np.inf, 0
    for _ in range(OUTER):
        lagrangian = Lagrangian(objective, multipliers, penalty, bounds)
        theta, look, more = descend(lagrangian, theta, FLAT)
        multipliers, iterations = lagrangian.pressed(look), iterations + more
        excess = objective.mix @ look.rates - bounds
        worst = float(np.max(np.maximum(excess, -multipliers / penalty)))
        if abs(worst) < CLOSE and np.max(excess) < CLOSE:
            break
        if worst > 0.3 * before:
            penalty *= GROWTH
        before = worst
    return Trained(theta, multipliers, objective.mix @ look.rates, look.loss, iterations)
