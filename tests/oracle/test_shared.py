"""Objective and constraints that are functions of their own and do the same work: it is done once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.oracle import Batch, bind
from lariax.oracle._shared import each_once, made_twice

WIDTH, BATCH = 256, 8


def hidden(x, row, act=jnp.tanh):
    for layer in x["layers"]:
        row = act(row @ layer)
    return row


def network(act=jnp.tanh):
    keys = jax.random.split(jax.random.key(0), 3)
    x = {"layers": [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:2]], "last": jnp.ones(WIDTH)}
    rows = jax.random.normal(keys[2], (64, WIDTH))

    def loss(x, row):
        return (hidden(x, row, act) @ x["last"] / WIDTH - 1) ** 2

    def size(x, row):
        return jnp.mean(hidden(x, row, act) ** 2)

    def joint(x, row):
        inside = hidden(x, row, act)
        return (inside @ x["last"] / WIDTH - 1) ** 2, {"size": jnp.mean(inside**2)}

    apart = lx.Problem(loss, samples=lx.Dataset(rows), constraints={"size": lx.AtMost(size, 0.1)})
    together = lx.Problem.joint(joint, samples=lx.Dataset(rows), constraints={"size": lx.AtMost(bound=0.1)})
    return apart, together, x, rows


def oracle_of(problem, x, rows):
    sample = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
    return bind(problem, x, (sample,), batch_size=BATCH, copies=1, has_slacks=False)


def gradient(oracle, rows):
    weights = oracle.split(jnp.linspace(0, 1, BATCH)[:, None])
    return jax.jit(lambda z, rows: oracle.look(z, Batch((rows,))).gradient(weights)).lower(
        jnp.full(oracle.dimension, 0.1), rows[:BATCH]
    )


@pytest.mark.parametrize("act", [jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.nn.softplus])
def test_one_way_back_for_both(act):
    apart, together, x, rows = network(act)
    one, other = (oracle_of(problem, x, rows) for problem in (apart, together))
    assert one.shares
    assert not other.shares
    flops = [gradient(oracle, rows).compile().cost_analysis()["flops"] for oracle in (one, other)]
    assert flops[0] < 1.05 * flops[1]


def test_the_gradient_is_the_same():
    apart, together, x, rows = network()
    found, right = (
        gradient(oracle_of(problem, x, rows), rows).compile()(jnp.full(WIDTH * (2 * WIDTH + 1), 0.1), rows[:BATCH])
        for problem in (apart, together)
    )
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)


def test_other_work_is_not_taken_for_the_same():
    """Another matrix, another rule of the derivative, another order."""

    @jax.custom_jvp
    def plain(v):
        return jnp.sin(v)

    @jax.custom_jvp
    def straight(v):
        return jnp.sin(v)

    plain.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]))
    straight.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0]))
    a, b = (jnp.asarray(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH))) for seed in (0, 1))
    v = jnp.linspace(0, 1, WIDTH)
    for first, second in [
        (lambda v, _: a @ v, lambda v, _: b @ v),
        (lambda v, _: a @ v, lambda v, _: v @ a),
        (lambda v, _: a @ plain(v), lambda v, _: a @ straight(v)),
    ]:
        assert made_twice([first, second], v, v) < WIDTH**2
        values = each_once([first, second], v, v)(v, v)
        for value, function in zip(values, (first, second), strict=True):
            np.testing.assert_array_equal(value, function(v, v))
    assert made_twice([lambda v, _: a @ plain(v), lambda v, _: 2 * (a @ plain(v))], v, v) >= WIDTH**2


def test_small_problems_stay_as_they_are():
    problem = lx.Problem(
        lambda x, row: (x @ row) ** 2, samples=lx.Dataset(jnp.ones((8, 5))), constraints={"c": lx.AtMost(jnp.dot, 1.0)}
    )
    assert not oracle_of(problem, jnp.ones(5), jnp.ones((8, 5))).shares
