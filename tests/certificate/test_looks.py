"""Certificates during a run: when it stops, what that costs, and that it changes nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx


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
    assert result.certificate.fault is None
    assert result.success
    assert result.certificate.confidence == 0.95


def test_a_budget_that_was_too_small_is_no_success(problem):
    result = lx.solve(problem, jnp.array([5.0, -5.0]), iterations=2)
    assert result.status == "budget"
    assert result.certificate.fault in ("infeasible", "not stationary")
    assert not result.success


def test_where_looks_cannot_be(problem):
    with pytest.raises(ValueError, match="tolerance="):
        jax.vmap(lambda seed: lx.solve(problem, jnp.zeros(2), METHOD, iterations=10, tolerance=0.1, seed=seed).x)(
            jnp.arange(2)
        )
    stream = lx.Problem(lambda x, z: x * z, samples=lx.Stream([np.ones(8)], repeat=True))
    with pytest.raises(ValueError, match="gives the same again"):
        lx.solve(stream, jnp.ones(()), lx.QuadraticPenalty(), iterations=10, tolerance=0.1)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        lx.solve(problem, jnp.zeros(2), iterations=10, tolerance=0.0)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(5).normal(2.0, 0.1, size=(200, 100))


def distance(x, row):
    return 0.5 * (x - row["v"]) ** 2


def total(x, row):
    return x + row["v"]


def of_stream(batches):
    """E[z] by least squares, with a function of its own for a constraint that is never active."""
    source = lx.Stream({"v": batch} for batch in batches)
    return lx.Problem(distance, samples=source, constraints={"far": lx.AtMost(total, 100.0)})


METHOD = lx.QuadraticPenalty(step_size=0.05)


def test_looks_at_a_stream_take_rows_to_come(rows):
    options = {"iterations": 4000, "batch_size": 2}
    plain = lx.solve(of_stream(rows), jnp.zeros(()), METHOD, **options)
    looked = lx.solve(of_stream(rows), jnp.zeros(()), METHOD, tolerance=1e-9, **options)
    assert plain.x == looked.x, "the run has the rows that were looked at, in their turn"
    assert looked.certificate.population
    assert plain.draws < looked.draws == plain.draws + looked.certificate.draws + _left_of_block(looked)
    draws = 2048 + 2048 + 4000  # of the looks after 1,000, 2,000 and 4,000 iterations of 4 rows; two functions on each,
    assert 1.7 * 2 * draws < looked.evaluations - plain.evaluations <= 2 * 2 * draws  # twice: own multipliers, fitted
    truth = abs(float(looked.x) - rows.mean())
    assert looked.certificate.stationarity.low <= truth + 0.02
    assert looked.certificate.stationarity.high >= truth - 0.02


def _left_of_block(result):
    """Rows of the latest block that the run has not come to."""
    blocks = result.continuation.setup.blocks
    place = result.iterations + blocks.start
    return (-place % blocks.length) * result.continuation.oracle.draws_per_iteration


def test_asking_for_a_certificate_takes_nothing_from_a_stream(rows):
    one, other = (lx.solve(of_stream(rows), jnp.zeros(()), METHOD, iterations=500) for _ in range(2))
    assert one.certificate.population
    on, without = (lx.solve(result.continuation.oracle.problem, result, iterations=300) for result in (one, other))
    assert on.x == without.x
    assert on.x != one.x


def test_a_stream_without_rows_left_has_no_certificate(rows):
    result = lx.solve(of_stream(rows[:10]), jnp.zeros(()), METHOD, iterations=5000, output="best")
    assert result.status == "source_ended"
    assert result.certified is None
    with pytest.raises(ValueError, match="too few rows left"):
        _ = result.certificate


def test_rows_that_repeat_are_what_a_certificate_is_about():
    stream = lx.Stream([np.linspace(0, 1, 64)], repeat=True)
    problem = lx.Problem(lambda x, z: 0.5 * (x - z) ** 2, samples=stream)
    certificate = lx.solve(problem, jnp.zeros(()), METHOD, iterations=100).certificate
    assert not certificate.population
    assert "repeats" in certificate.verdict


def test_heldout_rows_are_judged_when_asked():
    rows = np.random.default_rng(0).normal(1.0, 0.1, size=(64, 1))
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
        samples=lx.Dataset(rows),
        heldout=lx.Dataset(rows + 1.0),
    )
    result = lx.solve(problem, jnp.ones(1), METHOD, iterations=1000, tolerance=0.1)
    assert result.success
    assert result.certified.heldout is None
    assert result.certified.exact
    assert 0.9 < result.certificate.heldout.stationarity.low < result.certificate.heldout.stationarity.high < 1.1
