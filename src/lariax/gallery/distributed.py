"""Many parties and one linear equation: consensus over a graph, sharing, and splitting off a linear operator."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._models import half_square
from lariax.gallery._reference import kkt_point
from lariax.gallery._tables import dataset, embedded
from lariax.problem import Distribution, Linear, Problem
from lariax.prox import L1
from lariax.sets import NonNegative

# --- consensus

TRAITS = ("age", "education_num", "hours_per_week", "capital_gain", "capital_loss")
"""Of Adult, what agents see beside whether somebody is married and is a woman."""


@entry
def consensus(agents: int = 16, graph: str = "grid", ridge: float = 1e-2) -> Entry:
    """Agents on a graph agree on a model, each with people of its own.

        minimise    (1/n) sum_i ( E_i[ loss(x_i . a, b) ] + ridge / 2 ||x_i||^2 )      x_i: the model of agent i
        subject to  x_i - x_j = 0   for every edge (i, j)

    The training rows of Adult are sorted by age and dealt out in as many blocks as there are agents, so each agent has
    an age bracket, and would learn something else if it were alone. loss is the logistic loss of income. A sample is
    one row of every agent. The constraint is the incidence operator of the graph, as a function: no matrix is formed.

    Scale: 16 agents with 2,035 rows and 8 coefficients each: 128 unknowns; a 4 by 4 grid has 24 edges, 192 constraints
        of which 120 are independent.
    Check: agreement is the regression on all rows, by Newton. On a tree (path, star) multipliers are unique: what flows
        over each edge is the sum of the gradients behind it.
    Arguments:
        agents: how many; for a grid, the square of a number.
        graph: "grid", "ring", "path" or "star".
        ridge: how much models are held back.

    >>> from lariax import gallery
    >>> case = gallery.consensus(agents=4, graph="ring")
    >>> sorted(case.problem.constraints)
    ['agree']
    """
    edges = _edges(graph, agents)
    signed = _rows_of_agents(agents)  # (rows, agents, coefficients), inputs times +-1 by label
    coefficients = signed.shape[2]

    def loss(x: Array, row: Array) -> Array:
        return jnp.mean(jax.nn.softplus(-jnp.sum(row * x, axis=1))) + ridge * half_square(x) / agents

    def differences(x: Array) -> Array:
        return (x[edges[:, 0]] - x[edges[:, 1]]).ravel()

    shape = (len(edges) * coefficients, agents * coefficients)
    return Entry(
        problem=Problem(loss, samples=dataset(signed), constraints={"agree": Linear(differences, 0.0, shape=shape)}),
        x0=jnp.zeros((agents, coefficients)),
        defaults={"batch_size": 16, "iterations": 10_000},
        solve=partial(_solve_consensus, signed, ridge, edges),
        draw=partial(_draw_consensus, signed),
        measure=_measure_consensus,
    )


def _edges(graph: str, agents: int) -> np.ndarray:
    """Pairs of agents, (edges, 2)."""
    number = np.arange(agents)
    side = round(agents**0.5)
    if graph == "grid" and side**2 == agents:
        square = number.reshape(side, side)
        across = np.stack([square[:, :-1].ravel(), square[:, 1:].ravel()], axis=1)
        return np.concatenate([across, np.stack([square[:-1].ravel(), square[1:].ravel()], axis=1)])
    if graph == "ring":
        return np.stack([number, np.roll(number, -1)], axis=1)
    if graph == "path":
        return np.stack([number[:-1], number[1:]], axis=1)
    if graph == "star":
        return np.stack([np.zeros(agents - 1, int), number[1:]], axis=1)
    raise ValueError(
        f"graph must be 'grid' (with a square number of agents), 'ring', 'path' or 'star', found {graph!r} with "
        f"{agents} agents."
    )


def _rows_of_agents(agents: int) -> np.ndarray:
    table = embedded("adult")
    training = table["split"] == "train"
    numbers = np.stack([table[name][training].astype(float) for name in TRAITS], axis=1)
    numbers[:, 3:] = np.log1p(numbers[:, 3:])
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    married = table["marital_status"][training] == "Married-civ-spouse"
    woman = table["sex"][training] == "Female"
    inputs = np.column_stack([numbers, married, woman, np.ones(len(woman))])
    signed = inputs * (2.0 * table["income_gt_50k"][training] - 1)[:, None]
    order = np.argsort(table["age"][training], kind="stable")
    each = len(order) // agents
    return signed[order[: each * agents]].reshape(agents, each, -1).swapaxes(0, 1)


def _solve_consensus(signed: np.ndarray, ridge: float, edges: np.ndarray) -> Solution:
    rows, agents, coefficients = signed.shape
    pooled = signed.reshape(-1, coefficients)
    found = kkt_point(
        lambda x: jnp.mean(jax.nn.softplus(-(pooled @ x))) + ridge * half_square(x),
        lambda x: jnp.zeros(0),
        [],
        np.zeros(coefficients),
    )
    x = np.tile(found.x, (agents, 1))
    if len(edges) != agents - 1:  # cycles: a flow around one changes nothing
        return Solution(found.value, x)
    pull = -1 / (1 + np.exp(np.einsum("rac,c->ra", signed, found.x)))
    gradient = (np.einsum("ra,rac->ac", pull, signed) / rows + ridge * found.x) / agents
    incidence = np.zeros((len(edges), agents))
    incidence[np.arange(len(edges)), edges[:, 0]] = 1
    incidence[np.arange(len(edges)), edges[:, 1]] = -1
    return Solution(found.value, x, {"agree": -np.linalg.lstsq(incidence.T, gradient, rcond=None)[0].ravel()})


def _measure_consensus(x: PyTree) -> dict[str, float]:
    models = np.asarray(x)
    return {"largest disagreement": float(np.max(models.max(0) - models.min(0)))}


def _draw_consensus(signed: np.ndarray, x: PyTree) -> list[Picture]:
    models = np.asarray(x, float)
    losses = np.logaddexp(0, -np.einsum("rac,ac->ra", signed, models)).mean(0)
    names = (*TRAITS, "married", "woman", "intercept")
    return [
        Picture(
            f"The models of {len(models)} agents: agreement is two bars of the same height",
            "bars",
            {"least of all agents": models.min(axis=0), "largest": models.max(axis=0)},
            categories=names,
            y_label="coefficient",
        ),
        Picture(
            "Loss of the agreed model on each agent's own people, from the youngest to the oldest",
            "bars",
            {"loss": losses},
            categories=tuple(str(i + 1) for i in range(len(models))),
            x_label="agent",
            y_label="mean loss",
        ),
    ]


# --- sharing


@entry
def resource_sharing(users: int = 100, resources: int = 5, seed: int = 0) -> Entry:
    """Users share resources in proportion to what these are worth to them, which is only seen at random.

        minimise    - E[ sum_ir  W_ir log(1 + x_ir / s_ir) ]      x_ir: what user i gets of resource r, W: random worth
        subject to  sum_i x_ir = C_r   for every resource r
                    x >= 0

    The worth W_ir is log-normal around w_ir with a deviation as large as its mean. The sum over users is a function, no
    matrix is formed. The multiplier of a resource is its price.

    Scale: 100 users and 5 resources: 500 unknowns, 5 constraints.
    Check: water-filling, x_ir = max(w_ir / y_r - s_ir, 0) with the price y_r that spends C_r exactly.
    Arguments:
        users, resources: how many.
        seed: of the worths w and the scales s.

    >>> from lariax import gallery
    >>> case = gallery.resource_sharing(users=10, resources=2)
    >>> sorted(case.problem.constraints)
    ['capacity']
    """
    rng = np.random.default_rng(seed)
    worth = rng.uniform(0.2, 1.0, (users, resources))
    scale = rng.uniform(0.5, 1.5, (users, resources))
    capacity = 0.5 * users * np.ones(resources)
    spread = np.sqrt(np.log(2.0))  # of log W, so that its deviation is its mean

    def sample(key: Array) -> Array:
        return jnp.asarray(worth) * jnp.exp(spread * jax.random.normal(key, worth.shape) - spread**2 / 2)

    def cost(x: Array, w: Array) -> Array:
        return -jnp.sum(w * jnp.log1p(x / scale)) / users

    total = Linear(lambda x: jnp.sum(x, axis=0), capacity, shape=(resources, users * resources))
    return Entry(
        problem=Problem(cost, samples=Distribution(sample), constraints={"capacity": total}, within=NonNegative()),
        x0=jnp.full(worth.shape, 0.5),
        defaults={"batch_size": 16, "iterations": 10_000},
        solve=partial(_solve_sharing, worth, scale, capacity),
        draw=partial(_draw_sharing, worth, scale),
    )


def _solve_sharing(worth: np.ndarray, scale: np.ndarray, capacity: np.ndarray) -> Solution:
    users = len(worth)

    def shares(price: float, r: int) -> np.ndarray:
        return np.maximum(worth[:, r] / price - scale[:, r], 0)

    prices = np.asarray(
        [
            scipy.optimize.brentq(lambda p, r=r: shares(p, r).sum() - capacity[r], 1e-6, 1e3, xtol=1e-14)
            for r in range(len(capacity))
        ]
    )
    x = np.stack([shares(price, r) for r, price in enumerate(prices)], axis=1)
    value = -np.sum(worth * np.log1p(x / scale)) / users
    return Solution(float(value), x, {"capacity": prices / users})


def _draw_sharing(worth: np.ndarray, scale: np.ndarray, x: PyTree) -> list[Picture]:
    got = np.asarray(x, float)
    return [
        Picture(
            "What users get against what the first unit is worth to them",
            "scatter",
            {f"resource {r + 1}": np.stack([(worth / scale)[:, r], got[:, r]], axis=1) for r in range(got.shape[1])},
            x_label="worth of the first unit",
            y_label="share",
        )
    ]


# --- splitting

YOUNGEST, OLDEST = 20, 64


@entry
def splitting(weight: float = 0.02) -> Entry:
    """A piecewise constant curve through people: total variation, split off as a linear constraint.

        minimise    E[ n/2 (u_age - b)^2 ] + weight ||z||_1       u: share with a high income at each age, n ages
        subject to  D u - z = 0                                   D: differences of neighbours

    A composite objective f(u) + g(D u) whose g has a proximal map and whose g(D .) has none: D u gets a name. A sample
    is one training row of Adult, an age and a label b of 0 or 1.

    Scale: ages 20 to 64, 45 + 44 unknowns, 44 constraints, 29,568 rows.
    Check: the dual is a least-squares problem in a box, min || q^-1/2 D' y - q^1/2 m ||^2 with |y| <= weight, where m
        and q / n are mean label and share of an age; an active-set method solves it exactly, and u = m - D' y / q.
    Arguments:
        weight: of the total variation.

    >>> from lariax import gallery
    >>> case = gallery.splitting(weight=0.05)
    >>> case.options["weight"]
    0.05
    """
    table = embedded("adult")
    age = table["age"].astype(int)
    chosen = (table["split"] == "train") & (age >= YOUNGEST) & (age <= OLDEST)
    ages, labels = age[chosen] - YOUNGEST, table["income_gt_50k"][chosen].astype(float)
    n = OLDEST - YOUNGEST + 1

    def fit(x: PyTree, row: PyTree) -> Array:
        return n / 2 * (x["curve"][row["age"]] - row["label"]) ** 2

    def split(x: PyTree) -> Array:
        return jnp.diff(x["curve"]) - x["jumps"]

    return Entry(
        problem=Problem(
            fit,
            samples=dataset({"age": ages, "label": labels}),
            constraints={"split": Linear(split, 0.0, shape=(n - 1, 2 * n - 1))},
            regularizer=L1({"curve": jnp.zeros(()), "jumps": jnp.asarray(weight)}),
        ),
        x0={"curve": jnp.zeros(n), "jumps": jnp.zeros(n - 1)},
        defaults={"batch_size": 64, "iterations": 10_000},
        solve=partial(_solve_splitting, ages, labels, weight),
        draw=partial(_draw_splitting, ages, labels),
    )


def _by_age(ages: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean label of each age, and n times its share of the rows."""
    counts = np.bincount(ages)
    return np.bincount(ages, labels) / counts, len(counts) * counts / len(ages)


def _solve_splitting(ages: np.ndarray, labels: np.ndarray, weight: float) -> Solution:
    mean, q = _by_age(ages, labels)
    n = len(mean)
    differences = np.diff(np.eye(n), axis=0)
    root = np.sqrt(q)
    dual = scipy.optimize.lsq_linear(
        differences.T / root[:, None], root * mean, bounds=(-weight, weight), method="bvls", tol=1e-15
    ).x
    curve = mean - differences.T @ dual / q
    jumps = np.where(np.abs(dual) < weight * (1 - 1e-9), 0.0, np.diff(curve))
    value = n / 2 * np.mean((curve[ages] - labels) ** 2) + weight * np.abs(jumps).sum()
    return Solution(float(value), {"curve": curve, "jumps": jumps}, {"split": dual})


def _draw_splitting(ages: np.ndarray, labels: np.ndarray, x: Any) -> list[Picture]:
    years = np.arange(YOUNGEST, OLDEST + 1)
    curves = {"fitted": np.asarray(x["curve"], float), "mean of each age": _by_age(ages, labels)[0]}
    return [
        Picture(
            "Share with an income above 50,000 dollars",
            "lines",
            {name: np.stack([years, curve], axis=1) for name, curve in curves.items()},
            x_label="age",
            y_label="share",
        )
    ]
