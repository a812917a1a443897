"""What many named constraints cost before the first iteration, beside one vector of as many rows.

    python -m benchmarks.names                          # some minutes; the page results/names.md
    python -m benchmarks.names --names 1 60 --no-page

Names are made in a loop, each with a function and a bound of its own, on rows of one data set. Every solve runs in a
process of its own, without JAX's persistent cache. Seconds are those of the CPU: of the first solve and of a second one
with another seed, which compiles nothing, so that the difference is what compiling takes.
"""

import argparse
import os
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks._results import origin, table, write

WIDTH = 20
ITERATIONS = 200


def problem(names: int, vector: bool) -> lx.Problem:
    rows = np.random.default_rng(0).normal(size=(500, WIDTH)).astype(np.float32)
    places = np.arange(names) % WIDTH
    shifts = 0.01 * np.arange(names, dtype=np.float32)
    if vector:
        constraints = {"all": lx.AtMost(lambda x, row: row[places] * x[places] + shifts * row[0], 0.3)}
    else:
        constraints = {
            f"c{i}": lx.AtMost(lambda x, row, i=i: row[i % WIDTH] * x[i % WIDTH] + 0.01 * i * row[0], 0.3)
            for i in range(names)
        }
    return lx.Problem(lambda x, row: 0.5 * jnp.sum((x - row) ** 2), samples=lx.Dataset(rows), constraints=constraints)


def seconds(names: int, vector: bool) -> tuple[float, float]:
    """Of the first solve, and of a second one."""
    given, x0 = problem(names, vector), jnp.zeros(WIDTH)
    took = []
    for seed in (0, 1):
        began = time.process_time()
        lx.solve(given, x0, lx.TrackedLagrangian(), iterations=ITERATIONS, batch_size=4, seed=seed)
        took.append(time.process_time() - began)
    return took[0], took[1]


def in_a_process(names: int, vector: bool) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.names", "--one", str(names), *(["--vector"] if vector else [])]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    first, second = map(float, answer.stdout.split()[-2:])
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, nargs="+", default=[1, 60, 300, 1000])
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--vector", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(*seconds(options.one, options.vector))
        return
    began, rows = time.perf_counter(), []
    for names in options.names:
        named, vector = in_a_process(names, False), in_a_process(names, True)
        rows.append(
            [names, *(f"{value:.1f}" for value in (named[0] - named[1], vector[0] - vector[1], named[1], vector[1]))]
        )
        print(*rows[-1], flush=True)
    head = [
        "rows",
        "compiling: names (s)",
        "one vector (s)",
        f"then {ITERATIONS} iterations: names (s)",
        "one vector (s)",
    ]
    text = [
        "# Many named constraints",
        "",
        origin("benchmarks.names", ("jax", "lariax"), time.perf_counter() - began),
        "",
        *table(head, rows),
    ]
    if not options.no_page:
        write("names", "\n".join(text))


if __name__ == "__main__":
    main()
