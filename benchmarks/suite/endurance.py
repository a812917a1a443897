"""Many seeds to many draws, in one program: `python -m benchmarks.suite.endurance [names] [--seeds 64] [--draws 1e6]`.

Does any seed leave the solution when a run goes on? The rms and the worst seed, over the statistical limit.
All seeds of a problem are one program: an accelerator runs them side by side, a CPU one after the other.
"""

import argparse
import time

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import numpy as np  # noqa: E402

import lariax as lx  # noqa: E402
from benchmarks._results import origin, table, write  # noqa: E402
from benchmarks.suite.limits import solve  # noqa: E402
from benchmarks.suite.problems import by_name  # noqa: E402
from benchmarks.suite.run import pair  # noqa: E402

NAMES = ("toy50", "bias2", "lin20", "ineq10", "simplex")


def ends(name: str, draws: int, seeds: int, batch: int) -> tuple[jax.Array, float]:
    """Where each seed ends, and the seconds it took (compiling included)."""
    case = by_name(name)
    budget = draws * sum(source is not None for source in case.problem.sources)

    def run(seed: jax.Array) -> jax.Array:
        options = {"draws": budget, "batch_size": batch, "record_every": 2**30}
        return lx.solve(case.problem, case.x0, lx.TrackedLagrangian(), seed=seed, **options).x

    began = time.perf_counter()
    one_by_one = jax.default_backend() == "cpu"
    run_all = jax.jit((lambda each: jax.lax.map(run, each)) if one_by_one else jax.vmap(run))
    points = jax.block_until_ready(run_all(jnp.arange(seeds)))
    return points, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite.endurance", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--draws", type=float, default=1e6)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, rows, began = parser.parse_args(), [], time.perf_counter()
    for name in options.names:
        points, seconds = ends(name, int(options.draws), options.seeds, options.batch)
        solved = solve(by_name(name))
        over = np.asarray(solved.errors(points))[:, :2] / solved.limit(options.draws)[:2]
        rms, worst = np.sqrt(np.mean(over**2, axis=0)), over.max(axis=0)
        print(
            f"{name}: {options.seeds} seeds, {options.draws:,.0f} draws, batch {options.batch}: rms {rms[0]:.2f} / "
            f"{rms[1]:.2f}, worst seed {worst[0]:.2f} / {worst[1]:.2f}; {seconds:,.0f} s on {jax.devices()[0]}",
            flush=True,
        )
        rows.append([name, pair(rms), pair(worst), f"{seconds:,.0f}"])
    if options.write:
        lines = [
            "## The suite, many seeds and many draws",
            "",
            origin("benchmarks.suite.endurance", ("lariax", "jax"), time.perf_counter() - began),
            "",
            f"{options.seeds} seeds, {options.draws:,.0f} draws of every source, batch size {options.batch}, "
            f"`TrackedLagrangian()` on its defaults, on {jax.devices()[0]}: error over the statistical limit, "
            "stationarity / feasibility.",
            "",
            *table(["problem", "rms", "worst seed", "seconds"], rows),
        ]
        write("endurance", "\n".join(lines))


if __name__ == "__main__":
    main()
