"""The problems, by case of the paper. Each is known exactly: F = E f and C = E c in closed form or over all rows."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx
from benchmarks.suite.case import Case
from benchmarks.suite.problems import inequalities, neyman_pearson_on, normal, read_svm
from lariax.gallery.fairness import people

WELLS = 50
AGENTS, FEATURES = 16, 9
GRID = 20  # points of the state of the control problem


def _wells(name: str, constraint: lx.Linear | lx.Equal, exact: Callable[[Array], Array], rows: int) -> Case:
    """50 wells, 1 - exp(-(x_i - a_i - 0.3 xi_i)^2 / 4): nonconvex, with a mean in closed form."""
    a = jnp.linspace(1.0, 2.0, WELLS)
    return Case(
        name=name,
        problem=lx.Problem(
            lambda x, xi: jnp.sum(1 - jnp.exp(-((x - a - 0.3 * xi) ** 2) / 4)),
            samples=normal(WELLS),
            constraints={"c": constraint},
        ),
        x0=jnp.full(WELLS, 0.2),
        objective=lambda x: jnp.sum(1 - jnp.sqrt(2 / 2.09) * jnp.exp(-((x - a) ** 2) / 4.18)),
        constraints=exact,
        inequality=(False,) * rows,
        guess=jnp.full(WELLS, 0.28),
    )


def wells_linear() -> Case:
    """The wells with five linear equations."""
    matrix = jax.random.normal(jax.random.key(5), (5, WELLS)) / jnp.sqrt(WELLS)
    b = 0.5 * jnp.arange(1.0, 6.0)
    return _wells("wells, linear", lx.Linear(matrix, b), lambda x: matrix @ x - b, 5)


def wells_sphere() -> Case:
    """The wells on a sphere, with two entries equal."""

    def rows(x: Array) -> Array:
        return jnp.stack([jnp.sum(x**2) - 4, x[0] - x[1]])

    return _wells("wells, sphere", lx.Equal(rows, samples=None), rows, 2)


def consensus() -> Case:
    """16 agents on a path fit a logistic regression with a nonconvex regulariser to the Adult data.

    Every agent has its own 2,035 people, by age: the agents' problems differ. A draw is one row of each agent.
    """
    table = people("adult")
    inputs, labels = table.inputs[table.training], 2 * table.labels[table.training] - 1
    strength = np.abs([np.corrcoef(column, labels)[0, 1] for column in inputs[:, :-1].T])
    chosen = [*np.sort(np.argsort(-strength)[: FEATURES - 1]), inputs.shape[1] - 1]
    order = np.argsort(inputs[:, table.names.index("age")], kind="stable")
    each = len(order) // AGENTS
    signed = (inputs[:, chosen] * labels[:, None])[order[: each * AGENTS]]
    rows = jnp.asarray(signed.reshape(AGENTS, each, FEATURES).transpose(1, 0, 2))
    size = AGENTS * FEATURES

    def loss(x: Array, row: Array) -> Array:
        margin = jnp.sum(row * x.reshape(AGENTS, FEATURES), axis=1)
        return jnp.sum(jnp.logaddexp(0.0, -margin)) + 0.01 * jnp.sum(x**2 / (1 + x**2))

    def differences(x: Array) -> Array:
        table = x.reshape(AGENTS, FEATURES)
        return jnp.ravel(table[1:] - table[:-1])

    path = lx.Linear(differences, 0.0, shape=(size - FEATURES, size))
    return Case(
        name="consensus, Adult",
        problem=lx.Problem(loss, samples=lx.Dataset(rows), constraints={"agree": path}),
        x0=jnp.zeros(size),
        objective=lambda x: jnp.mean(jax.vmap(loss, (None, 0))(x, rows)),
        constraints=differences,
        inequality=(False,) * (size - FEATURES),
        guess=jnp.zeros(size),
    )


def control() -> Case:
    """A semilinear elliptic control problem in one dimension, -u'' + u^3 = z with u = 0 at both ends.

    x holds the state u and the control w = h^2 z / 2 at 20 points; the equations are scaled by h^2 / 2. The desired
    state is a bump, seen through noise.
    """
    h = 1 / (GRID + 1)
    place = jnp.linspace(h, 1 - h, GRID)
    desired, weight = jnp.where(jnp.abs(place - 0.5) < 0.25, 1.0, 0.0), 4e-5 / h**4

    def objective(x: Array, xi: Array) -> Array:
        return 0.5 * jnp.sum((x[:GRID] - desired - 0.3 * xi) ** 2) + 0.5 * weight * jnp.sum(x[GRID:] ** 2)

    def equations(x: Array) -> Array:
        u, w = x[:GRID], x[GRID:]
        around = jnp.pad(u, 1)
        return u - 0.5 * (around[2:] + around[:-2]) + 0.5 * h**2 * u**3 - w

    return Case(
        name="PDE control",
        problem=lx.Problem(objective, samples=normal(GRID), constraints={"pde": lx.Equal(equations, samples=None)}),
        x0=jnp.zeros(2 * GRID),
        objective=lambda x: objective(x, jnp.zeros(GRID)) + 0.5 * 0.09 * GRID,
        constraints=equations,
        inequality=(False,) * GRID,
        guess=jnp.zeros(2 * GRID),
    )


def neyman_pearson() -> Case:
    """On the Adult data, which come with Lariax."""
    table = people("adult")
    return neyman_pearson_on("Neyman-Pearson, Adult", table.inputs[table.training], table.labels[table.training])


def problems(data: Path | None) -> tuple[dict[str, tuple[str, Callable[[], Case]]], list[str]]:
    """By name, with their cases; and what is left out for want of data. `data` is a folder with a9a.npz."""
    known: dict[str, tuple[str, Callable[[], Case]]] = {
        "wells, linear": ("I", wells_linear),
        "consensus, Adult": ("I", consensus),
        "wells, sphere": ("II", wells_sphere),
        "PDE control": ("II", control),
        "ineq10": ("III", inequalities),
        "Neyman-Pearson, Adult": ("III", neyman_pearson),
    }
    name = "Neyman-Pearson, a9a"
    if data is None:
        return known, [f"{name}: needs a9a.npz, which Lariax may not carry; give the folder that holds it as --data"]
    file = data / "a9a.npz"
    if not file.is_file():
        return known, [f"{name}: there is no {file}"]
    return known | {name: ("III", lambda: neyman_pearson_on(name, *read_svm(file)))}, []
