"""Problems on which earlier versions of the method lost seeds.

Constraints saturate or oscillate, are correlated and of very different scales, with heavy tails.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx
from benchmarks.suite.case import Case, Sampler


def laplace(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.laplace(key, shape) / jnp.sqrt(2.0)


def lognormal(key: Array, shape: tuple[int, ...]) -> Array:
    deviation = np.sqrt((np.exp(1) - 1) * np.exp(1))
    return (jnp.exp(jax.random.normal(key, shape)) - np.exp(0.5)) / deviation


def hard(
    name: str,
    seed: int,
    shape: str,
    *,
    correlation: float,
    sampler: Sampler = laplace,
    scales: tuple[float, ...] = (1.0, 1e-3, 1e2),
    d: int = 12,
    nonconvex: bool = False,
    flat: bool = False,
    steepness: float = 1.0,
    spread: float = 1.0,
) -> Case:
    """phi(A x) = phi(A x_feasible), with noise that multiplies and noise that adds, and a quadratic objective."""
    rng = np.random.default_rng(seed)
    m, scale = len(scales), jnp.asarray(scales)
    common = rng.standard_normal(d)
    rows = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.standard_normal((m, d))
    matrix = jnp.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True) * steepness)
    feasible = jnp.asarray(rng.standard_normal(d) * spread)
    target = jnp.asarray(rng.standard_normal(d) * spread * 1.5)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    hessian = jnp.asarray((basis * np.logspace(0, -4 if flat else -1, d)) @ basis.T)
    phase = jnp.asarray(rng.uniform(0, 6.28, d))
    second = jnp.asarray(rng.standard_normal((m, d)) / np.sqrt(d)) if shape == "product" else None
    phi: dict[str, Callable[[Array], Array]] = {
        "tanh": lambda x: jnp.tanh(matrix @ x),
        "sigmoid": lambda x: 2 * jax.nn.sigmoid(2 * (matrix @ x)),
        "sine": lambda x: jnp.sin(matrix @ x),
        "product": lambda x: (1 + matrix @ x) * (1 + second @ x),
    }
    level = phi[shape](feasible)

    def exact(x: Array) -> Array:
        waves = 0.3 * jnp.sum(jnp.cos(1.5 * x + phase)) if nonconvex else 0.0
        return 0.5 * (x - target) @ hessian @ (x - target) + waves

    def objective(x: Array, xi: Array) -> Array:
        return exact(x) + xi @ x / jnp.sqrt(d) + 0.1 * jnp.sum(xi * jnp.sin(x))

    def constraint(x: Array, z: Array) -> Array:
        return scale * (phi[shape](x) * (1 + 0.3 * z[:m]) - level + 0.3 * z[m:])

    return Case(
        name=name,
        problem=lx.Problem(
            objective,
            samples=lx.Distribution(lambda key: sampler(key, (d,))),
            constraints={
                "rows": lx.Equal(constraint, samples=lx.Distribution(lambda key: sampler(key, (2 * m,)))),
            },
        ),
        x0=jnp.zeros(d),
        objective=exact,
        constraints=lambda x: constraint(x, jnp.zeros(2 * m)),
        inequality=(False,) * m,
        guess=feasible,
    )


HARD: dict[str, Callable[[], Case]] = {
    "tanhB": lambda: hard("tanhB", 2, "tanh", correlation=0.95, nonconvex=True),
    "tanhC": lambda: hard("tanhC", 3, "tanh", correlation=0.9, d=20, spread=0.7),
    "tanhD": lambda: hard("tanhD", 11, "tanh", correlation=0.95, spread=0.6),
    "tanhE": lambda: hard("tanhE", 12, "tanh", correlation=0.8, steepness=2.0, spread=0.5),
    "sigL": lambda: hard("sigL", 5, "sigmoid", correlation=0.95, sampler=lognormal, scales=(1e-2, 1.0, 1e3)),
    "prodL": lambda: hard("prodL", 8, "product", correlation=0.9),
    "flatT": lambda: hard("flatT", 9, "tanh", correlation=0.95, flat=True),
    "sinL": lambda: hard("sinL", 6, "sine", correlation=0.95),
}
