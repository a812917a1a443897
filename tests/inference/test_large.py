"""Without matrices: the same answers as with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.inference import _infer, _inference, _large

D, M = 20, 2
RNG = np.random.default_rng(0)
SCALE, TARGET = jnp.asarray(RNG.uniform(0.5, 2, D)), jnp.asarray(RNG.normal(size=D))
ROWS = jnp.asarray(RNG.normal(size=(M, D)) / np.sqrt(D))
NOISE = lx.Dataset(jnp.asarray(RNG.normal(size=(900, D))))


def loss(x, z):
    return 0.5 * jnp.sum(SCALE * (x - TARGET) ** 2) + 0.3 * z @ x + 0.1 * jnp.sum(jnp.cosh(x)) + 0.02 * z[0] * x @ x


def rows(x, z):
    return ROWS @ x * (1 + 0.2 * z[:M]) + 0.5 * z[M : 2 * M]


def problem(**options):
    constraints = {
        "c": lx.Equal(rows, 0.3),
        "in": lx.AtMost(lambda x, z: x[0] + z[0], float(TARGET[0]) - 0.3),
        "out": lx.AtMost(lambda x, z: x[1] + z[1], float(TARGET[1]) + 3),
    }
    return lx.Problem(loss, samples=NOISE, constraints=constraints, **options)


@pytest.fixture
def precise(monkeypatch):
    monkeypatch.setattr(_large, "PRECISE", 1e-10)
    monkeypatch.setattr(_infer, "FAR", np.inf)


LOWER = np.where(np.arange(D) < 2, -5.0, -0.3)
SETS = {"free": None, "box": lx.sets.Box(LOWER, 5.0), "ball": lx.sets.L2Ball(2.0)}  # a ball is curved


@pytest.mark.parametrize("within", SETS)
def test_the_same_as_with_matrices(within, precise, monkeypatch):
    options = {} if within == "free" else {"within": SETS[within]}
    dense = lx.inference(problem(**options), problem(**options).within.project(TARGET))
    covariance = dense.covariance
    monkeypatch.setattr(_infer, "LARGE", 10)
    monkeypatch.setattr(_inference, "LARGE", 10)
    near = dense.x.estimate + np.where(dense.x.law == "fixed", 0, 0.01 * RNG.normal(size=D))
    near = problem(**options).within.project(jnp.asarray(near))
    multipliers = {name: each.estimate for name, each in dense.multipliers.items()}
    large = lx.inference(problem(**options), jnp.asarray(near), multipliers)
    v = np.linspace(-1, 1, D)
    fixed = dense.x.law == "fixed"
    assert fixed.any() == (within == "box")
    if within == "ball":
        assert np.linalg.norm(dense.x.estimate) == pytest.approx(2.0, abs=1e-6)
    np.testing.assert_allclose(large.x.estimate, dense.x.estimate, atol=1e-2 * np.nanmax(dense.x.standard_error))
    for name in ("c", "in", "out"):
        for one, other in ((large.multipliers, dense.multipliers), (large.constraints, dense.constraints)):
            np.testing.assert_allclose(one[name].standard_error, other[name].standard_error, rtol=1e-3, atol=1e-9)
            assert (one[name].law == other[name].law).all()
    np.testing.assert_allclose(large.objective.standard_error, dense.objective.standard_error, rtol=1e-3)
    expected = covariance @ v
    np.testing.assert_allclose(large.covariance @ v, expected, atol=1e-3 * np.abs(expected).max())
    entries = large.of(lambda x: x[:2])
    np.testing.assert_allclose(entries.standard_error, dense.x.standard_error[:2], rtol=1e-3, atol=1e-9)
    assert set(large.x.law) == {"not asked"}


@pytest.fixture
def without_matrices(precise, monkeypatch):
    monkeypatch.setattr(_infer, "LARGE", 10)
    monkeypatch.setattr(_inference, "LARGE", 10)


def test_fewer_samples_than_variables_are_refused(without_matrices):
    flat = lx.Problem(
        lambda x, z: 0.5 * (z @ x - 1) ** 2, samples=lx.Distribution(lambda key: jax.random.normal(key, (D,)))
    )
    with pytest.raises(lx.InferenceError, match="curvature"):
        lx.inference(flat, jnp.zeros(D), draws=10)


def test_a_regularizer_is_refused(without_matrices):
    with pytest.raises(lx.InferenceError, match="regularizer has no error bars"):
        lx.inference(lx.Problem(loss, samples=NOISE, regularizer=lx.prox.L1(0.1)), TARGET)
