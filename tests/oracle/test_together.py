"""Where memory is short, a batch is looked at in several passes, and what comes out is the same."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.oracle import Batch, _together
from lariax.oracle._together import each_of

BATCH, WIDTH, MEMORY = 48, 64, 800_000


def network():
    """A deep network: what it keeps of a sample is much more than the sample."""
    keys = jax.random.split(jax.random.key(0), 7)
    x = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:6]]
    rows = jax.random.normal(keys[6], (512, WIDTH))

    def loss(x, row):
        for layer in x:
            row = jnp.tanh(row @ layer)
        return jnp.mean((row - 0.1) ** 2)

    bound = lx.AtMost(lambda x, row: jnp.sum(jnp.tanh(row @ x[0])) / WIDTH, 0.01)
    return lx.Problem(loss, samples=lx.Dataset(rows), constraints={"bound": bound}), x


def ran(method, monkeypatch, memory=None):
    if memory is not None:
        monkeypatch.setattr(_together, "device_memory", lambda: float(memory))
    problem, x = network()
    return lx.solve(problem, x, method, iterations=20, batch_size=BATCH)


@pytest.mark.parametrize(
    "method", [lx.QuadraticPenalty(step_size=0.01), lx.TrackedLagrangian()], ids=["penalty", "default"]
)
def test_the_answer_is_the_same_in_several_passes(method, monkeypatch):
    whole, parts = ran(method, monkeypatch), ran(method, monkeypatch, MEMORY)
    assert whole.continuation.oracle.together is None
    assert 1 < parts.continuation.oracle.together < BATCH
    assert parts.evaluations == whole.evaluations
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), parts.x, whole.x)


def test_parts_take_less_memory(monkeypatch):
    """Of ten times the batch, by what compiled programs say."""
    oracle = ran(lx.TrackedLagrangian(), monkeypatch, MEMORY).continuation.oracle
    rows = (oracle.sources[0].arrays[: 10 * BATCH],)

    def needed(together):
        many = replace(oracle, batch_size=10 * BATCH, together=together)

        def gradient(z, rows):
            return many.look(z, Batch(rows)).gradient(many.split(jnp.ones(many.rows)))

        compiled = jax.jit(gradient).lower(jnp.ones(oracle.dimension), rows).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert needed(oracle.together) < needed(None) / 2


def test_what_fits_is_one_pass(monkeypatch):
    assert ran(lx.TrackedLagrangian(), monkeypatch, 1e9).continuation.oracle.together is None


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("together", [4, 8, 20])
def test_samples_stay_in_their_order(devices, together):
    """Parts have samples of every device."""
    rows = np.arange(24.0)
    placement = SimpleNamespace(count=devices)

    def both(row):
        return {"a": row**2, "b": jnp.stack([row, -row])}

    found = jax.jit(lambda rows: each_of(both, rows, together, placement))(rows)
    np.testing.assert_array_equal(found["a"], rows**2)
    np.testing.assert_array_equal(found["b"][:, 1], -rows)
