"""The rule of a multiplier for parameters that somebody else's optimizer moves, as a pure state transition.

Residuals r = 0 or r <= 0 come one value a call. `unit` is the ratio of the lengths of the gradients of objective and
constraint: what a multiplier is at a solution with one active constraint. It sets how far a multiplier moves, not what
it is: a unit that is known to a factor of two must not move a multiplier by two.

A value that is random moves the multiplier y by what is to be expected at the end of training, as a controller with a
sum (y), a part that acts at once, and a look ahead for its derivative does:

    ahead = level + TRUST slope k log(K / k)                 learning curves are straight in log k
    size = LINEAR unit + min(y, window / LATE units),    band = BAND deviations of a value
    y <- y + size within(ahead / band + HASTE excess) / window
    weight = y + size within(ahead / band) + size (mean of the last values - level) / band

The band is wider where violations have been large. In short runs windows are no longer than what an optimizer with
momentum takes to answer, and a sum that grew by shares of itself would be far beyond by then: y does not move by much
more than a unit in LATE steps.

The sum alone would swing: a value follows its weight's *rate* (the optimizer adds up gradients), and two sums in a row
have no damping. The part at once has it. Its best size for such a value, disturbed by the noise of gradients and seen
through the noise of batches, is the ratio of both, that of gradients counted in multipliers; at a solution that is
about y / 3 over the deviation of a value, for the batches that people use. Hence the band.

Where values answer slowly, as those of a linear model do, the band alone leaves a bound missed by a little that many
batches have shown. The excess is what noise and past errors of the look ahead do not explain of the violation expected,
in deviations. It only drives a multiplier up: down, a policy's budget was missed twice as far.

A value that is exact (a constraint of the parameters alone) may be used at once without bias, so that an augmented
Lagrangian serves, its penalty measured:

    y <- y + penalty r / (EXACT_TIME K),    weight = y + penalty r
    penalty = EXACT min(1, k / (RAMP K)) largest unit / largest |r|

y stays below LIMIT units as they are, so that it does not wind up; the weight, which goes with the violation, below
LIMIT of the largest: the unit falls while a network learns, and where it stands still far from its bound.

Values are pooled, as many as are a small share of those so far, so that most calls cost a sum. Everything is
arithmetic, entry by entry, on the array library `xp`. What comes in is older than the batch whose gradient the
multiplier weighs, so that their product is unbiased.
"""

import math
from typing import Any, NamedTuple

FAST = 0.05  # share of the values so far over which the level is averaged,
LONG = 0.25  # and over which its slope is: the slope is multiplied by what is left of the run, and so is its noise
WINDOW = 0.15  # share of the values so far in which a full wish moves y by itself and LINEAR units,
FLOOR = 0.08  # and the least share of all: fine-tuning starts with a jump, which is no trend
LEAST = 10.0  # values in a window
POOL = 0.01  # share of the values so far that are taken together,
POOLS = 200.0  # or one in so many of all that there will be, where that is known: a pool costs as much as ten calls,
LARGEST = 32.0  # and so many at most: what comes late overshoots
LARGEST_EXACT = 8.0  # of exact values, which wait for no number of all
WARM_UP = 0.02  # share of all values before the multiplier moves, and 20 values where their number is not known
LINEAR = 0.3  # units up to which y moves by steps of a size; beyond, by shares of itself,
LATE = 5.0  # but not by more than one in so many steps: an optimizer with momentum answers late
LIMIT = 10.0  # units that a multiplier may have: one for one active constraint, more where several fight,
FAR_LIMIT = 30.0  # where the unit is only guessed from the spread of values
END = 0.85  # share of the values by which a bound is to be kept: after that, learning rates have gone
TRUST = 0.8  # of a curve that is straight in log k, what is believed
FADE = 0.5  # the largest sizes ever count less by this power of k
BAND = 3.0  # deviations of a value beyond its bound: they bring one more size at once, and move y at full speed
HASTE = 0.5  # one over this, in deviations of what is expected beyond SURE, moves y at full speed
PROMPT = 1.0  # share of a band's answer that is given at once,
QUICK = 1.0  # and to what the last values have beyond the level
SURE = 2.0  # deviations that noise explains
MARGIN = 0.7  # deviations of the level by which an inequality is to be kept
EXACT = 3.0  # units that a violation as large as ever brings at once,
RAMP = 0.1  # from this share of all values on; before, less: what is kept too early keeps a network from learning,
EXACT_TIME = 0.05  # and share of all values after which an exact one has brought as much for good
NOISY = 0.1  # of the square of a measured gradient, at least this share is signal
UNITS_MEMORY = 0.5  # share of the calls so far over which lengths of gradients are averaged,
EXACT_MEMORY = 0.3  # and where those of the constraint have no noise
LOOKS = 2  # a look at gradients comes when the calls have grown by one in so many,
FEW = 4  # and by at least this number: one costs as much as three steps
_LEAST_NUMBER = 1e-30


class Kind(NamedTuple):
    """What does not change."""

    inequality: bool
    exact: bool  # values without noise: of the parameters alone


class Pool(NamedTuple):
    """Values that have come since the multiplier moved."""

    calls: Any  # until now, whether they measured it or not
    count: Any  # values until now,
    size: Any  # and of them in the pool
    total: Any
    scatter: Any  # of their variances: where unknown, half the squares of differences from one value to the next
    last: Any


class Pressure(NamedTuple):
    """What is known of one constraint (or, entry by entry, of several under one name), and its multiplier."""

    pools: Any
    level: Any  # the value now, by a filter that follows what noise does not explain
    base: Any  # and by a long one,
    slope: Any  # with its change from one value to the next
    innovation: Any  # mean square of a pool's mean less its prediction
    noise: Any  # variance of a value
    widest: Any  # the largest |level| of old
    steepest: Any  # the largest unit of old
    multiplier: Any  # what stays,
    weight: Any  # with what acts at once
    penalty: Any  # for what is exact
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


def empty(like: Any, calls: float = 0.0) -> Pool:
    """Before the first value; `like` is any array, or number, of the constraint's shape."""
    zero = 0.0 * like
    return Pool(calls, 0.0, 0.0, zero, zero, zero)


def relaxed(like: Any) -> Pressure:
    """Before the first pool."""
    zero = 0.0 * like
    return Pressure(0.0, *(zero for _ in Pressure._fields[1:]))


def unseen() -> Sizes:
    """Before the first look."""
    return Sizes(*(0.0 for _ in Sizes._fields))


# --- sizes


def looked(xp: Any, sizes: Sizes, kind: Kind, call: Any, products: tuple[Any, Any], squares: tuple[Any, Any]) -> Sizes:
    """With one more look at both gradients taken in."""
    looks = sizes.looks + 1
    memory = (EXACT_MEMORY if kind.exact else UNITS_MEMORY) * xp.maximum(call, LEAST)
    rate = xp.maximum(1 / looks, xp.minimum(1.0, (call - sizes.looked) / memory))
    new = (*products, *squares)
    averaged = (old + rate * (seen - old) for old, seen in zip(sizes[4:], new, strict=True))
    return Sizes(looks, call, *sizes[2:4], *averaged)


def next_look(call: int) -> int:
    """The call of the next look, after one in `call`."""
    return call + max(FEW, call // LOOKS)


def spread(xp: Any, sizes: Sizes, count: Any, objective: Any, constraint: Any) -> Sizes:
    """With one more pair of variances taken in, if both are numbers; `count` values came before."""
    known = (objective == objective) & (constraint == constraint)
    rate = xp.where(known, xp.maximum(0.01, 1 / (count + 1)), 0.0)
    new = (xp.where(known, objective, 0.0), xp.where(known, constraint, 0.0))
    averaged = [old + rate * (seen - old) for old, seen in zip(sizes[2:4], new, strict=True)]
    return sizes._replace(spread_objective=averaged[0], spread_constraint=averaged[1])


def is_measured(sizes: Sizes) -> Any:
    """Whether looks have shown both gradients: batches without a row of a rare class show none of its constraint."""
    return (sizes.noisy_objective > 0) & (sizes.noisy_constraint > 0)


def unit_of(xp: Any, sizes: Sizes, widest: Any) -> Any:
    """||grad f|| / ||grad c||; a length that drowns in noise is known to a factor of three. As long as it is not
    measured, the ratio of the spreads of the values, and without those, for an objective of size 1, the constraint's
    largest value."""
    objective = xp.maximum(sizes.objective, NOISY * sizes.noisy_objective)
    constraint = xp.maximum(sizes.constraint, NOISY * sizes.noisy_constraint)
    both = (sizes.spread_objective > 0) & (sizes.spread_constraint > 0)
    guessed = xp.where(both, sizes.spread_objective, 1.0) / xp.where(
        both,
        sizes.spread_constraint + _LEAST_NUMBER,
        xp.maximum(xp.where(widest > 0, widest, 1.0) ** 2, _LEAST_NUMBER),
    )
    squared = xp.where(is_measured(sizes), (objective + _LEAST_NUMBER) / (constraint + _LEAST_NUMBER), guessed)
    return xp.sqrt(squared)


def limit_of(xp: Any, sizes: Sizes) -> Any:
    """How many units a multiplier may have."""
    return xp.where(is_measured(sizes), LIMIT, FAR_LIMIT)


def weight_limit(xp: Any, state: Pressure, sizes: Sizes) -> Any:
    """What may weigh an exact constraint."""
    return limit_of(xp, sizes) * xp.maximum(unit_of(xp, sizes, state.widest), state.steepest)


# --- values


def pooled(xp: Any, old: Pool, residual: Any, variance: Any) -> Pool:
    """With one more value, whose variance is known, or not a number."""
    change = xp.where(old.count > 0, residual - old.last, 0 * residual)
    own = xp.where(variance == variance, variance, 0.5 * change * change)
    return Pool(old.calls + 1, old.count + 1, old.size + 1, old.total + residual, old.scatter + own, residual)


def passed(pool: Pool) -> Pool:
    """After a call that has no value of the constraint."""
    return pool._replace(calls=pool.calls + 1)


def is_full(xp: Any, pool: Pool, kind: Kind, steps: Any) -> Any:
    """Whether it is time to move the multiplier."""
    return pool.size >= _capacity(xp, pool, kind, steps)


def calls_left(xp: Any, pool: Pool, kind: Kind, steps: Any) -> int:
    """How many more values fill it, at least, if each call has one."""
    return max(1, math.ceil(_capacity(xp, pool, kind, steps) - pool.size))


def _capacity(xp: Any, pool: Pool, kind: Kind, steps: Any) -> Any:
    share = POOL * (pool.count - pool.size)
    if kind.exact:
        return xp.minimum(share, LARGEST_EXACT)
    if steps is not None:
        share = xp.maximum(share, steps * pool.count / pool.calls / POOLS)
    return xp.minimum(share, LARGEST)


def emptied(pool: Pool) -> Pool:
    return pool._replace(size=0.0 * pool.size, total=0.0 * pool.total, scatter=0.0 * pool.scatter)


def weight_of(xp: Any, state: Pressure, kind: Kind, residual: Any, sizes: Sizes) -> Any:
    """What weighs the constraint, in the Lagrangian of residuals; `residual` is its value now, if that is exact."""
    if not kind.exact:
        return state.weight
    limit = weight_limit(xp, state, sizes)
    return _within(xp, state.multiplier + state.penalty * residual, 0.0 if kind.inequality else -limit, limit)


def pressed(xp: Any, old: Pressure, pool: Pool, kind: Kind, steps: Any, unit: Any, limit: Any) -> Pressure:
    """After a pool. `steps`: how many calls there will be; None: to be seen as twice those until now. `limit`: what a
    multiplier may be."""
    k, m = pool.count, xp.maximum(pool.size, 1.0)
    total = 2 * k if steps is None else xp.maximum(steps / pool.calls, 1.0) * k
    least = LEAST if steps is None else xp.minimum(LEAST, xp.maximum(2.0, total / 40))
    new = _tracked(xp, old, pool, least)
    reach = _reach(xp, new, k, total, least, kind.inequality)
    fast, long = _rate(xp, FAST, k, least), _rate(xp, LONG, k, least)
    own = new.noise * fast / 2
    missed = xp.maximum(new.noise, m * new.innovation)  # what swings is foreseen less well than noise alone lets it be
    deviation = xp.sqrt(missed * (fast / 2 + reach**2 * long**3 / 8))
    ahead = new.level + new.slope * reach
    fade = xp.maximum(1 - FADE * m / k, 0.0)
    new = new._replace(
        ahead=ahead,
        deviation=deviation,
        widest=xp.maximum(abs(new.level), old.widest * fade),
        steepest=xp.maximum(unit, old.steepest * fade),
    )
    aimed = ahead + (MARGIN * xp.sqrt(own) if kind.inequality else 0.0)
    window = xp.maximum(xp.maximum(least, WINDOW * k), FLOOR * total if steps is not None else 0.0)
    low = 0.0 if kind.inequality else -limit
    if kind.exact:
        ramp = xp.minimum(1.0, k / (RAMP * total + _LEAST_NUMBER))
        moved = _exactly(xp, new, ramp, pool.total / (EXACT_TIME * total), low, limit)
    else:
        moved = _by_band(xp, new, kind, pool, aimed, unit, xp.maximum(window, m), low, limit)
    moves = k > (20 if steps is None else WARM_UP * total + 1)
    kept = {name: xp.where(moves, getattr(moved, name), getattr(old, name)) for name in _MOVING}
    return moved._replace(**kept)


_MOVING = ("widest", "steepest", "multiplier", "weight", "penalty")


def _exactly(xp: Any, state: Pressure, ramp: Any, share: Any, low: Any, limit: Any) -> Pressure:
    """An augmented Lagrangian. Its penalty does not fall with the objective's gradient, which vanishes where objective
    and constraints agree, nor with the violation."""
    penalty = EXACT * ramp * state.steepest / (state.widest + _LEAST_NUMBER)
    multiplier = _within(xp, state.multiplier + penalty * share, low, limit)
    return state._replace(multiplier=multiplier, weight=multiplier, penalty=penalty)


def _by_band(
    xp: Any, state: Pressure, kind: Kind, pool: Pool, aimed: Any, unit: Any, window: Any, low: Any, limit: Any
) -> Pressure:
    y, sigma, m = state.multiplier, xp.sqrt(state.noise) + _LEAST_NUMBER, xp.maximum(pool.size, 1.0)
    size = LINEAR * unit + xp.minimum(abs(y), window / LATE * unit)
    band = xp.maximum(BAND * sigma, size * state.widest / (EXACT * unit + _LEAST_NUMBER))
    excess = aimed - _within(xp, aimed, -SURE * state.deviation, SURE * state.deviation)
    haste = xp.where(aimed * y >= 0, HASTE, 0.0) * excess / (state.deviation + _LEAST_NUMBER)
    y = _within(xp, y + size * _within(xp, aimed / band + haste, -1.0, 1.0) * m / window, low, limit)
    weight = _within(xp, y + PROMPT * size * _within(xp, aimed / band, -1.0, 1.0), low, limit)
    quick = size / band
    if kind.inequality:  # what has no weight gets none from noise
        quick = xp.minimum(quick, weight / sigma)
    weight = _within(xp, weight + QUICK * quick * (pool.total / m - state.level), low, limit)
    return state._replace(multiplier=y, weight=weight)


def _reach(xp: Any, state: Pressure, k: Any, total: Any, least: Any, inequality: bool) -> Any:
    """How far ahead a slope is believed; what gets worse is seen as going on only for two windows."""
    left = TRUST * k * xp.log(xp.maximum(END * total / k, 1.0))
    short = 2 * xp.maximum(least, FAST * k)
    return xp.where(state.level * state.slope < 0, left, xp.minimum(left, short)) * (1.0 if inequality else 0.0)


def _tracked(xp: Any, old: Pressure, pool: Pool, least: Any) -> Pressure:
    """Level and slope after one more pool."""
    k, m = pool.count, xp.maximum(pool.size, 1.0)
    mean, own, pools = pool.total / m, pool.scatter / m, old.pools + 1
    first, lasting = old.pools == 0, xp.maximum(0.1, 1 / pools)
    long, fast = (xp.minimum(m * _rate(xp, share, k, least), 1.0) for share in (LONG, FAST))
    noise = old.noise + xp.maximum(long, 1 / pools) * (own - old.noise)
    rest = mean - old.base - m * old.slope
    slope = (old.slope + xp.where(k > 3, long * long / (2 * m), 0.0) * rest) * (1 - m / xp.maximum(k, m + 1))
    error = mean - old.level - m * slope
    innovation = old.innovation + lasting * (error**2 - old.innovation)
    gain = xp.maximum(fast, 1 - 1.5 * noise / (m * innovation + _LEAST_NUMBER))
    return old._replace(
        pools=pools,
        noise=noise,
        base=xp.where(first, mean, old.base + m * old.slope + long * rest),
        slope=xp.where(first, 0 * mean, slope),
        innovation=xp.where(first, own, innovation),
        level=xp.where(first, mean, old.level + m * slope + gain * error),
    )


def _rate(xp: Any, share: float, k: Any, least: Any) -> Any:
    return xp.maximum(2 / (xp.maximum(least, share * k) + 1), 1 / k)


def _within(xp: Any, value: Any, low: Any, high: Any) -> Any:
    return xp.minimum(xp.maximum(value, low), high)


def visit_share(wait: float, total: float) -> float:
    """The share of penalty r that moves the multiplier of one example at a visit, which come every `wait` calls."""
    return min(1.0, wait / (EXACT_TIME * total))


def is_at_limit(state: Pressure, limit: Any) -> Any:
    """Whether a multiplier has reached what it may be, and the bound will probably not be kept even so."""
    along = state.multiplier / (abs(state.multiplier) + _LEAST_NUMBER)
    return (abs(state.multiplier) >= 0.999 * limit) & (state.ahead * along > SURE * state.deviation)
