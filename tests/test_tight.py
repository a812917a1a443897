"""Small loops as one native function: only where it is known to work, and with the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, normal
from lariax.loop._tight import SMALL, as_one_function, fits

START = jnp.cos(jnp.arange(36.0).reshape(6, 6))
FITS = {
    "dot": lambda a: a * 0.1 + a @ a[0],
    "gather": lambda a: a[jnp.arange(6)[::-1]],
    "scatter": lambda a: a.at[jnp.argmax(a[:, 0])].set(0.5),
    "scan": lambda a: jax.lax.scan(lambda c, row: (c + row, c), a[0], a)[1] * 0.1,
    "cond": lambda a: jax.lax.cond(a[0, 0] > 0, lambda b: 0.5 * b, lambda b: b + 1, a),
    "while": lambda a: jax.lax.while_loop(lambda b: jnp.sum(b**2) > 1, lambda b: 0.9 * b, a),
    "cumsum": lambda a: jnp.cumsum(a, axis=0) * 0.1,
    "softmax": jax.nn.softmax,
    "special": lambda a: jax.lax.erf_inv(0.5 * jnp.tanh(a)) + jax.scipy.special.gammaln(1 + a**2),
    "stack": lambda a: jnp.stack([a[0], *a[1:]]) * 0.5,
}
DOES_NOT = {
    "matrix product": lambda a: a @ a * 0.1,
    "sort": lambda a: jnp.sort(a, axis=0),
    "eigh": lambda a: jnp.linalg.eigh(a + a.T)[1],
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(6)),
    "fft": lambda a: jnp.fft.fft(a).real * 0.1,
    "callback": lambda a: jax.pure_callback(lambda b: b * 0.5, jax.ShapeDtypeStruct(a.shape, a.dtype), a),
    "deep inside": lambda a: jax.lax.cond(a[0, 0] > 0, lambda b: jnp.sort(b), lambda b: b, a),
}


def loop(operation):
    return lambda a: jax.lax.fori_loop(0, 5, lambda _, b: operation(b), a)


@pytest.mark.parametrize("name", FITS)
def test_elementary_operations(name):
    assert fits(jax.make_jaxpr(FITS[name])(START), START)
    together = jax.jit(as_one_function(loop(FITS[name])))(START)
    np.testing.assert_allclose(together, jax.jit(loop(FITS[name]))(START), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", DOES_NOT)
def test_others_are_left_alone(name):
    assert not fits(jax.make_jaxpr(DOES_NOT[name])(START), START)


def test_large_arguments_are_left_alone():
    large = jnp.zeros(SMALL // 8 + 1)
    assert not fits(jax.make_jaxpr(lambda a: a + 1)(large), large)


def test_a_run_is_the_same_either_way(wells, method, monkeypatch):
    together = lx.solve(wells, Wells.x0, method, iterations=300)
    monkeypatch.setattr("lariax.loop._run.fits", lambda *_: False)
    jax.clear_caches()
    apart = lx.solve(wells, Wells.x0, method, iterations=300)
    np.testing.assert_allclose(together.x, apart.x, rtol=1e-11)
    jax.clear_caches()


def test_a_set_that_sorts_still_works():
    problem = lx.Problem(lambda x, z: x @ z, samples=normal(4), within=lx.sets.Simplex())
    result = lx.solve(problem, jnp.ones(4) / 4, lx.QuadraticPenalty(step_size=0.1), iterations=100)
    assert float(jnp.sum(result.x)) == pytest.approx(1.0)
