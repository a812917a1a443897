"""When noise and curvature are measured, when refreshes are due, how fast running means forget, and how theta moves."""

from typing import Any

from lariax.tuned.constants import (
    CURVATURE_CATCH_UP,
    EARLY,
    EARLY_NOISE,
    FIRST_WINDOW,
    GROWTH,
    INTERVALS,
    KAPPA,
    LEAST_THETA,
    MOST_SIGNAL,
    NOISE_CATCH_UP,
    REFRESH_GROWTH,
    THETA_RATE,
    WINDOW,
)


def rate_at(xp: Any, k: Any) -> Any:
    """The rate of running means at iteration k."""
    return 1 / xp.minimum(FIRST_WINDOW + k / GROWTH, WINDOW)


def interval_at(xp: Any, k: Any) -> Any:
    """How many iterations apart noise, drift and curvature are measured."""
    interval = 1
    for start, longer in INTERVALS.items():
        interval = xp.where(k < start, interval, longer)
    return interval


def curvature_rate_at(xp: Any, k: Any) -> Any:
    """The rate of running means of drift and curvature, of which there is one measurement an interval."""
    return xp.minimum(1, rate_at(xp, k) * xp.minimum(interval_at(xp, k), CURVATURE_CATCH_UP))


def noise_rate_at(xp: Any, k: Any) -> Any:
    """Likewise for the noise of the gradient."""
    return rate_at(xp, k) * xp.minimum(interval_at(xp, k), NOISE_CATCH_UP)


def next_refresh(xp: Any, iteration: Any, start: int, window: int) -> Any:
    """A quarter further on, at the end of a window of places. Iteration k has place k + start - 1."""
    place = iteration + start - 1 + xp.maximum(iteration // REFRESH_GROWTH, 1)
    return (place // window + 1) * window - start


def allowed_drift(xp: Any, k: Any, signal: Any) -> Any:
    """How much of the noise that averaging leaves a step may add, given how far what it follows stands out."""
    return KAPPA * (1 + EARLY_NOISE / (1 + k / EARLY)) * xp.minimum(xp.maximum(signal, 1), MOST_SIGNAL)


def next_theta(xp: Any, theta: Any, too_long: Any, rate: Any) -> Any:
    """theta after a step that was, or was not, too long."""
    change = xp.minimum(THETA_RATE, rate / 2)
    return xp.minimum(xp.maximum(theta * xp.where(too_long, 1 - change, 1 + change), LEAST_THETA), 1)
