"""What a spent budget means: is it a matter of more iterations, or do the constraints, the objective or the run stand
in the way? Claims are made of what fresh samples show, at x and around it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key

import scipy
from lariax.compilation import compiled
from lariax.loop._fresh import SAMPLES, FreshSamples
from lariax.loop._idle import idle
from lariax.loop._unbounded import Fall, fall_from
from lariax.methods import Diagnosis
from lariax.oracle import Batch, Look, Oracle, Vector

FEW_BLOCKS = 32
"""Named constraints that are looked at one by one."""

REACHES = (1e-2, 1e-1, 1.0)
"""How far from x other points are tried, in units of the run's length, which is 1 + ||z|| in the method's units z,"""

POINTS = 8
"""and how many at each distance."""

SURE = 4.0
"""Standard errors that a claim takes: by chance one in 30,000 is wrong."""

SLIGHT = 0.05
"""A violation cannot be lowered if its slope, over a run's length, is less than this part of it. Of one that is longer
than the run, its slope is less than this part of what rows of length 1 can have."""

STANDS = 1e-3
"""A violation stands if it is more than this part of the run's length."""

RESTLESS = 0.05
"""x is looked at for being stationary if it is far away, or if late gradients of the Lagrangian are more than this part
of the first ones;"""

DRAWS = 4 * SAMPLES
"""that costs fresh samples, and is not worth it to runs that have drawn less;"""

SLOPING = 0.1
"""it is not if that gradient, within the set and on fresh samples, is more than this part of the objective's."""

UNMOVED = 0.8
"""A violation has not moved if in the last quarter of the run it is more than this part of that in the second: averages
of samples would leave 0.65."""

KINKED = 3
"""Samples whose slope jumps: so many are no accident."""

ENTRIES, MOST_HELD = 2**18, 2**22
"""Of a Jacobian that is made for a verdict, and of the gradients of bounds beside it."""

FAR = 100.0
"""Lengths of the run from where on the objective is suspected to fall without end."""


LOST = 1e10
"""Lengths of the run beyond which constraints that hold are no longer to be expected of a run that goes on and on."""


class Verdict(NamedTuple):
    status: str
    remarks: tuple[str, ...] = ()
    draws: int = 0  # fresh ones that it took
    doubt: str = ""  # of a spent budget: why x is no solution yet


class Around(NamedTuple):
    """What two halves of fresh samples show of the constraints at x and at points around it."""

    left: Float[Array, " m"]  # the violation at x, row by row, in units of distance
    error: Float[Array, " m"]
    slope: Float[Array, ""]  # how fast half of its square can be lowered within the set, at most
    others: Float[Array, "points m"]  # violations elsewhere
    jacobian: Float[Array, "m d"] | None  # in the same units; None: it would be large, or a set ties entries of x
    held: Float[Array, "2 d"]  # 1 where a bound holds an entry of x, from below and from above
    has_gradient: Bool[Array, " blocks"]


def judged(
    oracle: Oracle,
    known: Diagnosis,
    x: Any,
    multipliers: Any,
    history: Mapping[str, np.ndarray],
    key: Key[Array, ""],
    draws: int = DRAWS,
) -> Verdict:
    """Of a run that has spent its budget at x, with its history."""
    if any(source is not None and source.from_host for source in oracle.sources):
        return Verdict("budget")  # the rows of a Stream are the run's
    fresh = FreshSamples(oracle, known, x, key)
    away = fresh.away
    is_far = fresh.is_here and away > FAR
    fall = Fall.NONE
    if is_far:
        fall = fall_from(fresh.oracle, fresh.point, fresh.half(0), fresh.half(1), strict=away < LOST)
        if fall is Fall.LINE:
            return Verdict("unbounded", draws=fresh.draws)
    if not away < LOST:
        return Verdict("stalled", ("x has run away.",), fresh.draws)
    if bool(known.stuck):
        return Verdict("stalled", ("The last steps were all refused.",), fresh.draws)
    found = Verdict("budget", draws=fresh.draws)
    violations = history.get("feasibility", np.zeros(0))
    swings = known.averages and draws >= DRAWS and _has_not_fallen(violations)  # small at the end, perhaps by chance
    if bool(known.violated) or bool(known.pressed) or swings:
        found = _of_violation(known, fresh, violations)
    doubtful = is_far or (fresh.is_here and draws >= DRAWS and _is_restless(history))
    if doubtful and found.status == "budget" and not found.doubt:
        slopes = history.get("stationarity", np.zeros(0))
        weights = fresh.oracle.rows_named(multipliers)
        found = _of_slope(known, fresh, weights, slopes)
        if is_far and found.status == "budget" and not found.doubt:
            found = _of_distance(fresh, weights, fall)
    if bool(known.idle) and draws >= DRAWS and found.status == "budget" and not found.doubt:
        found = _of_idle(fresh, fresh.oracle.rows_named(multipliers))
    return found


def _has_not_fallen(values: np.ndarray) -> bool:
    """For half of the run."""
    quarters = np.array_split(values, 4)
    return len(values) >= 4 and bool(np.mean(quarters[3]) > UNMOVED * np.mean(quarters[1]))


def _is_restless(history: Mapping[str, np.ndarray]) -> bool:
    values = history.get("stationarity", np.zeros(0))
    if len(values) < 4:
        return False
    first, *_, last = np.array_split(values, 4)
    return bool(np.median(last) > RESTLESS * np.max(first))


def _of_slope(known: Diagnosis, fresh: "FreshSamples", weights: Array, slopes: np.ndarray) -> Verdict:
    """Of a point that may not be stationary."""
    found = _slope_at(fresh.oracle, fresh.point, weights, fresh.half(0), fresh.half(1))
    rest, noise, steep = map(float, found[:3])
    if not np.isfinite(rest + noise + steep):
        remark = "At x the gradient of the Lagrangian, or its square, is beyond the range of floating point."
        return Verdict("stalled", (remark,), fresh.draws)
    if not rest > max(SURE * noise, SLOPING * steep) or not rest > SURE * _scatter(fresh, weights, found[3]):
        return Verdict("budget", draws=fresh.draws)
    which = "x with its multipliers" if weights.size else "x"
    what = f"the gradient of the Lagrangian is {rest / steep:.0%} of the objective's"
    if known.averages and _has_not_fallen(slopes):
        return Verdict(
            "stalled", (f"{which} is no solution: {what}, and has not fallen for half of the run.",), fresh.draws
        )
    return Verdict("budget", draws=fresh.draws, doubt=f"{which} is no solution yet: {what}.")


def _of_idle(fresh: "FreshSamples", weights: Array) -> Verdict:
    """Of multipliers that go by what the run has seen elsewhere."""
    doubt = ""
    if names := idle(fresh, weights):
        doubt = (
            f"x is no solution yet: multipliers are still at work on constraints with room to spare: {_listed(names)}."
        )
    return Verdict("budget", draws=fresh.draws, doubt=doubt)


def _of_distance(fresh: FreshSamples, weights: Array, fall: Fall) -> Verdict:
    """Of a point that is far away, for what its samples show: rare heavy ones may have thrown it there, or there is no
    end to the way."""
    if fall is Fall.LOGARITHM:
        doubt = (
            f"x is no solution yet: it has gone far ({fresh.away:.0e} in the method's units), and beyond it, each time "
            "the distance doubles, the objective falls by as much again. If it has no least value, bound x by within=, "
            "or add the constraint that is missing."
        )
        return Verdict("budget", draws=fresh.draws, doubt=doubt)
    halves = fresh.half(0), fresh.half(1)
    if bool(_is_better_than_half_way(fresh.oracle, fresh.point, weights, halves)):
        return Verdict("budget", draws=fresh.draws)
    doubt = (
        f"x has gone far ({fresh.away:.0e} in the method's units), and {fresh.draws:,} fresh samples do not show that "
        "it is better there than half as far. If a few samples weigh far more than others, take larger batches."
    )
    return Verdict("budget", draws=fresh.draws, doubt=doubt)


@compiled(once=True)
def _is_better_than_half_way(oracle: Oracle, z: Vector, weights: Array, halves: tuple[Batch, Batch]) -> Bool[Array, ""]:
    """Whether the Lagrangian, or the violation of some row, is surely lower than half as far out; also where that
    cannot be seen, since functions are not finite there."""
    parts = oracle.split(weights[None])

    def seen_at(point: Vector) -> tuple[list[Array], Array]:
        looks = [oracle.look(point, half) for half in halves]
        objective = jnp.concatenate([look.objective for look in looks])
        residuals = [jnp.concatenate(both) for both in zip(*(look.residuals for look in looks), strict=True)]
        rows = jnp.concatenate([oracle.join(look.residuals) for look in looks])
        return [objective, *(r @ w[0] for r, w in zip(residuals, parts, strict=True))], rows

    def mean_and_error(each: Array) -> tuple[Array, Array]:
        return jnp.mean(each, axis=0), jnp.std(each, axis=0) / jnp.sqrt(each.shape[0])

    def violation(mean: Array) -> Array:
        return jnp.where(oracle.inequality, jnp.maximum(mean, 0), jnp.abs(mean))

    (here, rows), (there, other_rows) = seen_at(z), seen_at(oracle.prox(z / 2, 0.0))
    gains = [mean_and_error(b - a) for a, b in zip(here, there, strict=True)]
    gain, error = sum(mean for mean, _ in gains), jnp.sqrt(sum(error**2 for _, error in gains))
    fall = violation(jnp.mean(other_rows, axis=0)) - violation(jnp.mean(rows, axis=0))
    is_better = (gain > SURE * error) | jnp.any(fall > SURE * mean_and_error(other_rows - rows)[1])
    return is_better | ~jnp.isfinite(gain + jnp.sum(other_rows))


@compiled(once=True)
def _slope_at(oracle: Oracle, z: Vector, weights: Array, first: Batch, second: Batch) -> tuple[Array, ...]:
    """How fast the Lagrangian can be lowered within the set, the error of that by the two halves, the norm of the
    objective's gradient, and the way down."""
    halves = [oracle.look_at_parts(z, half, 1) for half in (first, second)]
    nothing = jnp.zeros_like(weights)
    whole, alone = ([oracle.gradient_of(half, w).mean for half in halves] for w in (weights, nothing))
    gradient = (whole[0] + whole[1]) / 2
    steep = jnp.linalg.norm(gradient)
    short = REACHES[0] * (1 + jnp.linalg.norm(z)) / jnp.where(steep > 0, steep, 1)
    way = (oracle.prox(z - short * gradient, short) - z) / short
    noise = jnp.linalg.norm(whole[0] - whole[1]) / 2
    return jnp.linalg.norm(way), noise, jnp.linalg.norm(alone[0] + alone[1]) / 2, way


def _scatter(fresh: "FreshSamples", weights: Array, way: Vector) -> float:
    """The standard error of the slope along the way down: two halves may agree by chance where x has few entries."""
    try:
        return float(_scatter_along(fresh.oracle, fresh.point, weights, way, fresh.half(0)))
    except TypeError:  # jax.custom_vjp has no derivative along a direction
        return 0.0


@compiled(once=True)
def _scatter_along(oracle: Oracle, z: Vector, weights: Array, way: Vector, batch: Batch) -> Array:
    """From the slopes of single samples; those of objective and constraints count as if none made up for another."""
    unit = way / (jnp.linalg.norm(way) + jnp.finfo(z.dtype).tiny)
    _, (objective, residuals) = jax.jvp(lambda point: oracle.look(point, batch)[:2], (z,), (unit,))
    parts = zip(residuals, oracle.split(weights[None]), strict=True)
    slopes = [objective, *(r @ w[0] for r, w in parts)]
    return sum((jnp.std(each) / jnp.sqrt(2 * each.shape[0]) for each in slopes), start=jnp.zeros((), z.dtype))


def has_kinks(oracle: Oracle, known: Diagnosis, x: Any, key: Key[Array, ""]) -> bool:
    """Whether slopes of single samples near x change by jumps: more over a step than eight times as much as over an
    eighth of it. True where it cannot be seen: samples come from the host, or functions have a rule of their own."""
    if any(source is not None and source.from_host for source in oracle.sources):
        return True
    fresh = FreshSamples(oracle, known, x, key)
    try:
        return int(_jumps(fresh.oracle, fresh.point, fresh.half(0), fresh.key)) >= KINKED
    except TypeError:  # jax.custom_vjp has no derivative along a direction
        return True


@compiled(once=True)
def _jumps(oracle: Oracle, z: Vector, batch: Batch, key: Key[Array, ""]) -> Array:
    """How many samples show a jump along a random direction."""
    normal = jax.random.normal(key, z.shape, z.dtype)
    unit = normal / jnp.linalg.norm(normal)
    step = REACHES[0] * (1 + jnp.linalg.norm(z))

    def slopes(length: ArrayLike) -> list[Array]:
        _, (objective, residuals) = jax.jvp(lambda p: oracle.look(p, batch)[:2], (z + length * unit,), (unit,))
        return [objective[:, None], *residuals]

    def count(here: Array, near: Array, far: Array) -> Array:
        rounding = 1e3 * jnp.finfo(z.dtype).eps * (jnp.abs(here) + jnp.abs(far))
        return jnp.sum(jnp.abs(far - here) > 4 * 8 * jnp.abs(near - here) + rounding)

    return sum(map(count, slopes(0.0), slopes(step / 8), slopes(step)), start=jnp.zeros((), int))


def _of_violation(known: Diagnosis, fresh: "FreshSamples", violations: np.ndarray) -> Verdict:
    blocks, length = fresh.oracle.blocks, 1 + fresh.away
    seen = _look_around(fresh.oracle, fresh.point, fresh.half(0), fresh.half(1), fresh.key)
    left, error = np.asarray(seen.left), np.asarray(seen.error)
    size = float(np.linalg.norm(left))
    flat = [block.name for block, has in zip(blocks, seen.has_gradient, strict=True) if not has]
    rows = (np.abs(left) > SURE * error) & (np.abs(left) > STANDS * length)
    standing = [block.name for block in blocks if np.any(rows[block.rows])]
    if not standing:
        doubt = "x is no solution yet: by the run's own estimate constraints are off their bounds."
        return Verdict("budget", draws=fresh.draws, doubt=doubt if known.violated else "")
    if missing := [name for name in standing if name in flat]:
        remark = (
            f"The gradient of {_listed(missing)} is 0 on every sample, as that of a comparison, argmax or round is: "
            "give it a smooth stand-in by lx.Proxy(values, surrogate)."
        )
        return Verdict("stalled", (remark,), fresh.draws)
    names = f"Violated: {_listed(standing)}."
    slight = SLIGHT * min(1.0, size / length)
    if float(seen.slope) < slight * size and not _is_lower_elsewhere(seen, np.ones_like(left)):
        return Verdict("infeasible_stationary", (names,), fresh.draws)
    weights = _least_slope(seen, rows, slight)
    if weights is not None and not _is_lower_elsewhere(seen, weights):
        return Verdict("infeasible_stationary", (names,), fresh.draws)
    if _has_not_fallen(violations):
        return Verdict("stalled", (f"The violation has not fallen for half of the run. {names}",), fresh.draws)
    return Verdict("budget", draws=fresh.draws, doubt=f"x is no solution yet. {names}")


def _is_lower_elsewhere(seen: Around, weights: np.ndarray) -> bool:
    """The weighted violation at some point around x, beside that at x."""
    left, error, others = (np.asarray(each, float) for each in (seen.left, seen.error, seen.others))
    size, noise = (np.sqrt(np.sum(weights * each**2)) for each in (left, error))
    return bool(np.min(np.sqrt(others**2 @ weights)) < size - SURE * noise - 1e-3 * size)


def _least_slope(seen: Around, standing: np.ndarray, slight: float) -> np.ndarray | None:
    """Weights of the rows for which the violation cannot be lowered to first order; None: it can for all.

    By Farkas' lemma the linearised constraints cannot all hold if J^T y = 0 for some y with y . c > 0 that has the
    signs of the violations; where a bound holds an entry, it may take up what points outwards.
    """
    if seen.jacobian is None:
        return None
    left, size = np.asarray(seen.left, float), float(np.linalg.norm(seen.left))
    slopes = np.asarray(seen.jacobian, float)[standing] * np.sign(left[standing, None])
    side, held = np.nonzero(np.asarray(seen.held))
    if len(held) * slopes.shape[1] > MOST_HELD:
        return None
    bounds = np.zeros((len(held), slopes.shape[1]))
    bounds[np.arange(len(held)), held] = np.where(side > 0, 1.0, -1.0)
    columns = np.vstack([slopes, bounds])
    heavy, count = 1e4 * np.max(np.abs(slopes), initial=1.0), len(slopes)
    gain = np.append(np.abs(left[standing]) / size, np.zeros(len(columns) - count))
    try:
        y, _ = scipy.optimize.nnls(
            np.vstack([columns.T, heavy * gain]), np.append(np.zeros(columns.shape[1]), heavy * size)
        )
    except RuntimeError:  # it did not converge
        return None
    rest, y = y @ columns, y[:count]
    if np.linalg.norm(rest) > slight * np.linalg.norm(y) * np.linalg.norm(slopes, axis=1).max():
        return None
    weights = np.zeros_like(left)
    weights[standing] = y / np.abs(left[standing])
    return weights


@compiled(once=True)
def _look_around(oracle: Oracle, z: Vector, first: Batch, second: Batch, key: Key[Array, ""]) -> Around:
    halves = (first, second)

    def rows_at(point: Vector) -> Float[Array, "n m"]:
        return jnp.concatenate([oracle.residual_rows(point, half) for half in halves])

    def violation(values: Float[Array, " m"]) -> Float[Array, " m"]:
        return jnp.where(oracle.inequality, jnp.maximum(values, 0), values)

    # how far rows change within reach, which a unit of violation is measured by; one point at a time: x may be large
    length = 1 + jnp.linalg.norm(z)
    reach = length * jnp.repeat(jnp.asarray(REACHES, z.dtype), POINTS)

    def point_at(number: ArrayLike) -> Vector:
        direction = jax.random.normal(jax.random.fold_in(key, SAMPLES + number), z.shape, z.dtype)
        return oracle.prox(z + reach[number] * direction / jnp.linalg.norm(direction), 0.0)

    def seen_at(number: Array) -> tuple[Array, Array]:
        point = point_at(number)
        return jnp.mean(rows_at(point), axis=0), jnp.linalg.norm(point - z, keepdims=True)

    here = rows_at(z)
    mean = jnp.mean(here, axis=0)
    elsewhere, moved = jax.lax.map(seen_at, jnp.arange(reach.size))
    steep = jnp.where(moved > 0, ((elsewhere - mean) / jnp.where(moved > 0, moved, 1)) ** 2, 0)
    size = jnp.sqrt(z.size * jnp.max(jnp.mean(steep.reshape(len(REACHES), POINTS, -1), axis=1), axis=0))
    scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 1)

    # the slope of half the squared violation, with weights from the other half
    looks = [oracle.look(z, half) for half in halves]
    values = [violation(oracle.join(look.residuals)) * scale**2 for look in looks]
    slopes = [
        look.gradient(oracle.split(weights), objective=0.0) for look, weights in zip(looks, values[::-1], strict=True)
    ]
    slope = (slopes[0] + slopes[1]) / 2
    steepness = jnp.linalg.norm(slope) + jnp.finfo(z.dtype).tiny
    short = REACHES[0] * length / steepness
    within = jnp.linalg.norm(oracle.prox(z - short * slope, 0.0) - z) / short
    noise = jnp.linalg.norm(slopes[0] - slopes[1]) / 2
    near = [oracle.look(point_at(0), half) for half in halves]  # at x itself a gradient may be 0 by symmetry
    jacobian = None
    if oracle.problem.simple.separable and 0 < oracle.rows * z.size <= ENTRIES:
        jacobian = sum(oracle.jacobian(z, half) for half in halves) / 2 * scale[:, None]
    return Around(
        left=violation(mean) * scale,
        error=jnp.std(here, axis=0) / jnp.sqrt(here.shape[0]) * scale,
        slope=within + noise * jnp.minimum(1, within / steepness),
        others=jax.vmap(violation)(elsewhere) * scale,
        jacobian=jacobian,
        held=jnp.stack([oracle.prox(z + side * reach[0], 0.0) == z for side in (-1, 1)]).astype(z.dtype),
        has_gradient=_has_gradient(oracle, near),
    )


def _has_gradient(oracle: Oracle, looks: list[Look]) -> Bool[Array, " blocks"]:
    """Which constraints have a gradient in some row on some sample: by weights at random."""

    def slope(look: Look, number: int, block: Array) -> Vector:
        n = max(look.objective.shape[0], SAMPLES // 2)
        weights = jax.random.normal(jax.random.key(number), (n, oracle.rows), oracle.dtype)
        parts = oracle.split(jnp.where(oracle.layout.owners == block, weights, 0))
        return look.gradient(
            tuple(part[: r.shape[0]] for part, r in zip(parts, look.residuals, strict=True)), objective=0.0
        )

    def has_one(block: Array) -> Bool[Array, ""]:
        return jnp.any(jnp.stack([slope(look, i, block) for i, look in enumerate(looks)]) != 0)

    def moved(look: Look, number: int) -> Bool[Array, " m"]:
        """Which rows change along a random direction: all of them at once, by the transpose of the backward pass."""
        nothing = tuple(jnp.zeros_like(r) for r in look.residuals)
        at, push = jax.vjp(lambda weights: look.gradient(weights, objective=0.0), nothing)
        (changes,) = push(jax.random.normal(jax.random.key(number), at.shape, at.dtype))
        return (
            oracle.join(tuple(jnp.any(change != 0, axis=0, keepdims=True).astype(at.dtype) for change in changes)) > 0
        )

    if len(oracle.blocks) <= FEW_BLOCKS:
        return jax.lax.map(has_one, jnp.arange(len(oracle.blocks)))
    try:
        rows = jnp.any(jnp.stack([moved(look, i) for i, look in enumerate(looks)]), axis=0)
    except (TypeError, ValueError, NotImplementedError):  # a backward pass that JAX cannot differentiate
        return jnp.ones(len(oracle.blocks), bool)
    return jnp.zeros(len(oracle.blocks), bool).at[oracle.layout.owners].max(rows)


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
