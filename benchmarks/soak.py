"""One long run, watched: do memory and speed stay what they were?

    python -m benchmarks.soak                    # an hour; the table of RESULTS.md
    python -m benchmarks.soak --minutes 2

The default method on a data set, with checkpoints every few seconds, a record every 50 iterations (so that the history
is thinned again and again) and a callback that measures: iterations for each second of CPU time, resident memory, size
of the newest checkpoint. Rows of the table are tenths of the run; the first minute is left out, as it compiles and
fills what is filled once. Flat means: the last tenths differ from the first by no more than they do from each other.
"""

import argparse
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


def table(seen: list[Sighting], settled: float) -> tuple[str, float, float]:
    """Rows for the parts of the run; growth of memory and loss of speed from the first part to the last, as ratios."""
    seen = [sight for sight in seen if sight.seconds >= settled]
    edges = np.linspace(0, len(seen) - 1, PARTS + 1).astype(int)
    lines = [
        "| minutes | iterations | iterations for a second of CPU | memory (MB) | checkpoint (kB) |",
        "|---:|---:|---:|---:|---:|",
    ]
    speeds, memories = [], []
    for low, high in itertools.pairwise(edges):
        first, last = seen[low], seen[high]
        speeds.append((last.iteration - first.iteration) / max(last.cpu - first.cpu, 1e-9))
        memories.append(max(sight.memory for sight in seen[low : high + 1]) / 2**20)
        lines.append(
            f"| {last.seconds / 60:.1f} | {last.iteration:,} | {speeds[-1]:,.0f} | {memories[-1]:.1f} | "
            f"{last.checkpoint / 1000:.0f} |"
        )
    return "\n".join(lines), memories[-1] / memories[0], speeds[-1] / speeds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="One long run, watched for growing memory and falling speed.")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        seen = watched(seconds, Path(folder), every=max(0.2, seconds / 1000))
    text, memory, speed = table(seen, min(SETTLED, seconds / 4))
    print(f"{text}\n\nFrom the first tenth to the last: memory times {memory:.3f}, speed times {speed:.3f}.")


if __name__ == "__main__":
    main()
