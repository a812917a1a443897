"""Methods of other papers at kinks: `python -m benchmarks.kinks_rivals [--seeds 8] [--only hinge] [--write]`.

The problems of `benchmarks.kinks`, in units of the statistical limit. Each rival has the best of a grid of settings,
chosen on the very runs that are shown, by the rms distance at the end; the default method has nothing to set.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import lariax as lx
from benchmarks._results import origin, table, write
from benchmarks.kinks import CASES, Case, limit_of
from lariax import rivals

BATCH, DRAWS = 4, 100_000
STEPS, PENALTIES, TOLERANCES = (0.03, 0.1, 0.3, 1.0), (0.5, 2.0, 8.0), (0.01, 0.1, 1.0)

RIVALS: dict[str, tuple[Callable[[Any, Any], Any], tuple[float, ...]]] = {
    "SpiderPenalty": (lambda step, other: rivals.SpiderPenalty(step, other, width=0.1), PENALTIES),
    "HingePenalty": (lambda step, other: rivals.HingePenalty(step, other), PENALTIES),
    "SwitchingSubgradient": (lambda step, other: rivals.SwitchingSubgradient(step, other), TOLERANCES),
    "ConstraintExtrapolation": (
        lambda step, other: rivals.ConstraintExtrapolation(step, other, inner_iterations=500),
        (0.01, 0.1, 1.0),
    ),
}


def errors(case: Case, limit: float, make: Callable[[Any, Any], Any], grid: Any, seeds: int) -> np.ndarray:
    """(settings, seeds), in limits."""
    problem, start = case.problem, jnp.zeros(case.solution.size)

    def end(setting: jax.Array, seed: jax.Array) -> jax.Array:
        method = make(setting[0], setting[1])
        return lx.solve(problem, start, method, iterations=DRAWS // BATCH, batch_size=BATCH, seed=seed).x

    each = jax.jit(jax.vmap(jax.vmap(end, (None, 0)), (0, None)))(jnp.asarray(grid), jnp.arange(seeds))
    away = np.linalg.norm(np.asarray(each) - case.solution, axis=-1)
    return np.where(np.isfinite(away), away, np.inf) * np.sqrt(DRAWS) / limit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinks_rivals", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=["newsvendors", "hinge", "shortage"])
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=140), time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    methods = {"TrackedLagrangian": (lambda step, other: lx.TrackedLagrangian(), None), **RIVALS}
    rows = []
    for case in (CASES[name]() for name in options.only):
        limit = limit_of(case)
        for name, (make, others) in methods.items():
            grid = [(1.0, 1.0)] if others is None else list(itertools.product(STEPS, others))
            found = errors(case, limit, make, grid, options.seeds)
            best = int(np.argmin(np.mean(found**2, axis=1)))
            setting = "" if others is None else "step {:g}, {:g}".format(*grid[best])
            shown = f"{np.sqrt(np.mean(found[best] ** 2)):.1f} [{found[best].max():.1f}]"
            rows.append((case.name, name, shown, setting))
            console.print(*rows[-1], sep=" | ", highlight=False)
    if options.write:
        about = (
            f"{origin('benchmarks.kinks_rivals', ('lariax', 'jax', 'numpy'), time.perf_counter() - began)} "
            f"{DRAWS:,} draws in batches of {BATCH}, {options.seeds} seeds, started at 0: rms distance from the "
            "solution [largest], in units of the statistical limit. Rivals have the best of 12 settings, the step and "
            "one more (penalty, tolerance or dual step), chosen on these runs."
        )
        head = ("problem", "method", "distance", "setting")
        write("kinks-rivals", "\n".join(["# Methods of other papers at kinks", "", about, "", *table(head, rows)]))


if __name__ == "__main__":
    main()
