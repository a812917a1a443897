"""Iterates are averaged where gradients of single samples jump: there no estimate of the gradient can be averaged.

docs/theory/self-tuned.md, "Kinks", derives it.
"""

from typing import Any, NamedTuple

from lariax.tuned.constants import (
    ARRIVING_POWER,
    AVERAGE_POWER,
    EARLY,
    FORGET_FAST,
    GRADIENT_MEMORY,
    JUMP_PART,
    JUMP_RATIO,
    JUMP_ROUNDING,
    JUMPY_SAMPLES,
    MEASURED_FIRST,
    MIXED,
    MIXED_EARLY,
    MIXING_RATE,
    MOST_JUMPY,
    OFF,
    SETTLING,
    STILL_JUMPY,
)
from lariax.tuned.filter import running_mean
from lariax.tuned.shape import PenaltyShape, diagonal, multiply, violation


class Averaging(NamedTuple):
    """What is known of kinks, and of the average of the iterates since they were seen."""

    kinks: Any  # samples whose gradients jumped, of late
    count: Any  # iterations that the average is about; 0: iterates are not averaged
    travel: Any  # over the last fifth of the run, the sum of ||dx||^2
    spread: Any  # ||x - average||^2 in units of it
    constraints: Any  # averages like that of x: of u,
    weights: Any  # and of w

    @classmethod
    def first(cls, xp: Any, jumps: Any, rows: Any) -> "Averaging":
        """At the start, which has seen so many jumps; `rows` is like u and w."""
        zero = 0 * jumps
        return with_look(xp, cls(zero, zero, zero, zero + 1, 0 * rows, 0 * rows), jumps)

    def scaled(self, factor: Any) -> "Averaging":
        """In coordinates in which squares of steps are `factor` times as large."""
        return self._replace(travel=self.travel * factor)


def is_kinked(averaging: Averaging) -> Any:
    """Whether iterates are averaged, not gradients."""
    still = (averaging.count > 0) & (averaging.kinks >= STILL_JUMPY)
    return (averaging.kinks >= JUMPY_SAMPLES) | still


def is_under_way(averaging: Averaging) -> Any:
    """Whether iterates have been averaged for so long that secants of single steps show little but jumps."""
    return is_kinked(averaging) & (averaging.count >= MEASURED_FIRST)


def is_jump(far: Any, near: Any, size: Any, eps: float) -> Any:
    """Whether a gradient of this size jumps, and is not just curved: it changes by `far` over a step, by `near` over
    the last part of it."""
    return far > JUMP_RATIO * JUMP_PART * near + JUMP_ROUNDING * eps * size


def with_look(xp: Any, averaging: Averaging, jumps: Any) -> Averaging:
    """After a look at some samples, so many of whose gradients jump."""
    return averaging._replace(kinks=xp.minimum(GRADIENT_MEMORY * averaging.kinks + jumps, MOST_JUMPY))


def with_travel(averaging: Averaging, k: Any, length: Any) -> Averaging:
    """One step dx.dx = `length` further."""
    return averaging._replace(travel=(1 - FORGET_FAST / (k + SETTLING)) * averaging.travel + length)


def averaged(xp: Any, averaging: Averaging, constraints: Any, weights: Any) -> tuple[Averaging, Any]:
    """With the present u and w taken in; and the share that x has in its own average.

    Weights grow like a power of the number of the iterate: a higher one as long as x is still on its way.
    """
    kinked = is_kinked(averaging)
    before = xp.where(kinked, averaging.count, 0)
    count = xp.where(kinked, before + 1, 0)
    power = AVERAGE_POWER + ARRIVING_POWER * xp.minimum(averaging.spread, 1)
    share = 1 - (before / xp.maximum(count, 1)) ** (1 + power)
    return averaging._replace(
        count=count,
        constraints=running_mean(averaging.constraints, constraints, share),
        weights=running_mean(averaging.weights, weights, share),
    ), share


def with_spread(averaging: Averaging, square: Any, tiny: float) -> Averaging:
    """With ||x - average||^2 = `square`."""
    return averaging._replace(spread=square / (averaging.travel + tiny))


def reach(xp: Any, averaging: Averaging) -> Any:
    """How far x is from the average by what its steps are: the distance itself may be 0 for a moment."""
    return xp.sqrt(MIXED * averaging.travel)


def farther(xp: Any, averaging: Averaging, size: Any, tiny: float) -> Any:
    """How many times as far as `size` a look for jumps goes: no less far than x comes of late. A single short step
    crosses too few kinks for averages to go on, or to begin."""
    return xp.maximum(1, reach(xp, averaging) / (size + tiny))


def is_off(xp: Any, averaging: Averaging, shape: PenaltyShape, inequality: Any, noises: tuple[Any, Any]) -> Any:
    """Whether averages violate the constraints by more than noise does: multipliers are still on their way.

    `noises`: variances of the values of a batch, and of a step of length 1 / L.
    """
    left = violation(xp, inequality, averaging.weights, averaging.constraints)
    noise = diagonal(xp, shape.penalty) @ noises[0] + noises[1]
    return averaging.count * (left @ multiply(xp, shape.penalty, left)) > OFF * noise


def mixing_theta(xp: Any, averaging: Averaging, theta: Any, k: Any, is_off: Any = False) -> Any:
    """theta, longer while x goes one way or at random, shorter when it keeps coming back; and longer while averages
    are off the constraints.

    Steps of random directions end ||x - average||^2 / (sum of ||dx||^2) of about 1 away, steps that are called back to
    a solution 2 / (eta h k), if h is the curvature. So eta ends where eta h k = 2 / MIXED; early in a run it is longer.
    """
    power = MIXING_RATE * (1 + ARRIVING_POWER * xp.clip(averaging.spread - 2, 0, 1))
    change = power / (k + SETTLING + power)
    mixed = MIXED + (MIXED_EARLY - MIXED) / (1 + k / EARLY)
    return theta * xp.where((averaging.spread > mixed) | is_off, 1 + change, 1 - change)
