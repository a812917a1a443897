"""Many seeds to many draws, in one program: `python -m benchmarks.suite.endurance [names] [--seeds 64] [--draws 1e6]`.

Does any seed leave the solution when a run goes on? The rms and the worst seed, over the statistical limit.
All seeds of a problem are one `jax.vmap` of `lx.solve`; an accelerator runs them in the time of one.
"""

import argparse
import json
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import numpy as np  # noqa: E402

import lariax as lx  # noqa: E402
from benchmarks.suite.limits import solve  # noqa: E402
from benchmarks.suite.problems import by_name  # noqa: E402

NAMES = ("toy50", "bias2", "lin20", "ineq10", "simplex")


def ends(name: str, draws: int, seeds: int, batch: int) -> tuple[jax.Array, float]:
    """Where each seed ends, and the seconds it took (compiling included)."""
    case = by_name(name)
    budget = draws * sum(source is not None for source in case.problem.sources)

    def run(seed: jax.Array) -> jax.Array:
        options = {"draws": budget, "batch_size": batch, "record_every": 2**30}
        return lx.solve(case.problem, case.x0, lx.TrackedLagrangian(), seed=seed, **options).x

    began = time.perf_counter()
    points = jax.block_until_ready(jax.jit(jax.vmap(run))(jnp.arange(seeds)))
    return points, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite.endurance", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--draws", type=float, default=1e6)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a folder for the figures, one JSON file a problem")
    options = parser.parse_args()
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
        if options.out:
            figures = {"draws": options.draws, "rms": rms.tolist(), "worst": worst.tolist(), "seconds": seconds}
            (options.out / f"{name}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
