"""The recursive estimate that every method here uses, and the products without bias that go into it."""

import math
from typing import Any


def storm(fresh: Any, stale: Any, estimate: Any, momentum: Any) -> Any:
    """STORM: follow a moving mean with one sample an iteration.

        g+ = G+(x+, s) + (1 - alpha) (g - G(x, s))

    `fresh` is G+ at the new point and `stale` is G at the old one, *both on the same sample* s, which must be
    independent of `estimate`. G+ and G may differ (a penalty or a multiplier changed in between); then the old
    function goes with the old point. `momentum` is alpha in [0, 1]: 1 forgets the past, 0 only adds differences.

    >>> storm(fresh=3.0, stale=2.0, estimate=5.0, momentum=0.25)
    5.25
    """
    return fresh + (1 - momentum) * (estimate - stale)


def leave_one_out(rows: Any, strata: int = 1) -> Any:
    """For each row the mean of the others: with it as partner, a product comes from all ordered pairs of the batch.

    Where as many rows were drawn from each of several strata, one after the other, whose means may differ, it is the
    mean of the strata's means, that of the row's own stratum without the row: it has no bias, and knows nothing of it.
    """
    if strata == 1:
        return (rows.sum(0) - rows) / (rows.shape[0] - 1)
    groups = rows.reshape((strata, -1, *rows.shape[1:]))
    own = groups.sum(1)[:, None] / groups.shape[1]
    return rows.sum(0) / rows.shape[0] + ((own - groups) / (strata * (groups.shape[1] - 1))).reshape(rows.shape)


def same_stratum(rows: Any, strata: int, without_own: bool) -> Any:
    """For each row the mean of its stratum, without the row or with it."""
    groups = rows.reshape((strata, -1, *rows.shape[1:]))
    total, count = groups.sum(1)[:, None], groups.shape[1]
    means = (total - groups) / (count - 1) if without_own else total / count + 0 * groups
    return means.reshape(rows.shape)


def repelled(partner: Any, own: Any, population_size: int, near: Any = None) -> Any:
    """Rows drawn from N without replacement repel each other: E over pairs of the corrected partner is the mean.

    (N - 1)/N (partner) + 1/N (the row's own value)

    Where they were drawn from strata of one size, only those of the same stratum do: `near` is their mean.
    """
    return partner + (own - (partner if near is None else near)) / population_size


def least_weights(xp: Any, inequality: Any) -> Any:
    """No negative weight for an inequality: its slack takes up the rest."""
    return xp.where(inequality, 0.0, -math.inf)


def dual_length(dual_step: Any, k: Any, log_of_next: Any) -> Any:
    """How far multipliers move in iteration k: gamma / (k log(k + 1)^2), which is summable."""
    return dual_step / (k * log_of_next**2)
