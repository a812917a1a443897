"""STORM's momentum as the gain of a Kalman filter whose noises are measured."""

from typing import Any, NamedTuple

from lariax.tuned.constants import LOST, OUTLIER

_LEAST = 1e-37  # keeps 0 / 0 away, in single precision too


class Filter(NamedTuple):
    """What is known of one tracked estimate (or, entry by entry, of several)."""

    error: Any  # P, the variance of its error
    noise: Any  # R, the variance of a fresh measurement
    drift: Any  # Q, the variance of a same-sample difference
    innovation: Any  # S, the mean square of measurement minus estimate

    @classmethod
    def first(cls, noise: Any) -> "Filter":
        """Of an estimate that is a single measurement."""
        return cls(error=noise, noise=noise, drift=0 * noise, innovation=2 * noise)

    def scaled(self, factor: Any) -> "Filter":
        """Of an estimate whose square is `factor` times as large."""
        return Filter(*(value * factor for value in self))


def gain(filter: Filter) -> Any:
    """The best momentum, alpha = (P + Q) / (P + Q + R); 1 where nothing is random.

    >>> gain(Filter(error=1.0, noise=3.0, drift=0.0, innovation=0.0))
    0.25
    """
    before = filter.error + filter.drift + _LEAST
    return before / (before + filter.noise)


def gain_at(filter: Filter, k: Any, exponent: Any = None) -> Any:
    """The gain in iteration k: the best one, or (k + 1)^-exponent."""
    return gain(filter) if exponent is None else (k + 1) ** -exponent + 0 * filter.error


def updated(filter: Filter, alpha: Any, rate: Any, *, noise: Any, drift: Any, innovation: Any) -> Filter:
    """The filter after a step with gain alpha; R and Q are running means, a new measurement of S enters one.

        P <- (1 - alpha)^2 (P + Q) + alpha^2 R

    An innovation far above what the noise explains, S > 3 R + P, says that the estimate is lost: P is raised to it.
    """
    innovation = running_mean(filter.innovation, innovation, rate)
    error = _larger(filter.error, innovation - LOST * noise)
    return Filter((1 - alpha) ** 2 * (error + drift) + alpha**2 * noise, noise, drift, innovation)


def clipped_innovation(xp: Any, filter: Filter, innovation: Any) -> Any:
    """Cut off at ten times what is expected: an estimate is lost when many batches say so, not when one does."""
    return xp.minimum(innovation, OUTLIER * (filter.error + filter.noise))


def running_mean(old: Any, new: Any, rate: Any) -> Any:
    """The mean with `new` taken in at the given rate."""
    return old + rate * (new - old)


def variance_of_mean(xp: Any, parts: Any, mean: Any = None) -> Any:
    """Of independent parts, entry by entry: sum (part - mean)^2 / (n (n - 1))."""
    n, mean = parts.shape[0], xp.mean(parts, axis=0) if mean is None else mean
    return xp.sum((parts - mean) ** 2, axis=0) / (n * (n - 1))


def _larger(a: Any, b: Any) -> Any:
    """The maximum, in arithmetic that every array library has."""
    return a + (b - a) * (b > a)
