"""Tuned rivals on the same problems: 16 settings each, and the best one for each problem and number of draws counts.

    STORM    scheduled momentum, product from all ordered pairs of a batch of two, multiplier moved by a tracked value
    SGD-ALM  the same without momentum: stochastic gradient steps on the augmented Lagrangian

Step sizes and penalties are in units of the true curvature and of the true ||J|| at the solution, which no user knows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.suite.limits import Solved
from lariax.formulas import leave_one_out as others
from lariax.formulas import storm
from lariax.oracle import Batch, Oracle, bind, sample_structure

SEEDS = 4
BLOCK = 250
STEPS, PENALTIES = (0.1, 0.3, 1.0, 3.0), (1.0, 10.0)
RIVALS = {
    "STORM": [(e, r, p, a) for e in STEPS for r in PENALTIES for p, a in ((0.6, 0.8), (1 / 3, 2 / 3))],
    "SGD-ALM": [(e, r, p, 0.0) for e in STEPS for r in PENALTIES for p in (0.5, 0.75)],
}
"""Settings: step size, penalty, exponents of the step size and of the momentum (0: none)."""


class State(NamedTuple):
    x: Array
    gradient: Array
    constraints: Array
    multipliers: Array


def _step(oracle: Oracle, scales: tuple[float, float], setting: Array, state: State, k: Array, batch: Batch) -> State:
    curvature, slope = scales
    size, ratio, power, momentum = setting
    penalty = ratio * curvature / slope**2
    decay = (k + 1) ** -power
    step_size = size / (curvature + penalty * slope**2) * decay
    alpha = jnp.where(momentum > 0, (k + 1) ** -momentum, 1.0)

    def signed(weights: Array) -> Array:
        return jnp.where(oracle.inequality, jnp.maximum(weights, 0), weights)

    x = oracle.prox(state.x - step_size * state.gradient, step_size)
    then, now = (oracle.look_at_parts(point, batch, 1) for point in (state.x, x))
    c0, c1 = oracle.rows_of(then), oracle.rows_of(now)
    constraints = storm(jnp.mean(c1, axis=0), jnp.mean(c0, axis=0), state.constraints, alpha)
    multipliers = signed(state.multipliers + 0.3 * penalty * decay * constraints)
    fresh = oracle.gradient_of(now, signed(multipliers + penalty * others(c1)))
    stale = oracle.gradient_of(then, signed(state.multipliers + penalty * others(c0)))
    gradient = storm(fresh.mean, stale.mean, state.gradient, alpha)
    return State(x, gradient, constraints, multipliers)


def best(solved: Solved, draws: list[int]) -> dict[int, dict[str, np.ndarray]]:
    """By number of draws and rival: rms over seeds of (stationarity, feasibility) over the limit, for the setting whose
    larger one is least."""
    case = solved.case
    structures = tuple(None if s is None else sample_structure(s) for s in case.problem.sources)
    oracle = bind(case.problem, case.x0, structures, batch_size=2, copies=1, has_slacks=False)
    free = solved.free.sum()
    scales = (float(np.linalg.norm(solved.kkt[:free, :free], 2)), float(np.linalg.norm(solved.kkt[free:, :free], 2)))
    found: dict[int, dict[str, np.ndarray]] = {n: {} for n in draws}
    for rival, settings in RIVALS.items():
        for n, points in _runs(oracle, scales, jnp.asarray(settings), case.x0, draws).items():
            flat = jnp.nan_to_num(points.reshape(-1, case.x0.size), nan=1e9, posinf=1e9, neginf=-1e9)
            errors = np.asarray(solved.errors(flat)).reshape(SEEDS, len(settings), 3)[..., :2]
            rms = np.sqrt(np.mean(errors**2, axis=0)) / solved.limit(n)[:2]
            found[n][rival] = rms[np.argmin(np.nan_to_num(rms.max(axis=1), nan=np.inf))]
    return found


def _runs(
    oracle: Oracle, scales: tuple[float, float], settings: Array, x0: Array, draws: list[int]
) -> dict[int, Array]:
    """Points of all seeds and settings, after each number of draws."""

    def block(number: Array, states: State, key: Array) -> State:
        tickets = oracle.draw(key, number * BLOCK + jnp.arange(BLOCK), (None,) * len(oracle.sources))

        def iterate(states: State, i: Array) -> tuple[State, None]:
            batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[i], tickets))
            k = (number * BLOCK + i + 1).astype(x0.dtype)
            return jax.vmap(lambda setting, s: _step(oracle, scales, setting, s, k, batch))(settings, states), None

        return jax.lax.scan(iterate, states, jnp.arange(BLOCK))[0]

    @jax.jit
    def advance(states: State, first: Array, last: Array) -> State:
        keys = jax.random.split(jax.random.key(1), SEEDS)
        return jax.vmap(lambda s, key: jax.lax.fori_loop(first, last, lambda i, s: block(i, s, key), s))(states, keys)

    def spread(vector: Array) -> Array:
        return jnp.broadcast_to(vector, (SEEDS, len(settings), *vector.shape))

    nothing = jnp.zeros(oracle.rows)
    states = State(spread(x0), spread(jnp.zeros_like(x0)), spread(nothing), spread(nothing))
    points, done = {}, 0
    for n in draws:
        blocks = max(1, n // 2 // BLOCK)
        states = advance(states, jnp.int32(done), jnp.int32(blocks))
        points[n], done = states.x, blocks
    return points
