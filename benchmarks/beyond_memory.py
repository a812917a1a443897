"""Rows that do not fit into memory: how fast they come, and what stays in memory.

python -m benchmarks.beyond_memory --real --gigabytes 5 --write            # a file, read from the disk
python -m benchmarks.beyond_memory                                         # 50 GB, simulated by a sparse file
python -m benchmarks.beyond_memory --gigabytes 1 --read 0.05 --turns 2     # the same code, small

Ways through the same file: plain reads of consecutive blocks into one buffer, which is the limit of disk and kernel;
`Blocks` with nobody behind it; and runs on `Blocks`, beside the same runs on rows that are in memory. `Blocks` can be
no faster than plain reads, and a run no faster than the slower of `Blocks` and the same run on rows in memory: the
limits that they are compared with. One run looks at a single number of each row, so that reading is all it waits for.
All take turns, each of some gigabytes, so that other work on the machine meets all of them; a ratio is that of
neighbouring turns, and the median is told. What is kept in memory of a real file is dropped before each turn.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks._results import table, write

WIDTH, BATCH, BLOCK, WINDOW = 256, 4096, 1024, 64  # float32: a row has 1 kB, a window 64 MB


def sparse_file(folder: str, gigabytes: float) -> np.memmap:
    """Rows of zeros that take no place on disk."""
    rows = int(gigabytes * 1e9) // (4 * WIDTH)
    path = Path(folder) / "rows.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)})
        file.truncate(file.tell() + rows * 4 * WIDTH)
    return np.load(path, mmap_mode="r")


def real_file(folder: str, gigabytes: float) -> np.memmap:
    """Rows of random numbers."""
    rows, part = int(gigabytes * 1e9) // (4 * WIDTH), np.random.default_rng(0).random((1 << 16, WIDTH), np.float32)
    path = Path(folder) / "rows.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)})
        for first in range(0, rows, len(part)):
            file.write(part[: rows - first])
        file.flush()
        os.fsync(file.fileno())
    return np.load(path, mmap_mode="r")


def dropped(path: str) -> None:
    """Nothing of the file is in the kernel's memory any more."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def resident() -> dict[str, float]:
    """MB: now, and the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"now": found["VmRSS"], "most": found["VmHWM"]}


class Spent(NamedTuple):
    """Seconds of a turn."""

    wall: float
    cpu: float


def spent(turn: Callable[[], Any]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    turn()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def plain(path: str, total: int) -> Callable[[], None]:
    """Reads into one buffer."""
    buffer = bytearray(BLOCK * 4 * WIDTH)

    def turn() -> None:
        done = 0
        with open(path, "rb", buffering=0) as file:
            while done < total:
                done += file.readinto(buffer)

    return turn


def alone(rows: np.memmap, total: int) -> Callable[[], None]:
    """`Blocks` with nobody behind it, pass after pass."""
    blocks = lx.Blocks(rows, rows=BLOCK, window=WINDOW, batch=BATCH)
    batches = itertools.chain.from_iterable(itertools.repeat(blocks))

    def turn() -> None:
        done = 0
        while done < total:
            done += next(batches).nbytes

    return turn


def solved(batches: Any, total: int, method: Any, used: int) -> Callable[[], None]:
    """A run that goes on for so many bytes every turn, and uses some numbers of each row."""
    stream = lx.Stream(batches, repeat=True)
    problem = lx.Problem(
        lambda x, row: (row[:used] @ x[:used] - 1) ** 2,
        samples=stream,
        constraints={"mean": lx.AtMost(lambda x, row: row[:used] @ x[:used], 0.5)},
    )
    iterations = total // (BATCH * 4 * WIDTH)
    result = [lx.solve(problem, jnp.zeros(WIDTH), method, iterations=64, batch_size=BATCH)]

    def turn() -> None:
        result[0] = lx.solve(problem, result[0], iterations=iterations, record_every=iterations)
        jax.block_until_ready(result[0].x)

    turn()  # whatever is compiled for a continuation
    return turn


def memory_of_a_run(rows: np.memmap) -> float:
    """MB that a run takes, its compilation included. The first thing that this process does."""
    before, blocks = resident()["now"], lx.Blocks(rows, rows=BLOCK, window=WINDOW, batch=BATCH)
    solved(blocks, 2 * WINDOW * BLOCK * 4 * WIDTH, lx.TrackedLagrangian(), WIDTH)()
    return resident()["most"] - before


PLAIN, ALONE, MEMORY = "plain reads", "`Blocks` alone", ", rows in memory"
METHODS: dict[str, tuple[Callable[[], Any], int]] = {
    "a run on one number of a row": (lambda: lx.QuadraticPenalty(step_size=0.01, pairs=True), 1),
    "a run of `QuadraticPenalty`": (lambda: lx.QuadraticPenalty(step_size=0.01, pairs=True), WIDTH),
    "a run of `TrackedLagrangian`": (lx.TrackedLagrangian, WIDTH),
}


def page(options: argparse.Namespace, turns: list[dict[str, Spent]], memory: float) -> str:
    lines = []
    for name in turns[0]:
        speed = [options.read / turn[name].wall for turn in turns]
        first = ALONE if name in METHODS else PLAIN
        limit = [max(turn[first].wall, turn.get(name + MEMORY, turn[first]).wall) for turn in turns]
        ratios = [
            [most / turn[name].wall for most, turn in zip(each, turns, strict=True)]
            for each in ([turn[PLAIN].wall for turn in turns], limit)
        ]
        cells = [" to ".join(f"{at:.2f}" for at in np.quantile(each, [0.25, 0.5, 0.75])) for each in ratios]
        cpu = np.median([turn[name].cpu for turn in turns]) / options.read
        lines.append([name, f"{np.median(speed):.2f}", *cells, f"{cpu:.2f}"])
    window = WINDOW * BLOCK * 4 * WIDTH / 2**20
    head = ["", "GB a second", "over plain reads", "over the limit", "CPU seconds a GB"]
    return "\n".join(
        [
            "# Rows beyond memory",
            "",
            f"`python -m benchmarks.beyond_memory{' --real' * options.real}`: a {'real' if options.real else 'sparse'} "
            f"file of {options.gigabytes:g} GB, rows of {WIDTH} "
            f"float32, batches of {BATCH}, windows of {WINDOW} blocks of {BLOCK} rows ({window:.0f} MB); "
            f"{options.turns} turns of {options.read:g} GB for each way, one after the other. {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.0f}.",
            "",
            *table(head, lines),
            "",
            "The limit of a run is the slower of `Blocks` alone and the same run on rows in memory; that of the others "
            "is plain reads. Ratios are quartiles over the turns.",
            "",
            f"Memory: a run of `TrackedLagrangian` took {memory:.0f} MB, of which two windows are {2 * window:.0f} MB; "
            "the programs of jax and their compilation are in it.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="a file on the disk, not a sparse one")
    parser.add_argument("--gigabytes", type=float, default=50.0)
    parser.add_argument("--read", type=float, default=0.5, help="gigabytes of a turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    total = int(options.read * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npy")
        rows = (real_file if options.real else sparse_file)(folder, options.gigabytes)
        most = memory_of_a_run(rows)
        ways = {PLAIN: plain(path, total), ALONE: alone(rows, total)}
        blocks, held = lx.Blocks(rows, rows=BLOCK, window=WINDOW, batch=BATCH), [np.zeros((BATCH, WIDTH), "float32")]
        for name, (make, used) in METHODS.items():
            ways |= {name + MEMORY: solved(held, total, make(), used), name: solved(blocks, total, make(), used)}
        turns = []
        print("The turns begin.", flush=True)
        for _ in range(options.turns):
            turns.append({})
            for name, way in ways.items():
                time.sleep(0.3)  # windows that are still being read
                dropped(path)
                turns[-1][name] = spent(way)
    text = page(options, turns, most)
    print(text)
    if options.write:
        print(f"written to {write('beyond-memory', text)}")


if __name__ == "__main__":
    main()
