"""The controllers of the self-tuned method: from what a batch shows, how far and how hard the next step goes.

`xp` is the array library that the arguments belong to, in NumPy's terms.
"""

import math
from typing import Any, NamedTuple

from lariax.formulas._filter import Filter, lagged
from lariax.formulas._shape import DRIFT, Shape, diagonal, push, times

WINDOW = 100  # iterations that a running mean looks back
FIRST = 256  # so many iterations measure noise, drift and curvature, each of them;
INTERVALS = {FIRST: 4, 4 * FIRST: 16, 16 * FIRST: 64, 64 * FIRST: 256}  # then, from these on, one in so many does,
*_, (SETTLED, RARELY) = INTERVALS.items()  # in the end
HASTE = 4.0  # in the first thousand iterations steps may be this much noisier: arriving comes before averaging
FAR = 10.0  # this many times what is usual, or explained, is something else
LEAST = 0.02  # a penalty is at least this share of f's curvature: else a start at a minimum of f would stay there
STRAIGHT = 0.1  # L of a linear function, in units of ||grad f|| over the length of x
FARTHEST = 1e6  # from this length of x on, steps no longer grow with it
RARE = 0.1  # entries with less than this share of the mean rms move alike: a rare gradient bends the more when it comes
FORCE = 4.0  # ||J^T y|| stays below FORCE times the recent maximum of ||grad f||, a penalty step below half of that


LEAST_SCALE = 1e-4  # of theta, as long as steps are taken: only refused ones bring it below


class Curvature(NamedTuple):
    """How the Lagrangian's gradient answers to steps, from same-sample differences D."""

    largest: Any  # L, the recent maximum of ||D|| / ||dx|| with the weights held fixed
    square: Any  # running mean of its square
    secant: Any  # running means of dx.D / dx.dx and D.D / dx.dx with weights that follow the step
    secant_square: Any
    objective: Any  # that of the objective alone, where the run started
    noise: Any  # running mean of the variance of D over dx.dx: what a step adds to the noise of the tracked gradient
    jumps: Any  # over the last fifth of the run, the sum of ||D|| where it jumped
    path: Any  # and that of ||dx||: their ratio is the curvature that comes in jumps

    def in_metric(self, size: Any) -> "Curvature":
        """In coordinates in which squares of gradients are `size` times as large, and those of steps as small."""
        powers = (1, 2, 1, 2, 1, 2, 0.5, -0.5)
        return Curvature(*(value * size**power for value, power in zip(self, powers, strict=True)))


class Answers(NamedTuple):
    """What one measurement saw of the differences D for a step dx: with fixed weights, and with following ones."""

    length: Any  # dx.dx
    real: Any  # whether dx is more than rounding
    fixed: Any  # ||D||^2, weights held fixed
    along: Any  # dx.D, weights that follow the step
    follow: Any  # ||D||^2, likewise
    drift: Any  # the noise that it brings to the tracked gradient, with multipliers that move on as well


def rate_at(xp: Any, k: Any) -> Any:
    """The rate of running means at iteration k."""
    return 1 / xp.minimum(2 + k / 5, WINDOW)


def interval_at(xp: Any, k: Any) -> Any:
    """How many iterations apart noise, drift and curvature are measured: a measurement costs several passes."""
    interval = 1
    for start, longer in INTERVALS.items():
        interval = xp.where(k < start, interval, longer)
    return interval


def often_at(xp: Any, k: Any) -> Any:
    """The rate of running means of drift and curvature: late in a run they change slowly, and more are averaged."""
    return xp.minimum(1, rate_at(xp, k) * xp.minimum(interval_at(xp, k), 16))


def noise_rate_at(xp: Any, k: Any) -> Any:
    """Likewise for the noise of the gradient, over a longer while: an estimate that strays from it counts as lost."""
    return rate_at(xp, k) * xp.minimum(interval_at(xp, k), 2)


def penalty_for(xp: Any, curvature: Curvature, force: Any, pushed: Any, tiny: Any) -> Any:
    """rho = min(L, FORCE/2 ||grad f|| / ||J^T M u||), for pushed = ||J^T M u||; and a little where grad f vanishes."""
    wanted = xp.maximum(FORCE / 2 * xp.sqrt(force) / (pushed + tiny), LEAST * curvature.objective)
    return xp.minimum(curvature.largest, wanted)


def step_for(xp: Any, curvature: Curvature, scale: Any, rho: Any, tiny: Any) -> Any:
    """eta = min(theta / (L + rho), secant bound)."""
    secant = xp.maximum(curvature.secant, 0.1 * xp.sqrt(curvature.secant_square)) / (curvature.secant_square + tiny)
    return xp.minimum(scale / (curvature.largest + rho + tiny), secant)


def multiplier_bound(xp: Any, shape: Shape, multipliers: Any, force: Any, tiny: Any) -> Any:
    """What multipliers are scaled back by, so that ||J^T y|| <= FORCE ||grad f||."""
    return xp.minimum(1, FORCE * xp.sqrt(force) / (push(xp, shape, multipliers) + tiny))


def least_weights(xp: Any, inequality: Any) -> Any:
    """No negative weight for an inequality: its slack takes up the rest."""
    return xp.where(inequality, 0.0, -math.inf)


def changed(xp: Any, inequality: Any, weights: Any, change: Any) -> Any:
    """Weights after a change that is to be expected: an inequality that does not bind stays without one."""
    return xp.where(inequality & (weights <= 0), 0, weights + change)


def violation(xp: Any, inequality: Any, multipliers: Any, constraints: Any) -> Any:
    """Constraint values, less what an inequality without a multiplier has to spare."""
    return xp.where(inequality & (multipliers <= 0), xp.maximum(constraints, 0), constraints)


def believable(xp: Any, filter: Filter, innovation: Any) -> Any:
    """Cut off at ten times what is expected: an estimate is lost when many batches say so, not when one does."""
    return xp.minimum(innovation, 10 * (filter.error + filter.noise))


def largest_gradient(xp: Any, filter: Filter, square: Any, swing: Any) -> Any:
    """A gradient longer than this after one step, given its square before and what new weights may change of it, is no
    gradient of the problem that was there before."""
    return FAR * (xp.sqrt(square) + xp.sqrt(filter.noise) + swing)


def jolted(xp: Any, filter: Filter, curvature: Curvature, change: Any, explained: Any) -> tuple[Filter, Curvature]:
    """A same-sample difference far beyond what the step and the weights explain is an error that stays in the estimate.

    A sample that crosses a kink of the model makes one, however short the step: too seldom to be seen as drift or
    curvature by measurements now and then. `change` is the difference squared.
    """
    jump = xp.where(change > (FAR * explained) ** 2, change, 0)
    return filter._replace(error=filter.error + jump), curvature._replace(jumps=curvature.jumps + xp.sqrt(jump))


def variance_of_mean(xp: Any, parts: Any, mean: Any = None) -> Any:
    """Of independent parts, entry by entry: sum (part - mean)^2 / (n (n - 1))."""
    n, mean = parts.shape[0], xp.mean(parts, axis=0) if mean is None else mean
    return xp.sum((parts - mean) ** 2, axis=0) / (n * (n - 1))


def is_real(xp: Any, length: Any, size: Any, eps: float) -> Any:
    """Whether a step with dx.dx = `length` from x.x = `size` is more than rounding."""
    return length > (max(1e-12, 10 * eps) * (1 + xp.sqrt(size))) ** 2


def measured(xp: Any, curvature: Curvature, seen: Answers, often: Any) -> Curvature:
    """With one more measurement taken in; a jump is none of curvature where jumps are known."""
    is_jump = is_kinked(xp, curvature) & (seen.fixed > (FAR * curvature.largest) ** 2 * seen.length)

    def ease(old: Any, new: Any, least: float, real: Any) -> Any:
        return xp.where(real, lagged(old, new / seen.length, xp.maximum(often, least)), old)

    return curvature._replace(
        square=ease(curvature.square, seen.fixed, 0.1, seen.real & ~is_jump),
        secant=ease(curvature.secant, seen.along, 0.02, seen.real),
        secant_square=ease(curvature.secant_square, seen.follow, 0.02, seen.real),
        noise=ease(curvature.noise, seen.drift, 0.0, seen.real),
    )


def remembered(xp: Any, curvature: Curvature, k: Any, tiny: Any) -> Curvature:
    """The maximum is forgotten slowly; fast, where nothing has come near it for long. What jumps is curvature too."""
    seen = _met(xp, curvature, tiny)
    forget = xp.where(curvature.largest > FAR * seen, 5.0, 0.5) / (k + 20)
    return curvature._replace(largest=xp.maximum(seen, curvature.largest * (1 - forget)))


def _met(xp: Any, curvature: Curvature, tiny: Any) -> Any:
    """The curvature that recent steps have met."""
    return xp.maximum(xp.sqrt(curvature.square), curvature.jumps / (curvature.path + tiny))


def steepened(xp: Any, curvature: Curvature, eigenvalue: Any, tiny: Any) -> Curvature:
    """With L no less than half of an eigenvalue that the steps need not have met: they are stable from a third on. Nor
    is it far above both.

    A direction that steps do not take has no part in L, and a step that is too long for it makes it grow unseen.
    """
    most = FAR * xp.maximum(eigenvalue, _met(xp, curvature, tiny))
    largest = xp.where(eigenvalue > 0, xp.minimum(curvature.largest, most), curvature.largest)
    return curvature._replace(largest=xp.maximum(largest, eigenvalue / 2))


def straightened(xp: Any, curvature: Curvature, slope: Any, size: Any) -> Curvature:
    """With L enough for ||grad f||^2 = `slope` and x.x = `size`: a step along grad f is at most ten times as long as x.

    Linear functions have no curvature. Were L forgotten, steps would grow for ever and rho would vanish.
    """
    least = STRAIGHT * xp.sqrt(slope) / (1 + xp.minimum(xp.sqrt(size), FARTHEST))
    return curvature._replace(largest=xp.maximum(curvature.largest, least))


def travelled(xp: Any, curvature: Curvature, k: Any, length: Any) -> Curvature:
    """One step dx.dx = `length` further on the path along which jumps are counted."""
    kept = 1 - 5 / (k + 20)
    return curvature._replace(jumps=kept * curvature.jumps, path=kept * curvature.path + xp.sqrt(length))


def is_kinked(xp: Any, curvature: Curvature) -> Any:
    """Whether gradients answer to steps by jumps rather than else: between two of them an estimate does not follow."""
    return curvature.jumps > 2 * curvature.path * xp.sqrt(curvature.square)


def next_scale(
    xp: Any,
    scale: Any,
    k: Any,
    rate: Any,
    shape: Shape,
    *,
    left: Any,
    gain_of_step: Any,
    error: Any,
    of_gradient: tuple[Any, Any, Any],
    of_constraints: tuple[Any, Any, Any],
    kinked: Any,
    tiny: Any,
) -> Any:
    """theta, shrunk when the steps add too much to the noise, measured by what there is to gain.

    Where the estimate does not follow the steps (`kinked`), they are those of stochastic approximation, of order 1/k.

    `left` is the violation before the step and `error` the variances of its rows, `gain_of_step` is
    ||dx||^2 / eta^2 over the gradient's error; then (drift by the step, gain, noise) of gradient and constraints.
    """
    weight = diagonal(xp, shape.penalty)
    signal = xp.maximum(
        gain_of_step,
        left @ times(xp, shape.penalty, left) / (4 * (weight @ error) + tiny),
    )
    allowed = allowed_drift(xp, k, signal)
    drift, alpha, noise = of_gradient
    drifts, alphas, noises = of_constraints
    too_long = (drift > allowed * alpha**2 * noise) | (weight @ drifts > allowed * (weight @ (alphas**2 * noises)))
    too_long = too_long | (kinked & (scale * (1 + k / WINDOW) > 1))
    return rescaled(xp, scale, too_long, rate)


def allowed_drift(xp: Any, k: Any, signal: Any) -> Any:
    """How much of the noise that averaging leaves a step may add, given how far what it follows stands out."""
    return DRIFT * (1 + HASTE / (1 + k / 1000)) * xp.minimum(xp.maximum(signal, 1), 1e6)


def rescaled(xp: Any, scale: Any, too_long: Any, rate: Any) -> Any:
    """theta after a step that was, or was not, too long."""
    change = xp.minimum(0.02, rate / 2)
    return xp.minimum(xp.maximum(scale * xp.where(too_long, 1 - change, 1 + change), LEAST_SCALE), 1)


def metric_for(xp: Any, rms: Any, mean: Any, tiny: Any) -> Any:
    """Adam's scaling, for root mean squares of the gradient's entries and the mean over all: squares divide by rms."""
    return xp.sqrt(mean / (rms + RARE * mean + tiny))


def next_refresh(xp: Any, iteration: Any, start: int, window: int) -> Any:
    """A quarter further on, at the end of a window of places. Iteration k has place k + start - 1."""
    place = iteration + start - 1 + xp.maximum(iteration // 4, 1)
    return (place // window + 1) * window - start
