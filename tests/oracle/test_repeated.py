"""Functions of several batches, one after the other or many at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lariax.oracle import Batch, _repeated, counting, for_each, sum_over
from lariax.oracle._counting import count


def function(batch):
    (rows,) = batch.samples
    return jnp.sum(rows**2, axis=0), jnp.max(rows)


@pytest.mark.parametrize("limit", [1, 4, 20, 10**6])
def test_many_at_once_give_the_same_as_one_by_one(monkeypatch, limit):
    batches = Batch((jnp.asarray(np.random.default_rng(0).normal(size=(6, 5, 3)), jnp.float32),))
    each = [function(batch) for batch in map(batches.rows, range(6))]
    right = jax.tree.map(lambda *values: jnp.stack(values), *each)
    for one_by_one in (True, False):
        monkeypatch.setattr(_repeated, "on_cpu", lambda value=one_by_one: value)
        monkeypatch.setattr(_repeated, "AT_ONCE", limit)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), for_each(function, batches), right)
        sums = jax.tree.map(lambda values: values.sum(0), right)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), sum_over(function, batches), sums)


def test_how_many_fit_is_a_divisor(monkeypatch):
    monkeypatch.setattr(_repeated, "on_cpu", lambda: False)
    monkeypatch.setattr(_repeated, "AT_ONCE", 20)
    batches = Batch((jnp.zeros((6, 5, 3)),))  # 4 entries come out of each
    assert _repeated._at_once(function, batches) == 3


def test_without_samples_there_is_one_value():
    assert sum_over(lambda batch: jnp.ones(2), Batch((None,))).tolist() == [1, 1]
    assert for_each(lambda batch: jnp.ones(2), Batch((None,))).shape == (2, 2)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_sum_traces_its_function_once(monkeypatch, one_by_one):
    traced = []

    def noted(batch):
        traced.append(batch)
        return function(batch)

    monkeypatch.setattr(_repeated, "on_cpu", lambda: one_by_one)
    monkeypatch.setattr(_repeated, "_at_once", lambda *_: 1 if one_by_one else 3)
    with counting() as tally:
        sum_over(lambda batch: (count(5), noted(batch)), Batch((jnp.ones((6, 5, 3)),)))
    assert len(traced) == 1
    assert tally == [5], "what is asked for is counted once"
