"""Rows drawn group by group, and rows of a stream."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.inference import _infer, _inference, _large

RNG = np.random.default_rng(5)
BY = np.repeat(["b", "a", "c"], [90, 250, 60])[RNG.permutation(400)]
VALUES = RNG.normal(size=400) * np.where(BY == "a", 1.0, 3.0) + np.where(BY == "a", 1.0, 2.5)
GROUPS = lx.Stratified({"v": jnp.asarray(VALUES)}, by=BY)
OWN = lx.Dataset(jnp.asarray(RNG.normal(size=(300, 2))))
OF_A, OF_B, OF_C = (VALUES[name == BY] for name in "abc")


def loss(x, z):
    return 0.5 * jnp.sum((x - z) ** 2)


def gap(x, sample):
    """E: x_0 + mean of a - mean of b."""
    return x[0] + sample["v"][0] - sample["v"][1]


def rate(values):
    return np.var(values) / len(values)


def test_each_group_has_the_error_of_its_own_rows():
    inference = lx.inference(
        lx.Problem(loss, samples=OWN, constraints={"gap": lx.Equal(gap, samples=GROUPS)}), jnp.zeros(2)
    )
    expected = np.sqrt(rate(OF_A) + rate(OF_B))
    np.testing.assert_allclose(inference.x.estimate[0], OF_B.mean() - OF_A.mean(), rtol=1e-9)
    np.testing.assert_allclose(inference.x.standard_error[0], expected, rtol=1e-9)
    own = rate(np.asarray(OWN.arrays)[:, 0])
    np.testing.assert_allclose(inference.multipliers["gap"].standard_error, np.sqrt(expected**2 + own), rtol=1e-9)
    assert "250 + 90 + 60 rows" in inference.about
    assert inference.draws == 700


def test_an_objective_by_group():
    """x is the mean of the groups' means; the loss bends by row, so that curvature and noise are of all groups."""
    problem = lx.Problem(lambda x, s: jnp.sum(jnp.cosh(x - 0.1 * s["v"])), samples=GROUPS)
    inference = lx.inference(problem, jnp.asarray(0.2))
    x = float(inference.x.estimate)
    parts = [0.1 * values - x for values in (OF_A, OF_B, OF_C)]
    assert abs(sum(np.sinh(part).mean() for part in parts)) < 1e-6
    noise = sum(rate(np.sinh(part)) for part in parts)
    curvature = sum(np.cosh(part).mean() for part in parts)
    np.testing.assert_allclose(inference.x.standard_error, np.sqrt(noise) / curvature, rtol=1e-5)
    np.testing.assert_allclose(
        inference.objective.standard_error, np.sqrt(sum(rate(np.cosh(part)) for part in parts)), rtol=1e-5
    )


def test_without_matrices_too(monkeypatch):
    problem = lx.Problem(loss, samples=OWN, constraints={"gap": lx.Equal(gap, samples=GROUPS)})
    dense = lx.inference(problem, jnp.zeros(2))
    for module in (_infer, _inference):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(_large, "PRECISE", 1e-10)
    large = lx.inference(problem, jnp.asarray(dense.x.estimate), {"gap": dense.multipliers["gap"].estimate})
    np.testing.assert_allclose(large.of(lambda x: x).standard_error, dense.x.standard_error, rtol=1e-6)
    v = np.array([1.0, -2.0])
    np.testing.assert_allclose(large.covariance @ v, dense.covariance @ v, rtol=1e-6)


def test_some_rows_of_each_group():
    problem = lx.Problem(loss, samples=OWN, constraints={"gap": lx.Equal(gap, samples=GROUPS)})
    inference = lx.inference(problem, jnp.zeros(2), draws=80)
    assert "80 + 80 + 60 rows" in inference.about
    assert inference.x.standard_error[0] > np.sqrt(rate(OF_A) + rate(OF_B))


def test_rows_that_are_mixed_are_refused():
    mixed = lx.Equal(lambda x, sample: x[0] + sample["v"][0] * sample["v"][1], samples=GROUPS)
    with pytest.raises(lx.InferenceError, match="mixes the rows"):
        lx.inference(lx.Problem(loss, samples=OWN, constraints={"c": mixed}), jnp.zeros(2))


def test_the_same_rows_twice_are_warned_of():
    twice = lx.Problem(
        lambda x, row: 0.5 * (x - row["v"]) ** 2,
        samples=lx.Dataset({"v": jnp.asarray(VALUES)}),
        constraints={"gap": lx.AtMost(lambda x, s: x + s["v"][0] - s["v"][1], 9.0, samples=GROUPS)},
    )
    assert any("same rows" in note for note in lx.inference(twice, jnp.asarray(2.0)).warnings)


def test_a_stream_that_repeats_has_the_error_of_one_pass():
    rows = np.asarray(OWN.arrays)
    stream = lx.Stream([rows[:200], rows[200:]], repeat=True)
    inference = lx.inference(lx.Problem(loss, samples=stream), jnp.zeros(2))
    np.testing.assert_allclose(inference.x.standard_error, np.sqrt(rows.var(axis=0) / 300), rtol=1e-9)
    result = lx.solve(lx.Problem(loss, samples=stream), jnp.zeros(2), iterations=1000)
    assert result.inference().draws == 300
