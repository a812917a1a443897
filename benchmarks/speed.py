"""How fast the loop is, in ratios measured within one run: `python -m benchmarks.speed`.

Times are CPU time of one core, the least of several repetitions: other work on the machine disturbs them little. Parts
that need a process of their own (compile time, peak memory) start one.
"""

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):  # before any thread is started
    everything = range(os.cpu_count() or 1)
    os.sched_setaffinity(0, everything if sys.argv[1:] == ["first-solve"] else {max(os.sched_getaffinity(0))})

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

import lariax as lx  # noqa: E402
from benchmarks._results import RESULTS, write  # noqa: E402

DIMENSIONS = [10**i for i in range(2, 7)]
CONSTRAINTS = [10**i for i in range(5)]
LARGEST = max(DIMENSIONS)


class Row(NamedTuple):
    what: str
    ours: str
    reference: str
    ratio: str
    goal: str


# --- the problems


def normal(*shape: int) -> lx.Distribution:
    return lx.Distribution(lambda key: jax.random.normal(key, shape))


def wells(d: int) -> tuple[lx.Problem, jax.Array]:
    """A nonconvex objective with two random constraints; see `_by_hand`."""
    a = jnp.linspace(1.0, 2.0, d)

    def objective(x: jax.Array, xi: jax.Array) -> jax.Array:
        return jnp.sum(1 - jnp.exp(-((x - a - 0.3 * xi) ** 2) / 4))

    def constraint(x: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.stack([x @ x - 4 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]])

    problem = lx.Problem(objective, samples=normal(d), constraints={"c": lx.Equal(constraint, samples=normal(2))})
    return problem, jnp.full(d, 0.2)


def couples(d: int, m: int) -> tuple[lx.Problem, jax.Array]:
    """m random constraints that touch two coordinates each: all of it costs O(d + m)."""
    a = jnp.linspace(1.0, 2.0, d)

    def objective(x: jax.Array, xi: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum((x - a - 0.3 * xi) ** 2)

    def constraint(x: jax.Array, z: jax.Array) -> jax.Array:
        return x[: 2 * m].reshape(m, 2).sum(axis=1) - 1 + 0.1 * z

    problem = lx.Problem(objective, samples=normal(d), constraints={"sums": lx.Equal(constraint, samples=normal(m))})
    return problem, jnp.zeros(d)


# --- clocks


def least(repeat: int, *functions: Callable[[], Any]) -> list[float]:
    """CPU seconds of each function: the least of several turns, taken in rotation so that all see the same machine."""
    best = [math.inf] * len(functions)
    for _ in range(repeat):
        for i, function in enumerate(functions):
            began = time.process_time()
            jax.block_until_ready(function())
            best[i] = min(best[i], time.process_time() - began)
    return best


# --- the measurements


def against_native_code(d: int, iterations: int, step_size: float) -> list[Row]:
    from benchmarks._by_hand import compiled, polar, ziggurat

    problem, x0 = wells(d)
    method = lx.QuadraticPenalty(step_size=step_size, penalty=1.0)
    by_hand = {"newer generator": compiled(ziggurat), "older generator": compiled(polar)}
    a, start, rng = np.linspace(1.0, 2.0, d), np.asarray(x0), np.random.default_rng(0)
    answers = {}

    def ours() -> jax.Array:
        result = lx.solve(problem, x0, method, iterations=iterations)
        answers["ours"] = np.asarray(result.multipliers["c"])
        return result.x

    def native(name: str) -> Callable[[], Any]:
        def call() -> Any:
            x, answers[name] = by_hand[name](rng, a, start.copy(), iterations, step_size, 1.0)
            return x

        return call

    for run in by_hand.values():
        run(rng, a, start.copy(), 1, step_size, 1.0)
    result = lx.solve(problem, x0, method, iterations=1)
    oracle_calls = bare_oracle(result, iterations)
    jax.block_until_ready(oracle_calls())
    mine, *others, oracle = least(5, ours, *(native(name) for name in by_hand), oracle_calls)
    for name in by_hand:
        if abs(answers[name][0] - answers["ours"][0]) > 0.05 * abs(answers["ours"][0]):
            raise AssertionError(f"the two programs solve different problems: multipliers {answers}")

    def row(what: str, reference: float, goal: str) -> Row:
        return Row(
            what, microseconds(mine / iterations), microseconds(reference / iterations), f"{mine / reference:.2f}", goal
        )

    size = f"{d:,} variables, 2 constraints"
    rows = [
        row(f"{size}: numba, {name} ({generator})", seconds, "1.0")
        for (name, seconds), generator in zip(
            zip(by_hand, others, strict=True), ("`Generator`, ziggurat", "`np.random.standard_normal`"), strict=True
        )
    ]
    return [*rows, row(f"{size}: the two oracle calls alone, samples at hand", oracle, "")]


def bare_oracle(result: lx.Result, iterations: int, block: int = 256) -> Callable[[], jax.Array]:
    """A compiled loop of nothing but two penalty gradients on one batch; the batches are drawn beforehand."""
    oracle, key = result.continuation.oracle, result.continuation.loop.key
    tickets = oracle.draw(key, jnp.arange(block), (None,) * len(oracle.sources))

    @jax.jit
    def loop(points: tuple[jax.Array, jax.Array], tickets: Any) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, points: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[i % block], tickets))
            gradients = (oracle.penalty_gradient(point, 1.0, batch)[0] for point in points)
            return tuple(0.001 * gradient for gradient in gradients)  # the next points: nothing can be hoisted

        return jax.lax.fori_loop(0, iterations, body, points)

    point = jnp.asarray(result.x)
    return lambda: loop((point, 2 * point), tickets)


def marginal(problem: lx.Problem, x0: jax.Array, iterations: int) -> float:
    """CPU seconds an iteration, without what a run costs once."""
    method = lx.QuadraticPenalty(step_size=0.05, penalty=1.0)

    def run(count: int) -> Callable[[], jax.Array]:
        return lambda: lx.solve(problem, x0, method, iterations=count, record_every=iterations).x

    run(1)()
    short, long = least(3, run(1), run(1 + iterations))
    return (long - short) / iterations


def growth_with_dimension() -> list[Row]:
    seconds = [marginal(*couples(d, 10), iterations=max(10, 4_000_000 // d)) for d in DIMENSIONS]
    return growth("d", "10 constraints", DIMENSIONS, seconds)


def growth_with_constraints() -> list[Row]:
    d = 2 * max(CONSTRAINTS)
    seconds = [marginal(*couples(d, m), iterations=200) for m in CONSTRAINTS]
    return growth("m", f"{d:,} variables", CONSTRAINTS, seconds)


def growth(letter: str, fixed: str, sizes: list[int], seconds: list[float]) -> list[Row]:
    """One row a size: the time, against that of the size before, and the exponent between the two."""
    rows = []
    for i, (size, now) in enumerate(zip(sizes, seconds, strict=True)):
        what = f"{letter} = {size:,}, {fixed}"
        if i == 0:
            rows.append(Row(what, microseconds(now), "", "", ""))
            continue
        goal = "≤ 10 (linear)"
        rows.append(Row(what, microseconds(now), microseconds(seconds[i - 1]), f"{now / seconds[i - 1]:.2f}", goal))
    return rows


def first_solve() -> dict[str, float]:
    """In a fresh process: seconds of a first and of a second solve, and what the second compiled."""
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    jnp.zeros(1).block_until_ready()
    problem, x0 = wells(50)
    report: dict[str, float] = {}
    for turn in ("first", "second"):
        compiled.clear()
        began, cpu = time.perf_counter(), time.process_time()
        lx.solve(problem, x0, lx.QuadraticPenalty(), iterations=100).x.block_until_ready()
        report |= {turn: time.perf_counter() - began, f"{turn}_cpu": time.process_time() - cpu}
        report[f"{turn}_compiled"] = len(compiled)
    return report


def peak_memory() -> dict[str, float]:
    """In a fresh process: the most memory a solve holds beyond what was there before it, in copies of x."""
    problem, x0 = couples(LARGEST, 10)
    lx.solve(problem, x0, lx.QuadraticPenalty(), iterations=3)  # the compiler's own memory is not the run's
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    result = lx.solve(problem, x0, lx.QuadraticPenalty(), iterations=10)
    return {"copies": (resident("VmHWM") - before) / result.x.nbytes}


def resident(field: str) -> int:
    """Bytes, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def in_new_process(part: str) -> dict[str, float]:
    # a fixed threshold: large arrays go back to the system when they are freed, and the account is of live memory
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-m", "benchmarks.speed", part]
    done = subprocess.run(command, env=environment, cwd=RESULTS.parents[1], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compile_time() -> list[Row]:
    reports = [in_new_process("first-solve") for _ in range(2)]
    best = {key: min(report[key] for report in reports) for key in reports[0]}
    return [
        Row(
            "first solve in a new process, everything compiled: seconds",
            f"{best['first']:.2f} s ({best['first_cpu']:.2f} s CPU)",
            "",
            "",
            "< 3 s",
        ),
        Row(
            f"second solve of the same shapes, {best['second_compiled']:.0f} programs compiled",
            f"{1000 * best['second']:.1f} ms",
            f"{best['first']:.2f} s",
            f"{best['second'] / best['first']:.4f}",
            "nothing compiled",
        ),
    ]


def memory() -> list[Row]:
    copies = in_new_process("peak-memory")["copies"]
    what = f"peak memory beyond the data, {LARGEST:,} variables: copies of x"
    return [Row(what, f"{copies:.1f}", "1", f"{copies:.1f}", "< 16")]


# --- the table


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.2f} µs" if seconds < 1e-4 else f"{seconds * 1e6:,.0f} µs"


PARTS: dict[str, Callable[[], list[Row]]] = {
    "50 variables against native code": lambda: against_native_code(50, 100_000, step_size=0.05),
    "1,000 variables against native code": lambda: against_native_code(1_000, 10_000, step_size=0.005),
    "growth with the number of variables": growth_with_dimension,
    "growth with the number of constraints": growth_with_constraints,
    "compile time": compile_time,
    "memory": memory,
}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def markdown(rows: list[Row]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("lariax", "jax", "numba", "numpy"))
    lines = [
        "## Speed",
        "",
        f"`python -m benchmarks.speed`, {date.today()}, {processor()}, {os.cpu_count()} cores; Python "
        f"{sys.version.split()[0]}, {packages}.",
        "",
        "`lx.solve` with `QuadraticPenalty`, float64, batch size 1, one iteration unless said. CPU time on one core, "
        "the least of several turns; the two sides of a ratio take turns within one run. The numba loop is the same "
        "method with as many draws, gradients by hand, fused passes and `fastmath`; its two rows differ in the "
        "generator of normal numbers alone, which is most of the work of the older one. Lariax draws with "
        "`jax.random.normal`. The rows of growth compare with a problem a tenth of the size.",
        "",
        "| " + " | ".join(name.capitalize() for name in Row._fields) + " |",
        "|---|---:|---:|---:|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def main() -> None:
    console = Console(width=max(Console().width, 130))
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("speed", total=len(PARTS))
        for name, part in PARTS.items():
            progress.update(task, description=name)
            rows += part()
            jax.clear_caches()
            progress.advance(task)
        progress.update(task, description="speed")
    table = Table(title="Speed: one iteration unless said", title_justify="left")
    for name in Row._fields:
        table.add_column(name.capitalize(), justify="left" if name in ("what", "goal") else "right")
    for row in rows:
        table.add_row(*(cell.replace("`", "") for cell in row))
    console.print(table)
    page = write("speed", markdown(rows))
    console.print(f"written to {page}")


if __name__ == "__main__":
    alone = {"first-solve": first_solve, "peak-memory": peak_memory}
    if sys.argv[1:]:
        print(json.dumps(alone[sys.argv[1]]()))
    else:
        main()
