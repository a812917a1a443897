"""The core on an accelerator: an iteration beside its bare passes, and many seeds at once.

python -m benchmarks.accelerator --out accelerator.json                 # on the device
python -m benchmarks.accelerator --report accelerator.json              # into benchmarks/results
python -m benchmarks.accelerator --widths 16 32 --batch 8 --seeds 1 4   # the same code, small

The bare passes are what every method with STORM needs: a gradient of the weighted sum of objective and constraint at
two points, on the same rows.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lariax as lx
from benchmarks._results import table, write
from benchmarks.suite.problems import by_name

ROWS, BOUND = 4096, 0.1
WARM, TIMED, LONGER = 16_640, 256, 4
"""Iterations before the clock starts: from 16,384 on one in 256 measures noise and curvature. Then so many, and LONGER
times as many."""

METHODS: dict[str, Callable[[], Any]] = {
    "QuadraticPenalty": lambda: lx.QuadraticPenalty(step_size=1e-4, penalty=1.0, pairs=True),
    "TrackedLagrangian": lx.TrackedLagrangian,
}
GOALS = {"QuadraticPenalty": 1.05, "TrackedLagrangian": 1.15}
SWEEP = 2_000  # iterations of each seed
CORE = 114_000  # iterations a second that one core of a CPU makes on the 50-variable problem (8.8 microseconds each)
STREAMS = 7  # of vectors like x, in an iteration of Algorithm 2


def network(widths: list[int]) -> tuple[Callable[..., Any], Any, Any]:
    """A joint function (loss and a gap between groups), parameters, and rows."""
    keys = jax.random.split(jax.random.key(0), len(widths) + 2)
    sizes = [*widths, 1]
    layers = [jax.random.normal(key, (m, n)) / m**0.5 for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=False)]
    inputs = jax.random.normal(keys[-1], (ROWS, widths[0]))
    labels = jnp.sign(jax.random.normal(keys[-2], (ROWS,)) + inputs[:, 0])

    def joint(layers: Any, row: Any) -> tuple[Any, dict[str, Any]]:
        hidden, label, side = row
        for layer in layers[:-1]:
            hidden = jnp.tanh(hidden @ layer)
        loss = jax.nn.softplus(-label * (hidden @ layers[-1])[0])
        return loss, {"gap": side * loss}

    return joint, layers, (inputs, labels, 2.0 * (jnp.arange(ROWS) % 2) - 1)


def seconds_of(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def bare_passes(joint: Callable[..., Any], x: Any, rows: Any, batch: int, repeats: int) -> float:
    """Seconds of two gradients of loss + value on the same rows, drawn as the loop draws them."""

    def total(x: Any, chosen: Any) -> Any:
        losses, values = jax.vmap(joint, (None, 0))(x, chosen)
        return jnp.mean(losses) + 0.5 * jnp.mean(values["gap"])

    @jax.jit
    def loop(x: Any, key: Any) -> Any:
        def body(i: Any, points: Any) -> Any:
            now, before = points
            chosen = jax.tree.map(lambda a: a[jax.random.randint(jax.random.fold_in(key, i), (batch,), 0, ROWS)], rows)
            after, old = jax.grad(total)(now, chosen), jax.grad(total)(before, chosen)
            return jax.tree.map(lambda a, g, h: a - 1e-6 * (g - 0.5 * h), now, after, old), now

        return jax.lax.fori_loop(0, repeats, body, (x, x))

    jax.block_until_ready(loop(x, jax.random.key(1)))
    return min(seconds_of(lambda i=i: loop(x, jax.random.key(i))) for i in range(2, 5)) / repeats


def iteration(problem: lx.Problem, x: Any, method: Any, batch: int) -> float:
    """Seconds of an iteration, late in a run: of a long continuation less those of a short one, so that what comes once
    (the start, the verdict at the end) is none of it."""
    result = lx.solve(problem, x, method, iterations=WARM, batch_size=batch, record_every=TIMED)
    spent: dict[int, list[float]] = {TIMED: [], LONGER * TIMED: []}
    for _ in range(3):
        for iterations, times in spent.items():
            began = time.perf_counter()
            result = lx.solve(problem, result, iterations=iterations, record_every=iterations)
            jax.block_until_ready(result.x)
            times.append(time.perf_counter() - began)
    short, long = (min(times) for times in spent.values())
    return (long - short) / ((LONGER - 1) * TIMED)


def seeds_at_once(count: int) -> float:
    """Iterations a second of the 50-variable problem, all seeds together."""
    case = by_name("toy50")

    @jax.jit
    def ends(seeds: Any) -> Any:
        def one(seed: Any) -> Any:
            return lx.solve(case.problem, case.x0, lx.TrackedLagrangian(), iterations=SWEEP, batch_size=2, seed=seed).x

        return jax.vmap(one)(seeds)

    jax.block_until_ready(ends(jnp.arange(count)))
    return count * SWEEP / min(seconds_of(lambda i=i: ends(jnp.arange(count) + i)) for i in (1, 2, 3))


def bandwidths(entries: int) -> dict[str, float]:
    """Bytes a second: of a copy of a vector, and of an iteration of Algorithm 2 on a quadratic whose gradient is as
    good as free, counted as the streams that it cannot do without (read x, g, write x; read both x and g, write g)."""

    @jax.jit
    def copies(x: Any) -> Any:
        return jax.lax.fori_loop(0, 64, lambda i, x: x + 1, x)

    x = jnp.ones(entries, jnp.float32)
    jax.block_until_ready(copies(x))
    copy = 64 * 2 * x.nbytes / min(seconds_of(lambda: copies(x)) for _ in range(3))
    problem = lx.Problem(lambda x, z: 0.5 * (1 + 0.1 * z) * jnp.sum(x * x), samples=lx.Distribution(jax.random.normal))
    spent = iteration(problem, x, lx.QuadraticPenalty(step_size=1e-3), 1)
    return {"copy": copy, "iteration": STREAMS * x.nbytes / spent}


def measured(widths: list[int], batch: int, seeds: list[int], entries: int) -> dict[str, Any]:
    joint, x, rows = network(widths)
    bytes_of_x = sum(leaf.nbytes for leaf in jax.tree.leaves(x))
    found: dict[str, Any] = {
        "date": str(date.today()),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(x)),
        "batch": batch,
        "passes": bare_passes(joint, x, rows, batch, 64),
        "methods": {},
    }
    problem = lx.Problem.joint(joint, samples=lx.Dataset(rows), constraints={"gap": lx.AtMost(bound=BOUND)})
    for name, make in METHODS.items():
        spent = iteration(problem, x, make(), batch)
        stats = jax.devices()[0].memory_stats() or {}
        copies = stats.get("peak_bytes_in_use", 0) / bytes_of_x
        found["methods"][name] = {"seconds": spent, "ratio": spent / found["passes"], "copies_of_x": copies}
        print(f"{name}: {spent * 1e3:.2f} ms, {spent / found['passes']:.2f} of the passes, {copies:.1f} copies of x")
    if entries:
        found["bandwidths"] = bandwidths(entries)
        print(f"bytes a second: {found['bandwidths']}")
    found["seeds"] = {}
    for count in seeds:
        found["seeds"][str(count)] = seeds_at_once(count)
        print(f"{count} seeds: {found['seeds'][str(count)]:,.0f} iterations a second")
    return found


def page(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{1e3 * m['seconds']:.2f}", f"{m['ratio']:.2f}", f"{GOALS[name]:.2f}", f"{m['copies_of_x']:.1f}"]
        for name, m in found["methods"].items()
    ]
    sweeps = []
    if found["seeds"]:
        of_seeds = [
            [f"{int(count):,}", f"{rate:,.0f}", f"{1e6 * int(count) / rate:,.0f}", f"{rate / CORE:.2f}"]
            for count, rate in found["seeds"].items()
        ]
        sweeps = [
            "",
            f"The 50-variable problem, batches of 2, {SWEEP:,} iterations of every seed, the start included. A core of "
            f"a CPU makes {CORE:,} iterations a second.",
            "",
            *table(["seeds at once", "iterations a second", "microseconds for one of all", "cores"], of_seeds),
        ]
    if "bandwidths" in found:
        copy, own = found["bandwidths"]["copy"], found["bandwidths"]["iteration"]
        sweeps += [
            "",
            f"The vector part, on one vector of 1e8 entries: {own / 1e12:.2f} TB a second by {STREAMS} streams an "
            f"iteration, {own / copy:.2f} of the {copy / 1e12:.2f} of a copy (goal 0.85).",
        ]
    head = ["method", "ms an iteration", "over two bare passes", "goal", "peak memory in copies of x, so far"]
    return "\n".join(
        [
            "# The core on an accelerator",
            "",
            f"`python -m benchmarks.accelerator`, {found['date']}, {found['device']}, jax {found['jax']}. A network of "
            f"{found['parameters']:,} parameters, batches of {found['batch']} rows, objective and constraint as one "
            f"function; two bare gradient passes on the same rows take {1e3 * found['passes']:.2f} ms.",
            "",
            *table(head, rows),
            *sweeps,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="*", type=int, default=[1024, 8192, 8192, 2816])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 1_000, 10_000, 100_000], help="that run at once")
    parser.add_argument("--entries", type=int, default=100_000_000, help="of the vector; 0: leave it out")
    parser.add_argument("--out", type=Path, help="write figures to this file")
    parser.add_argument("--report", type=Path, help="write the page of the results from such a file")
    options = parser.parse_args()
    if options.report is not None:
        print(f"written to {write('accelerator', page(json.loads(options.report.read_text())))}")
        return
    found = measured(options.widths, options.batch, options.seeds, options.entries)
    print(page(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
