"""What an iteration of the default method costs: `python -m benchmarks.cost [--write]`.

Against plain SGD on the same augmented Lagrangian, with the same batch, in the same compiled loop with the same draws:
one look at the samples and one product J^T w an iteration, fixed step, penalty and dual step. CPU time of one core.
The default method measures noise and curvature in many iterations at first, and then ever more rarely: timed are those
after the last change of that rhythm, and the first ones by themselves.
"""

import argparse
import os
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):  # before any thread is started
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import lariax as lx
from benchmarks._results import write
from benchmarks.speed import microseconds, processor, wells
from lariax.methods import AbstractMethod, Answer
from lariax.tuned.constants import SETTLED

LONG = 50_000  # iterations of a usual run
BRIEF = 128  # iterations of a run whose time is what a run costs once
FIRST_ONES = 4096  # iterations, in many of which the default method measures


class SGDState(NamedTuple):
    x: jax.Array
    values: jax.Array
    multipliers: jax.Array


class AugmentedSGD(AbstractMethod):
    """x -= eta (grad f + J^T (y + rho c)),  y += rho c,  from all ordered pairs of the batch, and nothing else."""

    step_size: float = 1e-4
    penalty: float = 1.0

    needs: ClassVar[lx.Needs] = lx.Needs(slacks=True, smallest_batch=2)

    def init(self, oracle: Any, point: jax.Array, batches: Any) -> SGDState:
        nothing = jnp.zeros(oracle.rows, oracle.dtype)
        return SGDState(point, nothing, nothing)

    def step(self, oracle: Any, state: SGDState, k: jax.Array, batch: Any) -> SGDState:
        gradient, values = oracle.penalty_gradient(state.x, self.penalty, batch, state.multipliers)
        x = oracle.prox(state.x - self.step_size * gradient, self.step_size)
        return SGDState(x, values, state.multipliers + 1e-4 * self.penalty * values)

    def answer(self, oracle: Any, state: SGDState, k: jax.Array) -> Answer:
        return Answer(state.x, state.values, state.multipliers)


class NoRefresh(lx.TrackedLagrangian):
    """Without refreshes of the penalty's shape, to see what an iteration costs and what they do."""

    def refresh(self, oracle: Any, state: Any, batches: Any, key: Any) -> Any:
        return state


class Case(NamedTuple):
    name: str
    make: Callable[[], tuple[lx.Problem, jax.Array]]
    batch: int
    iterations: int


def network(width: int, rows: int = 4000, inputs: int = 64) -> tuple[lx.Problem, jax.Array]:
    """A two-layer network with two constraints on its outputs, in one pass over a row."""
    rng = np.random.default_rng(0)
    data = lx.Dataset({"v": rng.normal(size=(rows, inputs)).astype("float32"), "y": rng.integers(0, 2, rows)})
    x0 = {
        "in": jnp.asarray(rng.normal(size=(inputs, width)) / 8, "float32"),
        "mid": jnp.asarray(rng.normal(size=(width, width)) / np.sqrt(width), "float32"),
        "out": jnp.asarray(rng.normal(size=(width, 2)) / np.sqrt(width), "float32"),
    }

    def look(x: Any, row: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        out = jnp.tanh(jnp.tanh(row["v"] @ x["in"]) @ x["mid"]) @ x["out"]
        return jax.nn.softplus((1 - 2 * row["y"]) * out[0]), {"rate": out[1] - 0.1, "size": jnp.sum(out**2)}

    constraints = {"rate": lx.Equal(), "size": lx.AtMost(bound=1.0)}
    return lx.Problem.joint(look, samples=data, constraints=constraints), x0


CASES = (
    Case("50 variables", lambda: wells(50), 2, 40_000),
    Case("50 variables", lambda: wells(50), 32, 8_000),
    Case("10,000 variables", lambda: wells(10_000), 2, 1_500),
    Case("network, 8,320 parameters", lambda: network(64), 16, 6_000),
    Case("network, 8,320 parameters", lambda: network(64), 64, 3_000),
    Case("network, 82,432 parameters", lambda: network(256), 64, 1_500),
)


def timed(case: Case, methods: list[AbstractMethod], settled: bool) -> list[float]:
    """CPU seconds an iteration of each method, without what a run costs once: late in a run, or from its start on."""
    problem, x0 = case.make()
    long = case.iterations if settled else FIRST_ONES

    def runs(method: AbstractMethod) -> list[Callable[[], float]]:
        options: dict[str, Any] = {"method": method, "batch_size": case.batch}
        if not settled:
            return [partial(until_done, problem, x0, n, n, options) for n in (BRIEF, BRIEF + long)]
        start = lx.solve(problem, x0, iterations=SETTLED, record_every=2**30, **options)
        return [partial(until_done, problem, start, n, SETTLED + n, {}) for n in (BRIEF, BRIEF + long)]

    pairs = [run for method in methods for run in runs(method)]
    times = np.min([[run() for run in pairs] for _ in range(6)][1:], axis=0)  # the first turn compiles
    return [(late - early) / long for early, late in zip(times[::2], times[1::2], strict=True)]


def until_done(problem: lx.Problem, start: Any, iterations: int, last: int, options: dict[str, Any]) -> float:
    """CPU seconds of a run up to its last iteration, without its verdict, which takes fresh samples."""
    ended: list[float] = []
    watch = lambda _: ended.append(time.process_time())  # noqa: E731
    began = time.process_time()
    lx.solve(problem, start, iterations=iterations, record_every=last, callback=watch, **options)
    return ended[-1] - began


def rows_of(case: Case) -> str:
    sgd, ours, one = timed(case, [AugmentedSGD(), NoRefresh(), NoRefresh(one_backward=True)], settled=True)
    sgd_at_first, ours_at_first, full = timed(
        case, [AugmentedSGD(), NoRefresh(), lx.TrackedLagrangian()], settled=False
    )
    refresh = max(full - ours_at_first, 0) * FIRST_ONES / len(refreshes_within(BRIEF, BRIEF + FIRST_ONES))
    share = refresh * len(refreshes_within(0, LONG)) / (LONG * ours)
    ratios = (f"{ours / sgd:.2f}", f"{ours_at_first / sgd_at_first:.2f}", f"{one / sgd:.2f}")
    cells = (microseconds(sgd), microseconds(ours), *ratios, f"{100 * share:.1f} %")
    return f"| {case.name} | {case.batch} | {' | '.join(cells)} |"


def refreshes_within(first: int, last: int) -> list[int]:
    """Iterations at which the shape is refreshed: a quarter further on each time."""
    places, k = [], 16
    while k <= last:
        places += [k] if k > first else []
        k += max(k // 4, 1)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console = parser.parse_args(), Console(width=160)
    lines = [
        f"`python -m benchmarks.cost --write`, {date.today()}, {processor()}, {os.cpu_count()} cores, jax "
        f"{version('jax')}.",
        "",
        "An iteration of `TrackedLagrangian` against plain SGD on the same augmented Lagrangian, same batch, in "
        "the same compiled loop with the same draws. CPU time on one core, the least of five turns, without what a run "
        f"costs once; after {SETTLED:,} iterations, and at first: in {FIRST_ONES:,}. Refreshes: their share of a run "
        f"of {LONG:,} iterations.",
        "",
        "| problem | batch | SGD | ours | ratio (goal 2.5) | at first | one backward, ratio (goal 1.5) | refreshes "
        "(goal 5 %) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in CASES:
        lines.append(rows_of(case))
        console.print(lines[-1], highlight=False)
        jax.clear_caches()
    if options.write:
        write("cost", "\n".join(["## What an iteration costs", "", *lines]))


if __name__ == "__main__":
    main()
