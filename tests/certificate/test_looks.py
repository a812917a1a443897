"""Certificates during a run: when it stops, what that costs, and that it changes nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.loop._looks import Looked, Looks


@pytest.fixture(scope="module")
def problem():
    return lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - jnp.array([1.0, 3.0]) - 0.1 * z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
        constraints={"equal": lx.Equal(lambda x, z: x[0] - x[1] + 0.1 * z[0])},
    )


@pytest.fixture(scope="module")
def stopped(problem):
    return lx.solve(problem, jnp.zeros(2), iterations=50_000, tolerance=0.05, record_every=500)


def test_a_run_stops_when_it_may(stopped):
    assert stopped.status == "stationary"
    assert stopped.success
    assert stopped.iterations < 50_000
    assert stopped.certificate.within(0.05)
    assert stopped.certificate.confidence > 0.95
    np.testing.assert_allclose(stopped.x, [2.0, 2.0], atol=0.1)
    np.testing.assert_array_equal(stopped.multipliers["equal"], stopped.certificate.multipliers["equal"])


def test_looks_change_no_bit_and_their_draws_are_counted(problem, stopped):
    plain = lx.solve(problem, jnp.zeros(2), iterations=stopped.iterations, record_every=500)
    np.testing.assert_array_equal(plain.x, stopped.x)
    beside = stopped.draws - plain.draws
    assert beside >= stopped.certificate.draws > 0
    assert stopped.history["draws"][0] == plain.history["draws"][0]
    assert np.all(np.diff(stopped.history["draws"]) >= np.diff(plain.history["draws"]))


def test_a_budget_of_draws_holds_with_looks(problem):
    result = lx.solve(problem, jnp.zeros(2), draws=20_000, tolerance=1e-9)
    assert result.status == "budget"
    assert not result.success
    assert 10_000 < result.draws <= 20_000
    assert result.certificate.stationarity.high > 1e-9


def test_the_best_is_kept_and_carried_on(problem):
    first = lx.solve(problem, jnp.zeros(2), iterations=1500, output="best")
    again = lx.solve(problem, first, iterations=1500)
    best, before = again.certificate, first.certificate
    assert max(best.stationarity.high, best.feasibility.high) <= max(before.stationarity.high, before.feasibility.high)
    assert again.draws > first.draws
    np.testing.assert_array_equal(again.multipliers["equal"], best.multipliers["equal"])


def test_without_a_tolerance_the_certificate_waits_until_asked(problem):
    result = lx.solve(problem, jnp.zeros(2), iterations=3000)
    assert result.certified is None
    assert result.certificate is result.certificate
    assert not result.success
    assert result.certificate.confidence == 0.95


def test_where_looks_cannot_be(problem):
    with pytest.raises(ValueError, match="tolerance="):
        jax.vmap(lambda seed: lx.solve(problem, jnp.zeros(2), iterations=10, tolerance=0.1, seed=seed).x)(jnp.arange(2))
    stream = lx.Problem(lambda x, z: x * z, samples=lx.Stream([np.ones(8)], repeat=True))
    with pytest.raises(ValueError, match="read only once"):
        Looks(stream, 0.1, 0.95, jax.random.key(0), 1, Looked())
    with pytest.raises(ValueError, match="tolerance must be positive"):
        lx.solve(problem, jnp.zeros(2), iterations=10, tolerance=0.0)


def test_heldout_rows_are_judged_when_asked():
    rows = np.random.default_rng(0).normal(1.0, 0.1, size=(64, 1))
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
        samples=lx.Dataset(rows),
        constraints={"q": lx.AtMost(lambda x, z: jnp.sum(x), 5.0)},
        heldout=lx.Dataset(rows + 1.0),
    )
    result = lx.solve(problem, jnp.ones(1), iterations=1000, tolerance=0.1)
    assert result.success
    assert result.certified.heldout is None
    assert result.certified.exact
    assert 0.9 < result.certificate.heldout.stationarity.low < result.certificate.heldout.stationarity.high < 1.1
