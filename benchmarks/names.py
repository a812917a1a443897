"""What many named constraints cost before the first iteration, beside one vector of as many rows.

    python -m benchmarks.names                          # some minutes; the page results/names.md
    python -m benchmarks.names --names 1 60 --no-page

Names are made in a loop, each with numbers and a bound of its own, on rows of one data set; or each has a formula of
its own, and the vector stacks the same formulas. Every solve runs in a process of its own, without JAX's persistent
cache. Seconds are those of the CPU: of the first solve and of a second one with another seed, which compiles nothing,
so that the difference is what compiling takes.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks._results import origin, table, write

WIDTH = 20
ITERATIONS = 200


STEPS: tuple[Callable[[jax.Array], jax.Array], ...] = (
    jnp.tanh,
    jnp.sin,
    jnp.exp,
    jax.nn.softplus,
    lambda v: v / (1 + v * v),
    lambda v: jnp.sqrt(1 + v * v),
)


def problem(names: int, vector: bool, formulas: bool) -> lx.Problem:
    rows = np.random.default_rng(0).normal(size=(500, WIDTH)).astype(np.float32)
    made = (stacked if vector else named)(names, formulas)
    return lx.Problem(lambda x, row: 0.5 * jnp.sum((x - row) ** 2), samples=lx.Dataset(rows), constraints=made)


def named(names: int, formulas: bool) -> dict[str, lx.AtMost]:
    if formulas:
        return {f"c{i}": lx.AtMost(formula(i), 2.0) for i in range(names)}
    return {
        f"c{i}": lx.AtMost(lambda x, row, i=i: row[i % WIDTH] * x[i % WIDTH] + 0.01 * i * row[0], 0.3)
        for i in range(names)
    }


def stacked(names: int, formulas: bool) -> dict[str, lx.AtMost]:
    if formulas:
        each = [formula(i) for i in range(names)]
        return {"all": lx.AtMost(lambda x, row: jnp.stack([one(x, row) for one in each]), 2.0)}
    places = np.arange(names) % WIDTH
    shifts = 0.01 * np.arange(names, dtype=np.float32)
    return {"all": lx.AtMost(lambda x, row: row[places] * x[places] + shifts * row[0], 0.3)}


def formula(number: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Three steps, of a kind and with a place each, like hardly another number's."""
    drawn = random.Random(number)
    steps = [(drawn.choice(STEPS), drawn.randrange(WIDTH)) for _ in range(3)]

    def value(x: jax.Array, row: jax.Array) -> jax.Array:
        v = jnp.zeros(())
        for step, place in steps:
            v = step(0.5 * v + x[place] * row[place])
        return v

    return value


def seconds(names: int, vector: bool, formulas: bool) -> tuple[float, float]:
    """Of the first solve, and of a second one."""
    given, x0 = problem(names, vector, formulas), jnp.zeros(WIDTH)
    took = []
    for seed in (0, 1):
        began = time.process_time()
        lx.solve(given, x0, lx.TrackedLagrangian(), iterations=ITERATIONS, batch_size=4, seed=seed)
        took.append(time.process_time() - began)
    return took[0], took[1]


def in_a_process(names: int, vector: bool, formulas: bool) -> tuple[float, float]:
    chosen = [*(["--vector"] if vector else []), *(["--differ"] if formulas else [])]
    command = [sys.executable, "-m", "benchmarks.names", "--one", str(names), *chosen]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    first, second = map(float, answer.stdout.split()[-2:])
    return first, second


def row(names: int, formulas: bool) -> list[str]:
    """The page's, of as many names."""
    one, other = in_a_process(names, False, formulas), in_a_process(names, True, formulas)
    figures = (one[0] - one[1], other[0] - other[1], one[1], other[1])
    found = [f"{names:,}", "formulas" if formulas else "numbers", *(f"{value:.1f}" for value in figures)]
    print(*found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, nargs="+", default=[1, 60, 300, 1000])
    parser.add_argument("--formulas", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--vector", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--differ", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(*seconds(options.one, options.vector, options.differ))
        return
    began = time.perf_counter()
    rows = [*(row(names, False) for names in options.names), *(row(names, True) for names in options.formulas)]
    head = [
        "constraints",
        "each has its own",
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
        "CPU seconds. Functions that differ in numbers alone are compiled as one; formulas one by one, also those of "
        "a vector.",
        "",
        *table(head, rows),
    ]
    if not options.no_page:
        write("names", "\n".join(text))


if __name__ == "__main__":
    main()
