"""Exact solutions of problems whose expectations are known: SLSQP to the neighbourhood, Newton on the active set."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
from jaxtyping import Array

Function = Callable[[Any], Any]
"""Of x as one array."""

NEWTON_STEPS = 8
ACTIVE = 1e-5
"""A residual or a distance to a bound below this counts as 0 when the active set is chosen."""


class KKT(NamedTuple):
    """A point that satisfies the optimality conditions. Multipliers are those of residuals, 0 where inactive."""

    x: np.ndarray
    value: float
    multipliers: np.ndarray
    active: np.ndarray  # rows that hold with equality, without dependent ones
    free: np.ndarray  # coordinates that are not at a bound
    matrix: np.ndarray  # the Jacobian of the conditions on the active set
    residual: float  # of the conditions, after Newton


def kkt_point(
    objective: Function,
    residuals: Function,
    inequality: Sequence[bool],
    guess: np.ndarray,
    *,
    bounds: tuple[float, float] | np.ndarray | None = None,
    dependent: Sequence[int] = (),
) -> KKT:
    """min F(x) subject to C(x) = 0, or <= 0 where `inequality` says so, and bounds on the entries of x.

    Bounds are two numbers, or one row of two for each entry. `dependent` rows follow from the others. Everything is in
    double precision, whatever JAX works with otherwise; compiled, since single operations on NumPy's arrays are kept in
    the precision in which they ran first.
    """
    with jax.enable_x64(True):
        guess = np.asarray(guess, float)
        limits = np.empty((2, guess.size))
        limits[:] = np.asarray((-np.inf, np.inf) if bounds is None else bounds, float).reshape(-1, 2).T
        flags = np.asarray(inequality, bool)
        equal = np.setdiff1d(np.flatnonzero(~flags), np.asarray(dependent, int))
        bent = np.flatnonzero(flags)
        x = _slsqp(objective, residuals, equal, bent, guess, limits)
        close = np.abs(np.asarray(jax.jit(residuals)(x)))[bent] < ACTIVE
        active = np.concatenate([equal, bent[close]]).astype(int)
        free = (x > limits[0] + ACTIVE) & (x < limits[1] - ACTIVE)
        return _newton(objective, residuals, len(flags), x, active, free)


def _slsqp(
    objective: Function,
    residuals: Function,
    equal: np.ndarray,
    bent: np.ndarray,
    guess: np.ndarray,
    limits: np.ndarray,
) -> np.ndarray:
    value, slope = jax.jit(objective), jax.jit(jax.grad(objective))
    rows, jacobian = jax.jit(residuals), jax.jit(jax.jacobian(residuals))
    scale = 1 / np.maximum(np.linalg.norm(np.asarray(jacobian(guess)), axis=1), 1e-8)

    def part(kind: str, which: np.ndarray, sign: float) -> list[dict]:
        fun = {
            "type": kind,
            "fun": lambda x: sign * (scale * np.asarray(rows(x)))[which],
            "jac": lambda x: sign * (scale[:, None] * np.asarray(jacobian(x)))[which],
        }
        return [fun] if len(which) else []

    found = scipy.optimize.minimize(
        lambda x: float(value(x)),
        guess,
        jac=lambda x: np.asarray(slope(x)),
        constraints=[*part("eq", equal, 1.0), *part("ineq", bent, -1.0)],
        bounds=limits.T,
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    return np.asarray(found.x)


def _newton(
    objective: Function,
    residuals: Function,
    count: int,
    x: np.ndarray,
    active: np.ndarray,
    free: np.ndarray,
) -> KKT:
    def held(point: Array) -> Array:
        return residuals(point)[active]

    def lagrangian(point: Array, y: Array) -> Array:
        return objective(point) + y @ held(point)

    slope, bend = jax.jit(jax.grad(lagrangian)), jax.jit(jax.hessian(lagrangian))
    values, jacobian = jax.jit(held), jax.jit(jax.jacobian(held))

    def conditions(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(slope(x, y))[free], np.asarray(values(x))])

    def matrix(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        rows, curvature = np.asarray(jacobian(x))[:, free], np.asarray(bend(x, y))[np.ix_(free, free)]
        return np.block([[curvature, rows.T], [rows, np.zeros((len(y), len(y)))]])

    rows = np.asarray(jacobian(x))[:, free]
    y = -np.linalg.lstsq(rows.T, np.asarray(slope(x, np.zeros(len(active))))[free], rcond=None)[0]
    for _ in range(NEWTON_STEPS):
        step = -np.linalg.solve(matrix(x, y), conditions(x, y))
        x = x.copy()
        x[free] += step[: free.sum()]
        y = y + step[free.sum() :]
    multipliers = np.zeros(count)
    multipliers[active] = y
    return KKT(
        x,
        float(jax.jit(objective)(x)),
        multipliers,
        active,
        free,
        matrix(x, y),
        float(np.linalg.norm(conditions(x, y))),
    )
