"""A SciPy user: a problem as it was written for scipy.optimize.minimize, with another import and jax.numpy."""

import jax
import jax.numpy as jnp
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint

import lariax as lx


def rosenbrock(x, steep):
    return jnp.sum(steep * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


CONSTRAINTS = [
    LinearConstraint([[1.0, 2.0, 0.0]], ub=1.0),
    NonlinearConstraint(lambda x: x[0] ** 2 + x[1], lb=-1.0, ub=1.0),
    {"type": "eq", "fun": lambda x: 2 * x[0] + x[2] - 1.0},
]
BOUNDS = Bounds([0.0, -0.5, -2.0], [1.0, 2.0, 2.0])
START = [0.5, 0.0, 0.0]


def main():
    jax.config.update("jax_enable_x64", True)  # SciPy's precision
    result = lx.minimize(rosenbrock, START, args=(100.0,), constraints=CONSTRAINTS, bounds=BOUNDS, tol=1e-6)
    print(result.x, result.fun, result.jac, result.nit, result.nfev, result.success, result.message)
    return result


if __name__ == "__main__":
    main()
