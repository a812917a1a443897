"""Functions of a sample that have kinks, and the same rounded: `python -m benchmarks.kinks [--seeds 16] [--write]`.

In the mean they are smooth, but the gradient of one sample jumps, and same-sample differences are 0 or as large as the
noise. Solutions are known exactly; distances are told in units of 1 / sqrt(draws).
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from scipy.optimize import minimize
from scipy.stats import norm

import lariax as lx
from benchmarks._results import origin, progress, table, write

BATCH, DRAWS = 4, (10_000, 100_000)
WIDTH = 0.1  # over which kinks are rounded

Positive = Callable[[jax.Array], jax.Array]
"""max(u, 0), or something like it."""


class Case(NamedTuple):
    name: str
    make: Callable[[Positive], lx.Problem]
    solution: np.ndarray
    violation: Callable[[np.ndarray], float]


def normal(size: int) -> lx.Distribution:
    return lx.Distribution(lambda key: jax.random.normal(key, (size,)))


def newsvendors() -> Case:
    """Five of them with a common budget of 2, which is known on average only."""

    def make(positive: Positive) -> lx.Problem:
        return lx.Problem(
            lambda x, z: jnp.sum(0.5 * positive(x - z[:5]) + 1.5 * positive(z[:5] - x)),
            samples=normal(6),
            constraints={"budget": lx.Equal(lambda x, z: jnp.sum(x) - 2 + 0.5 * z[5])},
        )

    return Case("five newsvendors, common budget", make, np.full(5, 0.4), lambda x: abs(x.sum() - 2))


def quantile() -> Case:
    """A regression on four inputs. The loss depends on ||w - w0|| alone, so the solution is the projection of w0."""
    w0 = np.array([1.0, -1.0, 2.0, 0.5])

    def make(positive: Positive) -> lx.Problem:
        def loss(w: jax.Array, z: jax.Array) -> jax.Array:
            rest = z[:4] @ (w0 - w) + z[4]
            return 0.7 * positive(rest) + 0.3 * positive(-rest)

        return lx.Problem(
            loss, samples=normal(6), constraints={"sum": lx.AtMost(lambda w, z: jnp.sum(w) + 0.5 * z[5], 1.5)}
        )

    return Case("quantile regression, sum at most 1.5", make, w0 - 0.25, lambda w: max(w.sum() - 1.5, 0.0))


def hinge() -> Case:
    """A classifier of a normal class; the mean of its loss is an integral that is known."""
    centre = np.array([1.0, 0.5, -0.5, 0.2])

    def mean_loss(w: np.ndarray) -> float:
        slack, size = 1 - w @ centre, np.linalg.norm(w) + 1e-12
        return float(slack * norm.cdf(slack / size) + size * norm.pdf(slack / size))

    def violation(w: np.ndarray) -> float:
        return abs(w[0] + w[1] - 0.5)

    def make(positive: Positive) -> lx.Problem:
        return lx.Problem(
            lambda w, z: positive(1 - w @ (centre + z[:4])),
            samples=normal(5),
            constraints={"sum": lx.Equal(lambda w, z: w[0] + w[1] - 0.5 + 0.3 * z[4])},
        )

    exact = {"type": "eq", "fun": lambda w: w[0] + w[1] - 0.5}
    start = np.array([0.3, 0.2, -0.3, 0.1])
    found = minimize(mean_loss, start, constraints=exact, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500})
    return Case("hinge loss, linear constraint", make, found.x, violation)


def rounded(u: jax.Array) -> jax.Array:
    return WIDTH * jax.nn.softplus(u / WIDTH)


def measured(case: Case, positive: Positive, seeds: int, tick: Callable[[], None]) -> list[str]:
    """rms distance and violation [the largest distance], for each number of draws."""
    problem, cells = case.make(positive), []
    for draws in DRAWS:
        ends = []
        for seed in range(seeds):
            start = jnp.zeros(case.solution.size)
            ends.append(lx.solve(problem, start, iterations=draws // BATCH, batch_size=BATCH, seed=seed).x)
            tick()
        away = [np.linalg.norm(np.asarray(x) - case.solution) for x in ends]
        violated = [case.violation(np.asarray(x)) for x in ends]
        rms = [np.sqrt(draws * np.mean(np.square(each))) for each in (away, violated)]
        cells.append(f"{rms[0]:.1f} / {rms[1]:.1f} [{np.sqrt(draws) * max(away):.0f}]")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=160), time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    cases = (newsvendors(), quantile(), hinge())
    kinds: dict[str, Positive] = {"max": lambda u: jnp.maximum(u, 0), "softplus": rounded}
    rows = []
    with progress(console) as bar:
        task = bar.add_task("kinks", total=len(cases) * len(kinds) * len(DRAWS) * options.seeds)
        for case in cases:
            for name, positive in kinds.items():
                rows.append((case.name, name, *measured(case, positive, options.seeds, lambda: bar.advance(task))))
                console.print(rows[-1], highlight=False)
    if options.write:
        about = (
            f"{origin('benchmarks.kinks', ('lariax', 'jax', 'numpy'), time.perf_counter() - began)} The default "
            f"method, batches of {BATCH}, {options.seeds} seeds: rms distance from the exact solution / violation "
            "[largest distance], times the square root of the number of draws, so that a constant is as fast as "
            f"averaging permits. `softplus` is rounded over {WIDTH}, which moves the solution a little; that is "
            "counted."
        )
        head = ("problem", "kinks", *(f"{draws:,} draws" for draws in DRAWS))
        write("kinks", "\n".join(["## Kinks", "", about, "", *table(head, rows)]))


if __name__ == "__main__":
    main()
