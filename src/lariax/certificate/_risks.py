"""Intervals for the true probability, quantile and CVaR at a point: not for the means that a run works with.

    probability   of k events in n draws: Clopper and Pearson, exact for every n
    quantile      between two of the sorted values: exact for every n and every distribution
    CVaR          min over t of F(t) = t + E max(loss - t, 0) / (1 - level)

At a t from other samples F(t) is a mean, with Student's interval, made longer on the side of the skewness (Hall). Its
upper end is one for the CVaR, which is no more than F(t). F is convex, so that the CVaR is no less than
F(t) - |F'(t)| |t - t*|, where F'(t) = 1 - P(loss > t) / (1 - level) and t*, the quantile, have exact intervals.

Where samples have weights, probabilities are means too.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import scipy  # its parts are loaded when they are used
from lariax.certificate._certificate import Certificate, ConstraintReport, Interval
from lariax.certificate._report import holds_of
from lariax.problem import AbstractSource, Dataset
from lariax.risk import OBJECTIVE, AbstractRisk, ChanceOf, CVaR, Draws, Lift, Quantile

FEW_EVENTS = 30
"""Fewer samples in the tail than this say little about what is beyond them."""

ONE_SHARE = 0.2
"""Of the tail's sum: if one sample has more, others that were not seen may have as much."""

SIDE = 0.1
"""Of the chance to be wrong, for each of the two intervals beside that of a CVaR's mean."""


class Ends(NamedTuple):
    """An estimate and its interval, entry by entry."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Sample(NamedTuple):
    """Values of a risk's function, with weights of mean 1 where the samples have any."""

    values: np.ndarray  # n, or n x entries
    weights: np.ndarray | None
    exact: bool  # all rows there are


def with_true_risks(
    certificate: Certificate, lift: Lift, x: PyTree, draws: int, confidence: float, key: Any, on: str, numbers: int
) -> Certificate:
    """A certificate of the means, with what is true of the risks themselves in their places."""
    reports, notes, objective = dict(certificate.constraints), list(certificate.warnings), certificate.objective
    for i, (name, risk) in enumerate(lift.risks.items()):
        if not isinstance(risk, ChanceOf | CVaR | Quantile):
            continue
        sample = _sample(lift.source_of(name, on), risk.fun, x, draws, jax.random.fold_in(key, i), on == "heldout")
        ends = _ends(risk, sample, 1 - confidence, partial(lift.values, name, x, numbers))
        notes += [f"{name!r}: {word}" for word in _few(risk, sample)]
        if name == OBJECTIVE:
            objective = Interval(*(float(np.sum(part)) for part in ends)) if ends.value.size == 1 else objective
            reports.pop(OBJECTIVE, None)
            continue
        bound = np.broadcast_to(np.asarray(lift.given.constraints[name].bound, float), ends.value.shape)
        holds = holds_of(ends.value - bound, ends.low - bound, ends.high - bound, certificate.tolerance)
        reports[name] = ConstraintReport(*ends, "<=", bound, holds)
    heldout = certificate.heldout
    if heldout is not None:
        heldout = with_true_risks(heldout, lift, x, draws, confidence, key, "heldout", numbers)
    return dataclasses.replace(
        certificate, constraints=reports, objective=objective, heldout=heldout, warnings=tuple(notes)
    )


def _sample(source: AbstractSource, fun: Callable[..., Any], x: PyTree, draws: int, key: Any, fresh: bool) -> Sample:
    """`fresh`: rows of a data set are a sample of what is behind them, each to be used once."""
    look, exact = Draws(source), not fresh and isinstance(source, Dataset) and len(source) <= draws
    if isinstance(source, Dataset) and (exact or fresh):
        found = look.of_rows(fun, x, source.fetch(jnp.arange(len(source))))
    else:
        found = look.values(fun, x, key, draws)
    values, weights = (np.asarray(part, float) for part in found)
    return Sample(values, None if np.all(weights == 1) else weights, exact)


def _ends(risk: AbstractRisk, sample: Sample, alpha: float, other: Callable[[], Any]) -> Ends:
    """`other`: values on other samples."""
    if isinstance(risk, ChanceOf):
        return _probability(np.max(sample.values.reshape(len(sample.values), -1), axis=1) > 0, sample, alpha)
    alpha = alpha / max(int(np.prod(sample.values.shape[1:])), 1)
    if isinstance(risk, Quantile):
        return _quantile(sample, risk.level, alpha)
    assert isinstance(risk, CVaR)
    return _cvar(sample, risk.level, alpha, np.asarray(other(), float))


def _probability(happened: np.ndarray, sample: Sample, alpha: float) -> Ends:
    if sample.weights is not None:
        ends = _mean(sample.weights * happened, alpha)
        seen = np.any(happened, axis=0)  # an event that was not seen may have any weight
        return Ends(ends.value, np.maximum(ends.low, 0.0), np.where(seen, np.minimum(ends.high, 1.0), 1.0))
    share = np.mean(happened, axis=0)
    if sample.exact:
        return Ends(share, share, share)
    return Ends(share, *clopper_pearson(np.sum(happened, axis=0), len(happened), alpha))


def clopper_pearson(events: Any, draws: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """The exact interval of a probability.

    >>> low, high = clopper_pearson(0, 100, 0.05)  # none in a hundred: at most 1 - 0.025^(1/100)
    >>> float(low), round(float(high), 4)
    (0.0, 0.0362)
    """
    events = np.asarray(events, float)
    inverse = scipy.special.betaincinv
    low = np.where(events > 0, inverse(np.maximum(events, 1), draws - events + 1, alpha / 2), 0.0)
    high = np.where(events < draws, inverse(events + 1, np.maximum(draws - events, 1), 1 - alpha / 2), 1.0)
    return low, high


def quantile_places(draws: int, level: float, alpha: float) -> tuple[int, int]:
    """Which of the sorted values, counted from 1, are below and above a quantile: 0 and draws + 1 where none is.

    The quantile is below the r-th value if at most r - 1 values are below it, and their number is binomial.
    """
    return _binomial_place(draws, level, alpha / 2), draws + 1 - _binomial_place(draws, 1 - level, alpha / 2)


def _binomial_place(draws: int, level: float, alpha: float) -> int:
    """The largest r with P(Binomial(draws, level) < r) <= alpha."""
    counts = np.arange(draws + 1)
    return int(np.searchsorted(scipy.special.bdtr(counts, draws, level), alpha, side="right"))


def _quantile(sample: Sample, level: float, alpha: float) -> Ends:
    if sample.weights is not None:
        return _weighted_quantile(sample, level, alpha)
    ordered, n = np.sort(sample.values, axis=0), len(sample.values)
    value = ordered[min(int(np.ceil(level * n)), n) - 1]
    if sample.exact:
        return Ends(value, value, value)
    low, high = quantile_places(n, level, alpha)
    infinite = np.full_like(value, np.inf)
    return Ends(value, ordered[low - 1] if low > 0 else -infinite, ordered[high - 1] if high <= n else infinite)


def _weighted_quantile(sample: Sample, level: float, alpha: float) -> Ends:
    """Where the interval of the weighted share above a value reaches 1 - level."""
    weights = sample.weights
    assert weights is not None
    flat = sample.values.reshape(len(weights), -1)
    found = []
    for column in flat.T:
        order = np.argsort(column)[::-1]
        above = np.cumsum(weights[order]) / len(weights)
        error = scipy.special.ndtri(1 - alpha / 2) * np.sqrt(np.cumsum(weights[order] ** 2)) / len(weights)
        places = [int(np.searchsorted(np.maximum.accumulate(share), 1 - level)) for share in (above, above - error)]
        first = int(np.argmax(above + error >= 1 - level))
        values = column[order]
        found.append([values[min(i, len(values) - 1)] for i in (places[0], places[1], first)])
    return Ends(*(np.reshape(part, sample.values.shape[1:]) for part in np.transpose(found)))


def _cvar(sample: Sample, level: float, alpha: float, other: np.ndarray) -> Ends:
    if sample.exact and sample.weights is None:
        at = np.quantile(sample.values, level, axis=0, method="inverted_cdf")
        value = at + np.mean(np.maximum(sample.values - at, 0), axis=0) / (1 - level)
        return Ends(value, value, value)
    at, low, high = _quantile(Sample(other, None, False), level, SIDE * alpha)
    weights = 1.0 if sample.weights is None else sample.weights.reshape(-1, *([1] * (sample.values.ndim - 1)))
    mean = _mean(at + weights * np.maximum(sample.values - at, 0) / (1 - level), (1 - 2 * SIDE) * alpha)
    above = _probability(sample.values > at, Sample(sample.values, sample.weights, False), SIDE * alpha)
    slope = np.maximum(np.abs(1 - above.low / (1 - level)), np.abs(1 - above.high / (1 - level)))
    return mean._replace(low=mean.low - slope * np.maximum(high - at, at - low))


def _mean(values: np.ndarray, alpha: float) -> Ends:
    """Student's interval with Hall's correction for skewness, entry by entry."""
    n, mean, spread = len(values), np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
    centred = values - mean
    skew = np.mean(centred**3, axis=0) / np.where(spread > 0, spread, 1) ** 3
    student = scipy.special.stdtrit(n - 1, 1 - alpha / 2)
    ends = [mean - spread / np.sqrt(n) * _unskewed(sign * student, skew / np.sqrt(n)) for sign in (1, -1)]
    return Ends(mean, ends[0], ends[1])


def _unskewed(quantile: float, skew: np.ndarray) -> np.ndarray:
    """The t for which t + skew t^2 / 3 + skew^2 t^3 / 27 + skew / 6 is this quantile; skew: over sqrt(n)."""
    some = np.where(np.abs(skew) > 1e-8, skew, 1.0)
    return np.where(np.abs(skew) > 1e-8, 3 / some * (np.cbrt(1 + some * (quantile - some / 6)) - 1), quantile)


def _few(risk: AbstractRisk, sample: Sample) -> list[str]:
    """What may be wrong with an interval, in words."""
    if sample.exact:
        return []
    n, values = len(sample.values), sample.values.reshape(len(sample.values), -1)
    if isinstance(risk, ChanceOf):
        tail = (np.max(values, axis=1) > 0)[:, None].astype(float)
    else:
        assert isinstance(risk, CVaR | Quantile)
        tail = np.maximum(values - np.quantile(values, risk.level, axis=0), 0)
    weights = np.ones(n) if sample.weights is None else sample.weights
    least = int(np.min(np.sum(tail > 0, axis=0)))
    told = []
    if least < FEW_EVENTS:
        told.append(
            f"{least} of {n:,} samples are in the tail, too few to say much about it. Draw more, or draw such samples "
            "more often and give their weight: lx.Distribution(sampler, weight=...)."
        )
    shares = weights[:, None] * tail / np.maximum(np.sum(weights[:, None] * tail, axis=0), np.finfo(float).tiny)
    if least >= FEW_EVENTS and np.max(shares) > ONE_SHARE:
        told.append(
            f"one of {n:,} samples makes {np.max(shares):.0%} of the tail: larger ones may not have been seen, and the "
            "interval may be too short. Draw more."
        )
    return told
