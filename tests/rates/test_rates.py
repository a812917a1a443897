"""The rate laboratory: its problems are what it says, it measures what it says, and it can tell a rate from none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax import rates
from lariax.oracle import Batch, bind
from lariax.rates._cases import OUTWARD, Member
from lariax.rates._experiments import BURN_IN, NO_STORM, PAPER
from lariax.rates._watch import MEASURES, Watched


@pytest.fixture(scope="module")
def member():
    return Member.draw(jax.random.key(3), pull=0.5, curvature=0.5, bounded=True)


def test_a_member_has_the_solution_that_it_says(member):
    p = member.constraint.point
    slope = jax.grad(member.objective.mean)(p) + jax.jacobian(member.constraint.mean)(p).T @ member.multipliers
    np.testing.assert_allclose(slope, [-OUTWARD, 0, 0, 0, 0, 0], atol=1e-12)
    np.testing.assert_array_equal(member.constraint.mean(p), 0)
    np.testing.assert_allclose(jnp.linalg.norm(member.multipliers), 0.5)
    start = member.start(2.0)
    slope = jax.grad(lambda x: member.objective.mean(x) + jnp.sum(member.constraint.mean(x) ** 2))(start)
    assert start[0] == p[0]
    assert slope[0] < 0  # held by the bound
    np.testing.assert_allclose(slope[1:], 0, atol=1e-12)


def test_expectations_are_exact(member):
    """Against 200,000 draws, to six standard errors: a false alarm in 1e8 or so."""
    x, n = member.constraint.point + 0.3, 200_000
    keys = jax.random.split(jax.random.key(0))
    for fun, exact, size in (
        (member.objective, member.objective.mean, 6),
        (member.constraint, member.constraint.mean, 3),
    ):
        values = jax.vmap(fun, (None, 0))(x, jax.random.normal(keys[0], (n, size)))
        error = jnp.std(values, axis=0) / np.sqrt(n)
        assert bool(jnp.all(jnp.abs(values.mean(axis=0) - exact(x)) < 6 * error))


def test_what_is_watched_is_what_happens(member):
    """The sums are those of the plain method's own iterates, with the multiplier rho_k c(x_{k+1}) of the theorem."""
    method, problem, x0 = lx.QuadraticPenalty(0.25, 2.0), member.problem("random"), member.start(2.0)
    watched = lx.solve(problem, x0, Watched(method, member, (3, 6), burn_in=1), iterations=6, seed=5, record_every=6)
    measured, result = [], x0
    for k in range(1, 7):
        result = lx.solve(problem, result, method, iterations=1, seed=5)
        c, jacobian = member.constraint.mean(result.x), jax.jacobian(member.constraint.mean)(result.x)
        slope = jax.grad(member.objective.mean)(result.x)
        y, following = 2 * k ** (1 / 5) * c, 2 * (k + 1) ** (1 / 5) * c
        stationarity = problem.within.stationarity(result.x, slope + jacobian.T @ y)
        error = jnp.linalg.norm(result.continuation.loop.state.gradient - slope - jacobian.T @ following)
        measured.append([stationarity, jnp.linalg.norm(c), error, error / (2 * k ** (1 / 5)), jnp.linalg.norm(y)])
    np.testing.assert_array_equal(watched.x, result.x)
    expected = [np.sum(measured[1:3], axis=0), np.sum(measured[1:6], axis=0)]
    np.testing.assert_allclose(watched.history["sums"][0], expected, rtol=1e-9)


def test_the_same_batch_is_the_same_batch(member):
    watched = Watched(lx.QuadraticPenalty(), member, (3,), burn_in=0, same_batch=True)
    structures = (jnp.zeros(6), jnp.zeros(3))
    oracle = bind(member.problem("random"), jnp.zeros(6), structures, batch_size=1, copies=2, has_slacks=True)
    batch = Batch((jnp.zeros((1, 6)), jnp.arange(6.0).reshape(2, 3)))
    seen = watched._seen(oracle, batch)
    np.testing.assert_array_equal(seen.samples[1], [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(seen.samples[0], batch.samples[0])


def measured_with(power, variant=PAPER, case="I", level=1.0):
    """Runs whose every measure falls as K^power, up to noise of 10 % from run to run."""
    marks = np.array([1000, 10_000, 100_000, 1_000_000])
    noise = np.random.default_rng(1).lognormal(sigma=0.1, size=(40, 4, len(MEASURES)))
    means = noise * ((marks / 1000.0) ** power)[:, None]
    means[:, :, MEASURES.index("stationarity")] *= level
    return rates.Measured(case, variant, marks, means * (marks - BURN_IN)[:, None], np.ones(40))


def test_slopes_are_found_with_their_intervals():
    slope = rates.slope(measured_with(-0.4), "stationarity")
    assert slope.low < -0.4 < slope.high
    assert slope.high - slope.low < 0.02


@pytest.mark.parametrize(
    ("own", "ablated", "level", "missed"),
    [
        (-1 / 3, -0.1, 1.0, []),
        (-0.25, -0.1, 1.0, ["stationarity slope", "feasibility slope"]),
        (-1 / 3, -1 / 3, 1.0, ["no STORM misses"]),
        (-1 / 3, -0.1, 20.0, ["at most 10 times the noise"]),
    ],
)
def test_claims_can_fail(own, ablated, level, missed):
    report = rates.Report([measured_with(own, level=level), measured_with(ablated, NO_STORM)], seconds=1.0)
    found = [claim.sentence for claim in report.claims() if not claim.holds]
    assert len(found) == len(missed)
    assert all(words in sentence for words, sentence in zip(missed, found, strict=True))


@pytest.mark.long
def test_a_small_run(tmp_path):
    """Case I to K = 2,000 on 8 problems: the levels of noise and of no STORM, the tables, the pictures."""
    report = rates.measure(["I"], seeds=8, longest=2000, variants=[PAPER, NO_STORM])
    own, ablated = report.measured
    assert own.sums.shape == (8, 2, len(MEASURES))
    assert 0.5 < report.level(own, "stationarity", 0) / report.level(own, "error", 0) < 2
    assert report.level(ablated, "stationarity", -1) > 2 * report.level(own, "stationarity", -1)
    text = report.markdown()
    assert "| I | no STORM | -0.333 |" in text
    assert all(path.stat().st_size > 10_000 for path in rates.draw(report, tmp_path))


def test_an_unknown_case_is_refused(capsys):
    from lariax.rates.__main__ import main

    with pytest.raises(SystemExit):
        main(["IV"])
    assert "there is no case IV" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no experiment has a case"):
        rates.measure(["IV"])
