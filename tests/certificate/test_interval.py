"""The one piece of statistics, against what is known exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lariax.certificate import SequentialTest, _spread
from lariax.certificate._interval import Level, errors, interval, level, mean_intervals
from lariax.certificate._spread import BatchMeans
from scipy import stats

K = 16


def at(confidence=0.95, k=K, entries=1, rows=1):
    return level(confidence, k, entries, np.ones(rows), np.float64)


def means(mu, sd, k=K, seed=0):
    """k batch means of which the overall mean has standard deviation sd in each entry."""
    mu = np.atleast_1d(np.asarray(mu, float))
    return mu + sd * k**0.5 * np.asarray(jax.random.normal(jax.random.key(seed), (k, mu.size)))


def free(g):
    return g


def positive(r):
    return jnp.maximum(r, 0)


def length_interval(spread, residual, at, *, kinks):
    return interval(errors(spread, residual, at, kinks=kinks), at)


interval_of = eqx.filter_jit(
    lambda b, residual, at, *, kinks: length_interval(BatchMeans.of(b), residual, at, kinks=kinks)
)


def test_one_entry_far_from_zero_is_students_interval():
    b = means(50.0, 1.0, k=64)
    found = interval_of(b, free, at(k=64), kinks=False)
    mean, error = np.mean(b), np.std(b, ddof=1) / 8
    half = stats.t.isf(0.025, 63) * error
    np.testing.assert_allclose(found.estimate, mean, rtol=1e-3)
    assert half <= (found.high - found.low) / 2 <= 1.15 * half
    assert found.low < mean - 0.95 * half
    assert found.high > mean + 0.95 * half


def test_contrasts_say_what_deviations_do():
    b = means(np.linspace(-2.0, 3.0, 7), 1.0)
    weights, deviations = np.linspace(-1.0, 2.0, K), b - np.mean(b, axis=0)

    @jax.jit
    def seen(b):
        spread = BatchMeans.of(b)
        return spread.mean, spread.mixing @ spread.contrasts, spread.deviation(weights)

    for found, expected in zip(seen(b), (np.mean(b, axis=0), deviations, weights @ deviations), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@jax.jit
def short_interval_of(b, at):
    spread = BatchMeans.of(b)
    assert spread.is_short
    return length_interval(spread, positive, at, kinks=True)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_short_contrasts_change_no_interval(monkeypatch, scale):
    """Half precision has numbers of 6e-5 to 65,504 only; the contrasts are in units of their largest entry."""
    b = scale * means(np.linspace(-1.0, 1.0, 40), np.geomspace(1e-3, 1.0, 40))
    full = interval_of(b, positive, at(entries=40), kinks=True)
    monkeypatch.setattr(_spread, "KEPT_ENTRIES", 0)
    short = short_interval_of(b, at(entries=40))
    for a, c in zip(full[:3], short[:3], strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-3)


def test_far_from_zero_only_the_noise_along_the_mean_counts():
    sd = np.array([3.0, 0.1, 3.0, 3.0])
    found = interval_of(means([0.0, 1000.0, 0.0, 0.0], sd, k=64), free, at(k=64), kinks=False)
    assert found.high - found.low < 1.5 * 4 * 0.1


def test_a_single_batch_is_exact():
    found = interval_of(jnp.array([[3.0, 4.0]]), free, at(k=1), kinks=True)
    assert found.estimate == found.low == found.high == 5.0


def test_nothing_to_see_in_the_interior_of_a_cone():
    found = interval_of(means([-20.0, -30.0], 1.0), positive, at(), kinks=True)
    assert found.low == found.high == 0


def test_a_bound_within_the_error_is_not_overlooked():
    """The estimate is on the good side, and the truth may be on the other: the upper end says so."""
    b = means([0.0], 1.0, k=64) * 1.0
    b = b - np.mean(b) - 0.5  # one half of a standard error below
    found = interval_of(b, positive, at(k=64), kinks=True)
    assert found.low == found.estimate == 0
    assert 1.3 < found.high < 1.9  # -0.5 + 1.96 and a margin


@pytest.mark.parametrize("p", [1, 30])
def test_width_is_proportional_to_the_noise(p):
    one = interval_of(means(np.zeros(p), 1.0), free, at(), kinks=False)
    half = interval_of(means(np.zeros(p), 0.5), free, at(), kinks=False)
    np.testing.assert_allclose(one.high, 2 * half.high, rtol=1e-9)


def test_in_many_dimensions_the_ball_is_beaten():
    """At 0 in p dimensions a ball needs about 2 sqrt(p) standard errors, pairs of batches p^(1/4)."""
    p = 10_000
    found = interval_of(means(np.zeros(p), 1.0, k=64), free, at(k=64), kinks=False)
    assert found.high < 0.25 * 2 * p**0.5


def test_entries_and_their_names_together():
    b = means(np.arange(5.0), 1.0, k=64)
    found = jax.jit(mean_intervals)
    alone = found(b, at(k=64, rows=5))
    together = found(b, level(0.95, 64, 5, np.full(5, 5.0), np.float64))
    np.testing.assert_allclose(alone.estimate, np.mean(b, axis=0))
    alone_width, width = (np.asarray(each.high) - np.asarray(each.low) for each in (alone, together))
    np.testing.assert_allclose(width, stats.t.isf(0.005, 63) / stats.t.isf(0.025, 63) * alone_width, rtol=0.05)


def test_heavy_tails_are_noticed_and_normal_ones_are_not():
    """False alarms at 2 in 1,000; at most 12 in 1,000 is exceeded with probability below 1e-5."""
    draw = jax.random.normal(jax.random.key(0), (1000, 64, 1))
    alarms = jax.jit(jax.vmap(lambda b: mean_intervals(b, at(k=64)).heavy[0]))
    assert jnp.sum(alarms(draw)) <= 12
    cauchy = jax.random.cauchy(jax.random.key(1), draw.shape)
    assert jnp.mean(alarms(cauchy)) > 0.9


def test_rounding_noise_is_no_heavy_tail():
    b = jnp.ones((64, 3)) + 1e-16 * jax.random.cauchy(jax.random.key(0), (64, 3))
    assert not interval_of(b, free, at(k=64), kinks=False).heavy


@pytest.mark.long
def test_repeated_looks_are_wrong_at_most_as_often_as_stated():
    """1,000 runs of 8 looks where the truth is 2 % above the tolerance, at 95 %: at most 50 may stop.

    About 25 are expected, as only upper ends can be wrong; 51 or more happen with probability below 1e-5.
    """
    tolerance, p = 1.0, 4
    truth = jnp.zeros(p).at[0].set(1.02 * tolerance)
    test = SequentialTest(tolerance, 0.95)
    levels = [at(test.confidence_at(look), entries=p) for look in range(1, 9)]
    stacked = Level(*(jnp.stack([jnp.asarray(part) for part in parts]) for parts in zip(*levels, strict=True)))

    def run(key):
        def one_look(key, this):
            b = truth + 0.02 * K**0.5 * jax.random.normal(key, (K, p))
            return interval_of(b, free, this, kinks=False).high <= tolerance

        return jnp.any(jax.vmap(one_look)(jax.random.split(key, 8), stacked))

    stopped = jax.jit(lambda keys: jax.lax.map(run, keys))(jax.random.split(jax.random.key(0), 1000))
    assert 0 < jnp.sum(stopped) <= 50


def test_the_error_is_spent_and_not_more():
    test = SequentialTest(0.1, 0.9)
    spent = sum(1 - test.confidence_at(look) for look in range(1, 20_000))
    assert 0.0999 < spent < 0.1
    for wrong in ({"tolerance": 0.0}, {"tolerance": -1.0}, {"tolerance": 1.0, "confidence": 1.0}):
        with pytest.raises(ValueError, match="found"):
            SequentialTest(**wrong)
    with pytest.raises(ValueError, match="from 1"):
        test.confidence_at(0)
