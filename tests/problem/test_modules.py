"""x as people have it: modules of equinox, and trees like those of other libraries."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.problem import opened

ROWS = np.random.default_rng(0).normal(size=(256, 2))
METHOD = lx.QuadraticPenalty(step_size=0.02, penalty=1.0)


class Network(eqx.Module):
    """Arrays, a function, a rate that is a setting, numbers that are not of floating point."""

    layer: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    mask: jax.Array
    activation: Any

    def __call__(self, row):
        return jnp.sum(self.activation(self.layer(row))) * self.dropout.p + jnp.sum(self.mask)


def network():
    keys = jax.random.key(0)
    return Network(eqx.nn.Linear(2, 3, key=keys), eqx.nn.Dropout(0.5), jnp.array([0, 0]), jax.nn.tanh)


def fit(x, row):
    return (x(row) - jnp.sin(row[0])) ** 2


def bias(x, row):
    return x(row)


@pytest.fixture(scope="module")
def problem():
    return lx.Problem(fit, samples=lx.Dataset(ROWS), constraints={"bias": lx.Equal(bias)})


@pytest.fixture(scope="module")
def result(problem):
    seen = []
    found = lx.solve(problem, network(), METHOD, iterations=40, record_every=20, callback=seen.append)
    assert all(isinstance(snapshot.x, Network) for snapshot in seen)
    return found


def test_a_module_comes_back_as_a_module(problem, result):
    """With new arrays, and everything else as it was."""
    before, after = network(), result.x
    assert isinstance(after, Network)
    assert after.activation is before.activation
    assert (after.dropout.p, after.mask.tolist()) == (0.5, [0, 0])
    assert not np.allclose(after.layer.weight, before.layer.weight)
    assert np.isfinite(float(after(ROWS[0])))
    assert "layer.weight" in repr(result)


def test_the_answer_is_that_of_its_arrays_alone(problem, result):
    arrays, rest = eqx.partition(network(), eqx.is_inexact_array)

    def whole(fun):
        return lambda x, row: fun(eqx.combine(x, rest), row)

    plain = lx.Problem(whole(fit), samples=problem.samples, constraints={"bias": lx.Equal(whole(bias))})
    by_hand = lx.solve(plain, arrays, METHOD, iterations=40, record_every=20)
    np.testing.assert_array_equal(result.x.layer.weight, by_hand.x.layer.weight)


def test_what_follows_takes_it_too(problem, result):
    certificate = lx.certify(problem, result.x, draws=None)
    assert certificate.exact
    np.testing.assert_allclose(certificate.objective.estimate, jax.vmap(lambda row: fit(result.x, row))(ROWS).mean())
    np.testing.assert_allclose(result.certificate.objective.estimate, certificate.objective.estimate)
    more = lx.solve(problem, result, iterations=20)
    assert isinstance(more.x, Network)
    assert more.iterations == 60
    assert isinstance(result.jac, Network)


def test_a_run_is_resumed(problem, result, tmp_path):
    lx.solve(problem, network(), METHOD, iterations=20, record_every=20, checkpoint=tmp_path / "run")
    again = lx.resume(tmp_path / "run", problem, iterations=20, x0=network())
    np.testing.assert_array_equal(again.x.layer.weight, result.x.layer.weight)


def test_its_set_is_that_of_its_arrays(problem):
    bounded = lx.Problem(fit, samples=problem.samples, within=lx.sets.Box(-0.1, 0.1))
    with pytest.warns(lx.LariaxWarning, match="outside within=Box"):
        found = lx.solve(bounded, network(), METHOD, iterations=5)
    assert float(jnp.abs(found.x.layer.weight).max()) <= 0.1


@jax.tree_util.register_pytree_node_class
class Counting:
    """A module as flax.nnx has them: called, with a count among its arrays."""

    def __init__(self, weights, count):
        self.weights, self.count = weights, count

    def __call__(self, row):
        return row @ self.weights + 0 * self.count

    def tree_flatten(self):
        return (self.weights, self.count), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def test_a_count_in_a_module_stays(problem):
    """In a tree that is no module an integer is an error: somebody wrote 0 for 0.0."""
    found = lx.solve(problem, Counting(jnp.ones(2), jnp.uint32(7)), METHOD, iterations=20).x
    assert isinstance(found, Counting)
    assert (found.count, found.count.dtype) == (7, jnp.uint32)
    assert not np.allclose(found.weights, 1)
    with pytest.raises(TypeError, match=r"x0\['count'\] must be of floating point, found uint32"):
        lx.solve(lx.Problem(lambda x, row: x["weights"] @ row, samples=problem.samples), vars(found), iterations=1)


class Frozen(dict):
    """A dictionary of its own kind, as flax has one for linen's parameters."""


jax.tree_util.register_pytree_with_keys(
    Frozen,
    lambda tree: ([(jax.tree_util.DictKey(key), tree[key]) for key in sorted(tree)], tuple(sorted(tree))),
    lambda keys, leaves: Frozen(zip(keys, leaves, strict=True)),
)


class Variable(NamedTuple):
    """As nnx wraps arrays in the states that it splits from a module."""

    value: Any


TREES = {
    "linen": {"params": Frozen({"Dense_0": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}})},
    "nnx": {"layers": {0: {"kernel": Variable(jnp.ones((2, 3))), "bias": Variable(jnp.zeros(3))}}},
    "haiku": {"mlp/~/linear_0": {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}},
}


@pytest.mark.parametrize("library", TREES)
def test_trees_of_other_libraries(library):
    """As they are: arrays in containers of any kind, with paths in messages."""
    tree = TREES[library]
    problem = lx.Problem(
        lambda x, row: (
            jnp.sum((row @ jax.tree.leaves(x)[1] + jax.tree.leaves(x)[0] - 1) ** 2)
            if library != "haiku"
            else jnp.sum((row @ x["mlp/~/linear_0"]["w"] + x["mlp/~/linear_0"]["b"] - 1) ** 2)
        ),
        samples=lx.Dataset(ROWS),
    )
    assert opened(problem, tree)[1] is tree
    found = lx.solve(problem, tree, METHOD, iterations=20)
    assert jax.tree.structure(found.x) == jax.tree.structure(tree)
