"""The rule of a multiplier for parameters that somebody else's optimizer moves, as a pure state transition.

Residuals r = 0 or r <= 0 are seen one value at a time, with their noise. A multiplier is a number of units times
`unit`, the ratio of the lengths of the gradients of objective and constraint, which is what it is at a solution with
one active constraint. The value to be expected at the end of training moves it:

    ahead = level + TRUST slope k log(K / k)                 learning curves are straight in log k
    theta <- theta + wish / window,    wish = ahead / (recent size of the level + 2 deviations of ahead)
    units = LINEAR (exp(theta + QUICK wish) - 1) + a quick part, of what is significant in `ahead`

Everything is arithmetic, entry by entry, on the array library `xp`. What comes in is older than the batch whose
gradient the multiplier weighs, so that their product is unbiased.
"""

import math
from typing import Any, NamedTuple

FAST = 0.05  # share of the values so far over which the level is averaged,
LONG = 0.25  # and over which its slope is: the slope is multiplied by what is left of the run, and so is its noise
WINDOW = 0.25  # share of the values so far in which a full wish moves theta by 1,
FLOOR = 0.08  # and the least share of all: fine-tuning starts with a jump, which is no trend
LEAST = 10.0  # values in a window
WARM_UP = 0.02  # share of all values before the multiplier moves, and 20 values where their number is not known
LINEAR = 0.3  # units up to which theta is about linear; beyond, it is a logarithm
LIMIT = 10.0  # units that a multiplier may have: one for one active constraint, more where several fight,
FAR_LIMIT = 30.0  # where the unit is only guessed from the spread of values
QUICK = 0.5  # how much of a wish acts at once, and goes again with it
END = 0.85  # share of the values by which a bound is to be kept: after that, learning rates have gone
TRUST = 0.8  # of a curve that is straight in log k, what is believed
MEMORY = 0.2  # share of the values so far after which a size is forgotten
BAND = 0.3  # a significant violation of this share of the largest ever brings one more unit at once
SURE = 2.0  # deviations that noise explains, in a wish,
BEYOND = 4.0  # and in what acts at once: with many constraints one is always far out
MARGIN = 0.7  # deviations of the level by which an inequality is to be kept
NOISY = 0.1  # of the square of a measured gradient, at least this share is signal
UNITS_MEMORY = 0.3  # share of the calls so far over which lengths of gradients are averaged
_LEAST_NUMBER = 1e-30


class Pressure(NamedTuple):
    """What is known of one constraint (or, entry by entry, of several under one name), and its multiplier in units."""

    calls: Any  # until now, whether they measured it or not
    count: Any  # values until now
    level: Any  # the value now, by a filter that follows what noise does not explain
    base: Any  # and by a long one,
    slope: Any  # with its change from one value to the next
    innovation: Any  # mean square of a value less its prediction
    noise: Any  # variance of a value
    recent: Any  # the largest |level| of late,
    widest: Any  # and of old
    theta: Any
    units: Any  # the multiplier
    ahead: Any  # the value expected at the end, and
    deviation: Any  # its standard error


class Sizes(NamedTuple):
    """How large objective and constraint are: squares of the lengths of their mean gradients, averaged over looks."""

    looks: Any
    looked: Any  # the call of the last one
    spread_objective: Any  # variances of their mean values, for as long as there is no look
    spread_constraint: Any
    objective: Any  # from the product of two halves of a batch: without the noise's own square,
    constraint: Any
    noisy_objective: Any  # and with it
    noisy_constraint: Any


def relaxed(like: Any) -> Pressure:
    """Before the first value; `like` is any array, or number, of the constraint's shape."""
    zero = 0.0 * like
    return Pressure(0.0, 0.0, *(zero for _ in Pressure._fields[2:]))


def unseen() -> Sizes:
    """Before the first look."""
    return Sizes(*(0.0 for _ in Sizes._fields))


def looked(xp: Any, sizes: Sizes, call: Any, products: tuple[Any, Any], squares: tuple[Any, Any]) -> Sizes:
    """With one more look at both gradients taken in."""
    looks = sizes.looks + 1
    rate = xp.maximum(1 / looks, xp.minimum(1.0, (call - sizes.looked) / (UNITS_MEMORY * xp.maximum(call, LEAST))))
    new = (*products, *squares)
    averaged = (old + rate * (seen - old) for old, seen in zip(sizes[4:], new, strict=True))
    return Sizes(looks, call, *sizes[2:4], *averaged)


def spread(xp: Any, sizes: Sizes, count: Any, objective: Any, constraint: Any) -> Sizes:
    """With one more pair of variances taken in, if both are numbers; `count` values came before."""
    known = (objective == objective) & (constraint == constraint)
    rate = xp.where(known, xp.maximum(0.01, 1 / (count + 1)), 0.0)
    new = (xp.where(known, objective, 0.0), xp.where(known, constraint, 0.0))
    averaged = [old + rate * (seen - old) for old, seen in zip(sizes[2:4], new, strict=True)]
    return sizes._replace(spread_objective=averaged[0], spread_constraint=averaged[1])


def unit_of(xp: Any, sizes: Sizes, widest: Any) -> Any:
    """||grad f|| / ||grad c||; a length that drowns in noise is known to a factor of three. Without a look, the ratio
    of the spreads of the values, and without those, for an objective of size 1, the constraint's largest value."""
    objective = xp.maximum(sizes.objective, NOISY * sizes.noisy_objective)
    constraint = xp.maximum(sizes.constraint, NOISY * sizes.noisy_constraint)
    both = (sizes.spread_objective > 0) & (sizes.spread_constraint > 0)
    guessed = xp.where(both, sizes.spread_objective, 1.0) / xp.where(
        both, sizes.spread_constraint + _LEAST_NUMBER, xp.where(widest > 0, widest, 1.0) ** 2
    )
    squared = xp.where(sizes.looks > 0, (objective + _LEAST_NUMBER) / (constraint + _LEAST_NUMBER), guessed)
    return xp.sqrt(squared)


def limit_of(xp: Any, sizes: Sizes) -> Any:
    """How many units a multiplier may have."""
    return xp.where(sizes.looks > 0, LIMIT, FAR_LIMIT)


def passed(pressure: Pressure) -> Pressure:
    """After a call that has no value of the constraint."""
    return pressure._replace(calls=pressure.calls + 1)


def pressed(
    xp: Any,
    old: Pressure,
    inequality: bool,
    residual: Any,
    variance: Any,
    steps: float | None,
    limit: Any,
) -> Pressure:
    """After a call with a residual whose variance is known, or not a number. `steps`: how many calls there will be;
    None: to be seen as twice those until now."""
    calls, k = old.calls + 1, old.count + 1
    total = 2 * k if steps is None else xp.maximum(steps / calls, 1.0) * k
    least = LEAST if steps is None else xp.minimum(LEAST, xp.maximum(2.0, total / 40))
    new = _tracked(xp, old._replace(calls=calls, count=k), residual, variance, least)
    short = 2 * xp.maximum(least, FAST * k)  # what gets worse is seen as going on only for so long
    left = TRUST * k * xp.log(xp.maximum(END * total / k, 1.0))
    reach = xp.where(new.level * new.slope < 0, left, xp.minimum(left, short)) * (1.0 if inequality else 0.0)
    fast, long = _rate(xp, FAST, k, least), _rate(xp, LONG, k, least)
    deviation = xp.sqrt(new.noise * (fast / 2 + reach**2 * long**3 / 8))
    ahead = new.level + new.slope * reach
    aimed = ahead + (MARGIN * xp.sqrt(new.noise * fast / 2) if inequality else 0.0)
    recent = xp.maximum(abs(new.level), old.recent * (1 - 1 / xp.maximum(least, MEMORY * k)))
    widest = xp.maximum(abs(new.level), old.widest * (1 - 0.5 / k))
    wish = _within(xp, aimed / (recent + SURE * deviation + _LEAST_NUMBER), -1.0, 1.0)
    window = xp.maximum(xp.maximum(least, WINDOW * k), FLOOR * total if steps is not None else 0.0)
    moves = k > (20 if steps is None else WARM_UP * total + 1)
    top = xp.log(1 + limit / LINEAR)
    theta = _within(xp, old.theta + wish / window, 0.0 if inequality else -top, top)
    aim = _within(xp, theta + QUICK * wish, 0.0 if inequality else -top, top)
    both = xp.where(ahead * new.level > 0, xp.minimum(abs(ahead), abs(new.level)), 0.0)  # now, and in the end
    sure = xp.maximum(both - BEYOND * deviation, 0.0) * _sign(xp, ahead)
    quick = _within(xp, sure / (BAND * widest + SURE * deviation + _LEAST_NUMBER), -1.0, 1.0)
    units = LINEAR * (xp.exp(abs(aim)) - 1) * _sign(xp, aim) + quick
    units = _within(xp, units, 0.0 if inequality else -limit, limit)
    return new._replace(
        recent=xp.where(moves, recent, old.recent),
        widest=xp.where(moves, widest, old.widest),
        theta=xp.where(moves, theta, old.theta),
        units=xp.where(moves, units, old.units),
        ahead=ahead,
        deviation=deviation,
    )


def _tracked(xp: Any, old: Pressure, residual: Any, variance: Any, least: Any) -> Pressure:
    """Level and slope after one more value."""
    k = old.count
    first, lasting = k == 1, xp.maximum(0.05, 1 / k)
    long = _rate(xp, LONG, k, least)
    rest = xp.where(first, 0 * residual, residual - old.base - old.slope)
    base = xp.where(first, residual, old.base + old.slope + long * rest)
    slope = (old.slope + xp.where(k > 3, long * long / 2, 0.0) * rest) * (1 - 1 / k)  # falls as 1/k: straight in log k
    error = xp.where(first, 0 * residual, residual - old.level - slope)
    own = xp.where(variance == variance, variance, error**2)  # an unknown one is what predictions miss
    noise = old.noise + lasting * (own - old.noise)
    innovation = xp.where(first, own, old.innovation + lasting * (error**2 - old.innovation))
    gain = xp.maximum(_rate(xp, FAST, k, least), 1 - 1.5 * noise / (innovation + _LEAST_NUMBER))
    level = xp.where(first, residual, old.level + slope + gain * error)
    return old._replace(level=level, base=base, slope=slope, innovation=innovation, noise=noise)


def _rate(xp: Any, share: float, k: Any, least: Any) -> Any:
    return xp.maximum(2 / (xp.maximum(least, share * k) + 1), 1 / k)


def _within(xp: Any, value: Any, low: Any, high: Any) -> Any:
    return xp.minimum(xp.maximum(value, low), high)


def _sign(xp: Any, value: Any) -> Any:
    return xp.where(value < 0, -1.0, 1.0)


def is_at_limit(pressure: Pressure, limit: float) -> Any:
    """Whether a multiplier has reached what it may be, and the bound will probably not be kept even so."""
    reached = abs(pressure.theta) >= math.log(1 + limit / LINEAR) * 0.999
    along = pressure.theta / (abs(pressure.theta) + _LEAST_NUMBER)
    return reached & (pressure.ahead * along > SURE * pressure.deviation)
