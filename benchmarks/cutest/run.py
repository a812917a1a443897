"""Noisy CUTEst: `python -m benchmarks.cutest [names] [--seeds 5] [--evaluations 1000] [--write]`.

Equality problems whose gradients have Gaussian noise of variance 1e-2 or 1e-1 in each entry; constraints are exact.
Every method has the same number of gradients of the objective, all that it takes: at the start, at second points, for
Lipschitz constants. Measured with the true functions: the larger of ||c|| and ||grad f + J^T y|| in the maximum norm, y
by least squares; the median over the last tenth of the iterates, and then over seeds.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from rich.console import Console

import lariax as lx
from benchmarks._results import origin, progress, table, write
from benchmarks.cutest import figures
from benchmarks.cutest.problems import EQUALITIES, Case, by_name
from lariax.methods import AbstractMethod
from lariax.oracle import bind

VARIANCES = (1e-2, 1e-1)
OURS = "TangentNormal"
QUICKLY = {"xla_backend_optimization_level": 0}  # most of the time goes into compiling


class Entrant(NamedTuple):
    """A method, and how many gradients of the objective it takes: at the start, and in an iteration."""

    method: AbstractMethod
    batch_size: int
    start: int
    each: int


ENTRANTS = {
    OURS: Entrant(lx.TangentNormal(), 2, 16 + 2 * 2, 2 * 2),  # the start and its probe; two points of two samples
    "SQP, start": Entrant(lx.rivals.StochasticSQP("start"), 1, 1 + 10, 1),
    "SQP, steps": Entrant(lx.rivals.StochasticSQP("steps"), 1, 1 + 10, 2),
}


class Cell(NamedTuple):
    """A problem at a noise level: by method, the measures of all seeds."""

    name: str
    size: int
    rows: int
    variance: float
    error: dict[str, np.ndarray]
    feasibility: dict[str, np.ndarray]

    def median(self, method: str) -> float:
        """Runs that have left the range of floating point count as infinite."""
        return float(np.median(np.where(np.isfinite(self.error[method]), self.error[method], np.inf)))

    @property
    def rival(self) -> float:
        return min(self.median(name) for name in self.error if name != OURS)

    @property
    def won(self) -> bool:
        return self.median(OURS) < self.rival


def noisy(objective: Callable[[jax.Array], jax.Array], deviation: jax.Array, x: jax.Array, z: jax.Array) -> jax.Array:
    """Its gradient is grad f + deviation z."""
    return objective(x) + deviation * jnp.vdot(z, x)


def measured(case: Case, entrant: Entrant, evaluations: int) -> Callable[[jax.Array, jax.Array], tuple]:
    """(key, standard deviation) -> medians of error and of feasibility over the last tenth of the iterates."""
    iterations = (evaluations - entrant.start) // entrant.each
    method, batch = entrant.method, entrant.batch_size
    start = max(1, method.needs.start_samples // batch)
    constraints = {"c": lx.Equal(case.constraint, samples=None)}
    noise = lx.Distribution(lambda key: jax.random.normal(key, case.x0.shape, case.x0.dtype))

    def errors(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope, jacobian = jax.grad(case.objective)(x), jax.jacobian(case.constraint)(x)
        y = jnp.linalg.lstsq(jacobian.T, -slope)[0]
        violation = jnp.max(jnp.abs(case.constraint(x)))
        return jnp.maximum(violation, jnp.max(jnp.abs(slope + y @ jacobian))), violation

    def run(key: jax.Array, deviation: jax.Array) -> tuple[jax.Array, jax.Array]:
        problem = lx.Problem(Partial(noisy, case.objective, deviation), samples=noise, constraints=constraints)
        oracle = bind(problem, case.x0, (case.x0,), batch_size=batch, copies=1, has_slacks=False)
        count = start + iterations
        tickets = oracle.draw(key, jnp.arange(count), (None,))
        batches = jax.vmap(oracle.fetch)(tickets)
        state = method.init(oracle, case.x0, jax.tree.map(lambda rows: rows[:start], batches))

        def step(state, inputs):
            k, batch = inputs
            state = method.step(oracle, state, k, batch)
            return state, method.answer(oracle, state, k).point

        later = jax.tree.map(lambda rows: rows[start:], batches)
        _, points = jax.lax.scan(step, state, (jnp.arange(1.0, iterations + 1), later))
        error, violation = jax.lax.map(errors, points[-(iterations // 10) :])
        return jnp.median(error), jnp.median(violation)

    return run


def cells(case: Case, seeds: int, evaluations: int) -> list[Cell]:
    """Seeds and noise levels of a method in one compiled program."""
    keys = jax.random.split(jax.random.key(0), seeds)
    deviations = jnp.sqrt(jnp.array(VARIANCES))
    error, feasibility = {}, {}
    for name, entrant in ENTRANTS.items():
        run = measured(case, entrant, evaluations)
        both = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)), compiler_options=QUICKLY)(keys, deviations)
        error[name], feasibility[name] = (np.asarray(values) for values in both)
    rows = int(jax.eval_shape(case.constraint, case.x0).size)
    return [
        Cell(
            case.name,
            case.x0.size,
            rows,
            variance,
            {name: values[i] for name, values in error.items()},
            {name: values[i] for name, values in feasibility.items()},
        )
        for i, variance in enumerate(VARIANCES)
    ]


# --- the table


def cells_as_table(found: list[Cell]) -> list[str]:
    head = ["problem", "n", "m", "variance", *ENTRANTS, "feasibility of ours", "ahead"]
    rows = []
    for cell in found:
        numbers = [f"{cell.median(name):.2g}" for name in ENTRANTS]
        feasible = f"{np.median(cell.feasibility[OURS]):.0e}"
        won = "yes" if cell.won else "no"
        rows.append([cell.name, cell.size, cell.rows, f"{cell.variance:g}", *numbers, feasible, won])
    return table(head, rows)


def summary(found: list[Cell]) -> list[str]:
    won = sum(cell.won for cell in found)
    runs = np.concatenate([cell.error[OURS] for cell in found])
    lost = ", ".join(f"{cell.name} ({cell.variance:g})" for cell in found if not cell.won)
    feasibility = np.median([np.median(cell.feasibility[OURS]) for cell in found])
    gains = [cell.rival / cell.median(OURS) for cell in found if cell.median(OURS) > 0 and np.isfinite(cell.rival)]
    return [
        f"- below the better of the two rules of stochastic SQP in {won} of {len(found)} cells "
        f"({100 * won / len(found):.0f} %, goal 90 %); not in: {lost or 'none'}",
        f"- its error over ours: median {np.median(gains):.1f}, quartiles {np.quantile(gains, 0.25):.1f} and "
        f"{np.quantile(gains, 0.75):.1f}",
        f"- median over cells of our feasibility {feasibility:.1g} (goal below 1e-6); runs of ours that left the range "
        f"of floating point: {np.sum(~np.isfinite(runs))} of {runs.size}, of stochastic SQP: "
        + ", ".join(
            f"{sum(int(np.sum(~np.isfinite(cell.error[name]))) for cell in found)} ({name})"
            for name in ENTRANTS
            if name != OURS
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cutest", description=__doc__)
    parser.add_argument("names", nargs="*", help="problems; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=1000, help="gradients of the objective for each method")
    parser.add_argument("--write", action="store_true", help="write the page of the results, and a figure")
    options, console, began = parser.parse_args(), Console(), time.perf_counter()
    names, found = options.names or EQUALITIES, []
    with progress(console) as bar:
        task = bar.add_task("problems", total=len(names))
        for name in names:
            bar.update(task, description=name)
            found += cells(by_name(name), options.seeds, options.evaluations)
            for cell in found[-len(VARIANCES) :]:
                numbers = "  ".join(f"{method} {cell.median(method):.2g}" for method in ENTRANTS)
                feasible = f"feasibility {np.median(cell.feasibility[OURS]):.0e}"
                console.print(f"{name:10s} {cell.variance:g}  {numbers}  {feasible}  {'' if cell.won else 'BEHIND'}")
            bar.advance(task)
            jax.clear_caches()
    lines = summary(found)
    console.print("\n".join(lines))
    if not options.write:
        return
    figures.draw(found)
    head = [
        "## Noisy CUTEst",
        "",
        origin("benchmarks.cutest", ("lariax", "jax", "sif2jax"), time.perf_counter() - began),
        "",
        f"{len(found) // len(VARIANCES)} equality problems, {options.evaluations:,} gradients for every method, "
        f"{options.seeds} seeds. {' '.join(str(__doc__).split(chr(10) * 2)[1].split())} Stochastic SQP has H = I, "
        "beta = 1 and both of its rules for Lipschitz constants; the better one counts, problem by problem.",
        "",
        *lines,
        "",
        *cells_as_table(found),
    ]
    write("cutest", "\n".join(head))


if __name__ == "__main__":
    main()
