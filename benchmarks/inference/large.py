"""Time and memory for an x of 100,000 entries with ten constraints."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx

D, M, USED = 100_000, 10, 200
TIMES = 5
DRAWS = 4000


def problem(d: int) -> tuple[lx.Problem, np.ndarray]:
    """Ridge regression on sparse rows; the constraints are noisy sums over parts of x."""
    rng = np.random.default_rng(0)
    beta = jnp.asarray(rng.normal(size=d))

    def draw(key):
        keys = jax.random.split(key, 3)
        places = jax.random.randint(keys[0], (USED,), 0, d)
        values = jax.random.normal(keys[1], (USED,))
        noise = jax.random.normal(keys[2], (M + 1,))
        return {"places": places, "values": values, "b": values @ beta[places] + noise[0], "z": noise[1:]}

    def loss(x, row):
        fit = row["b"] - row["values"] @ x[row["places"]]
        return d / USED * 0.5 * fit**2 / 1000 + 0.5 * jnp.sum((x - beta) ** 2)

    def sums(x, row):
        return jnp.sum(x.reshape(M, -1), axis=1) / np.sqrt(d // M) + 0.3 * row["z"]

    bounds = np.asarray(beta.reshape(M, -1).sum(axis=1)) / np.sqrt(d // M) - 0.1
    source = lx.Distribution(draw)
    return lx.Problem(loss, samples=source, constraints={"c": lx.Equal(sums, bounds)}), np.asarray(beta)


def alone(d: int) -> None:
    """In a process of its own: seconds with compiling and without, the memory that it takes, mean standard errors."""
    jax.config.update("jax_enable_x64", True)
    stated, start = problem(d)
    point = jnp.asarray(start)

    def asked() -> list[float]:
        found = lx.inference(stated, point, draws=DRAWS)
        entries = found.of(lambda x: x[:3])
        return [float(np.mean(each.standard_error)) for each in (found.multipliers["c"], entries)]

    times = [time.process_time()]
    errors = asked()
    times.append(time.process_time())
    before = _memory()
    times.append(time.process_time())
    asked()
    times.append(time.process_time())
    print(json.dumps([times[1] - times[0], times[3] - times[2], _peak() - before, *errors]))


def lines() -> list[str]:
    with_compiling, without, taken, of_y, of_x = json.loads(_run(D))
    more = json.loads(_run(TIMES * D))[2]
    copies = (more - taken) / (8 * D * (TIMES - 1))
    return [
        f"x of {D:,} entries, {M} noisy equalities, {DRAWS:,} draws: error bars of the objective, of all multipliers "
        f"(mean standard error {of_y:.3g}) and of three entries of x ({of_x:.3g}) took {with_compiling:.1f} s of CPU "
        f"with compiling, {without:.1f} s the second time. Then the peak of the process's memory was {taken / 1e6:.0f} "
        f"MB above where it was before the call, with {TIMES} times as many entries {more / 1e6:.0f} MB, which is "
        f"{more / (8 * D * TIMES):.1f} copies of x; the difference of the two is {copies:.1f} copies of the entries "
        f"added (a peak differs by some MB from process to process). The solver of linear systems has seven: the "
        f"point, the right-hand side, SYMMLQ's four vectors, and what one Hessian-vector product takes. J alone would "
        f"be {M}.",
    ]


def _run(d: int) -> str:
    command = [sys.executable, "-m", "benchmarks.inference.large", str(d)]
    setting = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once
    return subprocess.run(command, capture_output=True, text=True, check=True, env=setting).stdout.splitlines()[-1]


def _memory() -> int:
    """What the process holds now, in bytes; the peak is reset to it. Linux."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    alone(int(sys.argv[1]))
