"""The tests behind a promise: their error, counted over all outcomes rather than sampled."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from lariax.sklearn import _exact
from lariax.sklearn._exact import Count, difference, fewest, lower, p_value, shown, upper


def error_of(n, m, sign, slope, bound, q):
    """The chance that counts of n and m rows show sign (p - slope q) <= bound where it just fails."""
    p = slope * q + sign * bound
    table = np.array(
        [[shown(Count(i, n), Count(j, m), sign, slope, bound, 0.05) for j in range(m + 1)] for i in range(n + 1)]
    )
    return [
        binom.pmf(np.arange(n + 1), n, each) @ table @ binom.pmf(np.arange(m + 1), m, other)
        for each, other in zip(p, q, strict=True)
        if 0 <= each <= 1
    ]


@pytest.mark.parametrize(
    ("sign", "slope", "bound", "q"),
    [(1, 1.0, 0.2, np.linspace(0, 0.8, 17)), (-1, 0.8, 0.0, np.linspace(0, 1, 21))],
    ids=["gap", "ratio"],
)
def test_two_rates_are_never_wrong_too_often(sign, slope, bound, q):
    errors = error_of(18, 25, sign, slope, bound, q)
    assert max(errors) <= 0.05
    assert max(errors) > 0.01  # and the level is used


def test_low_rates_are_tested_as_sharply():
    """A test by the bare difference of the rates would use 0.7 % of its 5 % where one rate is 0.05."""
    errors = error_of(40, 55, 1, 1.0, 0.15, np.array([0.05, 0.2, 0.5, 0.8]))
    assert 0.04 < min(errors) <= max(errors) <= 0.05


@pytest.mark.parametrize("slope", [1.0, 0.8])
@pytest.mark.parametrize(("n", "m"), [(7, 11), (40, 3)])
def test_limits_rise_in_one_rate_and_fall_in_the_other(n, m, slope):
    """What the search over all q rests on."""
    limits = _exact._limit(np.arange(n + 1)[:, None] / n, n, np.arange(m + 1) / m, m, slope)
    assert (np.diff(limits, axis=0) > 0).all()
    assert (np.diff(limits, axis=1) < 0).all()


def test_a_normal_approximation_would_be_wrong_too_often(monkeypatch):
    """What the exact test is for: with few rows Wald's test errs several times as often as it says."""

    def wald(first, second, sign, slope, bound, error):
        a, b = first.rate, second.rate
        spread = np.sqrt(a * (1 - a) / first.rows + slope**2 * b * (1 - b) / second.rows)
        return sign * (a - slope * b) + 1.645 * spread <= bound

    monkeypatch.setitem(globals(), "shown", wald)
    assert max(error_of(18, 25, 1, 1.0, 0.2, np.linspace(0, 0.8, 17))) > 0.08


def test_two_rates_need_less_room_than_two_intervals():
    """At 2,000 rows each, a gap of 0.017 shows one of 0.05; two Clopper-Pearson intervals do not."""
    first, second = Count(634, 2000), Count(600, 2000)
    assert shown(first, second, 1, 1.0, 0.045, 0.05)
    assert upper(first, 0.025) - lower(second, 0.025) > 0.045


def test_the_p_value_tends_to_the_normal_one():
    first, second = Count(3300, 10_000), Count(3200, 10_000)
    spread = np.sqrt(0.33 * 0.67 / 1e4 + 0.32 * 0.68 / 1e4)
    z = (0.01 - 0.02) / spread
    normal = norm.cdf(z)
    assert p_value(first, second, 1, 1.0, 0.02) == pytest.approx(normal + _exact.NUISANCE, abs=0.008)


def test_clopper_pearson_and_what_it_takes():
    assert upper(Count(0, 29), 0.05) <= 0.1 < upper(Count(0, 28), 0.05)
    assert fewest(0.1, 0.05) == 29
    assert lower(Count(29, 29), 0.05) >= 0.9
    assert not shown(Count(0, 0), None, 1, 0.0, 0.5, 0.05)  # no rows show nothing


def test_means_of_scores_are_bounded_too():
    """Empirical Bernstein on 300 rows of a two-point law: the bound misses the mean in at most 5 % of 1,000 draws
    (a false alarm of this test: 1e-3)."""
    random = np.random.default_rng(0)
    values = np.where(random.random((1000, 300)) < 0.1, 0.9, 0.05)
    truth = 0.1 * 0.9 + 0.9 * 0.05
    bounds = [upper(Count(row.sum(), 300, np.sum(row**2)), 0.05) for row in values]
    assert np.sum(np.array(bounds) < truth) <= binom.ppf(0.999, 1000, 0.05)
    assert np.mean(bounds) < truth + 0.15


def test_an_interval_for_a_difference_holds_it():
    low, high = difference(Count(60, 200), Count(40, 250), 1.0, 0.05)
    assert low < 0.14 < high
    assert high - low < 0.2


def test_counts_with_another_rate():
    assert Count(80, 100).moved(0.043) == Count(84.0, 100)
    assert Count(80, 100).moved(0.5) == Count(100.0, 100)
    assert Count(0, 0).moved(0.1) == Count(0, 0)
    values = np.array([0.2, 0.4, 0.9])
    one = Count(values.sum(), 3, values @ values).moved(-0.1)
    assert (one.hits, one.squares) == (pytest.approx(np.sum(values - 0.1)), pytest.approx(np.sum((values - 0.1) ** 2)))
