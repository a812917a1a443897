import doctest
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax.prox
import lariax.sets
from lariax.prox import L1, ElasticNet, GroupL2, Indicator, Nuclear, Zero
from lariax.prox._numerics import level, norm
from lariax.sets import NonNegative, Simplex

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (lariax.prox, lariax.sets)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_documentation(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norm_neither_overflows_nor_underflows(dtype):
    for scale in (1e-30, 1.0, 1e30):
        tree = {"a": jnp.asarray([3 * scale], dtype), "b": jnp.asarray(4 * scale, dtype)}
        assert norm(tree) == pytest.approx(5 * scale, rel=1e-6)
        assert norm(tree).dtype == dtype
    assert norm(jnp.zeros(3, dtype)) == 0
    assert norm(jnp.array([jnp.inf, 1], dtype)) == jnp.inf
    assert jnp.isnan(norm(jnp.array([jnp.nan, 1], dtype)))


def test_level_solves_its_equation():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values, rigid = rng.normal(size=7), rng.random(7) < 0.4
        total = 0.0 if rigid.any() else 1.0
        t = float(level(jnp.asarray(values), total, jnp.asarray(rigid)))
        terms = np.where(rigid, values - t, np.maximum(values - t, 0))
        assert terms.sum() == pytest.approx(total, abs=1e-12)


def test_values_by_hand():
    x = jnp.array([[3.0, -4.0], [0.0, 2.0]])
    assert Zero().value(x) == 0
    assert L1(0.5).value(x) == 4.5
    assert ElasticNet(0.5, 2.0).value(x) == 4.5 + 29
    assert GroupL2(2.0).value(x) == 14
    assert GroupL2(jnp.array([1.0, 10.0]), jnp.array([[1, 1], [5, 5]])).value(x) == 25
    assert Nuclear(2.0).value(jnp.diag(jnp.array([1.0, -3.0]))) == pytest.approx(8)
    assert Indicator(NonNegative()).value(x) == jnp.inf
    assert Indicator(Simplex()).value(jnp.array([0.25, 0.75])) == 0


def test_zeros_are_exact_and_tiny_entries_are_not_zero():
    point = L1(1.0).prox(jnp.array([0.5, -0.5, 2.0]), 1.0)
    np.testing.assert_array_equal(point, [0, 0, 1])
    assert L1(1.0).stationarity(jnp.array([1e-30]), jnp.array([0.5])) == 1.5
    assert L1(1.0).stationarity(jnp.array([1e-30]), jnp.array([0.5]), tolerance=1e-20) == 0
    assert GroupL2(1.0).stationarity(jnp.array([[0.0, 0.0]]), jnp.array([[0.6, 0.8]])) == pytest.approx(0)


def test_weights_are_traced():
    points = jax.jit(jax.vmap(lambda weight: L1(weight).prox(jnp.array(3.0), 1.0)))(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(points, [2, 1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: L1(-1.0), "weight=-1.0"),
        (lambda: L1({"a": np.array([1.0, np.nan])}), "nan"),
        (lambda: ElasticNet(1.0, np.inf), "l2=inf"),
        (lambda: GroupL2(-1.0), "weight"),
        (lambda: GroupL2(1.0, np.array([0.5])), "whole numbers"),
        (lambda: Nuclear(-2.0), "weight=-2.0"),
    ],
)
def test_terms_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (L1(np.ones(3)), "(3,)"),
        (ElasticNet(1.0, np.ones(3)), "l2"),
        (GroupL2(1.0, np.zeros(3, int)), "3 labels"),
        (GroupL2(np.ones(3)), "2 groups"),
        (Nuclear(np.ones(2)), "scalar"),
        (Indicator(lariax.sets.PSDCone()), "square"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_terms_that_do_not_fit(term, words):
    assert words in term.mismatch(np.zeros((2, 4)))
    assert "floating-point" in term.mismatch(np.zeros((2, 2), int))
