"""The choice between a step and the state before it, of small and of large vectors."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from lariax.loop._pieces import Cutter
from lariax.oracle import either

NEW, BACK = {"x": jnp.arange(7.0), "n": jnp.float32(1)}, {"x": -jnp.ones(7), "n": jnp.float32(2)}


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_the_right_one_is_taken(large, good):
    oracle = SimpleNamespace(is_large=large, dimension=7)
    taken = jax.jit(lambda good, new, back: either(oracle, good, new, back))(good, NEW, BACK)
    assert jax.tree.map(lambda a, b: bool((a == b).all()), taken, NEW if good else BACK) == {"x": True, "n": True}


@pytest.mark.parametrize("good", [True, False])
def test_pieces_are_not_put_together_for_it(good):
    oracle, cutter = SimpleNamespace(is_large=True, dimension=7), Cutter.of((3, 4), 0)

    def program(good, x, y):
        return either(oracle, good, {"x": x}, {"x": y})["x"]

    traced = jax.make_jaxpr(program)(True, NEW["x"], BACK["x"])
    values = [jnp.asarray(good), cutter.cut(NEW["x"]), cutter.cut(BACK["x"])]
    shapes = {v.aval.shape for e in jax.make_jaxpr(lambda *v: cutter.run(traced, v))(*values).eqns for v in e.outvars}
    assert (3,) in shapes
    assert (7,) not in shapes
    assert (cutter.whole(cutter.run(traced, values)[0]) == (NEW if good else BACK)["x"]).all()
