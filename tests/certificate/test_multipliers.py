"""Whose multipliers are judged, and how they are fitted: on polytopes whose solutions are known exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

import lariax as lx
from lariax.certificate import certify_run

DIMENSION, ROWS = 6, 60  # ten rows for each variable


class Noise(eqx.Module):
    size: int = eqx.field(static=True)

    def __call__(self, key):
        return jax.random.normal(key, (self.size,))


class Distance(eqx.Module):
    """Half the squared distance to a target, with a noisy gradient."""

    target: jax.Array

    def __call__(self, x, z=None):
        z = jnp.zeros(x.size) if z is None else z
        return 0.5 * jnp.sum((x - self.target) ** 2) + 0.5 * z[: x.size] @ x


class Sides(eqx.Module):
    """The sides of a polytope, with noisy right-hand sides."""

    normals: jax.Array
    bounds: jax.Array

    def __call__(self, x, z=None):
        exact = self.normals @ x - self.bounds
        return exact if z is None else exact + 0.1 * z[x.size :]


def nearest(normals, bounds, target):
    """The point of {A x <= b} nearest to a target, and its multipliers (Lawson and Hanson's least distance problem)."""
    system = np.vstack([-normals.T, normals @ target - bounds])
    weights, _ = nnls(system, np.eye(len(target) + 1)[-1], maxiter=10_000)
    left = system @ weights - np.eye(len(target) + 1)[-1]
    return target - left[:-1] / left[-1], weights / -left[-1]


def polytope(kind, seed=0, dimension=DIMENSION, rows=ROWS):
    """Random sides; or each of half of them twice, or with the opposite side beside it, or cut by x >= 0."""
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(rows, dimension))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    bounds, target = rng.uniform(0.2, 1.0, size=rows), 2 * rng.normal(size=dimension)
    if kind in ("twice", "opposite"):
        normals[rows // 2 :] = (1 if kind == "twice" else -1) * normals[: rows // 2]
        bounds[rows // 2 :] = bounds[: rows // 2]
    within = lx.sets.Box(0.0, np.inf) if kind == "face" else lx.sets.Box(-np.inf, np.inf)
    more = (-np.eye(dimension), np.zeros(dimension)) if kind == "face" else (np.zeros((0, dimension)), np.zeros(0))
    x, y = nearest(np.vstack([normals, more[0]]), np.concatenate([bounds, more[1]]), target)
    x = np.where(np.abs(x) < 1e-12, 0, x) if kind == "face" else x
    problem = lx.Problem(
        Distance(jnp.asarray(target)),
        samples=lx.Distribution(Noise(dimension + rows)),
        constraints={"side": lx.AtMost(Sides(jnp.asarray(normals), jnp.asarray(bounds)))},
        within=within,
    )
    return problem, jnp.asarray(x), y[:rows], normals @ x - bounds


KINDS = ["random", "twice", "opposite", "face"]


def refuted(certificate):
    return max(certificate.stationarity.low, certificate.complementarity.low, certificate.feasibility.low) > 1e-8


@pytest.mark.long_but("random")
@pytest.mark.parametrize("kind", KINDS)
def test_a_solution_of_many_rows_is_accepted_with_and_without_multipliers(kind):
    """Three intervals of 99.9 % each for 8 certificates: one of them is wrong once in 40 choices of the seed."""
    problem, x, y, residuals = polytope(kind)
    options = {"draws": 4000, "confidence": 0.999}
    fitted = lx.certify(problem, x, **options)
    assert not refuted(fitted)
    assert fitted.fitted
    assert np.all(fitted.multipliers["side"][residuals < -0.1] == 0), "a row with slack gets no multiplier"
    assert np.all(fitted.multipliers["side"] >= 0)
    assert fitted.stationarity.high < 0.2
    assert not refuted(lx.certify(problem, x, {"side": y}, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_that_is_not_one_is_refuted(kind):
    """Within the polytope, by a tenth of the way; and the corner that is nearest to another target."""
    problem, x, _, _ = polytope(kind)
    options = {"draws": 4000, "confidence": 0.999}
    assert refuted(lx.certify(problem, 0.9 * x, **options))
    sides, target = problem.constraints["side"].fun, np.asarray(problem.objective.target)
    corner, _ = nearest(np.asarray(sides.normals), np.asarray(sides.bounds), np.abs(target[::-1]))
    assert refuted(lx.certify(problem, jnp.asarray(corner), **options))


def still(problem):
    """The same with nothing random."""
    sides = problem.constraints["side"].fun
    return lx.Problem(problem.objective, constraints={"side": lx.AtMost(sides, samples=None)}, within=problem.within)


@pytest.mark.parametrize(("dimension", "rows"), [(2, 20), (30, 300)])
def test_what_is_exact_is_fitted_to_rounding(dimension, rows):
    problem, x, y, residuals = polytope("random", 1, dimension, rows)
    certificate = lx.certify(still(problem), x)
    assert certificate.within(1e-9)
    np.testing.assert_allclose(certificate.multipliers["side"], y, atol=1e-6)
    assert np.all(certificate.multipliers["side"][residuals < -1e-6] == 0)


def test_rows_at_work_without_cause_are_named():
    flat = lx.Problem(lambda x: 0.0 * x[0], constraints={"low": lx.AtMost(lambda x: 0 * x - 0.33, samples=None)})
    verdict = lx.certify(flat, jnp.zeros(3), {"low": np.array([0.0, 0.94, 0.5])}).verdict
    assert "inactive constraints: 'low'[1] (slack 0.33, multiplier 0.94) and 'low'[2] (slack 0.33" in verdict


def test_a_run_is_judged_by_its_own_multipliers():
    problem, x, y, _ = polytope("twice")
    own = np.concatenate([y[: ROWS // 2] + y[ROWS // 2 :], np.zeros(ROWS // 2)])  # all of a pair's on its first row
    certificate, passes = certify_run(problem, x, {"side": own}, draws=4000)
    assert passes == 1
    assert not certificate.fitted
    np.testing.assert_array_equal(certificate.multipliers["side"], own)


def test_refuted_multipliers_of_a_run_give_way_to_fitted_ones():
    problem, x, y, residuals = polytope("random")
    wrong = np.where(residuals < -0.3, 0.9, y)
    certificate, passes = certify_run(problem, x, {"side": wrong}, draws=4000, confidence=0.999)
    assert passes == 2
    assert certificate.fitted
    assert not refuted(certificate)
    away, _ = certify_run(problem, 0.9 * x, {"side": y}, draws=4000)
    assert refuted(away)


def test_two_chances_are_paid_for():
    """Intervals that depend on multipliers are made at 1 - alpha / 2 each; those of values are not touched."""
    problem, x, y, _ = polytope("random")
    alone = lx.certify(problem, x, {"side": y}, draws=4000, confidence=0.9)
    half = lx.certify(problem, x, {"side": y}, draws=4000, confidence=0.95)
    run, _ = certify_run(problem, x, {"side": y}, draws=4000, confidence=0.9)
    assert run.stationarity == half.stationarity
    assert run.complementarity == half.complementarity
    assert run.feasibility == alone.feasibility
    assert run.objective == alone.objective
    assert run.confidence == 0.9


def test_the_certificate_of_a_result_has_the_multipliers_of_the_run():
    problem = lx.Problem(
        lambda x: jnp.sum((x - 2) ** 2),
        constraints={"low": lx.AtMost(lambda x: x, jnp.array([1.0, 5.0]), samples=None)},
    )
    result = lx.solve(problem, jnp.zeros(2), iterations=200)
    assert not result.certificate.fitted
    np.testing.assert_array_equal(result.certificate.multipliers["low"], result.multipliers["low"])


def spread(x, z):
    return 0.5 * jnp.sum((x - z) ** 2)


def first(x, z):
    return x[0] + z[0]


METHOD = lx.QuadraticPenalty(step_size=0.05)


def test_all_rows_are_looked_at_where_the_run_has_drawn_as_many():
    rows = np.random.default_rng(0).normal(size=(12_000, 2))
    problem = lx.Problem(spread, samples=lx.Dataset(rows), constraints={"first": lx.AtMost(first, 1.0)})
    few = lx.solve(problem, jnp.zeros(2), METHOD, iterations=100, batch_size=4).certificate
    assert not few.exact
    many = lx.solve(problem, jnp.zeros(2), METHOD, iterations=1600, batch_size=4).certificate
    assert many.exact
    assert many.draws == 12_000


def test_a_longer_run_has_a_sharper_certificate():
    problem = lx.Problem(spread, samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))))
    result = lx.solve(problem, jnp.zeros(2), METHOD, iterations=25_000, batch_size=4)
    assert 0.9 * result.draws / 4 < result.certificate.draws <= result.draws / 4


def test_values_are_judged_on_all_draws():
    """Half of them fit the multipliers, but what a constraint is does not depend on those."""
    problem, x, y, _ = polytope("random")

    def width(multipliers):
        report = lx.certify(problem, x, multipliers, draws=4000).constraints["side"]
        return np.mean(report.high - report.low)

    assert width(None) < 1.1 * width({"side": y})
