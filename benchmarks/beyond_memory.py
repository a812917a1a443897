"""Rows that do not fit into memory: how fast they come, and what stays in memory.

python -m benchmarks.beyond_memory --write                    # 50 GB, simulated by a sparse file; 4 GB of it are read
python -m benchmarks.beyond_memory --gigabytes 1 --read 0.2   # the same code, small

Three ways through the same file: plain reads of consecutive blocks into one buffer, which is the limit of disk and
kernel; `Blocks` with nobody behind it; and a run on `Blocks`.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def resident() -> dict[str, float]:
    """MB: now, and the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"now": found["VmRSS"], "most": found["VmHWM"]}


def plain(path: str, total: int) -> float:
    """Seconds of reads into one buffer."""
    buffer = bytearray(BLOCK * 4 * WIDTH)
    began, done = time.perf_counter(), 0
    with open(path, "rb", buffering=0) as file:
        while done < total:
            done += file.readinto(buffer)
    return time.perf_counter() - began


def alone(rows: np.memmap, total: int) -> float:
    """Seconds of `Blocks` with nobody behind it."""
    began, done = time.perf_counter(), 0
    for batch in lx.Blocks(rows, rows=BLOCK, window=WINDOW, batch=BATCH):
        done += batch.nbytes
        if done >= total:
            break
    return time.perf_counter() - began


def loss(x: Any, row: Any) -> Any:
    return (row @ x - 1) ** 2


def mean(x: Any, row: Any) -> Any:
    return row @ x


def solved(rows: np.memmap, total: int, method: Any) -> float:
    """Seconds of a run over so many bytes, of a long continuation less those of a short one."""
    stream = lx.Stream(lx.Blocks(rows, rows=BLOCK, window=WINDOW, batch=BATCH), repeat=True)
    problem = lx.Problem(loss, samples=stream, constraints={"mean": lx.AtMost(mean, 0.5)})
    iterations = total // (BATCH * 4 * WIDTH)
    result = lx.solve(problem, jnp.zeros(WIDTH), method, iterations=64, batch_size=BATCH)
    began = time.perf_counter()
    result = lx.solve(problem, result, iterations=iterations, record_every=iterations)
    jax.block_until_ready(result.x)
    return time.perf_counter() - began


METHODS: dict[str, Callable[[], Any]] = {
    "a run of `QuadraticPenalty`": lambda: lx.QuadraticPenalty(step_size=0.01, pairs=True),
    "a run of `TrackedLagrangian`": lx.TrackedLagrangian,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=50.0)
    parser.add_argument("--read", type=float, default=4.0, help="gigabytes that each way reads")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    total = int(options.read * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        rows = sparse_file(folder, options.gigabytes)
        before = resident()["now"]
        seconds = {"plain reads": plain(os.path.join(folder, "rows.npy"), total), "`Blocks` alone": alone(rows, total)}
        read = seconds["`Blocks` alone"]
        for name, make in METHODS.items():
            seconds[name] = solved(rows, total, make())
        most = resident()["most"] - before
    lines = [[name, f"{total / 1e9 / s:.2f}", f"{read / s:.2f}"] for name, s in seconds.items()]
    window = WINDOW * BLOCK * 4 * WIDTH / 2**20
    text = "\n".join(
        [
            "# Rows beyond memory",
            "",
            f"`python -m benchmarks.beyond_memory`: a sparse file of {options.gigabytes:g} GB, rows of {WIDTH} "
            f"float32, batches of {BATCH}, windows of {WINDOW} blocks of {BLOCK} rows ({window:.0f} MB); each way "
            f"reads {options.read:g} GB. {os.cpu_count()} cores.",
            "",
            *table(["", "GB a second", "over `Blocks` alone"], lines),
            "",
            f"Memory: at most {most:.0f} MB more than before, of which two windows are {2 * window:.0f} MB; "
            "the programs of jax and their compilation are in it.",
        ]
    )
    print(text)
    if options.write:
        print(f"written to {write('beyond-memory', text)}")


if __name__ == "__main__":
    main()
