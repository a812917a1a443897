"""The list. Most cases are made backwards: a solution, the rows that are active there and their multipliers are chosen,
and the objective is moved so that the KKT conditions hold."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.polytopes.problems import Bowl, Case, Exponential, LogCosh, LogSumExp, Noisy, Regression, Rows

GRADIENT_NOISE, VALUE_NOISE = 0.3, 0.1

Generator = np.random.Generator


def unit(rng: Generator, m: int, d: int) -> np.ndarray:
    rows = rng.standard_normal((m, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def bent(rng: Generator, d: int, condition: float) -> np.ndarray:
    """A matrix with eigenvalues from 1 / condition to 1."""
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (basis * np.logspace(0, -np.log10(condition), d)) @ basis.T


def bowl(hessian: np.ndarray, target: np.ndarray, noise: float = GRADIENT_NOISE) -> Noisy:
    return Noisy(Bowl(jnp.asarray(hessian), jnp.asarray(target)), jnp.asarray(noise))


def noisy(kind: str, matrix: np.ndarray, bound: np.ndarray, noise: float = VALUE_NOISE, **others: Any) -> Rows:
    """Rows with the noise of their scale."""
    return Rows(kind, matrix, bound, noise * np.linalg.norm(matrix, axis=1), **others)


# --- as they come


def random(name: str, m: int, d: int, seed: int, reach: float = 3.0, condition: float = 1.0, **others: Any) -> Case:
    """Random rows around a point, and a target beyond them."""
    rng = np.random.default_rng(seed)
    matrix, inside = unit(rng, m, d), 0.3 * rng.standard_normal(d)
    bound = matrix @ inside + rng.uniform(0.2, 1.0, m)
    target = inside + reach * unit(rng, 1, d)[0]
    hessian = np.eye(d) if condition == 1 else bent(rng, d, condition)
    return Case(name, bowl(hessian, target), (noisy("AtMost", matrix, bound, **others),), d)


def polygon(name: str, sides: int, target: tuple[float, float], gradient_noise: float = 0.0) -> Case:
    """The nearest point of a regular polygon around 0 with an inner radius of 1."""
    angles = 2 * np.pi * np.arange(sides) / sides
    matrix = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    objective = bowl(np.eye(2), np.asarray(target), gradient_noise)
    return Case(name, objective, (noisy("AtMost", matrix, np.ones(sides)),), 2)


# --- made backwards


def placed(
    rng: Generator, matrix: np.ndarray, active: int, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A solution v, rows, bounds that the first `active` of them reach there, and the gradient that v needs.

    Rows are turned so that one direction leads inwards from all active ones, which leaves an interior however many
    there are. Multipliers are `weights`, by default between 0.2 and 1.
    """
    m, d = matrix.shape
    v, inwards = rng.standard_normal(d), rng.standard_normal(d)
    matrix = np.where((matrix @ inwards > 0)[:, None] & (np.arange(m) < active)[:, None], -matrix, matrix)
    bound = matrix @ v + np.where(np.arange(m) < active, 0.0, rng.uniform(0.3, 1.5, m))
    weights = rng.uniform(0.2, 1.0, active) if weights is None else weights
    return v, matrix, bound, -matrix[:active].T @ weights


def corner(
    name: str,
    m: int,
    d: int,
    active: int,
    seed: int,
    *,
    pushed: int | None = None,
    hessian: np.ndarray | None = None,
    scales: tuple[float, float] | None = None,
    exact: int = 0,
    matrix_noise: float = 0.0,
    equal: int = 0,
    linear: bool = False,
    gradient_noise: float = GRADIENT_NOISE,
) -> Case:
    """`active` of m rows at the solution, the first `pushed` of them with a multiplier that is not 0.

    exact: how many of the rows have no noise. scales: rows from so small to so large. equal: so many equalities beside
    them, exact ones if `linear`.
    """
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 1.0, active) * (np.arange(active) < (active if pushed is None else pushed))
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), active, weights)
    if scales is not None:
        size = rng.permutation(np.geomspace(*scales, m))
        matrix, bound = matrix * size[:, None], bound * size
    hessian = np.eye(d) if hessian is None else hessian
    blocks = []
    order = rng.permutation(m)  # exact ones among active and idle ones
    for rows, is_exact in ((order[exact:], False), (order[:exact], True)):
        if len(rows) and is_exact:
            blocks.append(Rows("AtMost", matrix[rows], bound[rows]))
        elif len(rows):
            entries = matrix_noise * np.linalg.norm(matrix[rows], axis=1) if matrix_noise else None
            blocks.append(noisy("AtMost", matrix[rows], bound[rows], matrix_noise=entries))
    if equal:
        ties, pull = unit(rng, equal, d), rng.standard_normal(equal)
        slope = slope - ties.T @ pull
        index = m + np.arange(equal)
        tied = Rows("Linear", ties, ties @ v) if linear else noisy("Equal", ties, ties @ v, index=index)
        blocks.append(tied)
    return Case(name, bowl(hessian, v - np.linalg.solve(hessian, slope), gradient_noise), tuple(blocks), d)


def copies(name: str, m: int, d: int, times: int, active: int, seed: int, shared: bool, grown: float = 1.0) -> Case:
    """Every row several times, with noise of its own or the same noise; later copies `grown` times as large."""
    rng = np.random.default_rng(seed)
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), active)
    size = np.repeat(grown ** np.arange(times), m)
    index = np.tile(np.arange(m), times) if shared else np.arange(m * times)
    rows = noisy("AtMost", np.tile(matrix, (times, 1)) * size[:, None], np.tile(bound, times) * size, index=index)
    return Case(name, bowl(np.eye(d), v - slope), (rows,), d)


def parallel(name: str, m: int, d: int, active: int, seed: int, tilt: float) -> Case:
    """Rows in pairs that differ by a small tilt about the solution."""
    rng = np.random.default_rng(seed)
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), active)
    tilted = matrix + tilt * unit(rng, m, d)
    both = np.concatenate([matrix, tilted])
    rows = noisy("AtMost", both, np.concatenate([bound, bound + (tilted - matrix) @ v]))
    return Case(name, bowl(np.eye(d), v - slope), (rows,), d)


def bands(name: str, m: int, d: int, active: int, seed: int, width: float, shared: bool, apart: bool = True) -> Case:
    """A lower and an upper bound on each of m values, active ones at a distance of `width`. shared: the same noise in
    both; apart: as two constraints."""
    rng = np.random.default_rng(seed)
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), active)
    lower = np.where(np.arange(m) < active, bound - width, matrix @ v - rng.uniform(0.3, 1.5, m))
    second = np.arange(m) + (0 if shared else m)
    if apart:
        blocks = (noisy("AtMost", matrix, bound), noisy("AtLeast", matrix, lower, index=second))
    else:
        both, index = np.concatenate([matrix, -matrix]), np.concatenate([np.arange(m), second])
        noise = VALUE_NOISE * np.repeat([1.0, -1.0], m)  # of one value: what raises it lowers the other side's
        blocks = (Rows("AtMost", both, np.concatenate([bound, -lower]), noise, index),)
    return Case(name, bowl(np.eye(d), v - slope), blocks, d)


def boxed(name: str, m: int, d: int, active: int, seed: int, at_bounds: int, nonnegative: bool = False) -> Case:
    """Within a box, with some entries of the solution at its sides."""
    rng = np.random.default_rng(seed)
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), active)
    low, high = v - rng.uniform(0.5, 2, d), v + rng.uniform(0.5, 2, d)
    low[:at_bounds] = v[:at_bounds]
    slope[:at_bounds] += rng.uniform(0.2, 1.0, at_bounds)
    if nonnegative:  # moved, so that all lower sides are at 0
        bound, v, low, high = bound - matrix @ low, v - low, np.zeros(d), np.full(d, np.inf)
    return Case(name, bowl(np.eye(d), v - slope), (noisy("AtMost", matrix, bound),), d, low, high)


def simplex(name: str, m: int, d: int, active: int, seed: int, zeros: int) -> Case:
    """Within the simplex, with some entries of the solution at 0."""
    rng = np.random.default_rng(seed)
    _, matrix, _, slope = placed(rng, unit(rng, m, d), active)
    v = np.append(np.zeros(zeros), rng.uniform(0.5, 1.5, d - zeros))
    v /= v.sum()
    bound = matrix @ v + np.where(np.arange(m) < active, 0.0, rng.uniform(0.1, 0.5, m))
    slope[:zeros] += rng.uniform(0.2, 1.0, zeros)
    return Case(name, bowl(np.eye(d), v - slope + 0.3), (noisy("AtMost", matrix, bound),), d, total=1.0)


def smooth(name: str, m: int, d: int, seed: int, kind: str) -> Case:
    """Objectives that are not quadratic, over random rows."""
    rng = np.random.default_rng(seed)
    base = random(name, m, d, seed)
    target = jnp.asarray(2 * rng.standard_normal(d))
    means = {
        "logcosh": LogCosh(target),
        "logsumexp": LogSumExp(jnp.asarray(rng.standard_normal((2 * d, d))), target),
        "exponential": Exponential(target / 2),
    }
    return Case(name, Noisy(means[kind], jnp.asarray(GRADIENT_NOISE)), base.blocks, d)


def regression(name: str, m: int, d: int, seed: int, condition: float) -> Case:
    rng = np.random.default_rng(seed)
    v, matrix, bound, slope = placed(rng, unit(rng, m, d), d // 2)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.logspace(0, -np.log10(condition), d)
    hessian, root = (basis * values) @ basis.T, (basis * np.sqrt(values)) @ basis.T
    mean = Bowl(jnp.asarray(hessian), jnp.asarray(v - np.linalg.solve(hessian, slope)))
    objective = Regression(mean, jnp.asarray(root), jnp.asarray(0.5))
    return Case(name, objective, (noisy("AtMost", matrix, bound),), d)


def unscaled(name: str, m: int, d: int, active: int, seed: int, spread: float) -> Case:
    """Variables in units that differ: x = D u with D from 1 / spread to spread, for a plain problem in u."""
    base = corner(name, m, d, active, seed)
    units = np.geomspace(1 / spread, spread, d)
    mean = base.objective.mean
    block = base.blocks[0]
    objective = bowl(np.asarray(mean.hessian) / np.outer(units, units), np.asarray(mean.target) * units)
    return Case(name, objective, (Rows("AtMost", block.matrix / units, block.bound, block.noise),), d)


def pyramid(name: str, d: int, faces: int, seed: int) -> Case:
    """The apex of a pyramid of so many faces, the target straight above it."""
    rng = np.random.default_rng(seed)
    sides = unit(rng, faces, d - 1)
    matrix = np.concatenate([sides, np.ones((faces, 1))], axis=1) / np.sqrt(2)
    apex = np.append(np.zeros(d - 1), 1.0)
    objective = bowl(np.eye(d), apex + matrix.mean(0) * 2)
    return Case(name, objective, (noisy("AtMost", matrix, matrix @ apex),), d)


def _named(make: Callable[..., Case], name: str, *args: Any, **options: Any) -> tuple[str, Callable[[], Case]]:
    return name, lambda: make(name, *args, **options)


def _random(sizes: str, letters: str, seed: int, **options: Any) -> list[tuple[str, Callable[[], Case]]]:
    m, d = map(int, sizes.split("x"))
    return [_named(random, f"random {sizes}{letter}", m, d, seed + i, **options) for i, letter in enumerate(letters)]


CASES: dict[str, Callable[[], Case]] = dict(
    [
        *_random("25x10", "abc", 0),
        *_random("40x10", "abc", 10),
        *_random("100x10", "ab", 20),
        *_random("60x30", "ab", 30),
        *_random("20x2", "ab", 40, reach=2.0),
        *_random("50x5", "ab", 50),
        *_random("10x10", "a", 60),
        *_random("30x30", "a", 61),
        *_random("10x50", "a", 62, reach=6.0),
        *_random("200x50", "a", 63, reach=6.0),
        *_random("40x200", "a", 64, reach=12.0),
        *_random("300x60", "a", 65, reach=6.0),
        *_random("400x40", "a", 66, reach=5.0),
        _named(random, "random 40x10, condition 100", 40, 10, 70, condition=100.0),
        _named(random, "random 25x10, condition 1000", 25, 10, 71, condition=1000.0),
        _named(polygon, "12-gon, corner", 12, (2.0, 2.0)),
        _named(polygon, "12-gon, side", 12, (2.0, 0.1), 0.1),
        _named(polygon, "12-gon, inside", 12, (0.5, 0.2), 0.1),
        _named(polygon, "12-gon, target on a side", 12, (1.0, 0.0), 0.1),
        _named(polygon, "24-gon, corner", 24, (2.0, 0.26), 0.1),
        _named(pyramid, "pyramid of 8 faces", 3, 8, 80),
        _named(pyramid, "pyramid of 40 faces", 5, 40, 81),
        _named(corner, "vertex, 30 rows meet in 5 dimensions", 30, 5, 30, 82),
        _named(corner, "vertex, 20 of 40 rows meet in 10", 40, 10, 20, 83),
        _named(corner, "vertex, 20 meet in 10, 5 push", 40, 10, 20, 84, pushed=5),
        _named(corner, "vertex, 100 rows meet in 10", 100, 10, 100, 85),
        _named(corner, "vertex, 60 rows meet in 30", 60, 30, 60, 86),
        _named(corner, "10 of 40 active, none push", 40, 10, 10, 87, pushed=0),
        _named(corner, "8 of 25 active, 4 push", 25, 10, 8, 88, pushed=4),
        _named(copies, "rows twice", 20, 10, 2, 6, 90, shared=False),
        _named(copies, "rows twice, the same noise", 20, 10, 2, 6, 91, shared=True),
        _named(copies, "rows four times", 10, 10, 4, 6, 92, shared=False),
        _named(copies, "rows twice, the second 10 times as large", 20, 10, 2, 6, 93, shared=False, grown=10.0),
        _named(parallel, "pairs tilted by 0.1", 20, 10, 6, 100, 0.1),
        _named(parallel, "pairs tilted by 0.01", 20, 10, 6, 101, 0.01),
        _named(parallel, "pairs tilted by 0.001", 20, 10, 6, 102, 0.001),
        _named(parallel, "pairs tilted by 0.1, in 2 dimensions", 6, 2, 2, 103, 0.1),
        _named(bands, "bands, wide", 20, 10, 6, 110, 1.0, shared=True),
        _named(bands, "bands, wide, own noise", 20, 10, 6, 111, 1.0, shared=False),
        _named(bands, "bands of 0.05, own noise", 20, 10, 6, 112, 0.05, shared=False),
        _named(bands, "bands of 0.05 in one constraint", 20, 10, 6, 113, 0.05, shared=False, apart=False),
        _named(bands, "bands of 0.01, the same noise", 20, 10, 6, 114, 0.01, shared=True),
        _named(bands, "bands of 0.001, the same noise, in one", 20, 10, 6, 115, 0.001, shared=True, apart=False),
        _named(bands, "bands, wide, 30 on 30", 30, 30, 12, 116, 1.0, shared=True, apart=False),
        _named(corner, "3 equalities, 25 rows", 25, 10, 4, 120, equal=3),
        _named(corner, "3 exact equalities, 25 rows", 25, 10, 4, 121, equal=3, linear=True),
        _named(corner, "5 equalities, 40 rows", 40, 10, 5, 122, equal=5),
        _named(corner, "5 equalities, 20 rows, 30 variables", 20, 30, 8, 123, equal=5),
        _named(boxed, "box, 25 rows", 25, 10, 4, 130, 3),
        _named(boxed, "box, 40 rows", 40, 10, 5, 131, 4),
        _named(boxed, "box, 60 rows on 30", 60, 30, 10, 132, 8),
        _named(boxed, "box, 100 rows", 100, 10, 4, 133, 3),
        _named(boxed, "nonnegative, 25 rows", 25, 10, 4, 134, 4, nonnegative=True),
        _named(simplex, "simplex, 10 rows", 10, 10, 3, 140, 3),
        _named(simplex, "simplex, 20 rows on 30", 20, 30, 5, 141, 10),
        _named(simplex, "simplex, 40 rows", 40, 10, 4, 142, 3),
        _named(corner, "half of 25 rows exact", 25, 10, 6, 150, exact=12),
        _named(corner, "half of 40 rows exact", 40, 10, 8, 151, exact=20),
        _named(corner, "all but one of 25 rows exact", 25, 10, 6, 152, exact=24),
        _named(corner, "all of 40 rows exact", 40, 10, 6, 153, exact=40),
        _named(corner, "noisy matrix, 25 rows", 25, 10, 6, 160, matrix_noise=0.1),
        _named(corner, "noisy matrix, 40 rows", 40, 10, 6, 161, matrix_noise=0.1),
        _named(corner, "noisy matrix, 60 rows on 30", 60, 30, 12, 162, matrix_noise=0.1),
        _named(corner, "very noisy matrix, 20 rows on 5", 20, 5, 3, 163, matrix_noise=0.5),
        _named(corner, "noisy matrix, 20 rows meet in 10", 40, 10, 20, 164, matrix_noise=0.1),
        _named(corner, "scales 1e-3 to 1e3, 25 rows", 25, 10, 6, 170, scales=(1e-3, 1e3)),
        _named(corner, "scales 1e-3 to 1e3, 40 rows", 40, 10, 6, 171, scales=(1e-3, 1e3)),
        _named(corner, "scales 1e-3 to 1e3, 60 rows on 30", 60, 30, 12, 172, scales=(1e-3, 1e3)),
        _named(corner, "scales 1e-3 to 1e3, 20 meet in 10", 40, 10, 20, 173, scales=(1e-3, 1e3)),
        _named(corner, "scales 1e-3 to 1e3, 3 equalities", 25, 10, 4, 174, scales=(1e-3, 1e3), equal=3),
        _named(unscaled, "variables in units 0.1 to 10, 25 rows", 25, 10, 6, 175, 10.0),
        _named(unscaled, "variables in units 0.01 to 100, 40 rows", 40, 10, 6, 176, 100.0),
        _named(smooth, "log cosh, 25 rows", 25, 10, 180, "logcosh"),
        _named(smooth, "log sum exp, 40 rows", 40, 10, 181, "logsumexp"),
        _named(smooth, "log cosh, 60 rows on 30", 60, 30, 182, "logcosh"),
        _named(smooth, "exponential, 20 rows on 5", 20, 5, 183, "exponential"),
        _named(regression, "regression, 25 rows", 25, 10, 190, 10.0),
        _named(regression, "regression, 40 rows, condition 100", 40, 10, 191, 100.0),
        _named(corner, "nearly linear objective, 40 rows", 40, 10, 10, 192, hessian=1e-2 * np.eye(10)),
        _named(corner, "no noise in the gradient, 40 rows", 40, 10, 6, 193, gradient_noise=0.0),
    ]
)
"""By name."""
