"""What an iteration sends around: collectives in the compiled program of one step, counted on eight virtual devices,
and the work of one device as devices are added.

python -m benchmarks.collectives --write

The first table says what grows with the number of devices and what does not: a reduction of a few numbers costs
latency, about log2(devices) hops; one of a vector like x costs its bytes twice, whatever the number of devices. The
second keeps the work of a device (rows of a batch, or entries of x) fixed while devices are added: weak scaling, as
operations and bytes of the compiled program, since virtual devices share two cores.
"""

import argparse
import os
import re
from collections import Counter
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lariax as lx
from benchmarks._results import table, write

D, ROWS, EACH = 8192, 256, 8  # entries of x, rows of data, samples of a batch: the last two for each device
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
METHODS = {
    "QuadraticPenalty": lx.QuadraticPenalty(step_size=0.1, pairs=True),
    "DualPenalty": lx.DualPenalty(step_size=0.1, penalty=1.0, dual_step=0.1, pairs=True),
    "LinearizedALM": lx.LinearizedALM(lipschitz=2.0),
    "TrackedLagrangian": lx.TrackedLagrangian(),
    "TangentNormal": lx.TangentNormal(),
}
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def objective(x: Any, row: Any) -> Any:
    return jnp.sum((x - row) ** 2) / 2


def constraints(name: str) -> dict[str, Any]:
    if name == "LinearizedALM":
        return {"mean": lx.Linear(lambda x: jnp.mean(x)[None], 0.1, shape=(1, D))}
    if name == "TangentNormal":
        return {"mean": lx.AtMost(jnp.mean, 0.1, samples=None)}
    return {"mean": lx.AtMost(lambda x, row: jnp.mean(x * row), 0.1)}


def program(name: str, where: str, devices: int, entries: int) -> Any:
    """The compiled program of one step."""
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("devices",))
    cut = {"rows": (P("devices"), P()), "x": (P(None, "devices"), P("devices"))}[where]
    batch, rows = (EACH * devices, ROWS * devices) if where == "rows" else (EACH, ROWS)
    data = jax.device_put(jnp.ones((rows, entries), jnp.float32), NamedSharding(mesh, cut[0]))
    x0 = jax.device_put(jnp.zeros(entries, jnp.float32), NamedSharding(mesh, cut[1]))
    problem = lx.Problem(objective, samples=lx.Dataset(data), constraints=constraints(name))
    bound = lx.bind(problem, x0, METHODS[name], batch_size=batch)
    oracle, method = bound.oracle, bound.method

    def step(oracle: Any, method: Any, state: Any, tickets: Any) -> Any:
        return oracle.settled(method.step(oracle, state, jnp.ones((), jnp.float32), oracle.fetch(tickets)))

    tickets = oracle.draw(bound.key, jnp.arange(1), (None,) * len(oracle.sources))
    one = jax.tree.map(lambda ticket: ticket[0], tickets)
    state = eqx.filter_jit(lambda bound: oracle.settled(bound.init()))(bound)
    return eqx.filter_jit(step).lower(oracle, method, state, one).compile().compiled


def collectives(text: str) -> tuple[Counter[str], Counter[str]]:
    """How many of each kind, and bytes of what they return."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for shapes, kind in _COLLECTIVE.findall(text):
        counts[kind] += 1
        for dtype, shape in _SHAPE.findall(shapes):
            sizes[kind] += BYTES.get(dtype, 4) * int(np.prod([int(n) for n in shape.split(",") if n]))
    return counts, sizes


def communication() -> list[list[str]]:
    lines = []
    for name in METHODS:
        for where in ("rows", "x"):
            counts, sizes = collectives(program(name, where, 8, D).as_text())
            vectors = sum(size for size in sizes.values()) / (4 * D)
            several = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
            lines.append([name, where, several, f"{sum(sizes.values()):,}", f"{vectors:.2f}"])
            print(lines[-1], flush=True)
    return lines


def weak_scaling(name: str) -> list[list[str]]:
    lines = []
    for where in ("rows", "x"):
        for devices in (1, 2, 4, 8):
            found = program(name, where, devices, D if where == "rows" else D * devices)
            cost = found.cost_analysis()
            cost = cost[0] if isinstance(cost, list) else cost
            counts, sizes = collectives(found.as_text())
            sent = f"{sum(sizes.values()):,}"
            own = [f"{cost['flops']:,.0f}", f"{cost['bytes accessed']:,.0f}"]
            lines.append([where, str(devices), *own, str(sum(counts.values())), sent])
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = "\n".join(
        [
            "# What an iteration sends around",
            "",
            f"`python -m benchmarks.collectives`, jax {jax.__version__}, eight virtual devices, float32: x of {D:,} "
            f"entries, {EACH} samples of a batch for each device where rows are cut. Collectives in the compiled "
            "program of one iteration (not a measuring one), and the bytes that they return.",
            "",
            *table(["method", "cut", "collectives", "bytes", "as vectors like x"], communication()),
            "",
            "Weak scaling of `QuadraticPenalty`: the program of one device, with as many samples (rows cut) or as many "
            "entries of x (x cut) for each. 1 means no communication, as there is one device.",
            "",
            *table(
                ["cut", "devices", "operations a device", "bytes a device", "collectives", "bytes sent"],
                weak_scaling("QuadraticPenalty"),
            ),
        ]
    )
    print(text)
    if options.write:
        print(f"written to {write('collectives', text)}")


if __name__ == "__main__":
    main()
