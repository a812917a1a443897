"""Which entry of the residual vector belongs to which constraint."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt
from lariax.oracle import Layout

CONSTRAINTS = {
    "cost": lx.AtMost(bound=1.0),
    "flow": lx.Equal(bound=0.0, samples=None),
    "recall": lx.AtLeast(bound=0.9),
}
SHAPES = {"cost": (2,), "flow": (), "recall": (3,)}
SOURCES = {"cost": 0, "flow": None, "recall": 0}


@pytest.fixture
def layout():
    return Layout.of(CONSTRAINTS, SHAPES, SOURCES)


def test_every_entry_has_its_sign_and_kind(layout):
    assert layout.names == ["cost", "flow", "recall"]
    assert layout.size == 6
    np.testing.assert_array_equal(layout.signs, [1, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(layout.inequality, [True, True, False, True, True, True])
    np.testing.assert_array_equal(layout.random, [True, True, False, True, True, True])
    np.testing.assert_array_equal(layout.owners, [0, 0, 1, 2, 2, 2])


@pytest.mark.parametrize("array", [np.arange, jnp.arange, torch.arange])
def test_vectors_of_any_library_are_named_and_split(layout, array):
    named = layout.named(array(6))
    assert {name: part.tolist() for name, part in named.items()} == {"cost": [0, 1], "flow": 2, "recall": [3, 4, 5]}
    parts = layout.split(array(6))
    assert [part.tolist() for part in parts] == [[0, 1, 3, 4, 5], [2]]  # on samples, and deterministic
    joined = np.concatenate([np.asarray(part) for part in parts])[layout.order]
    np.testing.assert_array_equal(joined, np.arange(6))


def test_leading_axes_stay(layout):
    named = layout.named(np.arange(12).reshape(2, 6))
    assert named["recall"].shape == (2, 3)
    np.testing.assert_array_equal(named["flow"], [2, 8])


def test_values_by_name_become_a_vector(layout):
    vector = layout.unnamed(np, {"recall": [1, 2, 3], "cost": 5}, float)
    np.testing.assert_array_equal(vector, [5, 5, 0, 1, 2, 3])


def test_constraints_of_torch_are_laid_out_alike(layout):
    constraints = {"cost": lt.AtMost(1.0), "flow": lt.Equal(samples=None), "recall": lt.AtLeast(0.9)}
    assert Layout.of(constraints, SHAPES, SOURCES) == layout
    assert hash(Layout.of(constraints, SHAPES, SOURCES)) == hash(layout)
