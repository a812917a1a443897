"""How the Lagrangian's gradient answers to steps: the largest curvature, secants, drift and jumps."""

from typing import Any, NamedTuple

from lariax.tuned.constants import (
    CURVATURE_LOOKS,
    CURVATURE_RATE,
    EIGENVALUE_SHARE,
    FARTHEST,
    FORGET,
    FORGET_FAST,
    KINKED,
    LEAST_CURVATURE,
    LINEAR_CURVATURE,
    OUTLIER,
    PROBE,
    REAL_ROUNDING,
    REAL_STEP,
    SECANT_RATE,
    SECANT_SHARE,
    SETTLING,
    WINDOW,
)
from lariax.tuned.filter import Filter, running_mean


class Curvature(NamedTuple):
    """From same-sample differences D of the Lagrangian's gradient, for steps dx."""

    largest: Any  # L, the recent maximum of ||D|| / ||dx|| with the weights held fixed
    square: Any  # running mean of its square
    secant: Any  # a and q, running means of dx.D / dx.dx and D.D / dx.dx with weights that follow the step
    secant_square: Any
    objective: Any  # that of the objective alone, where the run started
    noise: Any  # running mean of the variance of D over dx.dx: what a step adds to the noise of the tracked gradient
    jumps: Any  # over the last fifth of the run, the sum of ||D|| where it jumped
    path: Any  # and that of ||dx||: their ratio is the curvature that comes in jumps

    @classmethod
    def first(cls, largest: Any) -> "Curvature":
        """At the start, where only that of the objective is known."""
        zero = 0 * largest
        return cls(largest, largest**2, largest, largest**2, largest, noise=zero, jumps=zero, path=zero)

    def scaled(self, factor: Any) -> "Curvature":
        """In coordinates in which squares of gradients are `factor` times as large, and those of steps as small."""
        powers = (1, 2, 1, 2, 1, 2, 0.5, -0.5)
        return Curvature(*(value * factor**power for value, power in zip(self, powers, strict=True)))


class Measurement(NamedTuple):
    """What the halves of a batch show of the gradient's noise, and of its differences D for a step dx."""

    noise: Any  # R, of the gradient
    length: Any  # dx.dx
    size: Any  # x.x
    fixed: Any  # ||D||^2, weights held fixed
    along: Any  # dx.D, weights that follow the step
    follow: Any  # ||D||^2, likewise
    drift: Any  # the noise that it brings to the tracked gradient, with multipliers that move on as well


def shortest_step(eps: float) -> float:
    """In units of 1 + ||x||: a shorter one is rounding and shows no curvature."""
    return max(REAL_STEP, REAL_ROUNDING * eps)


def probe_length(xp: Any, size: Any, eps: Any) -> Any:
    """Of the step by which the start looks at the curvature, for ||x|| + 1 = `size`."""
    return PROBE * xp.sqrt(eps) * size


def probe_direction(xp: Any, slope: Any, steep: Any, tiny: Any) -> Any:
    """Along the gradient, whose norm is `steep`, or anywhere if it vanishes."""
    return xp.where(steep > 0, slope / (steep + tiny), slope.shape[0] ** -0.5)


def first_curvature(xp: Any, seen: Any, steep: Any, size: Any) -> Any:
    """L of the objective, from what was seen of it and from ||grad f|| = `steep`; 1 where there is nothing to see, as
    of one that is 0: it has no units."""
    found = xp.maximum(seen, LEAST_CURVATURE * steep / size)
    return xp.where(found > 0, found, 1.0 + 0 * found)


def measured(
    xp: Any, curvature: Curvature, seen: Measurement, rate: Any, eps: float, tiny: float, rough: Any = None
) -> Curvature:
    """With one more measurement taken in; a jump is none of curvature where jumps are known.

    Where all changes are jumps, their squares over those of the steps have no limit, and means are of the roots.
    """
    length = seen.length + tiny
    real = length > (shortest_step(eps) * (1 + xp.sqrt(seen.size))) ** 2
    is_jump = is_kinked(xp, curvature) & (seen.fixed > (OUTLIER * curvature.largest) ** 2 * length)

    def with_new(old: Any, new: Any, least: float, counts: Any) -> Any:
        return xp.where(counts, running_mean(old, new / length, xp.maximum(rate, least)), old)

    def with_square(old: Any, new: Any, least: float, counts: Any) -> Any:
        if rough is None:
            return with_new(old, new, least, counts)
        roots = running_mean(xp.sqrt(old), xp.sqrt(new / length), xp.maximum(rate, least)) ** 2
        return xp.where(rough, xp.where(real, roots, old), with_new(old, new, least, counts))

    return curvature._replace(
        square=with_square(curvature.square, seen.fixed, CURVATURE_RATE, real & ~is_jump),
        secant=with_new(curvature.secant, seen.along, SECANT_RATE, real),
        secant_square=with_square(curvature.secant_square, seen.follow, SECANT_RATE, real),
        noise=with_new(curvature.noise, seen.drift, 0.0, real),
    )


def forgotten(xp: Any, curvature: Curvature, k: Any, tiny: Any) -> Curvature:
    """The maximum is forgotten slowly; fast, where nothing has come near it for long. What jumps is curvature too."""
    recent = _recent(xp, curvature, tiny)
    forget = xp.where(curvature.largest > OUTLIER * recent, FORGET_FAST, FORGET) / (k + SETTLING)
    return curvature._replace(largest=xp.maximum(recent, curvature.largest * (1 - forget)))


def with_step(xp: Any, curvature: Curvature, k: Any, length: Any) -> Curvature:
    """One step dx.dx = `length` further on the path along which jumps are counted."""
    kept = 1 - FORGET_FAST / (k + SETTLING)
    return curvature._replace(jumps=kept * curvature.jumps, path=kept * curvature.path + xp.sqrt(length))


def with_jump(xp: Any, filter: Filter, curvature: Curvature, change: Any, explained: Any) -> tuple[Filter, Curvature]:
    """A same-sample difference far beyond what the step and the weights explain is an error that stays in the estimate.

    A sample that crosses a kink of the model makes one, however short the step: too seldom to be seen as drift or
    curvature by measurements now and then. `change` is the difference squared.
    """
    jump = xp.where(change > (OUTLIER * explained) ** 2, change, 0)
    return filter._replace(error=filter.error + jump), curvature._replace(jumps=curvature.jumps + xp.sqrt(jump))


def is_kinked(xp: Any, curvature: Curvature) -> Any:
    """Whether gradients answer to steps by jumps rather than else: between two of them an estimate does not follow."""
    return curvature.jumps > KINKED * curvature.path * xp.sqrt(curvature.square)


def within_eigenvalue(xp: Any, curvature: Curvature, eigenvalue: Any, tiny: Any) -> Curvature:
    """With L no less than half of an eigenvalue that the steps need not have met: they are stable from a third on. Nor
    is it far above both.

    A direction that steps do not take has no part in L, and a step that is too long for it makes it grow unseen.
    """
    most = OUTLIER * xp.maximum(eigenvalue, _recent(xp, curvature, tiny))
    largest = xp.where(eigenvalue > 0, xp.minimum(curvature.largest, most), curvature.largest)
    return curvature._replace(largest=xp.maximum(largest, EIGENVALUE_SHARE * eigenvalue))


def with_gradient(xp: Any, curvature: Curvature, gradient: Any, size: Any, noise: Any = None) -> Curvature:
    """With L enough for ||grad f||^2 = `gradient` and x.x = `size`: a step along grad f is at most as long as x,
    though linear functions have no curvature. Where kinks give one of this `noise`, steps are shorter."""
    steep = LINEAR_CURVATURE * xp.sqrt(gradient)
    if noise is not None:
        steep = xp.maximum(steep, noisy_slope(xp, gradient, noise))
    least = steep / (1 + xp.minimum(xp.sqrt(size), FARTHEST))
    return curvature._replace(largest=xp.maximum(curvature.largest, least))


def mean_look(curvature: Curvature, eigenvalue: Any) -> Any:
    """Where gradients of samples jump, L is that of the mean alone, over as much as x spreads: the mean over the last
    looks at its largest eigenvalue. What jumps over single steps would count for the more the shorter they are."""
    return running_mean(curvature.largest, eigenvalue, 1 / CURVATURE_LOOKS)


def at_kinks(xp: Any, kinked: Any, largest: Any, curvature: Curvature) -> Curvature:
    """With this L at kinks."""
    return curvature._replace(largest=xp.where(kinked, largest, curvature.largest))


def longest_step(xp: Any, gradient: Any, size: Any, noise: Any, tiny: Any) -> Any:
    """eta, where kinks make the gradient noisy: see `noisy_slope`."""
    return (1 + xp.minimum(xp.sqrt(size), FARTHEST)) / (2 * noisy_slope(xp, gradient, noise) + tiny)


def noisy_slope(xp: Any, gradient: Any, noise: Any) -> Any:
    """L (1 + ||x||) for which one step along a gradient of this square, and WINDOW steps at random along such of this
    variance, go as far as x is long."""
    return xp.sqrt(gradient + WINDOW * noise)


def secant_bound(xp: Any, curvature: Curvature, tiny: Any) -> Any:
    """max(a, 0.1 sqrt(q)) / q: as long as a step may be to be stable for a random, nonsymmetric map."""
    slope = xp.maximum(curvature.secant, SECANT_SHARE * xp.sqrt(curvature.secant_square))
    return slope / (curvature.secant_square + tiny)


def _recent(xp: Any, curvature: Curvature, tiny: Any) -> Any:
    """The curvature that recent steps have met."""
    return xp.maximum(xp.sqrt(curvature.square), curvature.jumps / (curvature.path + tiny))
