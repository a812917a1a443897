"""STORM's momentum as the gain of a Kalman filter whose noises are measured."""

from typing import Any, NamedTuple

_LEAST = 1e-37  # keeps 0 / 0 away, in single precision too


class Filter(NamedTuple):
    """What is known of one tracked estimate (or, entry by entry, of several)."""

    error: Any  # P, the variance of its error
    noise: Any  # R, the variance of a fresh measurement
    drift: Any  # Q, the variance of a same-sample difference
    innovation: Any  # S, the mean square of measurement minus estimate

    @classmethod
    def fresh(cls, noise: Any) -> "Filter":
        """Of an estimate that is a single measurement."""
        return cls(error=noise, noise=noise, drift=0 * noise, innovation=2 * noise)


def gain(filter: Filter) -> Any:
    """The best momentum, alpha = (P + Q) / (P + Q + R); 1 where nothing is random.

    >>> gain(Filter(error=1.0, noise=3.0, drift=0.0, innovation=0.0))
    0.25
    """
    before = filter.error + filter.drift + _LEAST
    return before / (before + filter.noise)


def updated(filter: Filter, alpha: Any, rate: Any, *, noise: Any, drift: Any, innovation: Any) -> Filter:
    """The filter after a step with gain alpha; R and Q are running means, a new measurement of S enters one.

        P <- (1 - alpha)^2 (P + Q) + alpha^2 R

    An innovation far above what the noise explains, S > 3 R + P, says that the estimate is lost: P is raised to it.
    """
    innovation = lagged(filter.innovation, innovation, rate)
    error = larger(filter.error, innovation - 3 * noise)
    return Filter((1 - alpha) ** 2 * (error + drift) + alpha**2 * noise, noise, drift, innovation)


def lagged(old: Any, new: Any, rate: Any) -> Any:
    """A running mean that takes in `new` at the given rate."""
    return old + rate * (new - old)


def larger(a: Any, b: Any) -> Any:
    """The maximum, in arithmetic that every array library has."""
    return a + (b - a) * (b > a)
