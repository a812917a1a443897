"""Units of the variables: scales in which the curvature is about the same in all of them.

The answer must not depend on the units that x is written in. So the method moves in z = x / s, and s changes as x does
when units change: every formula here sees curvature and gradient in z alone. Scales are powers of 2: measured with some
noise, they come out the same again, and no digit is lost.

`xp` is the array library that the arguments belong to, in NumPy's terms.
"""

from typing import Any, NamedTuple

QUANTUM = 2.0
"""Scales are powers of this, beside a common one: entries that are within a factor of 1.4 of the mean are alike."""

ROUNDS = 4
"""Rounds of balancing at the start, each from what the one before it left: errors of 1e6 are gone after three."""

OFF = 3.0
"""Later on, a scale is changed only if it is off by more than this: every change disturbs what is averaged."""


class Curved(NamedTuple):
    """What some batches show at a point of the curvature of the Lagrangian, entry by entry, in z."""

    rows: Any  # squares of the norms of the rows of the Hessian
    slopes: Any  # mean squares of a batch's gradient
    noise: Any  # and their variances
    largest: Any  # about the largest eigenvalue of the Hessian, and not above it

    @classmethod
    def flat(cls, slopes: Any) -> "Curved":
        """Of slopes alone."""
        return cls(0 * slopes, slopes, 0 * slopes, 0 * slopes[0])


def first_scales(xp: Any, slopes: Any) -> Any:
    """1 / rms of the gradient, entry by entry; for entries that no sample has moved, the smallest of the others."""
    return _where_seen(xp, slopes > 0, 1 / xp.sqrt(slopes + xp.finfo(slopes.dtype).tiny))


def balanced(xp: Any, scales: Any, rows: Any, slopes: Any) -> Any:
    """One round of balancing the rows of the curvature, whose squared norms are `rows`; `slopes` is the mean square of
    the gradient. An entry without curvature gets a gradient as large as the largest."""
    tiny = xp.finfo(rows.dtype).tiny
    curved = xp.max(rows) > 0
    curvature = xp.sqrt(rows / (xp.max(rows) + tiny)) * curved + slopes / (xp.max(slopes) + tiny)
    return _where_seen(xp, curvature > 0, scales / xp.sqrt(curvature + tiny))


def natural_length(xp: Any, scales: Any, rows: Any, slopes: Any, z: Any) -> Any:
    """How far the run may have to go in z: the length of a Newton step, or that of z; else scales have mean 1."""
    curvature = xp.sqrt(xp.max(rows))
    newton = xp.where(curvature > 0, xp.sqrt(xp.sum(slopes)) / (curvature + xp.finfo(rows.dtype).tiny), 0.0)
    length = xp.maximum(newton, xp.sqrt(xp.sum(z**2)))
    return xp.where(length > 0, length, xp.exp(-xp.mean(xp.log(scales))))


def rounded(xp: Any, scales: Any, length: Any) -> Any:
    """Powers of 2, for which the run has a length of about 1 before it. What is lost by rounding is about the same
    for all (a circular mean of the exponents' fractions), so that scales which differ by powers of 2 go on to."""
    turns, round_turn = xp.log(scales) / xp.log(QUANTUM), 2 * xp.pi
    phase = xp.arctan2(xp.mean(xp.sin(round_turn * turns)), xp.mean(xp.cos(round_turn * turns))) / round_turn
    return QUANTUM ** xp.round(turns - phase) * QUANTUM ** xp.round(phase + xp.log(length) / xp.log(QUANTUM))


def rescaled_entries(xp: Any, rows: Any) -> Any:
    """By what to multiply scales at which the rows of the curvature have squared norms `rows`: mostly by 1."""
    tiny = xp.finfo(rows.dtype).tiny
    curved = rows > 0
    usual = xp.sum(xp.where(curved, xp.log(rows + tiny), 0)) / xp.maximum(xp.sum(curved), 1)
    ratio = xp.where(curved, (usual - xp.log(rows + tiny)) / 4, 0)
    return xp.where(abs(ratio) > xp.log(OFF), QUANTUM ** xp.round(ratio / xp.log(QUANTUM)), 1.0)


def growths(xp: Any, change: Any, seen: Curved) -> tuple[Any, Any]:
    """What the noise of gradients, and the curvature, is multiplied by where scales are multiplied by `change`."""

    def ratio(new: Any, old: Any) -> Any:
        return xp.where(old > 0, new / xp.where(old > 0, old, 1), xp.mean(change**2))

    rows = xp.sqrt(seen.rows)
    noise = ratio(xp.sum(change**2 * seen.noise), xp.sum(seen.noise))
    return noise, ratio(xp.max(change**2 * rows), xp.max(rows))


def _where_seen(xp: Any, seen: Any, scales: Any) -> Any:
    least = xp.min(xp.where(seen, scales, xp.inf))
    return xp.where(seen, scales, xp.where(xp.isfinite(least), least, 1.0))
