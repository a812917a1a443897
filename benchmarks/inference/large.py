"""Time and memory for an x of 100,000 entries with ten constraints."""

import json
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx

D, M, USED = 100_000, 10, 200
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
    """In a process of its own: seconds, the peak of its memory, and the mean standard errors."""
    jax.config.update("jax_enable_x64", True)
    stated, start = problem(d)
    began, used = time.perf_counter(), time.process_time()
    found = lx.inference(stated, jnp.asarray(start), draws=DRAWS)
    entries = found.of(lambda x: x[:3])
    took, worked = time.perf_counter() - began, time.process_time() - used
    errors = [float(np.mean(each.standard_error)) for each in (found.multipliers["c"], entries)]
    print(json.dumps([took, worked, _peak(), *errors]))


def lines() -> list[str]:
    one, two = (json.loads(_run(d)) for d in (D, 2 * D))
    copies = (two[2] - one[2]) / (8 * D)
    return [
        f"x of {D:,} entries, {M} noisy equalities, {DRAWS:,} draws: error bars of the objective, of all multipliers "
        f"(mean standard error {one[3]:.3g}) and of three entries of x ({one[4]:.3g}) took {one[0]:.1f} s, compiling "
        f"included ({one[1]:.1f} s of CPU). For twice as many entries the peak of memory was {copies:.0f} copies of "
        "this x higher.",
    ]


def _run(d: int) -> str:
    command = [sys.executable, "-m", "benchmarks.inference.large", str(d)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    alone(int(sys.argv[1]))
