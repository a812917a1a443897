"""Problems whose solution, multipliers and objective are known: random-design regression, constrained in many ways.

f(x; a, b) = (b - a . x)^2 / 2,   a ~ N(0, S),   b = a . beta + noise,    E f = (x - beta)^T S (x - beta) / 2 + const
c(x; z)    = (w + 0.3 z_1) . x + 0.5 z_2                                  E c = w . x
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import lariax as lx

D = 4
S = 0.5 * np.eye(D) + 0.5
BETA = np.array([1.0, -0.5, 0.4, 2.0])
ROOT = np.linalg.cholesky(S)
W = np.array([1.0, 1.0, -1.0, 0.5])


class Truth(NamedTuple):
    x: np.ndarray
    multipliers: dict[str, float]
    objective: float


class Case(NamedTuple):
    """A problem that is solved for many seeds.

    Attributes:
        problem: of the distribution; for a case with data, of one data set.
        draws: how many the inference looks at.
        data: a key -> the arrays of a data set; None: samples are drawn from the distribution.
        epochs: for how many passes over its data set a run goes on.
        conservative: whether the law is not normal, so that intervals may cover more often than they say.
    """

    name: str
    problem: lx.Problem
    truth: Truth
    draws: int
    data: Callable[[Any], Any] | None = None
    epochs: int = 0
    conservative: bool = False


def regression(x, row):
    return 0.5 * (row["b"] - row["a"] @ x) ** 2


def sampler(noise, beta=BETA, root=ROOT):
    """Rows (a, b, z) with the noise of b made by noise(key, a)."""
    beta, root, d = jnp.asarray(beta), jnp.asarray(root), len(beta)

    def draw(key):
        keys = jax.random.split(key, 3)
        a = root @ jax.random.normal(keys[0], (d,))
        return {"a": a, "b": a @ beta + noise(keys[1], a), "z": jax.random.normal(keys[2], (d + 1,))}

    return draw


def uneven(key, a):
    return (1 + 0.5 * jnp.abs(a[0])) * jax.random.normal(key)


def heavy(key, a):
    return jax.random.t(key, 5.0)


def misspecified(key, a):
    return a[0] ** 2 - S[0, 0] + jax.random.normal(key)


UNEVEN = 1 + np.sqrt(2 * S[0, 0] / np.pi) + S[0, 0] / 4  # E (1 + |a_0| / 2)^2
VARIANCES = {uneven: UNEVEN, heavy: 5 / 3, misspecified: 2 * S[0, 0] ** 2 + 1}


def noisy(x, row):
    """E c = W . x"""
    return (jnp.asarray(W) + 0.3 * row["z"][:-1]) @ x + 0.5 * row["z"][-1]


def solution(rows=(), bounds=(), names=(), noise=uneven) -> Truth:
    """With these rows as equalities."""
    rows, bounds = np.reshape(rows, (-1, D)).astype(float), np.asarray(bounds, float)
    a = len(rows)
    matrix = np.block([[S, rows.T], [rows, np.zeros((a, a))]])
    found = np.linalg.solve(matrix, np.concatenate([S @ BETA, bounds]))
    x, y = found[:D], found[D:]
    apart = x - BETA
    return Truth(x, dict(zip(names, y, strict=False)), float(apart @ S @ apart + VARIANCES[noise]) / 2)


def drawn(name, truth, constraints=None, noise=uneven, within=None, draws=2000, conservative=False) -> Case:
    source = lx.Distribution(sampler(noise))
    problem = lx.Problem(regression, samples=source, constraints=constraints or {}, within=within)
    return Case(name, problem, truth, draws, conservative=conservative)


def cases(draws: int = 2000) -> list[Case]:
    at = float(W @ BETA)
    eye = np.eye(D)
    equality, active = solution([W], [at - 1], ["c"]), solution([W], [at - 0.5], ["c"])
    free = solution(names=["c"])
    box = solution([eye[1]], [0.0])
    total = BETA.sum() - 1.5
    simplex = solution([np.ones(D), eye[1], eye[2]], [total, 0.0, 0.0])
    unit = float(W @ np.linalg.solve(S, W))
    spread = float(np.sqrt(W @ np.linalg.solve(S, _omega() @ np.linalg.solve(S, W)) + 0.09 * BETA @ BETA + 0.25))
    shift = spread / np.sqrt(draws)  # one standard error of the slack
    return [
        drawn("no constraint", free),
        drawn("noisy equality", equality, {"c": lx.Equal(noisy, at - 1)}),
        drawn("strongly active inequality", active, {"c": lx.AtMost(noisy, at - 0.5)}),
        drawn("inactive inequality", free._replace(multipliers={"c": 0.0}), {"c": lx.AtMost(noisy, at + 1)}),
        drawn("face of a box", box, within=lx.sets.Box(0.0, 10.0)),
        drawn("face of a simplex", simplex, within=lx.sets.Simplex(total)),
        drawn(
            "multiplier exactly 0",
            free._replace(multipliers={"c": 0.0}),
            {"c": lx.AtMost(noisy, at)},
            conservative=True,
        ),
        drawn(
            "drifting, active",
            solution([W], [at - shift], ["c"])._replace(multipliers={"c": shift / unit}),
            {"c": lx.AtMost(noisy, at - shift)},
            conservative=True,
        ),
        drawn(
            "drifting, inactive",
            free._replace(multipliers={"c": 0.0}),
            {"c": lx.AtMost(noisy, at + shift)},
            conservative=True,
        ),
        drawn("misspecified model", solution([W], [at - 1], ["c"], misspecified), {"c": lx.Equal(noisy, at - 1)},
              noise=misspecified),
        drawn("heavy tails (t, 5 degrees)", solution([W], [at - 1], ["c"], heavy), {"c": lx.Equal(noisy, at - 1)},
              noise=heavy),
        rows_again("bound surely active", 1.0),
        rows_again("bound perhaps active", 0.5),
        many_variables(draws),
        fairness(),
    ]  # fmt: skip


def _omega() -> np.ndarray:
    """E (1 + |a_0| / 2)^2 a a^T: the noise of the gradient at beta."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(400_000, D)) @ ROOT.T
    return (a * (1 + 0.5 * np.abs(a[:, :1])) ** 2).T @ a / len(a)


def rows_again(name: str, below: float, rows: int = 500, epochs: int = 40) -> Case:
    """Some rows, drawn again and again, and a bound so far below the value without it."""
    at = float(W @ BETA) - below
    draw = sampler(uneven)

    def data(key):
        return jax.vmap(draw)(jax.random.split(key, rows))

    problem = lx.Problem(
        regression, samples=lx.Dataset(data(jax.random.key(0))), constraints={"c": lx.AtMost(noisy, at)}
    )
    name = f"data set of {rows} rows, {epochs} epochs, {name}"
    return Case(name, problem, solution([W], [at], ["c"]), rows, data, epochs)


def many_variables(draws: int, d: int = 50, m: int = 5) -> Case:
    """A wider problem of the same kind, with a vector of equalities."""
    rng = np.random.default_rng(1)
    beta, rows = rng.normal(size=d), rng.normal(size=(m, d)) / np.sqrt(d)
    bounds = rows @ beta - 0.3
    source = lx.Distribution(sampler(uneven, beta, np.eye(d)))

    def several(x, row):
        return jnp.asarray(rows) @ x + 0.3 * row["z"][:m] * x[:m] + 0.5 * row["z"][-m:]

    y = np.linalg.solve(rows @ rows.T, rows @ beta - bounds)
    apart = -rows.T @ y
    variance = 1 + np.sqrt(2 / np.pi) + 0.25
    truth = Truth(beta + apart, {"c": y}, float(apart @ apart + variance) / 2)
    problem = lx.Problem(regression, samples=source, constraints={"c": lx.Equal(several, bounds)})
    return Case("50 variables, 5 equalities", problem, truth, 2 * draws)


# --- logistic regression with a fairness bound, on a finite population that is known


def logistic(x, row):
    return jax.nn.softplus(-row["label"] * (row["features"] @ x)) + 0.005 * x @ x


def gap(x, row):
    """The covariance of the score with the group."""
    return row["group"] * (row["features"] @ x)


def fairness(rows: int = 2000, population: int = 20_000, epochs: int = 10) -> Case:
    rng = np.random.default_rng(2)
    group = np.where(rng.random(population) < 0.4, 0.6, -0.4)
    features = np.column_stack([np.ones(population), rng.normal(size=(population, 3)) + group[:, None] * [1.0, 0.5, 0]])
    logits = features @ [0.2, 1.0, -0.5, 0.3] + 0.5 * group
    label = np.where(rng.random(population) < 1 / (1 + np.exp(-logits)), 1.0, -1.0)
    everyone = {"features": jnp.asarray(features), "label": jnp.asarray(label), "group": jnp.asarray(group)}

    def data(key):
        chosen = jax.random.randint(key, (rows,), 0, population)
        return jax.tree.map(lambda array: array[chosen], everyone)

    problem = lx.Problem(
        logistic, samples=lx.Dataset(data(jax.random.key(0))), constraints={"gap": lx.AtMost(gap, 0.05)}
    )
    return Case(f"logistic regression, fairness, {epochs} epochs", problem, _truth_of_all(everyone), rows, data, epochs)


def _truth_of_all(everyone) -> Truth:
    """By SLSQP on the whole population."""

    @jax.jit
    def means(x):
        f = jnp.mean(jax.vmap(logistic, (None, 0))(x, everyone))
        return f, jnp.mean(jax.vmap(gap, (None, 0))(x, everyone))

    gradients = jax.jit(jax.jacobian(means))
    constraint = {
        "type": "ineq",
        "fun": lambda x: 0.05 - float(means(x)[1]),
        "jac": lambda x: -np.asarray(gradients(x)[1]),
    }
    found = scipy.optimize.minimize(
        lambda x: float(means(x)[0]),
        np.zeros(4),
        jac=lambda x: np.asarray(gradients(x)[0]),
        constraints=[constraint],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    of_f, of_c = map(np.asarray, gradients(found.x))
    return Truth(found.x, {"gap": float(-(of_f @ of_c) / (of_c @ of_c))}, float(found.fun))
