"""Points that are not the solution are told apart from it, and in the right words."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx


@pytest.fixture(scope="module")
def biased():
    """Same-batch methods end at (0.42, 0.61) or (0.41, 0.59), where the constraint looks satisfied; see the README."""
    return lx.Problem(
        lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, ())),
        constraints={"c": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
    )


def test_the_solution(biased):
    certificate = lx.certify(biased, jnp.array([-0.5, 1.5]))
    assert certificate.stationarity.low == certificate.feasibility.low == 0
    assert certificate.population
    assert not certificate.exact
    assert "not distinguishable from a solution" in certificate.verdict
    assert abs(certificate.multipliers["c"] - 0.5) < 0.2


@pytest.mark.parametrize("end", [(0.42, 0.61), (0.41, 0.59)])
def test_where_same_batch_methods_end(biased, end):
    certificate = lx.certify(biased, jnp.array(end))
    assert certificate.feasibility.high < 0.1  # it does look feasible
    assert certificate.stationarity.low > 1
    assert "not stationary" in certificate.verdict


def test_feasible_but_not_stationary(biased):
    certificate = lx.certify(biased, jnp.array([0.5, 0.5]))
    assert certificate.feasibility.high < 1e-6  # the noise vanishes there
    assert certificate.constraints["c"].holds == "surely"
    assert certificate.stationarity.low > 1
    assert certificate.verdict.startswith("Feasible, but not stationary")


def test_stationary_for_a_penalty_but_infeasible(biased):
    """grad f + rho c J = 0 at rho = 1 on the mean constraint: x = (-1/3, 5/3), with y = rho c = 1/3."""
    certificate = lx.certify(biased, jnp.array([-1 / 3, 5 / 3]), {"c": 1 / 3})
    assert certificate.stationarity.low == 0
    assert certificate.feasibility.low > 0.2
    assert certificate.constraints["c"].holds == "violated"
    assert re.match(r"Not feasible: 'c' \(0\.3\d+, asked = 0\) is violated, in all by", certificate.verdict)


def test_outside_of_the_set():
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
        within=lx.sets.Box(0.0, 1.0),
    )
    certificate = lx.certify(problem, jnp.array([1.5, 0.5]))
    np.testing.assert_allclose(certificate.feasibility.low, 0.5)
    np.testing.assert_allclose(certificate.feasibility.high, 0.5)
    assert "0.5 outside of its set" in certificate.verdict


def test_the_natural_residual_sees_a_boundary_that_is_missed_by_rounding():
    """Just off the bound the cone is {0} and the distance is the whole gradient; one projected step hardly moves."""
    problem = lx.Problem(lambda x: 3 * x[0], within=lx.sets.NonNegative())
    certificate = lx.certify(problem, jnp.array([1e-6]))
    np.testing.assert_allclose(certificate.stationarity.estimate, 3.0)
    np.testing.assert_allclose(certificate.natural_residual.estimate, 1e-6)
