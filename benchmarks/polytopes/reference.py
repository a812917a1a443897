"""The exact solution of a case, checked by its KKT conditions, and how far from it sample averages are."""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from benchmarks.polytopes.problems import Case

AVERAGES = 200
"""So many sample averages are solved for a limit: it is known to some 5 %."""

RESIDUAL = 1e-9
"""The most that KKT conditions may be missed by."""


class Solved(NamedTuple):
    x: np.ndarray
    multipliers: np.ndarray  # of the rows of `case.system()`
    residual: float


def nearest(rows: np.ndarray, bound: np.ndarray, equal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point nearest to 0 with rows y <= bound (= where `equal`), and its multipliers.

    By nonnegative least squares (Lawson and Hanson, Solving Least Squares Problems, chapter 23), which ends after
    finitely many exact steps, whatever is degenerate; then once more on the rows that it found to be active.
    """
    size = np.linalg.norm(rows, axis=1)
    unit, level = rows / size[:, None], bound / size
    least = np.concatenate([-unit, unit[equal]])  # least y >= edge
    edge = np.concatenate([-level, level[equal]])
    pull, gap = nnls(np.vstack([least.T, edge]), np.append(np.zeros(rows.shape[1]), 1.0), maxiter=30 * len(least))
    if gap**2 < 1e-13:
        raise ArithmeticError("the rows have no common point")
    active = np.flatnonzero((pull[: len(rows)] > 0) | equal)
    y = np.linalg.lstsq(unit[active], level[active], rcond=None)[0] if len(active) else np.zeros(rows.shape[1])
    multipliers = np.zeros(len(rows))
    multipliers[active] = np.linalg.lstsq(unit[active].T, -y, rcond=None)[0]
    return y, multipliers / size


def quadratic(
    root: np.ndarray, slope: np.ndarray, rows: np.ndarray, bound: np.ndarray, equal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """argmin x'Hx / 2 + slope'x over the rows, and the multipliers: the nearest point in the coordinates
    y = L'x + L^-1 slope, with the Cholesky factor L of H."""
    shift = solve_triangular(root, slope, lower=True)
    turned = solve_triangular(root, rows.T, lower=True).T
    y, multipliers = nearest(turned, bound + turned @ shift, equal)
    return solve_triangular(root.T, y - shift), multipliers


@eqx.filter_jit
def _looked(mean: eqx.Module, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return mean(x), jax.grad(mean)(x), jax.hessian(mean)(x)


def looked(case: Case, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The value of the mean objective, its gradient and its Hessian."""
    value, slope, hessian = _looked(case.objective.mean, jax.numpy.asarray(x))
    return float(value), np.asarray(slope), np.asarray(hessian)


def residual(case: Case, x: np.ndarray, multipliers: np.ndarray) -> float:
    """By how much KKT conditions are missed, rows scaled to length 1."""
    rows, bound, equal = case.system()
    size = np.linalg.norm(rows, axis=1)
    excess, y = (rows @ x - bound) / size, multipliers * size
    stationary = np.linalg.norm(looked(case, x)[1] + rows.T @ multipliers)
    held = np.max(np.where(equal, np.abs(excess), np.maximum(excess, 0)))
    signs = np.max(np.where(equal, 0, np.maximum(-y, 0)))
    return float(max(stationary, held, signs, np.max(np.abs(y * excess))))


def solve(case: Case) -> Solved:
    """Newton's method with quadratic subproblems, steps halved until the objective falls."""
    rows, bound, equal = case.system()
    x = nearest(rows, bound, equal)[0]
    for _ in range(200):
        value, slope, hessian = looked(case, x)
        step, multipliers = quadratic(np.linalg.cholesky(hessian), slope, rows, bound - rows @ x, equal)
        promise, length = slope @ step, 1.0
        while length > 1e-10 and looked(case, x + length * step)[0] > value + 0.1 * length * promise + 1e-15:
            length /= 2
        x = x + length * step
        if np.linalg.norm(step) < 1e-12 * (1 + np.linalg.norm(x)):
            break
    missed = residual(case, x, multipliers)
    if not missed < RESIDUAL:
        raise ArithmeticError(f"{case.name}: the exact solution was not found, the KKT residual is {missed:.1e}")
    return Solved(x, multipliers, missed)


def limit(case: Case, solved: Solved, draws: float, averages: int = AVERAGES) -> float:
    """The rms distance from the solution of the exact solutions of the problems that averages of so many draws show.

    These are solved as quadratic problems around the solution, which is exact for quadratic objectives and else right
    to first order; not linearised in the rows, so that it holds at degenerate vertices too. Coordinates are stretched
    by the square root of the number of draws.
    """
    rng, stretch = np.random.default_rng(0), np.sqrt(draws)
    _, slope, hessian = looked(case, solved.x)
    root = np.linalg.cholesky(hessian)
    noise = case.objective.gradient_noise(solved.x, rng, averages)
    squares = []
    for one in noise:
        rows, bound, equal = case.system(draws, rng)
        away, _ = quadratic(root, stretch * slope + one, rows, stretch * (bound - rows @ solved.x), equal)
        squares.append(away @ away)
    return float(np.sqrt(np.mean(squares) / draws))
