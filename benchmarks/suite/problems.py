"""The problems. Each is stated to Lariax through samples, and to us exactly: F = E f and C = E c in closed form.

`SUITE` is what the goals are about; beside it, `HARD` in `hard.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array

import lariax as lx
from benchmarks.suite.case import Case, Sampler
from benchmarks.suite.hard import HARD

DATA = Path(__file__).parents[3] / "shared" / "data"


def normal(*shape: int) -> lx.Distribution:
    return lx.Distribution(lambda key: jax.random.normal(key, shape))


def _key(number: int) -> Array:
    return jax.random.key(100 + number, impl="threefry2x32")


def _rotation(number: int, d: int) -> Array:
    return jnp.linalg.qr(jax.random.normal(_key(number), (d, d)))[0]


# --- two small ones


def toy50() -> Case:
    """50 wells, a noisy sphere and a noisy difference: nonconvex in objective and constraints."""
    d = 50
    a = jnp.linspace(1.0, 2.0, d)

    def wells(x: Array, xi: Array) -> Array:
        return jnp.sum(1 - jnp.exp(-((x - a - 0.3 * xi) ** 2) / 4))

    def rows(x: Array, z: Array) -> Array:
        return jnp.stack([jnp.sum(x**2) - 4 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]])

    return Case(
        name="toy50",
        problem=lx.Problem(wells, samples=normal(d), constraints={"c": lx.Equal(rows, samples=normal(2))}),
        x0=jnp.full(d, 0.2),
        objective=lambda x: jnp.sum(1 - jnp.sqrt(2 / 2.09) * jnp.exp(-((x - a) ** 2) / 4.18)),
        constraints=lambda x: rows(x, jnp.zeros(2)),
        inequality=(False, False),
        guess=jnp.full(d, 0.28),
    )


def biased(noise: float = 1.0) -> Case:
    """min (x0^2 + (x1 - 2)^2) / 2 with x0 + x1 = 1 seen through noise * z (x0 - x1): values and gradients of one sample
    are correlated, and the product of both is biased. Solution (-0.5, 1.5), multiplier 0.5."""

    def bowl(x: Array) -> Array:
        return 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2)

    def line(x: Array, z: Array) -> Array:
        return (x[0] + x[1] - 1 + noise * z * (x[0] - x[1]))[None]

    return Case(
        name="bias2",
        problem=lx.Problem(bowl, constraints={"line": lx.Equal(line, samples=normal())}),
        x0=jnp.zeros(2),
        objective=bowl,
        constraints=lambda x: line(x, jnp.zeros(())),
        inequality=(False,),
        guess=jnp.array([-0.5, 1.5]),
    )


# --- quadratics with noisy linear constraints


def student(key: Array, shape: tuple[int, ...]) -> Array:
    """Student-t with 3 degrees of freedom, variance 1: normal over the length of three normals."""
    own, *others = jax.random.normal(key, (4, *shape))
    return own / jnp.sqrt(sum(other**2 for other in others))


def quadratic(
    name: str,
    condition: float,
    *,
    d: int = 50,
    m: int = 5,
    seed: int,
    matrix_noise: float = 0.1,
    value_noise: float = 0.3,
    regression_noise: float | None = None,
    scales: tuple[float, ...] | None = None,
    redundant: bool = False,
    sampler: Sampler = jax.random.normal,
) -> Case:
    """E (x - t)' H (x - t) / 2 with E A x = b, both through noise.

    The objective's noise is a random linear term; with `regression_noise`, the objective is a random regression
    instead: ((H^1/2 xi)' (x - t) + noise)^2 / 2.
    """
    eigenvalues, basis = jnp.logspace(0, -np.log10(condition), d), _rotation(seed, d)
    hessian, root = (basis * eigenvalues) @ basis.T, (basis * jnp.sqrt(eigenvalues)) @ basis.T
    target = jax.random.normal(_key(seed + 1), (d,))
    matrix = jax.random.normal(_key(seed + 2), (m, d)) / jnp.sqrt(d)
    b = jax.random.normal(_key(seed + 3), (m,))
    if redundant:
        matrix, b = matrix.at[-1].set(matrix[0] + matrix[1]), b.at[-1].set(b[0] + b[1])
    scale = jnp.ones(m) if scales is None else jnp.asarray(scales)

    def exact(x: Array) -> Array:
        return 0.5 * (x - target) @ hessian @ (x - target)

    def objective(x: Array, xi: Array) -> Array:
        if regression_noise is not None:
            return 0.5 * ((root @ xi[:d]) @ (x - target) + regression_noise * xi[d]) ** 2
        return exact(x) + xi[:d] @ x / jnp.sqrt(d)

    def rows(x: Array, z: Array) -> Array:
        noise = z[: m * d].reshape(m, d)
        return scale * ((matrix + matrix_noise * noise / jnp.sqrt(d)) @ x - b + value_noise * z[m * d :])

    return Case(
        name=name,
        problem=lx.Problem(
            objective,
            samples=lx.Distribution(lambda key: sampler(key, (d + 1,))),
            constraints={
                "rows": lx.Equal(rows, samples=lx.Distribution(lambda key: sampler(key, (m * d + m,)))),
            },
        ),
        x0=jnp.zeros(d),
        objective=exact,
        constraints=lambda x: scale * (matrix @ x - b),
        inequality=(False,) * m,
        guess=jnp.zeros(d),
        dependent=(m - 1,) if redundant else (),
    )


# --- geometry and inequalities


def pca() -> Case:
    """The leading eigenvector of a covariance, on a sphere whose radius is seen through noise."""
    d = 30
    eigenvalues = jnp.concatenate([jnp.array([2.0, 1.4]), jnp.linspace(1, 0.1, d - 2)])
    basis = _rotation(20, d)
    root, covariance = (basis * jnp.sqrt(eigenvalues)) @ basis.T, (basis * eigenvalues) @ basis.T
    x0 = jnp.full(d, 0.5 / np.sqrt(d))

    def sphere(x: Array, z: Array) -> Array:
        return ((1 + 0.3 * z[0]) * jnp.sum(x**2) - 1 + 0.2 * z[1])[None]

    return Case(
        name="pca",
        problem=lx.Problem(
            lambda x, xi: -0.5 * ((root @ xi) @ x) ** 2,
            samples=normal(d),
            constraints={"sphere": lx.Equal(sphere, samples=normal(2))},
        ),
        x0=x0,
        objective=lambda x: -0.5 * x @ covariance @ x,
        constraints=lambda x: sphere(x, jnp.zeros(2)),
        inequality=(False,),
        guess=basis[:, 0] * jnp.sign(basis[:, 0] @ x0),
        mirrored=True,
    )


def inequalities() -> Case:
    """Ten noisy curved inequalities in 30 variables, some active at the solution."""
    d, m = 30, 10
    matrix = jax.random.normal(_key(40), (m, d)) / jnp.sqrt(d)
    target = jax.random.normal(_key(41), (d,))
    weights = jnp.linspace(0.2, 2, d)
    b = matrix @ target + jnp.linspace(-1.0, 1.0, m)

    def exact(x: Array) -> Array:
        return 0.5 * jnp.sum(weights * (x - target) ** 2)

    def objective(x: Array, xi: Array) -> Array:
        return exact(x) + xi @ x / jnp.sqrt(d) + 0.1 * jnp.sum(xi * jnp.sin(x))

    def mean_rows(x: Array) -> Array:
        return matrix @ x - b + 0.02 * (x @ x - target @ target)

    def rows(x: Array, z: Array) -> Array:
        return mean_rows(x) + 0.2 * z[: m * d].reshape(m, d) @ x / jnp.sqrt(d) + 0.3 * z[m * d :]

    return Case(
        name="ineq10",
        problem=lx.Problem(
            objective,
            samples=normal(d),
            constraints={"rows": lx.AtMost(rows, 0.0, samples=normal(m * d + m))},
        ),
        x0=jnp.zeros(d),
        objective=exact,
        constraints=mean_rows,
        inequality=(True,) * m,
        guess=jnp.zeros(d),
    )


def portfolio(simplex: bool = False) -> Case:
    """Least second moment with a mean return of at least 12.5 %, through returns as noisy as returns are.

    The budget is an equality beside a box, or, with `simplex`, part of the set.
    """
    d, factors = 20, 4
    mean = 0.05 + 0.1 * jax.random.uniform(_key(30), (d,))
    loadings = 0.3 * jax.random.normal(_key(31), (d, factors))
    own = 0.2 + 0.4 * jax.random.uniform(_key(32), (d,))
    covariance = loadings @ loadings.T + jnp.diag(own**2)

    def returns(z: Array) -> Array:
        return mean + loadings @ z[:factors] + own * z[factors:]

    bound = lx.AtLeast(lambda x, z: returns(z) @ x, 0.125, samples=normal(d + factors))
    budget = lx.Equal(lambda x: jnp.sum(x) - 1, samples=None)

    def mean_rows(x: Array) -> Array:
        shortfall = 0.125 - mean @ x
        return shortfall[None] if simplex else jnp.stack([jnp.sum(x) - 1, shortfall])

    return Case(
        name="simplex" if simplex else "portfolio",
        problem=lx.Problem(
            lambda x, xi: 0.5 * (returns(xi) @ x) ** 2,
            samples=normal(d + factors),
            constraints={"return": bound} if simplex else {"budget": budget, "return": bound},
            within=lx.sets.Simplex() if simplex else lx.sets.Box(0.0, 0.2),
        ),
        x0=jnp.full(d, 1 / d),
        objective=lambda x: 0.5 * x @ covariance @ x + 0.5 * (mean @ x) ** 2,
        constraints=mean_rows,
        inequality=(True,) if simplex else (False, True),
        guess=jnp.full(d, 1 / d),
        bounds=(0.0, 1.0) if simplex else (0.0, 0.2),
        total=1.0 if simplex else None,
    )


# --- finite sums


def read_svm(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Dense rows and labels of -1 and +1 from a stored sparse data set such as a9a.npz."""
    stored = np.load(file)
    parts = (stored["data"], stored["indices"].astype(np.int32), stored["indptr"])
    return scipy.sparse.csr_matrix(parts, shape=tuple(stored["shape"])).toarray(), stored["y"]


def neyman_pearson() -> Case:
    """On a9a. Without the data, on 20,000 synthetic rows of the same shape (and the name says so)."""
    if (DATA / "a9a.npz").exists():
        return neyman_pearson_on("np-a9a", *read_svm(DATA / "a9a.npz"))
    rng = np.random.default_rng(0)
    rows = (rng.random((20_000, 123)) < 0.11).astype(float)
    return neyman_pearson_on(
        "np-synthetic", rows, np.sign(rows @ rng.normal(size=123) - 1.5 + rng.logistic(size=20_000))
    )


def neyman_pearson_on(name: str, rows: np.ndarray, labels: np.ndarray) -> Case:
    """Logistic regression: least loss on the positives with a loss of at most 0.35 on the negatives."""
    positive, negative = (jnp.asarray(rows[labels > 0], float), jnp.asarray(rows[labels <= 0], float))

    def missed(x: Array, row: Array) -> Array:
        return jnp.logaddexp(0.0, -(row @ x)) + 0.5e-2 * x @ x

    def alarm(x: Array, row: Array) -> Array:
        return jnp.logaddexp(0.0, row @ x)

    return Case(
        name=name,
        problem=lx.Problem(
            missed,
            samples=lx.Dataset(positive),
            constraints={"alarms": lx.AtMost(alarm, 0.35, samples=lx.Dataset(negative))},
        ),
        x0=jnp.zeros(positive.shape[1]),
        objective=lambda x: jnp.mean(jnp.logaddexp(0.0, -(positive @ x))) + 0.5e-2 * x @ x,
        constraints=lambda x: jnp.mean(jnp.logaddexp(0.0, negative @ x))[None] - 0.35,
        inequality=(True,),
        guess=jnp.zeros(positive.shape[1]),
    )


def consensus() -> Case:
    """16 agents on a ring, each with a logistic regression on 100 rows of its own, agree on 5 coefficients.

    A draw is one row of every agent. The constraints, neighbours agree, are exact.
    """
    agents, rows, p = 16, 100, 5
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(rows, agents, p)) + 0.3 * rng.normal(size=(agents, p))
    truth = rng.normal(size=p) + 0.5 * rng.normal(size=(agents, p))
    labels = np.sign(np.sum(inputs * truth, axis=2) + rng.logistic(size=(rows, agents)))
    signed = jnp.asarray(inputs * labels[..., None])  # (rows, agents, p)

    def loss(x: Array, row: Array) -> Array:
        margin = jnp.sum(row * x.reshape(agents, p), axis=1)
        return jnp.mean(jnp.logaddexp(0.0, -margin)) + 0.5e-2 * x @ x / agents

    path = np.eye(agents)[1:] - np.eye(agents)[:-1]
    difference = jnp.asarray(np.kron(path, np.eye(p)))
    return Case(
        name="consensus",
        problem=lx.Problem(loss, samples=lx.Dataset(signed), constraints={"agree": lx.Linear(difference, 0.0)}),
        x0=jnp.zeros(agents * p),
        objective=lambda x: jnp.mean(jax.vmap(loss, (None, 0))(x, signed)),
        constraints=lambda x: difference @ x,
        inequality=(False,) * ((agents - 1) * p),
        guess=jnp.zeros(agents * p),
    )


def infeasible() -> Case:
    """A sphere of radius 1 and the plane x0 = 3."""
    d = 5

    def rows(x: Array, z: Array) -> Array:
        return jnp.stack([jnp.sum(x**2) - 1 + 0.2 * z[0], x[0] - 3 + 0.2 * z[1]])

    return Case(
        name="infeasible",
        problem=lx.Problem(
            lambda x, xi: 0.5 * jnp.sum((x - xi) ** 2),
            samples=normal(d),
            constraints={"rows": lx.Equal(rows, samples=normal(2))},
        ),
        x0=jnp.full(d, 0.1),
        objective=lambda x: 0.5 * jnp.sum(x**2),
        constraints=lambda x: rows(x, jnp.zeros(2)),
        inequality=(False, False),
        guess=jnp.full(d, 0.1),
        infeasible=True,
    )


SUITE: dict[str, Callable[[], Case]] = {
    "toy50": toy50,
    "bias2": biased,
    "q1e2": lambda: quadratic("q1e2", 1e2, seed=0, regression_noise=0.5),
    "q1e4": lambda: quadratic("q1e4", 1e4, seed=5),
    "pca": pca,
    "lin20": lambda: quadratic("lin20", 10.0, d=100, m=20, seed=50, matrix_noise=0.3),
    "ineq10": inequalities,
    "portfolio": portfolio,
    "simplex": lambda: portfolio(simplex=True),
    "np-a9a": neyman_pearson,
    "consensus": consensus,
    "heavy": lambda: quadratic("heavy", 10.0, seed=60, sampler=student),
    "redundant": lambda: quadratic("redundant", 10.0, seed=70, redundant=True),
    "badscale": lambda: quadratic("badscale", 10.0, seed=80, scales=(1e3,) * 5),
    "mixscale": lambda: quadratic("mixscale", 10.0, seed=85, scales=(1e3, 1e2, 10.0, 1.0, 0.1)),
    "infeasible": infeasible,
}


def by_name(name: str) -> Case:
    known: dict[str, Any] = SUITE | HARD
    if name not in known:
        raise SystemExit(f"no problem {name!r}; there are {', '.join(known)}.")
    return known[name]()
