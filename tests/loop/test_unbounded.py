"""Runs that have gone far: what falls without end, and what only looks so from where the run is."""

import jax
import jax.numpy as jnp
import pytest

import lariax as lx
from lariax.loop._unbounded import Fall, fall_from
from lariax.oracle import Batch, bind

SIZE = 512
NORMAL = lx.Distribution(lambda key: jax.random.normal(key, (3,)))


def valley(x, z):
    """Falls along (1, 1, 0), and rises like a parabola beside it: no ray through 0 stays in it."""
    return 0.5 * (x[0] - x[1] - 1 + 0.1 * z[0]) ** 2 - x[0] - x[1]


def line(x, z):
    return jnp.sum(x * (0.1 * z - 1))


def logarithm(x, z):
    return 0.5 * (x[1] - 599.5 + 0.1 * z[0]) ** 2 - jnp.log(x[0])


def along_one_axis(x, z):
    return x[0] * (0.1 * z[0] - 1)


PLANE = lx.Equal(lambda x, z: x[2] - 3 + 0.1 * z[1])
NOISY_SLOPE = lx.Equal(lambda x, z: x[2] - 3 + 0.1 * z[1] * x[0])
WEDGE = lx.AtMost(lambda x, z: x[2] - 0.5 * x[0] + 0.1 * z[1], 3.0)
FAR_BOUND = lx.AtMost(lambda x, z: x[0] + 0.1 * z[1], 1e5)
TIP = lx.AtMost(lambda x, z: 0.1 * x[0] + x[2] * jnp.array([1, -1]) + 0.1 * z[1], 1e3)

CASES = {
    "a valley": (valley, {}, {}, Fall.LINE),
    "in a plane beside 0": (valley, {"plane": PLANE}, {}, Fall.LINE),
    "in a plane whose slope is noisy": (valley, {"plane": NOISY_SLOPE}, {}, Fall.LINE),
    "in a wedge": (valley, {"plane": PLANE, "wedge": WEDGE}, {}, Fall.LINE),
    "within a set": (valley, {"plane": PLANE}, {"within": lx.sets.NonNegative()}, Fall.LINE),
    "up to a bound far away": (along_one_axis, {"bound": FAR_BOUND}, {}, Fall.NONE),
    "up to the tip of a narrow cone": (along_one_axis, {"tip": TIP}, {}, Fall.NONE),
    "up to a regularizer's value": (line, {}, {"regularizer": lx.prox.ElasticNet(0.1, 1e-3)}, Fall.NONE),
    "up to a box": (line, {}, {"within": lx.sets.Box(-1e4, 1e4)}, Fall.NONE),
    "like a logarithm": (lambda x, z: -jnp.log1p(x[0] ** 2) * (1 + 0.1 * z[1]) + z[2], {}, {}, Fall.LOGARITHM),
    "like a logarithm, in a plane": (logarithm, {"plane": PLANE}, {}, Fall.LOGARITHM),
    "like a logarithm up to a bound": (lambda x, z: -jnp.log(x[0]) + z[2], {"bound": FAR_BOUND}, {}, Fall.NONE),
    "as a power of the distance": (lambda x, z: x[0] ** -0.5 + 0.1 * z[1], {}, {}, Fall.NONE),
    "as a small power, with as much noise": (lambda x, z: z[0] * x[0] ** 0.1, {}, {}, Fall.NONE),
    "to a limit": (lambda x, z: jnp.exp(-x[0] / 1e5) + 0 * z[0], {}, {}, Fall.NONE),
}


@pytest.mark.parametrize("name", CASES)
def test_rays_are_followed(name):
    objective, constraints, options, expected = CASES[name]
    problem = lx.Problem(objective, samples=NORMAL, constraints=constraints, **options)
    x = jnp.array([600.5, 599.5, 3.0])
    oracle = bind(problem, x, (x,), batch_size=SIZE, copies=1, has_slacks=False)
    halves = [Batch((jax.random.normal(jax.random.key(i), (SIZE, 3)),)) for i in range(2)]
    assert fall_from(oracle, x, *halves, strict=True) is expected


@pytest.mark.long
def test_a_run_along_a_valley_is_called_unbounded():
    problem = lx.Problem(
        lambda x, z: 2 * valley(x, z) - 40 * x[0], samples=NORMAL, constraints={"plane": PLANE, "wedge": WEDGE}
    )
    result = lx.solve(problem, jnp.ones(3), iterations=3_000)
    assert result.status == "unbounded", (result.message, result.x)
