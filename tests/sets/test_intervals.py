import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lariax.sets import Box, LInfBall, NonNegative


def test_each_entry_is_judged_at_its_own_scale():
    box = Box(np.array([0.0, 0.0, -1e-20]), np.array([1e6, np.inf, 1.0]))
    x = jnp.array([0.3, 1e-30, -1e-20], jnp.float32)
    gradient = jnp.array([1.0, 2.0, 4.0], jnp.float32)
    assert box.stationarity(x, gradient) == pytest.approx(np.hypot(1, 2))
    assert box.stationarity(x, gradient, tolerance=0.5) == 0


def test_value_is_zero_inside_and_infinite_outside():
    box = Box(0.0, 1.0)
    assert box.value(jnp.array([0.0, 1.0])) == 0
    assert box.value(jnp.array([0.0, 1.1])) == jnp.inf
    assert box.contains(jnp.array([0.0, 1.1]), tolerance=0.2)


def test_equal_bounds_fix_an_entry():
    assert Box(1.0, 1.0).stationarity(jnp.ones(2), jnp.array([-5.0, 7.0])) == 0


def test_bounds_are_traced():
    @jax.jit
    def inside(lower, radius):
        return Box(lower, 1.0).project(jnp.array([-3.0])), LInfBall(radius).project(jnp.array([-3.0]))

    assert [float(value[0]) for value in inside(-1.0, 2.0)] == [-1, -2]


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        (1.0, 0.0, "empty"),
        (np.zeros(2), np.array([1.0, -1.0]), "empty"),
        (np.nan, 1.0, "lower=nan"),
        (0.0, -np.inf, "upper=-inf"),
        ({"a": 0.0}, {"b": 1.0}, "structure"),
        ({"a": 2.0, "b": 0.0}, 1.0, "empty"),
        (np.zeros(3), np.ones(4), "shape"),
    ],
)
def test_boxes_that_make_no_sense(lower, upper, words):
    with pytest.raises(ValueError, match=words):
        Box(lower, upper)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros(4), r"shape \(3,\).*shape \(4,\)"),
        (np.float64(0), r"shape \(3,\).*shape \(\)"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, r"\['b'\]"),
    ],
)
def test_boxes_that_do_not_fit(x, words):
    assert re.search(words, Box(np.zeros(3), 1.0).mismatch(x))


def test_lists_are_structure():
    assert "lists count as structure" in Box([0.0, 0.0], 1.0).mismatch(np.zeros(2))
    assert Box([0.0, 0.0], 1.0).mismatch([np.zeros(2), np.zeros(3)]) is None


def test_nonnegative_keeps_tiny_entries_free():
    x = jnp.array([1e-30, 0.0], jnp.float32)
    assert NonNegative().stationarity(x, jnp.ones(2, jnp.float32)) == 1
