"""Shared problems, built once: the same function objects mean the same compiled code."""

import gc
import os
import signal
from pathlib import Path

import jax

from lariax.compilation import MOST_BYTES, SHORTEST, keep_programs

folder = keep_programs()
if folder is not None:  # for the processes that tests start, too
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(SHORTEST))
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

import lariax as lx  # noqa: E402

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background starts us with Ctrl-C switched off

MOST_MAPPINGS = 40_000  # of 65,530 that a process may have on Linux; a compiled program takes a dozen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked `long_but`, all cases are long but for those it names."""
    for item in items:
        mark = item.get_closest_marker("long_but")
        if mark is not None and item.callspec.id not in mark.args:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs():
    """Forget compiled programs before there are more than the system lets a process map, where the compiler crashes."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_text().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(params=["the same", pytest.param("fresh", marks=pytest.mark.long)])
def random_inputs(request):
    """Hypothesis' settings for so many inputs, which are always the same ones; in the long tests for ten times as many,
    fresh ones each time."""

    def of(count):
        calm = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
        if request.param == "fresh":
            return settings(max_examples=10 * count, **calm)
        return settings(max_examples=count, derandomize=True, **calm)

    return of


def normal(*shape):
    return lx.Distribution(lambda key: jax.random.normal(key, shape))


def lasso_with_sum_one(t, weight):
    """argmin ||x - t||^2 / 2 + weight ||x||_1 with sum x = 1, and its multiplier: x = soft(t - y), y by bisection."""

    def soft(v):
        return np.sign(v) * np.maximum(np.abs(v) - weight, 0)

    low, high = -10.0, 10.0
    for _ in range(100):
        y = (low + high) / 2
        low, high = (y, high) if soft(t - y).sum() > 1 else (low, y)
    return soft(t - y), y


class Wells:
    """A small nonconvex problem with two random constraints, with everything known in NumPy's terms too.

    f(x, xi) = sum_i 1 - exp(-(x_i - a_i - 0.3 xi_i)^2 / 4)
    c(x, z)  = ( ||x||^2 - 4 + 0.5 z_0 x_0 ,  x_0 - x_1 + 0.1 z_1 )
    """

    d = 5
    a = jnp.linspace(1.0, 2.0, 5)
    x0 = jnp.full(5, 0.2)

    @staticmethod
    def objective(x, xi):
        return jnp.sum(1 - jnp.exp(-((x - Wells.a - 0.3 * xi) ** 2) / 4))

    @staticmethod
    def constraint(x, z):
        return jnp.stack([x @ x - 4.0 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]])

    @staticmethod
    def exact_constraint(x):
        return Wells.constraint(x, jnp.zeros(2))


class WellsByHand:
    """The same in NumPy, derivatives by hand."""

    @staticmethod
    def gradient(x, xi):
        shift = x - np.asarray(Wells.a) - 0.3 * xi
        return np.exp(-(shift**2) / 4) * shift / 2

    @staticmethod
    def constraint(x, z):
        return np.array([x @ x - 4 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]])

    @staticmethod
    def jacobian(x, z):
        jacobian = np.zeros((2, x.size))
        jacobian[0] = 2 * x
        jacobian[0, 0] += 0.5 * z[0]
        jacobian[1, 0], jacobian[1, 1] = 1.0, -1.0
        return jacobian


def batches_of(result, count):
    """The samples that a run on wells saw: (xi, zeta1, zeta2) for the start and each iteration."""
    oracle, key = result.continuation.oracle, result.continuation.loop.key
    tickets = oracle.draw(key, jnp.arange(count), (None,) * len(oracle.sources))
    batches = []
    for i in range(count):
        samples = oracle.fetch(jax.tree.map(lambda ticket, i=i: ticket[i], tickets)).samples
        xi = np.asarray(samples[0][0])
        zeta = np.asarray(samples[1]) if len(samples) > 1 else np.zeros((2, 2))
        batches.append((xi, zeta[0], zeta[1]))
    return batches


@pytest.fixture(scope="session")
def wells():
    """Objective and constraints from sources of their own: case III."""
    return lx.Problem(
        Wells.objective,
        samples=normal(Wells.d),
        constraints={"c": lx.Equal(Wells.constraint, samples=normal(2))},
    )


@pytest.fixture(scope="session")
def wells_deterministic():
    """The same with exact constraints: case II."""
    return lx.Problem(
        Wells.objective,
        samples=normal(Wells.d),
        constraints={"c": lx.Equal(Wells.exact_constraint, samples=None)},
    )


@pytest.fixture(scope="session")
def wells_in_box():
    """Case III within a set."""
    return lx.Problem(
        Wells.objective,
        samples=normal(Wells.d),
        constraints={"c": lx.Equal(Wells.constraint, samples=normal(2))},
        within=lx.sets.Box(0.1, 0.9),
    )


@pytest.fixture(scope="session")
def method():
    return lx.QuadraticPenalty(step_size=0.05, penalty=1.5)
