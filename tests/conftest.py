"""Shared problems, built once: the same function objects mean the same compiled code."""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import pytest  # noqa: E402

import lariax as lx  # noqa: E402


def normal(*shape):
    return lx.Distribution(lambda key: jax.random.normal(key, shape))


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
