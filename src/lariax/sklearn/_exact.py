"""Tests and intervals for rates that hold for every number of rows: no normal approximation.

A rate is the mean of k out of n independent yes-or-no answers, so k is binomial. A p-value here is an upper bound of
the chance to see counts at least as good as these, if the rate were just not good enough.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtr, betaincinv, ndtri, stdtrit
from scipy.stats import binom

NUISANCE = 1e-3
"""Of a p-value for two rates: the chance that the second rate lies outside of the interval that is searched."""

SURE = 1.645
"""Standard errors in the limit by which outcomes are ordered: the test is valid with any number, and sharpest near the
one of its level."""

TAIL = 1e-9
"""Of the second count, left out of sums and added to the p-value."""

ENDLESS = 10**9
"""Rows, where no number of them is enough."""


@dataclass(frozen=True)
class Count:
    """`hits` out of `rows`: a share of answers, or the sum of values between 0 and 1, with the sum of their squares."""

    hits: float
    rows: float
    squares: float | None = None  # None: the values are 0 or 1
    bounded: bool = True  # between 0 and 1; else there is no exact bound, and Student's is taken

    @property
    def rate(self) -> float:
        return self.hits / self.rows if self.rows else float("nan")

    @property
    def flipped(self) -> "Count":
        """The same of 1 - value."""
        squares = None if self.squares is None else self.rows - 2 * self.hits + self.squares
        return Count(self.rows - self.hits, self.rows, squares, self.bounded)

    def moved(self, by: float) -> "Count":
        """With a rate that is higher by this, or as much higher as it can be: of answers in whole hits, of values with
        the same variance. Not moved by NaN."""
        if not (self.rows and np.isfinite(by)):
            return self
        hits = float(np.clip(self.hits + by * self.rows, 0, self.rows))
        if self.squares is None:
            return replace(self, hits=float(round(hits)))
        return replace(self, hits=hits, squares=self.squares + (hits**2 - self.hits**2) / self.rows)


def upper(count: Count, error: float) -> float:
    """Above the true rate but for a chance of `error`: Clopper and Pearson for answers, Maurer and Pontil's empirical
    Bernstein bound for values."""
    if not count.bounded:
        return _student(count, error)
    if not count.rows:
        return 1.0
    if count.squares is not None:
        return _bernstein(count, error)
    k, n = count.hits, count.rows
    return 1.0 if k >= n else float(betaincinv(k + 1, n - k, 1 - error))


def lower(count: Count, error: float) -> float:
    """Below the true rate but for a chance of `error`."""
    return 1 - upper(count.flipped, error)


def _bernstein(count: Count, error: float) -> float:
    n, mean = count.rows, count.rate
    if n < 2 or count.squares is None:
        return 1.0
    variance = max(count.squares / n - mean**2, 0.0) * n / (n - 1)
    log = np.log(2 / error)
    return float(min(1.0, mean + np.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1))))


def _student(count: Count, error: float) -> float:
    if count.rows < 2 or count.squares is None:
        return float("inf")
    variance = max(count.squares / count.rows - count.rate**2, 0.0) / (count.rows - 1)
    return float(count.rate - stdtrit(count.rows - 1, error) * np.sqrt(variance))


def shown(first: Count, second: Count | None, sign: int, slope: float, bound: float, error: float) -> bool:
    """Whether counts show  sign (p - slope q) <= bound  for the rates p and q of two kinds of rows (or p alone), with
    at most a chance of `error` to say so when it is not true."""
    if not first.rows or (second is not None and not second.rows):
        return False
    if second is None:
        return upper(first, error) <= bound if sign > 0 else lower(first, error) >= -bound
    if first.squares is not None or second.squares is not None:
        high = upper(first, error / 2) - slope * lower(second, error / 2)
        low = lower(first, error / 2) - slope * upper(second, error / 2)
        return high <= bound if sign > 0 else -low <= bound
    if sign * (first.rate - slope * second.rate) > bound:
        return False
    return p_value(first, second, sign, slope, bound, stop=error) <= error


def p_value(first: Count, second: Count, sign: int, slope: float, bound: float, stop: float | None = None) -> float:
    """An upper bound of the p-value for  sign (p - slope q) > bound;  a rough one as soon as it is clear on which side
    of `stop` it is.

    Outcomes are ordered by `_limit`, which knows how precise they are: by the bare difference p^ - slope q^ the worst q
    of all would decide, however far it is from q^. On the boundary p = slope q + bound, and what is left is q: it is
    searched over its Clopper-Pearson interval at level `NUISANCE`, which is added (Berger and Boos, 1994). The limit
    rises in p^ and falls in q^, so the chance of this one or a lower one falls in p and rises in q, and on a cell of q
    it is at most the one at the two ends that favour it: the search is over all q, not over a grid of them. Cells that
    matter are halved until the bound is tight.
    """
    if sign < 0:  # of 1 - p and 1 - q
        first, second, bound = first.flipped, second.flipped, bound + 1 - slope
    low, high = lower(second, NUISANCE / 2), upper(second, NUISANCE / 2)
    better = _better(first, second, slope, *_range(int(second.rows), low, high))
    extra = NUISANCE + TAIL
    edges = np.linspace(low, high, 5)
    ends = np.stack([edges[:-1], edges[1:]], axis=1)
    worst = 0.0
    for depth in range(9):
        middles = ends.mean(axis=1, keepdims=True)
        found = _chances(first, second, slope, bound, better, np.concatenate([ends, middles @ np.ones((1, 2))]))
        highest, points = found[: len(ends)], found[len(ends) :]
        worst, top = max(worst, float(points.max())), float(highest.max())
        clear = stop is not None and (worst + extra > stop or top + extra <= stop)
        if clear or depth == 8 or top - worst < 1e-4:
            break
        kept, halves = highest > worst, np.concatenate([ends[:, :1], middles, ends[:, 1:]], axis=1)
        ends = np.concatenate([halves[kept][:, :2], halves[kept][:, 1:]])
    return min(1.0, top + extra)


def _limit(p: np.ndarray, n: float, q: np.ndarray, m: float, slope: float) -> np.ndarray:
    """About the upper end of an interval for p - slope q, from the two Wilson intervals (R. G. Newcombe, 1998). It
    rises in p and falls in q: ends of Wilson's intervals move by 0 to 2 times as much as the rates."""
    above, below = _wilson(p, n, SURE) - p, q - _wilson(q, m, -SURE)
    return np.asarray(p - slope * q + np.hypot(above, slope * below))


def _wilson(rate: np.ndarray, rows: float, z: float) -> np.ndarray:
    spread = z * np.sqrt(rate * (1 - rate) / rows + z**2 / (4 * rows**2))
    return np.asarray((rate + z**2 / (2 * rows) + spread) / (1 + z**2 / rows))


def _better(first: Count, second: Count, slope: float, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Second counts, and with each the largest first count (-1: none) that has no higher limit than the counts seen."""
    n, m, k = int(first.rows), int(second.rows), np.arange(start, end + 1)
    seen = _limit(np.asarray(first.rate), n, np.asarray(second.rate), m, slope) + 1e-9
    low, high = np.full(len(k), -1), np.full(len(k), n)
    while np.any(going := low < high):
        middle = (low + high + 1) // 2
        within = _limit(np.maximum(middle, 0) / n, n, k / m, m, slope) <= seen
        low, high = np.where(going & within, middle, low), np.where(going & ~within, middle - 1, high)
    return k, low


def _chances(
    first: Count, second: Count, slope: float, bound: float, better: tuple[np.ndarray, np.ndarray], cells: np.ndarray
) -> np.ndarray:
    """The chance of no higher limit, at most, while q is in a cell and p on the boundary; for each cell."""
    (k, most), n, m = better, int(first.rows), int(second.rows)
    p = slope * cells[:, 0] + bound
    weights = binom.pmf(k, m, cells[:, 1:])
    tails = np.where(most < 0, 0.0, bdtr(np.maximum(most, 0), n, np.clip(p, 0, 1)[:, None]))
    return np.where(p > 1, 0.0, np.sum(weights * tails, axis=1))  # beyond 1 no rate p is bad enough


def _range(rows: int, low: float, high: float) -> tuple[int, int]:
    """Counts outside of which a binomial count falls with a chance of at most TAIL, whatever the rate in between."""
    start, end = binom.ppf(TAIL / 2, rows, low), binom.ppf(1 - TAIL / 2, rows, high)
    return int(max(start, 0)), int(end)


def difference(first: Count, second: Count, slope: float, error: float) -> tuple[float, float]:
    """An interval for p - slope q that holds but for a chance of `error`, by inverting `shown` (to three digits)."""
    if first.squares is not None or second.squares is not None:
        low = lower(first, error / 4) - slope * upper(second, error / 4)
        return low, upper(first, error / 4) - slope * lower(second, error / 4)
    middle = first.rate - slope * second.rate
    ends = []
    for sign in (-1, 1):
        good, bad = (1.0 if sign > 0 else slope) + 1e-6, sign * middle
        while good - bad > 1e-3:
            half = (good + bad) / 2
            good, bad = (half, bad) if shown(first, second, sign, slope, half, error / 2) else (good, half)
        ends.append(sign * good)
    return max(ends[0], -slope), min(ends[1], 1.0)


def fewest(bound: float, error: float) -> int:
    """Rows without a single miss that show a rate of misses of at most `bound`: (1 - bound)^n <= error."""
    return int(np.ceil(np.log(error) / np.log1p(-bound))) if 0 < bound < 1 else (1 if bound >= 1 else ENDLESS)


def factor_needed(slack: float, deviation: float, error: float) -> float:
    """How many times as many rows would show it in 4 of 5 cases, where the estimate is good by `slack` and its standard
    error is `deviation` (a normal approximation: this is advice, not a promise)."""
    return float(((-ndtri(error) + ndtri(0.8)) * deviation / slack) ** 2) if slack > 0 else float("inf")
