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
from jaxtyping import Array, Bool, Float, Int

import scipy  # its parts are loaded when they are used
from lariax.certificate._spread import BatchMeans, Vector

REPLICATES = 2048  # sign flips behind each quantile, half of them the others the other way
FALSE_ALARM = 2e-3  # of the test for heavy tails, when the batch means are normal


def _margin(batches: int) -> float:
    """How much longer than Student's the intervals are, for what a limited number of sign flips cannot show."""
    return 1.02 * (1 + 1.5 / batches)


class Intervals(NamedTuple):
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
    normal = -scipy.special.ndtri(alpha / 2)
    student = -scipy.special.stdtrit(batches - 1, alpha / 2) * _margin(batches)
    tail = max(alpha / 2, 16 / REPLICATES)
    kink_tail = max(alpha / 2, 2 / kink_replicates(entries))
    grubbs = -scipy.special.stdtrit(max(batches - 2, 1), FALSE_ALARM / (2 * batches))
    excess = (batches - 1) / np.sqrt(batches) * np.sqrt(grubbs**2 / (batches - 2 + grubbs**2))
    values = (
        tail,
        student / -scipy.special.ndtri(tail),
        kink_tail,
        student / -scipy.special.ndtri(kink_tail),
        normal,
        student,
        excess,
    )
    rows = -scipy.special.stdtrit(batches - 1, alpha / (2 * together)) * _margin(batches)
    return Level(*(np.asarray(value, dtype) for value in (*values, rows)))


def kink_replicates(entries: int) -> int:
    return int(np.clip(2**22 // max(entries, 1), 32, 256))


class Errors(NamedTuple):
    """|| R || at the mean of k batches, and all that intervals need to know of its error. Arrays of few entries."""

    length: Float[Array, ""]
    gram: Float[Array, "k k"]  # products of the batches' deviations of R with each other,
    along: Float[Array, " k"]  # and with the direction of R
    less: Float[Array, ""]  # how much ||R||^2 may fall short of its linearisation,
    more: Float[Array, ""]  # or exceed it


def errors(spread: BatchMeans, residual: Callable[[Vector], Vector], at: Level, *, kinks: bool) -> Errors:
    """What is seen of R at the mean; where it may bend within the error of the mean (`kinks`), by how much it does."""
    k, mean = spread.batches, spread.mean
    value, derivative = jax.linearize(residual, mean)
    length, none = _norm(value), jnp.zeros((), mean.dtype)
    if k == 1 or not mean.size:
        return Errors(length, jnp.zeros((k, k), mean.dtype), jnp.zeros(k, mean.dtype), none, none)
    slope = _slope(residual, derivative, spread) if kinks else derivative
    gram, along = _products(spread, slope, value)
    along = along / jnp.where(length > 0, length, 1)
    less, more = _bends(residual, length, gram, along, spread, at) if kinks else (none, none)
    return Errors(length, gram, jnp.where(jnp.max(jnp.abs(along)) > _rounding(spread), along, 0), less, more)


def interval(seen: Errors, at: Level) -> Intervals:
    """With e the error of the overall mean, u the direction of R there and R' its derivative,

        T = ||R||^2 - (its noise)  =  s^2 + 2 s A + B,     A = <u, R' e>,   B = ||R' e||^2 - (its mean)

    is the unbiased squared length from all pairs of different batches. Flipping the signs of the batches' deviations
    gives the joint law of (A, B), and each flip the s that explains T: the ends are quantiles of these. What R bends is
    given away at both ends.
    """
    length, gram, along, less, more = seen
    k, dtype = gram.shape[0], length.dtype
    if k == 1:
        return Intervals(length, length, length, jnp.asarray(False))
    signs = _signs(k).astype(dtype)
    squared = length**2 - jnp.trace(gram) / (k * (k - 1))
    scale = at.stretch / float(np.sqrt(k * (k - 1)))
    first = scale * (signs @ along)
    second = scale**2 * jnp.sum((signs @ _pairs(gram)) * signs, axis=1)
    first, second = jnp.concatenate([first, -first]), jnp.concatenate([second, second])  # and all signs the other way
    lengths = jnp.maximum(jnp.sqrt(jnp.maximum(first**2 + squared - second, 0)) - first, 0)
    lower, low, high = jnp.quantile(lengths, jnp.stack([at.tail / 2, at.tail, 1 - at.tail]))
    # within reach of a kink, the noise has had a say in which face R sees: the lower end is more careful then
    careful = jnp.where(less + more > jnp.finfo(dtype).eps * 64 * high**2, lower, low)
    low, high = jnp.sqrt(jnp.maximum(careful**2 - less, 0)), jnp.sqrt(high**2 + more)
    down, up, heavy = _tails(along, at)
    low, high = jnp.maximum(low - down, 0), high + up
    return Intervals(jnp.clip(jnp.sqrt(jnp.maximum(squared, 0)), low, high), low, high, heavy)


def mean_intervals(means: Float[Array, "k m"], at: Level) -> Intervals:
    """An interval for each entry of the mean, by Student's distribution over the batches; a single batch is exact."""
    k = means.shape[0]
    mean = jnp.mean(means, axis=0)
    if k == 1:
        return Intervals(mean, mean, mean, jnp.zeros(mean.shape, bool))
    deviations = means - mean
    half = at.rows * jnp.sqrt(jnp.sum(deviations**2, axis=0) / (k * (k - 1)))
    down, up, heavy = jax.vmap(lambda column: _tails(column, at), in_axes=1)(deviations)
    return Intervals(mean, mean - half - down, mean + half + up, heavy)


def _rounding(spread: BatchMeans) -> Float[Array, ""]:
    """Below which a deviation is none."""
    return 64 * jnp.finfo(spread.mean.dtype).eps * (jnp.max(jnp.abs(spread.mean)) + spread.largest)


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
    residual: Callable[[Vector], Vector], derivative: Callable[[Vector], Vector], spread: BatchMeans
) -> Callable[[Vector], Vector]:
    """R' of a deviation; where it is not finite (coinciding singular values), a secant as long as the error."""
    mean = spread.mean
    if "svd" not in str(jax.make_jaxpr(residual)(mean)):
        return derivative
    root = float(np.sqrt(spread.batches))
    smooth = jnp.all(jnp.isfinite(derivative(spread.contrast(jnp.asarray(0)))))

    def secant(deviation: Vector) -> Vector:
        return (residual(mean + deviation / root) - residual(mean - deviation / root)) * (root / 2)

    return lambda deviation: jax.lax.cond(smooth, derivative, secant, deviation)


def _products(
    spread: BatchMeans, slope: Callable[[Vector], Vector], direction: Vector
) -> tuple[Float[Array, "k k"], Float[Array, " k"]]:
    """The products of the deviations of R with each other, and with a direction; for large x without keeping them."""
    numbers = jnp.arange(spread.batches - 1)
    if not spread.is_short:
        moved = jax.lax.map(slope, spread.contrasts)
        gram, along = jnp.matmul(moved, moved.T, precision="highest"), moved @ direction
    else:

        def products(j: Int[Array, ""]) -> Float[Array, " k-1"]:
            own = slope(spread.contrast(j))
            return jax.lax.map(lambda other: jnp.sum(own * slope(spread.contrast(other))), numbers)

        along = jax.lax.map(lambda j: jnp.sum(slope(spread.contrast(j)) * direction), numbers)
        gram = jax.lax.map(products, numbers)
    mixed = jnp.matmul(spread.mixing, gram, precision="highest")
    return jnp.matmul(mixed, spread.mixing.T, precision="highest"), spread.mixing @ along


def _bends(
    residual: Callable[[Vector], Vector],
    length: Float[Array, ""],
    gram: Float[Array, "k k"],
    along: Float[Array, " k"],
    spread: BatchMeans,
    at: Level,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """By how much ||R||^2 falls short of its linearisation, or exceeds it, within the error of the mean."""
    k, p = spread.batches, spread.mean.size
    some = _signs(k)[: kink_replicates(p) // 2] * (jnp.asarray(at.kink_stretch) / float(np.sqrt(k * (k - 1))))
    flips = jnp.concatenate([some, -some])
    linear = length**2 + 2 * length * (flips @ along) + jnp.sum((flips @ gram) * flips, axis=1)
    seen = jax.lax.map(
        lambda weights: jnp.sum(residual(spread.mean + spread.deviation(weights)) ** 2),
        flips,
        batch_size=16 if p <= 2**12 else None,
    )
    least, most = jnp.quantile(seen - linear, jnp.stack([at.kink_tail, 1 - at.kink_tail]))
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
