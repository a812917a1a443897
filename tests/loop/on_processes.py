"""One of several processes that solve a problem together: python on_processes.py RANK SIZE PORT FOLDER MODE
[ITERATIONS]. Prints JSON."""

import json
import os
import sys

rank, size, port, folder, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={8 // size}"

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
if size > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", size, rank)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import lariax as lx  # noqa: E402

ROWS = np.random.default_rng(0).normal(1.0, 0.5, (1600, 5))
SHARE = len(ROWS) // size
OWN = ROWS[rank * SHARE : (rank + 1) * SHARE]
BATCH = 16
ITERATIONS = int(sys.argv[6]) if len(sys.argv) > 6 else 200
METHODS = {"penalty": lx.QuadraticPenalty(step_size=0.05), "default": lx.TrackedLagrangian()}


def of_batches():
    """The rows that this process gives to each batch of `ROWS` in their order."""
    share = BATCH // size
    return ROWS.reshape(-1, BATCH, 5)[:, rank * share : (rank + 1) * share].reshape(-1, 5)


def samples(kind):
    if kind == "stream":
        return lx.Stream.local(np.array_split(of_batches(), 7), repeat=True)
    if kind == "once":
        return lx.Stream.local(batch for _ in range(10) for batch in np.array_split(of_batches(), 7))
    if kind == "blocks":
        return lx.Stream.local(lx.Blocks(OWN, rows=20, window=5, batch=32, seed=rank), repeat=True)
    if kind == "local":
        return lx.Dataset.local(OWN)
    mesh = jax.make_mesh((8,), ("data",))
    return lx.Dataset(jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), OWN))


def start(kind):
    """A small x on one device, or a large one over all of them."""
    if kind != "large":
        return jnp.zeros(5)
    mesh = jax.make_mesh((8,), ("data",))
    place = NamedSharding(mesh, P(None, "data"))
    return {"x": jnp.zeros(5), "large": jax.make_array_from_callback((10, 800), place, lambda i: np.ones((10, 800))[i])}


def objective(x, row):
    if not isinstance(x, dict):
        return jnp.sum((x - row) ** 2) / 2
    return jnp.sum((x["x"] - row) ** 2) / 2 + jnp.sum((x["large"] - row[0]) ** 2) / 20


def total(x, row):
    return jnp.sum((x["x"] if isinstance(x, dict) else x) * row)


def main():
    kind, name, what = mode.split("-")
    problem = lx.Problem(objective, samples=samples(kind), constraints={"total": lx.AtMost(total, 3.0)})
    x0, method = start(kind), METHODS[name]
    if what == "plain":
        result = lx.solve(problem, x0, method, iterations=ITERATIONS, batch_size=BATCH)
    elif what == "begin":  # until it is killed
        place = lx.Checkpoint(folder, every=0.2)
        seen = lambda now: print("at", now.iteration, flush=True)  # noqa: E731
        lx.solve(
            problem, x0, method, iterations=10**8, batch_size=BATCH, checkpoint=place, record_every=500, callback=seen
        )
        return
    elif what == "half":
        lx.solve(problem, x0, method, iterations=ITERATIONS // 2, batch_size=BATCH, checkpoint=folder)
        return
    else:
        result = lx.resume(folder, problem, iterations=ITERATIONS // 2, x0=x0)
    found = [np.asarray(part.data).tolist() for leaf in jax.tree.leaves(result.x) for part in leaf.addressable_shards]
    print(
        json.dumps(
            {
                "x": np.ravel(result.x["x"] if kind == "large" else result.x).tolist(),
                "sum": float(sum(np.sum(part) for part in found)),
                "y": float(result.multipliers["total"]),
                "status": result.status,
                "iterations": result.iterations,
                "high": float(result.certificate.feasibility.high),
                "history": float(np.sum(result.history["objective"])),
            }
        )
    )


main()
