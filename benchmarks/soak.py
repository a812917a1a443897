"""One long run, watched: do memory and speed stay what they were?

    python -m benchmarks.soak                    # an hour; a page in benchmarks/results
    python -m benchmarks.soak --minutes 2

The default method on a data set, with checkpoints every few seconds, a record every 50 iterations (so that the history
is thinned again and again) and a callback that measures: iterations for each second of CPU time, resident memory, size
of the newest checkpoint. Rows of the table are tenths of the run; the first minute is left out, as it compiles and
fills what is filled once. Flat means: the last tenths differ from the first by no more than they do from each other.

It wants a core for itself: some of its work goes by the clock (checkpoints, looks at the time, this measuring), so that
a second of CPU time buys fewer iterations where other programs leave the run a small part of the machine.
"""

import argparse
import datetime as dt
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks._results import write

PARTS = 10
SETTLED = 60.0  # seconds before which nothing is compared


class Sighting(NamedTuple):
    """What was measured at one moment."""

    seconds: float
    cpu: float
    iteration: int
    memory: int  # bytes resident
    checkpoint: int  # bytes


def problem() -> Any:
    rows = np.random.default_rng(0).normal(size=(5000, 21))

    def loss(x: Any, row: Any) -> Any:
        return jnp.logaddexp(0.0, -(row[:-1] @ x) * jnp.sign(row[-1] + row[0]))

    def gap(x: Any, row: Any) -> Any:
        return row[1] * (row[:-1] @ x)

    return lx.Problem(loss, samples=lx.Dataset(rows), constraints={"gap": lx.AtMost(gap, 0.01)})


def resident() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def watched(seconds: float, folder: Path, every: float) -> list[Sighting]:
    """A run of so many seconds."""
    seen: list[Sighting] = []
    began = time.monotonic()

    def look(snapshot: lx.Snapshot) -> None:
        now = time.monotonic() - began
        if seen and now - seen[-1].seconds < every:
            return
        sizes = [path.stat().st_size for path in sorted(folder.glob("*.lariax"))]
        seen.append(Sighting(now, time.process_time(), snapshot.iteration, resident(), sizes[-1] if sizes else 0))

    checkpoint = lx.Checkpoint(folder, every=5.0)
    lx.solve(
        problem(),
        jnp.zeros(20),
        seconds=seconds,
        batch_size=4,
        record_every=50,
        callback=look,
        checkpoint=checkpoint,
    )
    return seen


class Tenth(NamedTuple):
    """A part of the run."""

    iterations: int
    seconds: float
    cpu: float


def table(seen: list[Sighting], settled: float) -> tuple[list[str], list[Tenth], float]:
    """Rows for the parts of the run, the parts, and how memory has grown from the first to the last, as a ratio."""
    seen = [sight for sight in seen if sight.seconds >= settled]
    edges = np.linspace(0, len(seen) - 1, PARTS + 1).astype(int)
    lines = [
        "| minutes | iterations | iterations for a second of CPU | memory (MB) | checkpoint (kB) |",
        "|---:|---:|---:|---:|---:|",
    ]
    parts, memories = [], []
    for low, high in itertools.pairwise(edges):
        first, last = seen[low], seen[high]
        part = Tenth(last.iteration - first.iteration, last.seconds - first.seconds, last.cpu - first.cpu)
        parts.append(part)
        memories.append(max(sight.memory for sight in seen[low : high + 1]) / 2**20)
        lines.append(
            f"| {last.seconds / 60:.1f} | {last.iteration:,} | {part.iterations / max(part.cpu, 1e-9):,.0f} | "
            f"{memories[-1]:.1f} | {last.checkpoint / 1000:.0f} |"
        )
    return lines, parts, memories[-1] / memories[0]


def trend(speeds: list[float], shares: list[float]) -> str:
    """How the speed of the parts changes, and what part of a core the run had, in words."""
    change = np.asarray(speeds) / np.mean(speeds) - 1
    place = np.linspace(-0.5, 0.5, len(speeds))
    slope = place @ change / (place @ place)
    rest = change - slope * place
    error = np.sqrt(rest @ rest / (len(speeds) - 2) / (place @ place))
    return (
        f"Speed from the first tenth to the last: times {speeds[-1] / speeds[0]:.3f}. The tenths lie between "
        f"{100 * min(change):+.0f} and {100 * max(change):+.0f} % of their mean, and a straight line through them "
        f"changes by {100 * slope:+.1f} % from one end to the other, with a standard error of {100 * error:.1f} %. The "
        f"run had {100 * min(shares):.0f} to {100 * max(shares):.0f} % of a core."
    )


def section(minutes: float, lines: list[str], memory: float, words: str) -> str:
    return "\n".join(
        [
            "## Survival: a long run",
            "",
            f"`python -m benchmarks.soak --minutes {minutes:g}`, {dt.date.today().isoformat()}, {os.cpu_count()} "
            "cores. The default method on 5,000 rows, a record every 50 iterations and a callback "
            "with each, a checkpoint every 5 s. The history is thinned again and again, which shows in the size of the "
            "checkpoint.",
            "",
            *lines,
            "",
            f"Memory from the first tenth to the last: times {memory:.3f}. {words}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One long run, watched for growing memory and falling speed.")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        seen = watched(seconds, Path(folder), every=max(0.2, seconds / 1000))
    lines, parts, memory = table(seen, min(SETTLED, seconds / 4))
    speeds, shares = [part.iterations / part.cpu for part in parts], [part.cpu / part.seconds for part in parts]
    text = section(options.minutes, lines, memory, trend(speeds, shares))
    print(text)
    write("soak", text)


if __name__ == "__main__":
    main()
