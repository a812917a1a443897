"""What it costs to save a run on the way, as a ratio.

    python -m benchmarks.overhead                # a few minutes; a page in benchmarks/results
    python -m benchmarks.overhead --seconds 5 --pairs 1

The same iterations of the default method, with `checkpoint=` at its default interval and without, in turn, after
compiling. Time is that of the clock and of the CPU, with the first and the last checkpoint, which a run waits for.
"""

import argparse
import datetime as dt
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks import soak
from benchmarks._results import write


class Took(NamedTuple):
    """Seconds of one run."""

    clock: float
    cpu: float


def large() -> Any:
    """A million variables; what is random is one number in a sample."""
    return lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
        samples=lx.Distribution(lambda key: 1 + jax.random.normal(key, (), jnp.float32)),
        constraints={"mean": lx.AtMost(lambda x, z: jnp.mean(x) + 0.1 * z, 0.5)},
    )


def timed(problem: Any, x0: Any, iterations: int, folder: str | None) -> Took:
    clock, cpu = time.perf_counter(), time.process_time()
    lx.solve(problem, x0, iterations=iterations, checkpoint=folder)
    return Took(time.perf_counter() - clock, time.process_time() - cpu)


def compared(problem: Any, x0: Any, seconds: float, pairs: int) -> tuple[int, int, list[tuple[Took, Took]]]:
    """The iterations of a run of about `seconds`, the bytes of a checkpoint, and pairs of runs: without, with."""
    lx.solve(problem, x0, iterations=200)  # compiles
    iterations = int(lx.solve(problem, x0, seconds=seconds).iterations)
    timed(problem, x0, iterations, None)
    runs, size = [], 0
    for _ in range(pairs):
        without = timed(problem, x0, iterations, None)
        with tempfile.TemporaryDirectory() as folder:
            runs.append((without, timed(problem, x0, iterations, folder)))
            size = max(path.stat().st_size for path in Path(folder).glob("*.lariax"))
    return iterations, size, runs


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to save a run on the way.")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    lines = [
        "## Survival: what checkpoints cost",
        "",
        f"`python -m benchmarks.overhead --seconds {options.seconds:g} --pairs {options.pairs}`, "
        f"{dt.date.today().isoformat()}, {os.cpu_count()} cores shared with other work. The same iterations with and "
        f"without `checkpoint=`, one every {lx.Checkpoint('.').every:g} s and at both ends; medians over "
        f"{options.pairs} pairs of runs in turn, after compiling.",
        "",
        "| x | iterations | checkpoint (MB) | seconds without | with | ratio | seconds of CPU without | with | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, problem, x0 in (
        ("20 variables", soak.problem(), jnp.zeros(20)),
        ("1,000,000 variables", large(), jnp.zeros(1_000_000, jnp.float32)),
    ):
        iterations, size, runs = compared(problem, x0, options.seconds, options.pairs)
        cells = [name, f"{iterations:,}", f"{size / 1e6:.2f}"]
        for measure in Took._fields:
            without, beside = (np.array([getattr(run[i], measure) for run in runs]) for i in (0, 1))
            cells += [f"{np.median(without):.1f}", f"{np.median(beside):.1f}", f"{np.median(beside / without):.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    write("overhead", "\n".join(lines))


if __name__ == "__main__":
    main()
