"""Intervals of true probabilities, quantiles and CVaRs against closed forms; they hold as often as they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm

import lariax as lx
from lariax.certificate._risks import (
    Ends,
    Sample,
    _cvar,
    _mean,
    _probability,
    _quantile,
    clopper_pearson,
    quantile_places,
)

SEEDS, N, LEVEL = 400, 600, 0.9


@pytest.mark.parametrize(("draws", "share"), [(20, 0.1), (100, 0.02), (100, 0.5)])
def test_the_interval_of_a_probability_is_exact(draws, share):
    """Summed over all counts: it fails with a chance of at most 5 %."""
    counts = np.arange(draws + 1)
    low, high = clopper_pearson(counts, draws, 0.05)
    assert binom.pmf(counts, draws, share) @ ((low <= share) & (share <= high)) >= 0.95


@pytest.mark.parametrize(("draws", "level"), [(20, 0.5), (200, 0.9), (1000, 0.99)])
def test_the_places_of_a_quantile_are_exact(draws, level):
    """The number of values below the quantile is binomial, and must lie between the places."""
    low, high = quantile_places(draws, level, 0.05)
    inside = binom.cdf(high - 1, draws, level) - binom.cdf(low - 1, draws, level)
    assert inside >= 0.95
    narrower = binom.cdf(high - 2, draws, level) - binom.cdf(low - 1, draws, level)
    assert narrower < inside < 0.99


def covered(ends: Ends, truth: float) -> float:
    return float(np.mean((ends.low <= truth) & (truth <= ends.high)))


@pytest.mark.parametrize("law", ["normal", "exponential"])
def test_intervals_hold_as_often_as_they_say(law):
    """400 samples of 600. At 95 % fewer than 367 happen once in a thousand; a CVaR's tail of 60 is allowed 93 %."""
    rng = np.random.default_rng(3)
    draw = rng.standard_normal if law == "normal" else rng.standard_exponential
    at = norm.ppf(LEVEL) if law == "normal" else -np.log(1 - LEVEL)
    cvar = norm.pdf(at) / (1 - LEVEL) if law == "normal" else at + 1
    sample = Sample(draw((N, SEEDS)), None, False)
    assert covered(_quantile(sample, LEVEL, 0.05), at) > 0.917
    assert covered(_probability(sample.values > at, sample, 0.05), 1 - LEVEL) > 0.917
    found = _cvar(sample, LEVEL, 0.05, draw((4000, SEEDS)))
    assert covered(found, cvar) > 0.93 - 0.034
    assert np.mean(found.value) == pytest.approx(cvar, rel=0.02)


def test_skewness_makes_an_interval_longer_on_its_side():
    values = np.random.default_rng(0).standard_exponential(200) ** 2
    value, low, high = _mean(values, 0.05)
    assert high - value > 1.3 * (value - low)
    value, low, high = _mean(np.append(values, -values), 0.05)
    assert high - value == pytest.approx(value - low, rel=0.01)


# --- in a certificate


def loss(x, z):
    return x + 2 * z  # normal with mean x and standard deviation 2


NORMAL = lx.Distribution(jax.random.normal)
AT = 2 * norm.ppf(LEVEL)


def certified(constraints, source=NORMAL, draws=4000, **options):
    problem = lx.Problem(lambda x, z: (x - 1) ** 2, samples=source, constraints=constraints)
    return lx.certify(problem, jnp.asarray(0.0), {name: 0.0 for name in constraints}, draws=draws, **options)


def test_a_certificate_speaks_of_the_risk_itself_in_its_own_units():
    found = certified(
        {
            "chance": lx.risk.Chance(loss, 0.5),
            "var": lx.AtMost(lx.risk.Quantile(loss, LEVEL), 5.0),
            "cvar": lx.AtMost(lx.risk.CVaR(loss, LEVEL), 1.0),
        }
    )
    chance, var, cvar = (found.constraints[name] for name in ("chance", "var", "cvar"))
    assert 0.45 < chance.low < 0.5 < chance.high < 0.55
    assert chance.high - chance.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(4000), rel=0.05)
    assert var.low < AT < var.high
    assert (var.bound, var.holds) == (5.0, "surely")
    assert cvar.low < 2 * norm.pdf(norm.ppf(LEVEL)) / (1 - LEVEL) < cvar.high
    assert cvar.holds == "violated"
    assert not found.warnings


def test_too_few_samples_in_the_tail_are_told():
    found = certified({"rare": lx.risk.Chance(lambda x, z: z - 3.5, 0.01)})
    assert "of 4,000 samples are in the tail" in found.warnings[-1]
    shifted = lx.Distribution(lambda key: 3.5 + jax.random.normal(key), weight=lambda z: jnp.exp(6.125 - 3.5 * z))
    weighted = certified({"rare": lx.risk.Chance(lambda x, z: z - 3.5, 0.01)}, shifted)
    assert weighted.constraints["rare"].value == pytest.approx(norm.sf(3.5), rel=0.15)
    assert weighted.constraints["rare"].low < norm.sf(3.5) < weighted.constraints["rare"].high
    assert not any("in the tail" in word for word in weighted.warnings)


def test_all_rows_are_exact_and_held_out_rows_are_a_sample():
    rows = np.random.default_rng(0).standard_normal(500)
    problem = lx.Problem(
        lambda x, z: (x - 1) ** 2,
        samples=lx.Dataset(rows.astype("float32")),
        heldout=lx.Dataset(rows[:200].astype("float32")),
        constraints={"chance": lx.risk.Chance(loss, 0.5)},
    )
    found = lx.certify(problem, jnp.asarray(0.0), {"chance": 0.0})
    report, other = found.constraints["chance"], found.heldout.constraints["chance"]
    assert report.low == report.high == pytest.approx(np.mean(rows > 0))
    assert other.low < other.value < other.high
    assert other.value == pytest.approx(np.mean(rows[:200] > 0))
