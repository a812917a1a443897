"""What is exactly known of a problem: its solution, how to measure an error, and the error that N draws allow.

The limit is that of the exact solution of the sample-average problem over N draws, linearised: with K the KKT matrix
of the active rows at the solution, x_N - x* is the upper part of

    -K^-1 (mean of grad f + J^T y, mean of c)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import Array

from benchmarks.suite.case import Case
from lariax.oracle import bind, sample_structure

SAMPLES = 4000
"""From so many draws the covariance of the noise is taken,"""

REPETITIONS = 256
"""and so many sample averages are drawn from the Gaussian that has it."""


@dataclass(frozen=True)
class Solved:
    """A case with its solution. Errors are (stationarity, feasibility, distance)."""

    case: Case
    x: Array
    multipliers: Array  # of all rows, 0 where inactive
    active: np.ndarray  # rows that hold with equality, without dependent ones
    free: np.ndarray  # coordinates that are not at a bound
    kkt: np.ndarray
    residual: float  # of the KKT equations, after Newton

    @cached_property
    def errors(self) -> Callable[[Array], Array]:
        """(n, d) -> (n, 3): dist(grad F + J^T y, -N_X) with the best y on active rows, the violation with rows
        scaled by their gradients, the distance from the solution."""
        case, free = self.case, jnp.asarray(self.free, float)
        must_hold = jnp.asarray([not i for i in case.inequality]) | jnp.zeros(len(case.inequality), bool).at[
            self.active
        ].set(True)
        scale = 1 / jnp.linalg.norm(jax.jacobian(case.constraints)(self.x), axis=1)
        low, high = case.bounds or (-jnp.inf, jnp.inf)

        def error(x: Array) -> Array:
            gradient, values = jax.grad(case.objective)(x), case.constraints(x)
            rows = jax.jacobian(case.constraints)(x)[self.active]
            if case.total is not None:
                rows = jnp.concatenate([rows, jnp.ones((1, x.size))])
            y = -jnp.linalg.lstsq((rows * free).T, gradient * free)[0]
            stationarity = jnp.linalg.norm(x - jnp.clip(x - (gradient + rows.T @ y), low, high))
            violation = jnp.where(must_hold, values, jnp.maximum(values, 0)) * scale
            distance = jnp.linalg.norm(x - self.x)
            if case.mirrored:
                distance = jnp.minimum(distance, jnp.linalg.norm(x + self.x))
            return jnp.stack([stationarity, jnp.linalg.norm(violation), distance])

        return jax.jit(jax.vmap(error))

    @cached_property
    def noise(self) -> np.ndarray:
        """Deviations of the KKT equations at the solution, one row a draw."""
        case = self.case
        structures = tuple(None if s is None else sample_structure(s) for s in case.problem.sources)
        oracle = bind(case.problem, self.x, structures, batch_size=1, copies=1, has_slacks=False)
        fed = (None,) * len(oracle.sources)
        tickets = oracle.draw(jax.random.key(77), jnp.arange(SAMPLES), fed)

        @jax.jit
        def equations(ticket: Array) -> Array:
            look = oracle.look(self.x, oracle.fetch(ticket))
            gradient = look.gradient(oracle.split(self.multipliers))
            return jnp.concatenate([gradient[np.flatnonzero(self.free)], oracle.join(look.residuals)[self.active]])

        sampled = np.asarray(jax.lax.map(equations, tickets))
        if case.total is not None:
            sampled = np.concatenate([sampled, np.zeros((SAMPLES, 1))], axis=1)
        return sampled - sampled.mean(0)

    @property
    def exactly_feasible(self) -> bool:
        """Whether sample averages are: nothing is random in the constraints."""
        return all(constraint.samples is None for constraint in self.case.problem.constraints.values())

    def limit(self, draws: float) -> np.ndarray:
        """rms errors of sample averages over so many draws.

        Where they are exactly feasible, the violation of a method is measured against their distance from the solution.
        """
        rng = np.random.default_rng(0)
        means = rng.standard_normal((REPETITIONS, SAMPLES)) @ self.noise / np.sqrt(SAMPLES * draws)
        steps = -np.linalg.solve(self.kkt, means.T).T
        points = np.tile(np.asarray(self.x), (REPETITIONS, 1))
        points[:, self.free] += steps[:, : self.free.sum()]
        rms = np.sqrt(np.mean(np.asarray(self.errors(jnp.asarray(points))) ** 2, axis=0))
        rms[1] = rms[2] if self.exactly_feasible else rms[1]
        return rms


def solve(case: Case) -> Solved:
    """The exact solution: SLSQP from the guess, then Newton on the active set."""
    gradient, jacobian = jax.jit(jax.grad(case.objective)), jax.jit(jax.jacobian(case.constraints))
    values = jax.jit(case.constraints)
    inequality = np.asarray(case.inequality)
    equal = np.setdiff1d(np.flatnonzero(~inequality), case.dependent)
    bent = np.flatnonzero(inequality)
    scale = 1 / np.linalg.norm(np.asarray(jacobian(case.x0)), axis=1)

    def constraint(kind: str, rows: np.ndarray, sign: float) -> dict:
        return {
            "type": kind,
            "fun": lambda x: sign * (scale * np.asarray(values(x)))[rows],
            "jac": lambda x: sign * (scale[:, None] * np.asarray(jacobian(x)))[rows],
        }

    parts = [constraint("eq", equal, 1.0)] * bool(len(equal)) + [constraint("ineq", bent, -1.0)] * bool(len(bent))
    if case.total is not None:
        parts.append({"type": "eq", "fun": lambda x: x.sum() - case.total, "jac": np.ones_like})
    found = scipy.optimize.minimize(
        lambda x: float(case.objective(x)),
        np.asarray(case.guess),
        jac=lambda x: np.asarray(gradient(x)),
        constraints=parts,
        bounds=None if case.bounds is None else [case.bounds] * case.x0.size,
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    x = found.x
    close = np.abs(np.asarray(values(x)))[bent] < 1e-5
    active = np.concatenate([equal, bent[close]]).astype(int)
    low, high = case.bounds or (-np.inf, np.inf)
    return _newton(case, x, active, (x > low + 1e-6) & (x < high - 1e-6))


def _newton(case: Case, x: np.ndarray, active: np.ndarray, free: np.ndarray) -> Solved:
    extra = [] if case.total is None else [case.total]

    def rows(point: Array) -> Array:
        held = case.constraints(point)[active]
        return jnp.concatenate([held, jnp.sum(point)[None] - extra[0]]) if extra else held

    def lagrangian(point: Array, y: Array) -> Array:
        return case.objective(point) + y @ rows(point)

    slope, bend = jax.jit(jax.grad(lagrangian)), jax.jit(jax.hessian(lagrangian))
    held, jacobian = jax.jit(rows), jax.jit(jax.jacobian(rows))
    zero = jnp.zeros(len(active) + len(extra))
    y = -np.linalg.lstsq(np.asarray(jacobian(x))[:, free].T, np.asarray(slope(x, zero))[free], rcond=None)[0]
    for _ in range(8):
        J, H = np.asarray(jacobian(x))[:, free], np.asarray(bend(x, y))[np.ix_(free, free)]
        kkt = np.block([[H, J.T], [J, np.zeros((len(y), len(y)))]])
        equations = np.concatenate([np.asarray(slope(x, y))[free], np.asarray(held(x))])
        step = -np.linalg.solve(kkt, equations)
        x = x.copy()
        x[free] += step[: free.sum()]
        y = y + step[free.sum() :]
    residual = float(np.linalg.norm(np.concatenate([np.asarray(slope(x, y))[free], np.asarray(held(x))])))
    multipliers = np.zeros(len(case.inequality))
    multipliers[active] = y[: len(active)]
    return Solved(case, jnp.asarray(x), jnp.asarray(multipliers), active, free, kkt, residual)
