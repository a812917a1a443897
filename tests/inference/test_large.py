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


@pytest.mark.parametrize("within", [None, "box"])
def test_the_same_as_with_matrices(within, precise, monkeypatch):
    lower = np.where(np.arange(D) < 2, -5.0, -0.3)
    options = {} if within is None else {"within": lx.sets.Box(lower, 5.0)}
    dense = lx.inference(problem(**options), jnp.maximum(TARGET, lower))
    covariance = dense.covariance
    monkeypatch.setattr(_infer, "LARGE", 10)
    monkeypatch.setattr(_inference, "LARGE", 10)
    near = dense.x.estimate + np.where(dense.x.law == "fixed", 0, 0.01 * RNG.normal(size=D))
    multipliers = {name: each.estimate for name, each in dense.multipliers.items()}
    large = lx.inference(problem(**options), jnp.asarray(near), multipliers)
    v = np.linspace(-1, 1, D)
    fixed = dense.x.law == "fixed"
    assert fixed.any() == (within is not None)
    np.testing.assert_allclose(large.x.estimate, dense.x.estimate, atol=1e-2 * np.nanmax(dense.x.standard_error))
    for name in ("c", "in", "out"):
        for one, other in ((large.multipliers, dense.multipliers), (large.constraints, dense.constraints)):
            np.testing.assert_allclose(one[name].standard_error, other[name].standard_error, rtol=1e-3, atol=1e-9)
            assert (one[name].law == other[name].law).all()
    np.testing.assert_allclose(large.objective.standard_error, dense.objective.standard_error, rtol=1e-6)
    np.testing.assert_allclose(large.covariance @ v, covariance @ v, rtol=1e-3, atol=1e-8)
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


def test_a_curved_set_is_refused(without_matrices):
    inside = lx.Problem(loss, samples=NOISE, within=lx.sets.L2Ball(1.0))
    with pytest.raises(lx.InferenceError, match="L2Ball is curved"):
        lx.inference(inside, TARGET / jnp.linalg.norm(TARGET))
