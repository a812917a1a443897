"""Units of the variables: scales in which the curvature is about the same in all of them.

The answer must not depend on the units that x is written in. So the method moves in z = x / s, and s changes as x does
when units change: every formula here sees curvature and gradient in z alone.
"""

from typing import Any, NamedTuple

from lariax.tuned.constants import (
    BALANCING_ROUNDS,
    DIAGONAL_FALL,
    DIAGONAL_LOOKS,
    FLAT_DIAGONAL,
    FLAT_SLOPE,
    HELD_PULL,
    RARE,
    SILENT,
    STEEP,
    UNIT_OFF,
)

LAST_TURN = BALANCING_ROUNDS + 1


class HessianEstimate(NamedTuple):
    """What some batches show at a point of the Lagrangian's Hessian and gradient, entry by entry, in z."""

    diagonal: Any  # of the Hessian, without signs
    slopes: Any  # mean squares of the gradient,
    noise: Any  # and variances
    largest: Any  # about the largest eigenvalue of the Hessian, and not above it
    pull: Any = 0.0  # of the constraints: sums of squares of their gradients, each of length 1; 0: not looked at

    @classmethod
    def flat(cls, slopes: Any) -> "HessianEstimate":
        """Of slopes alone."""
        return cls(0 * slopes, slopes, 0 * slopes, 0 * slopes[0])


def pull_of(xp: Any, jacobian: Any) -> Any:
    """Entry by entry, from J in z."""
    squares = jacobian**2
    return xp.sum(squares / (xp.sum(squares, axis=1, keepdims=True) + xp.finfo(jacobian.dtype).tiny), axis=0)


def diagonal_of(xp: Any, directions: Any, products: Any, largest: Any) -> Any:
    """The diagonal of |H| from products with random signs, `directions` (or with all axes).

    v * H v has the diagonal for its mean, and much noise where H is far from diagonal. But |H| has a diagonal between
    (H^2)_ii / ||H|| and the root of (H^2)_ii, whose noise is small.
    """
    squares = xp.sum(products**2, axis=0)
    rows = xp.sqrt(squares)
    least = xp.minimum(squares / (largest + xp.finfo(squares.dtype).tiny), rows)
    return xp.clip(abs(xp.sum(directions * products, axis=0)), least, rows)


# --- the start


def next_scales(xp: Any, turn: Any, scales: Any, seen: HessianEstimate, z: Any) -> Any:
    """Scales after turn 0, 1, ..., LAST_TURN: from gradients, then balanced, then for a run of length 1."""
    return xp.select(
        [turn == 0, turn < LAST_TURN, turn == LAST_TURN],
        [
            first_scales(xp, seen.slopes),
            balanced(xp, scales, seen),
            scales * natural_length(xp, scales, seen, z),
        ],
        scales,
    )


def first_scales(xp: Any, slopes: Any) -> Any:
    """1 / rms of the gradient, entry by entry; where that is 0 or rounding, the smallest of the others."""
    info = xp.finfo(slopes.dtype)
    return _where_seen(xp, slopes > (FLAT_SLOPE * info.eps) ** 2 * xp.max(slopes), 1 / xp.sqrt(slopes + info.tiny))


def balanced(xp: Any, scales: Any, seen: HessianEstimate) -> Any:
    """One round of making the diagonal of the curvature equal.

    Entries with no curvature to go by have gradients as noisy as the others are on the average, or, without noise, as
    large. Without a gradient either they have the smallest scale. Where nothing is curved, as in a linear program, the
    penalty will be, and constraints are to pull equally at all entries.
    """
    diagonal, slopes, noise, _, pull = seen
    tiny = xp.finfo(slopes.dtype).tiny
    curved = diagonal > FLAT_DIAGONAL * xp.finfo(slopes.dtype).eps * xp.max(diagonal)  # the rest is rounding
    jacobi = scales / xp.sqrt(xp.where(curved, diagonal / (xp.max(diagonal) + tiny), 1))

    def levelled(force: Any) -> tuple[Any, Any]:
        """Scales for which all have the same force, and for whom theirs would be out of proportion otherwise."""
        then = force * (jacobi / scales) ** 2
        known = (force > 0) & (curved | ~xp.any(curved))
        level = xp.exp(xp.sum(xp.where(known, xp.log(then + tiny), 0)) / xp.maximum(xp.sum(known), 1))
        return scales * xp.sqrt(level / (force + tiny)), curved & (then > STEEP**2 * level)

    has_noise = noise > SILENT * slopes
    by_noise, loud = levelled(xp.where(has_noise, noise, 0))
    by_slope, steep = levelled(slopes)
    by_pull, _ = levelled(pull + 0 * slopes)
    pulled = (pull > 0) & ~xp.any(curved)
    rest = xp.where(pulled, by_pull, xp.where(has_noise, by_noise, by_slope))
    known = curved | (slopes > 0) | pulled
    return _where_seen(xp, known, xp.where(curved & ~xp.where(has_noise, loud, steep), jacobi, rest))


def natural_length(xp: Any, scales: Any, seen: HessianEstimate, z: Any) -> Any:
    """How far the run may have to go in z: the length of a Newton step, or that of z; else scales have mean 1. Rounded
    to a power of 2."""
    curvature = xp.max(seen.diagonal)
    tiny = xp.finfo(z.dtype).tiny
    newton = xp.where(curvature > 0, xp.sqrt(xp.sum(seen.slopes)) / (curvature + tiny), 0.0)
    length = xp.maximum(newton, xp.sqrt(xp.sum(z**2)))
    length = xp.where(length > 0, length, xp.exp(-xp.mean(xp.log(scales))))
    return 2.0 ** xp.round(xp.log2(length))


# --- refreshes


def adam_change(xp: Any, metric: Any, slopes: Any, tiny: Any) -> Any:
    """By what to multiply scales to get halfway to Adam's, so that one noisy look does not decide.

    A step divided by the root mean square of each entry of the gradient is an ordinary one in z = x / metric with
    metric^2 = 1 / rms.
    """
    rms = xp.sqrt(slopes) / metric
    mean = xp.mean(rms)
    wanted = xp.sqrt(mean / (rms + RARE * mean + tiny))
    return xp.sqrt(wanted / metric)


def average_diagonal(xp: Any, before: Any, seen: Any) -> Any:
    """The diagonal of the curvature, averaged over the last looks at it; a look that shows none tells nothing."""
    new = xp.minimum(before, DIAGONAL_FALL * seen) * (1 - 1 / DIAGONAL_LOOKS) + seen / DIAGONAL_LOOKS
    return xp.where(seen > 0, new, before)


def next_units(
    xp: Any, before: Any, seen: Any, held: Any, pressing: tuple[Any, Any], kinked: Any = None
) -> tuple[Any, Any]:
    """The diagonal averaged with another look, in units that fit it; and by what to multiply scales.

    `held`: entries that stay at a bound, if there are bounds; `pressing`: weights of the constraints, and J.
    """
    diagonal, (weights, jacobian) = average_diagonal(xp, before, seen), pressing
    change = unit_change(xp, diagonal, diagonal < 0 if held is None else held, kinked)
    if held is not None and jacobian.shape[0]:  # an entry without curvature would not grow again
        rows = xp.where((weights != 0)[:, None], jacobian, 0)
        change = xp.where(diagonal > 0, xp.minimum(change, most_growth(xp, rows, held)), change)
    return diagonal * change**2, change


def unit_change(xp: Any, diagonal: Any, held: Any, kinked: Any = None) -> Any:
    """By what to multiply scales at which the curvature has this diagonal: mostly by 1, and by no more than 2, since
    little curvature may be chance. What is usual is what entries have that no bound holds, if there are any. At kinks
    nothing is disturbed by a change, since averages go with it: scales follow more closely, and no faster down than up.
    """
    tiny = xp.finfo(diagonal.dtype).tiny
    curved = diagonal > 0
    counts = curved & ~(held & xp.any(curved & ~held))
    usual = xp.sum(xp.where(counts, xp.log(diagonal + tiny), 0)) / xp.maximum(xp.sum(counts), 1)
    ratio = xp.where(curved, (usual - xp.log(diagonal + tiny)) / 2, 0)
    change = xp.where(abs(ratio) > xp.log(UNIT_OFF), 2.0 ** xp.minimum(xp.round(ratio / xp.log(2.0)), 1), 1.0)
    if kinked is None:
        return change
    close = 2.0 ** (xp.clip(xp.round(2 * ratio / xp.log(2.0)), -2, 2) / 2)
    return xp.where(kinked, xp.where(abs(ratio) > xp.log(UNIT_OFF) / 2, close, 1.0), change)


def most_growth(xp: Any, jacobian: Any, held: Any) -> Any:
    """By what scales may be multiplied at most, entry by entry, a power of 2: those of entries that a bound holds are
    short enough for the constraints, whose gradients are the rows of J, to pull at the others."""
    squares, tiny = jacobian**2, xp.finfo(jacobian.dtype).tiny
    free = xp.sum(xp.where(held, 0, squares), axis=1, keepdims=True)
    beside = xp.max(xp.where(free > 0, squares / xp.where(free > 0, free, 1), 0), axis=0)
    power = xp.floor(xp.log2(HELD_PULL) - xp.log2(beside + tiny) / 2)
    return xp.where(held & (beside > 0), 2.0**power, xp.inf)


def growth(xp: Any, change: Any, seen: HessianEstimate) -> tuple[Any, Any]:
    """What the noise of gradients, and the curvature, is multiplied by where scales are multiplied by `change`."""

    def ratio(new: Any, old: Any, otherwise: Any) -> Any:
        return xp.where(old > 0, new / xp.where(old > 0, old, 1), otherwise)

    unknown = xp.exp(xp.mean(xp.log(change**2)))
    steeper = ratio(xp.sum(change**2 * seen.slopes), xp.sum(seen.slopes), unknown)
    noisier = ratio(xp.sum(change**2 * seen.noise), xp.sum(seen.noise), steeper)
    return noisier, ratio(xp.max(change**2 * seen.diagonal), xp.max(seen.diagonal), unknown)


def _where_seen(xp: Any, seen: Any, scales: Any) -> Any:
    least = xp.min(xp.where(seen, scales, xp.inf))
    return xp.where(seen, scales, xp.where(xp.isfinite(least), least, 1.0))
