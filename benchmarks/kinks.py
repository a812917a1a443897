"""Functions of a sample that have kinks: `python -m benchmarks.kinks [--seeds 16] [--only hinge] [--write]`.

In the mean they are smooth, but the gradient of one sample jumps. Solutions are known, from closed forms of the means;
distances are told in units of the statistical limit: the rms error of the exact solution of the sample-average problem
over the same draws, from the sandwich of the optimality conditions at the solution.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from scipy.optimize import minimize
from scipy.stats import norm

import lariax as lx
from benchmarks._results import origin, progress, table, write

BATCHES, DRAWS = (2, 4, 16, 64), (10_000, 100_000)
LIMIT_SAMPLES, LIMIT_STEP = 400_000, 0.03  # for the sandwich; H by central differences of mean gradients

Function = Callable[[jax.Array, jax.Array], jax.Array]


class Case(NamedTuple):
    name: str
    objective: Function
    values: Function  # of the constraint, <= 0 or = 0
    size: int  # of a sample, all normal
    solution: np.ndarray
    is_equality: bool = False
    exact: Callable[[jax.Array], jax.Array] | None = None  # = 0, not random
    chance: float | None = None  # at most that of `values` above 0, instead
    limit: float | None = None  # where it is known in closed form

    @property
    def problem(self) -> lx.Problem:
        kind = lx.Equal if self.is_equality else lx.AtMost
        stated = kind(self.values) if self.chance is None else lx.risk.Chance(self.values, self.chance)
        constraints: dict[str, Any] = {"values": stated}
        if self.exact is not None:
            constraints["exact"] = lx.Equal(self.exact, samples=None)
        source = lx.Distribution(lambda key: jax.random.normal(key, (self.size,)))
        return lx.Problem(self.objective, samples=source, constraints=constraints)


def positive(u: jax.Array) -> jax.Array:
    return jnp.maximum(u, 0)


def solved(fun: Callable[[np.ndarray], float], start: np.ndarray, *constraints: dict[str, Any]) -> np.ndarray:
    options = {"ftol": 1e-15, "maxiter": 1000}
    return minimize(fun, start, constraints=constraints, method="SLSQP", options=options).x


def newsvendors() -> Case:
    """Five of them with a common budget of 2, which is known on average only."""

    def cost(x: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.sum(0.5 * positive(x - z[:5]) + 1.5 * positive(z[:5] - x))

    return Case(
        "five newsvendors, common budget", cost, lambda x, z: jnp.sum(x) - 2 + 0.5 * z[5], 6, np.full(5, 0.4), True
    )


def quantile() -> Case:
    """A regression on four inputs. The loss depends on ||w - w0|| alone, so the solution is the projection of w0."""
    w0 = np.array([1.0, -1.0, 2.0, 0.5])

    def loss(w: jax.Array, z: jax.Array) -> jax.Array:
        rest = z[:4] @ (w0 - w) + z[4]
        return 0.7 * positive(rest) + 0.3 * positive(-rest)

    name = "quantile regression, sum at most 1.5"
    return Case(name, loss, lambda w, z: jnp.sum(w) + 0.5 * z[5] - 1.5, 6, w0 - 0.25)


def hinge() -> Case:
    """A classifier of a normal class; the mean of its loss is an integral that is known."""
    centre = np.array([1.0, 0.5, -0.5, 0.2])

    def mean_loss(w: np.ndarray) -> float:
        slack, size = 1 - w @ centre, np.linalg.norm(w) + 1e-12
        return float(slack * norm.cdf(slack / size) + size * norm.pdf(slack / size))

    sum_is_half = {"type": "eq", "fun": lambda w: w[0] + w[1] - 0.5}
    solution = solved(mean_loss, np.array([0.3, 0.2, -0.3, 0.1]), sum_is_half)
    return Case(
        "hinge loss, linear constraint",
        lambda w, z: positive(1 - w @ (centre + z[:4])),
        lambda w, z: w[0] + w[1] - 0.5 + 0.3 * z[4],
        5,
        solution,
        True,
    )


def shortage() -> Case:
    """A smooth, noisy cost; the expected shortage is a kinked constraint."""
    price, spread = np.array([1.0, 2.0, 0.5, 1.5, 1.0]), np.array([1.0, 0.5, 2.0, 1.0, 1.5])

    def short(x: np.ndarray) -> float:
        return float(np.sum(spread * (norm.pdf(x / spread) - x / spread * norm.sf(x / spread))))

    at_most_one = {"type": "ineq", "fun": lambda x: 1 - short(x)}
    return Case(
        "smooth cost, expected shortage at most 1",
        lambda x, z: 0.5 * jnp.sum(price * x**2) + x @ z[5:],
        lambda x, z: jnp.sum(positive(spread * z[:5] - x)) - 1,
        10,
        solved(lambda x: 0.5 * float(price @ x**2), np.full(5, 0.5), at_most_one),
    )


def tail(mean: np.ndarray, root: np.ndarray, level: float) -> Callable[[np.ndarray], tuple[float, float]]:
    """Value at risk and CVaR of the loss -r.x for normal r."""
    at = norm.ppf(level)

    def of(x: np.ndarray) -> tuple[float, float]:
        spread = float(np.linalg.norm(root.T @ x))
        return float(-mean @ x + at * spread), float(-mean @ x + norm.pdf(at) / (1 - level) * spread)

    return of


def portfolio() -> Case:
    """Six correlated assets, the CVaR (90 %) of the loss at most 0.4; short positions are allowed."""
    mean, mix = np.array([0.05, 0.08, 0.1, 0.12, 0.15, 0.2]), np.random.default_rng(1).standard_normal((6, 6))
    root, level = np.diag([0.3, 0.4, 0.5, 0.6, 0.8, 1.0]) @ (0.8 * np.eye(6) + 0.25 * mix), 0.9
    risk = tail(mean, root, level)
    constraints = (
        {"type": "ineq", "fun": lambda x: 0.4 - risk(x)[1]},
        {"type": "eq", "fun": lambda x: x.sum() - 1},
    )
    x = solved(lambda x: float(-mean @ x), np.full(6, 1 / 6), *constraints)

    def loss(v: jax.Array, z: jax.Array) -> jax.Array:
        return -(mean + root @ z) @ v[:6]

    return Case(
        "CVaR portfolio, six correlated assets, short positions",
        loss,
        lambda v, z: v[6] + positive(loss(v, z) - v[6]) / (1 - level) - 0.4,
        6,
        np.append(x, risk(x)[0]),
        exact=lambda v: jnp.sum(v[:6]) - 1,
    )


def least_risk() -> Case:
    """Four independent assets, the least CVaR (80 %) for a return of 0.3."""
    mean, spread, level = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.3, 0.5, 0.8, 1.2]), 0.8
    risk = tail(mean, np.diag(spread), level)
    x = solved(lambda x: risk(x)[1], np.full(4, 0.5), {"type": "ineq", "fun": lambda x: mean @ x - 0.3})

    def loss(v: jax.Array, z: jax.Array) -> jax.Array:
        return -(mean + spread * z) @ v[:4]

    return Case(
        "least CVaR for a return, four assets",
        lambda v, z: v[4] + positive(loss(v, z) - v[4]) / (1 - level),
        lambda v, z: 0.3 + loss(v, z),
        4,
        np.append(x, risk(x)[0]),
    )


def chance() -> Case:
    """Three plants meet a random demand with 90 %: the chance of a shortage is at most 0.1.

    What the plants make is weighed the same in every sample, so rounding an event changes no direction along the
    constraint, and the sandwich is that of the optimality conditions with the density of the demand at the solution.
    """
    price, power, share = np.array([1.0, 2.0, 0.5]), np.array([1.0, 0.8, 1.2]), 0.1
    needed = 3 + norm.ppf(1 - share)
    solution = power / price * needed / float(power**2 @ (1 / price))
    density = norm.pdf(norm.ppf(1 - share))
    system = np.block([[np.diag(price), -density * power[:, None]], [-density * power[None], np.zeros((1, 1))]])
    inverse = np.linalg.inv(system)
    covariance = inverse @ np.diag([1.0, 1.0, 1.0, share * (1 - share)]) @ inverse.T
    return Case(
        "smooth cost, chance of a shortage at most 0.1",
        lambda x, z: 0.5 * jnp.sum(price * x**2) + x @ z[1:],
        lambda x, z: 3 + z[0] - x @ power,
        4,
        solution,
        chance=share,
        limit=float(np.sqrt(np.trace(covariance[:3, :3]))),
    )


CASES = {case.__name__: case for case in (newsvendors, quantile, hinge, shortage, portfolio, least_risk, chance)}


def limit_of(case: Case) -> float:
    """sqrt(draws) times the rms error of the sample-average solution."""
    if case.limit is not None:
        return case.limit
    samples, x = jax.random.normal(jax.random.key(5), (LIMIT_SAMPLES, case.size)), jnp.asarray(case.solution)

    def rows(x: jax.Array, z: jax.Array) -> jax.Array:
        values = jnp.atleast_1d(case.values(x, z))
        return values if case.exact is None else jnp.append(values, case.exact(x))

    def parts(x: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(case.objective)(x, z), jax.jacobian(rows)(x, z)

    @jax.jit
    def means(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.tree.map(lambda part: jnp.mean(part, axis=0), jax.vmap(parts, (None, 0))(x, samples))

    gradient, jacobian = means(x)
    y = -jnp.linalg.lstsq(jacobian.T, gradient)[0]

    def slope(step: jax.Array) -> jax.Array:
        gradient, jacobian = means(x + step)
        return gradient + jacobian.T @ y

    hessian = jnp.stack([(slope(e) - slope(-e)) / (2 * LIMIT_STEP) for e in LIMIT_STEP * jnp.eye(x.size)])
    zero = jnp.zeros((y.size, y.size))
    system = jnp.block([[(hessian + hessian.T) / 2, jacobian.T], [jacobian, zero]])

    def conditions(z: jax.Array) -> jax.Array:
        gradient, jacobian = parts(x, z)
        return jnp.concatenate([gradient + jacobian.T @ y, rows(x, z)])

    inverse = jnp.linalg.inv(system)
    covariance = inverse @ jnp.cov(jax.jit(jax.vmap(conditions))(samples).T) @ inverse.T
    return float(jnp.sqrt(jnp.trace(covariance[: x.size, : x.size])))


def measured(case: Case, limit: float, batch: int, seeds: int) -> list[str]:
    """rms distance [largest], in units of the limit, for each number of draws."""
    problem, start, cells = case.problem, jnp.zeros(case.solution.size), []
    for draws in DRAWS:

        def end(seed: int, iterations: int = draws // batch) -> np.ndarray:
            return np.asarray(lx.solve(problem, start, iterations=iterations, batch_size=batch, seed=seed).x)

        away = np.linalg.norm([end(seed) - case.solution for seed in range(seeds)], axis=1)
        error = away * np.sqrt(draws) / limit
        cells.append(f"{np.sqrt(np.mean(error**2)):.2f} [{error.max():.1f}]")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--keep", type=Path, help="a file of finished rows, to go on from")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=160), time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    chosen = [make() for name, make in CASES.items() if options.only in (None, name)]
    with progress(console) as bar:
        task = bar.add_task("kinks", total=len(chosen) * len(BATCHES))
        for case in chosen:
            limit = None
            for batch in BATCHES:
                key = f"{case.name}, batches of {batch}"
                if key not in kept:
                    limit = limit_of(case) if limit is None else limit
                    kept[key] = [case.name, batch, f"{limit:.2f}", *measured(case, limit, batch, options.seeds)]
                    if options.keep:
                        options.keep.write_text(json.dumps(kept))
                console.print(kept[key], highlight=False)
                bar.advance(task)
    if options.write:
        about = (
            f"{origin('benchmarks.kinks', ('lariax', 'jax', 'numpy'), time.perf_counter() - began)} The default "
            f"method, {options.seeds} seeds, started at 0: rms distance from the solution [largest], in units of the "
            "statistical limit, which is `limit` / sqrt(draws)."
        )
        head = ("problem", "batch", "limit", *(f"{draws:,} draws" for draws in DRAWS))
        write(
            "kinks", "\n".join(["## Kinks", "", about, "", *table(head, [tuple(map(str, r)) for r in kept.values()])])
        )


if __name__ == "__main__":
    main()
