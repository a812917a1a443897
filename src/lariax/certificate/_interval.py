"""Intervals for the length of R(E g), from batch means of g: the one piece of statistics behind every certificate.

Stationarity, feasibility, complementarity and the natural residual are all the length of R(mu), where mu is a mean that
is seen through samples and R is the residual of a projection: 1-Lipschitz, piecewise smooth. `docs/certificate.md`
derives what is computed here.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy import stats

REPLICATES = 2048  # sign flips behind each quantile, half of them the others the other way
KEPT_ENTRIES = 2**21  # of the deviations of R; beyond that they are made again when needed
FALSE_ALARM = 2e-3  # of the test for heavy tails, when the batch means are normal


def _margin(batches: int) -> float:
    """How much longer than Student's the intervals are, for what a limited number of sign flips cannot show."""
    return 1.02 * (1 + 1.5 / batches)


Vector = Float[Array, " p"]


class Bounds(NamedTuple):
    """An estimate, the ends of its interval, and whether the noise looked too heavy-tailed for its confidence."""

    estimate: Float[Array, "..."]
    low: Float[Array, "..."]
    high: Float[Array, "..."]
    heavy: Bool[Array, "..."]


class Level(NamedTuple):
    """A confidence level in the terms of the sign flips. Arguments of the code: other levels do not compile again."""

    tail: Any  # the quantile of the replicates that is taken at either end
    stretch: Any  # how much longer the errors of the replicates are made
    kink_tail: Any
    kink_stretch: Any
    normal: Any  # quantiles of the normal and of Student's distribution, for one mean
    student: Any
    excess: Any  # how many standard deviations the farthest of normal batch means may lie off
    rows: Any  # Student's quantile for each row of the constraints, when the rows of one name are taken together


def level(confidence: float, batches: int, entries: int, together: np.ndarray, dtype: Any) -> Level:
    """The level for a confidence, `batches` batch means, `entries` of the mean, and rows that are judged `together`.

    Quantiles beyond what a limited number of replicates can show come from longer errors instead.
    """
    if batches < 2:  # every row was seen: there are no errors to stretch
        none = np.asarray(0.0, dtype)
        return Level(none, none, none, none, none, none, none, np.zeros(together.shape, dtype))
    alpha = 1 - confidence
    normal = stats.norm.isf(alpha / 2)
    student = stats.t.isf(alpha / 2, batches - 1) * _margin(batches)
    tail = max(alpha / 2, 16 / REPLICATES)
    kink_tail = max(alpha / 2, 2 / kink_replicates(entries))
    grubbs = stats.t.isf(FALSE_ALARM / (2 * batches), max(batches - 2, 1))
    excess = (batches - 1) / np.sqrt(batches) * np.sqrt(grubbs**2 / (batches - 2 + grubbs**2))
    values = (
        tail,
        student / stats.norm.isf(tail),
        kink_tail,
        student / stats.norm.isf(kink_tail),
        normal,
        student,
        excess,
    )
    rows = stats.t.isf(alpha / (2 * together), batches - 1) * _margin(batches)
    return Level(*(np.asarray(value, dtype) for value in (*values, rows)))


def kink_replicates(entries: int) -> int:
    return int(np.clip(2**22 // max(entries, 1), 32, 256))


def length_interval(
    means: Float[Array, "k p"], residual: Callable[[Vector], Vector], at: Level, *, kinks: bool
) -> Bounds:
    """The interval for || R(mu) ||, from k independent batch means of mu; a single one is exact.

    With e the error of the overall mean, u the direction of R there and R' its derivative,

        T = ||R||^2 - (its noise)  =  s^2 + 2 s A + B,     A = <u, R' e>,   B = ||R' e||^2 - (its mean)

    is the unbiased squared length from all pairs of different batches. Flipping the signs of the batches' deviations
    gives the joint law of (A, B), and each flip the s that explains T: the ends are quantiles of these. `kinks` says
    that R may bend within the error of the mean; how much it bends is measured there and given away at both ends.
    """
    k = means.shape[0]
    mean = jnp.mean(means, axis=0)
    value, derivative = jax.linearize(residual, mean)
    length = _norm(value)
    if k == 1 or not means.shape[1]:
        return Bounds(length, length, length, jnp.asarray(False))
    slope = _slope(residual, derivative, means, mean) if kinks else derivative
    gram, along = _products(means, mean, slope, value / jnp.where(length > 0, length, 1))
    signs = _signs(k).astype(means.dtype)

    own = jnp.diag(gram)
    squared = length**2 - jnp.sum(own) / (k * (k - 1))
    scale = at.stretch / float(np.sqrt(k * (k - 1)))
    first = scale * (signs @ along)
    second = scale**2 * jnp.sum((signs @ _pairs(gram)) * signs, axis=1)
    first, second = jnp.concatenate([first, -first]), jnp.concatenate([second, second])  # and all signs the other way
    lengths = jnp.maximum(jnp.sqrt(jnp.maximum(first**2 + squared - second, 0)) - first, 0)
    lower, low, high = jnp.quantile(lengths, jnp.stack([at.tail / 2, at.tail, 1 - at.tail]))
    if kinks:  # within reach of one, the noise has had a say in which face R sees: the lower end is more careful then
        less, more = _bends(residual, slope, value, means, mean, signs, at)
        careful = jnp.where(less + more > jnp.finfo(means.dtype).eps * 64 * high**2, lower, low)
        low, high = jnp.sqrt(jnp.maximum(careful**2 - less, 0)), jnp.sqrt(high**2 + more)
    rounding = 64 * jnp.finfo(means.dtype).eps * jnp.max(jnp.abs(means))
    down, up, heavy = _tails(jnp.where(jnp.max(jnp.abs(along)) > rounding, along, 0), at)
    low, high = jnp.maximum(low - down, 0), high + up
    return Bounds(jnp.clip(jnp.sqrt(jnp.maximum(squared, 0)), low, high), low, high, heavy)


def mean_intervals(means: Float[Array, "k m"], at: Level) -> Bounds:
    """An interval for each entry of the mean, by Student's distribution over the batches; a single batch is exact."""
    k = means.shape[0]
    mean = jnp.mean(means, axis=0)
    if k == 1:
        return Bounds(mean, mean, mean, jnp.zeros(mean.shape, bool))
    deviations = means - mean
    half = at.rows * jnp.sqrt(jnp.sum(deviations**2, axis=0) / (k * (k - 1)))
    down, up, heavy = jax.vmap(lambda column: _tails(column, at), in_axes=1)(deviations)
    return Bounds(mean, mean - half - down, mean + half + up, heavy)


def _norm(vector: Vector) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(vector**2))


@cache
def _flips(k: int) -> np.ndarray:
    return np.random.default_rng(k).choice(np.array([-1, 1], np.int8), (REPLICATES // 2, k))


def _signs(k: int) -> Array:
    return jnp.asarray(_flips(k))


def _pairs(gram: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """What pairs of different batches have in common beyond the mean, free of what a batch shares with itself.

    The products of deviations from the overall mean, centred so that the diagonal plays no part.
    """
    k = gram.shape[0]
    own = jnp.diag(gram)
    centred = gram + (own[:, None] + own) / max(k - 2, 1) - jnp.sum(own) / ((k - 1) * max(k - 2, 1))
    return centred - jnp.diag(jnp.diag(centred))


def _slope(
    residual: Callable[[Vector], Vector],
    derivative: Callable[[Vector], Vector],
    means: Float[Array, "k p"],
    mean: Vector,
) -> Callable[[Vector], Vector]:
    """R' of a deviation; where it is not finite (coinciding singular values), a secant as long as the error."""
    if "svd" not in str(jax.make_jaxpr(residual)(mean)):
        return derivative
    root = float(np.sqrt(means.shape[0]))
    smooth = jnp.all(jnp.isfinite(derivative(means[0] - mean)))

    def secant(deviation: Vector) -> Vector:
        return (residual(mean + deviation / root) - residual(mean - deviation / root)) * (root / 2)

    return lambda deviation: jax.lax.cond(smooth, derivative, secant, deviation)


def _products(
    means: Float[Array, "k p"], mean: Vector, slope: Callable[[Vector], Vector], direction: Vector
) -> tuple[Float[Array, "k k"], Float[Array, " k"]]:
    """The products of the deviations of R with each other, and with a direction; for large x without keeping them."""
    if means.size <= KEPT_ENTRIES:
        spread = jax.lax.map(lambda batch: slope(batch - mean), means)
        return jnp.matmul(spread, spread.T, precision="highest"), spread @ direction

    def products(batch: Vector) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        own = slope(batch - mean)
        return jax.lax.map(lambda other: jnp.sum(own * slope(other - mean)), means), jnp.sum(own * direction)

    return jax.lax.map(products, means)


def _bends(
    residual: Callable[[Vector], Vector],
    slope: Callable[[Vector], Vector],
    value: Vector,
    means: Float[Array, "k p"],
    mean: Vector,
    signs: Float[Array, "r k"],
    at: Level,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """By how much ||R||^2 falls short of its linearisation, or exceeds it, within the error of the mean."""
    k, p = means.shape
    some = signs[: kink_replicates(p) // 2]

    def bend(weights: Float[Array, " k"]) -> Float[Array, ""]:
        scaled = weights * (at.kink_stretch / float(np.sqrt(k * (k - 1))))
        error = jnp.matmul(scaled, means, precision="highest") - jnp.sum(scaled) * mean
        return jnp.sum(residual(mean + error) ** 2) - jnp.sum((value + slope(error)) ** 2)

    bent = jax.lax.map(bend, jnp.concatenate([some, -some]), batch_size=16 if p <= 2**12 else None)
    least, most = jnp.quantile(bent, jnp.stack([at.kink_tail, 1 - at.kink_tail]))
    return jnp.maximum(-least, 0), jnp.maximum(most, 0)


def _tails(along: Float[Array, " k"], at: Level) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, ""]]:
    """What skewed and heavy-tailed noise adds below and above, and whether the tails are beyond that.

    Johnson's correction of Student's statistic for skewness, on the side that it lengthens; and twice what the farthest
    batch has moved the mean beyond what the farthest of normal ones would: about as much is likely to be unseen.
    """
    k = along.shape[0]
    deviation = jnp.sqrt(jnp.sum(along**2) / (k - 1))
    safe = jnp.where(deviation > 0, deviation, 1)
    shift = jnp.mean((along / safe) ** 3) * (1 + 2 * at.normal**2) / (6 * k) * deviation
    farthest = jnp.max(jnp.abs(along))
    unseen = 2 * jnp.maximum(farthest - 3.2 * deviation, 0) / k
    return jnp.maximum(-shift, 0) + unseen, jnp.maximum(shift, 0) + unseen, farthest > at.excess * deviation
