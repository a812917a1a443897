"""What an accelerator does in an iteration: its commands, how long they take, and how long it waits between them.

python -m benchmarks.kernels                                # TrackedLagrangian on the network of `accelerator`
python -m benchmarks.kernels --seeds 1000                   # many seeds of the 50-variable problem
python -m benchmarks.kernels --widths 16 32 --batch 8       # the same code, small

Prints the time of an iteration without a profiler, then what a trace of some iterations shows: how often the device
waits for the host (copies to it), and the commands, longest first. XLA_FLAGS may be given to see what they change.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lariax as lx
from benchmarks.accelerator import BOUND, METHODS, bare_passes, network, seconds_of
from benchmarks.suite.problems import by_name

LATE = 16_640  # where one iteration in 256 measures noise and curvature
SHORT, LONG = 256, 1024  # iterations between two measurements of the time
SHOWN = 45  # commands


def late(result: lx.Result) -> lx.Result:
    """The same run, as if it had come far."""
    run: Any = result.continuation
    k = jnp.int32(LATE)
    loop = run.loop._replace(iteration=k, next_refresh=run.setup.blocks.next_refresh(k))
    return replace(result, continuation=replace(run, loop=loop, iteration=LATE))


def network_run(widths: list[int], batch: int, method: str) -> tuple[Callable[[int], Any], float]:
    """Something that goes on for so many iterations, and the seconds of two bare passes."""
    joint, x, rows = network(widths)
    problem = lx.Problem.joint(joint, samples=lx.Dataset(rows), constraints={"gap": lx.AtMost(bound=BOUND)})
    result = [late(lx.solve(problem, x, METHODS[method](), iterations=8, batch_size=batch))]

    def on(iterations: int) -> Any:
        result[0] = lx.solve(problem, result[0], iterations=iterations, record_every=iterations)
        return result[0].x

    return on, bare_passes(joint, x, rows, batch, 64)


def sweep_run(seeds: int) -> Callable[[int], Any]:
    case, ends = by_name("toy50"), {}

    def on(iterations: int) -> Any:
        if iterations not in ends:

            def one(seed: Any) -> Any:
                return lx.solve(case.problem, case.x0, iterations=iterations, batch_size=2, seed=seed).x

            ends[iterations] = jax.jit(jax.vmap(one))
        return ends[iterations](jnp.arange(seeds))

    return on


def traced(run: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """The device's commands: name, start and length in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    lines = [line for plane in planes if plane.name.startswith("/device:") for line in plane.lines]
    streams = [line for line in lines if "Stream" in line.name] or lines
    if not streams:  # a CPU
        streams = [line for plane in planes for line in plane.lines if "XLA" in line.name]
    found = [(event.name, event.start_ns / 1e3, event.duration_ns / 1e3) for line in streams for event in line.events]
    return sorted(found, key=lambda event: event[1])


def told(events: list[tuple[str, float, float]], iterations: int) -> None:
    """Of an iteration."""
    if not events:
        return
    busy, end = 0.0, events[0][1]
    for _, start, length in events:
        busy += max(0.0, start + length - max(start, end))
        end = max(end, start + length)
    whole = end - events[0][1]
    print(
        f"traced: {len(events) / iterations:.1f} commands an iteration, busy {busy / iterations:.0f} of "
        f"{whole / iterations:.0f} microseconds"
    )
    counts, times = Counter(name for name, *_ in events), Counter[str]()
    for name, _, length in events:
        times[name] += length  # type: ignore[assignment]
    print(f"{'an iteration':>12} {'microseconds':>12}  command")
    for name, spent in times.most_common(SHOWN):
        print(f"{counts[name] / iterations:12.2f} {spent / iterations:12.1f}  {name[:90]}")
    short = [name for name, _, length in events if length < 10]
    print(f"{len(short) / iterations:.1f} of the commands take less than 10 microseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="*", type=int, default=[1024, 8192, 8192, 2816])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--method", choices=METHODS, default="TrackedLagrangian")
    parser.add_argument("--seeds", type=int, default=0, help="of the 50-variable problem, in place of the network")
    parser.add_argument("--no-trace", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.seeds:
        run, passes, short, long = sweep_run(options.seeds), None, 1000, 2000
    else:
        (run, passes), short, long = network_run(options.widths, options.batch, options.method), SHORT, LONG
    jax.block_until_ready([run(short), run(long)])
    times = {n: min(seconds_of(lambda n=n: run(n)) for _ in range(3)) for n in (short, long)}
    spent = (times[long] - times[short]) / (long - short)
    print(f"an iteration takes {1e6 * spent:.1f} microseconds", end="")
    print(f", {spent / passes:.3f} of two bare passes ({1e6 * passes:.0f})" if passes else "")
    if not options.no_trace:
        told(traced(lambda: run(short)), short)
    print(f"{time.perf_counter() - began:.0f} seconds in all")


if __name__ == "__main__":
    main()
