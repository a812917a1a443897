"""Runs on eight virtual devices, in a process of its own: python on_mesh.py explicit|auto METHOD WHERE, or
python on_mesh.py sweep METHOD, or python on_mesh.py resume METHOD. Prints JSON.

The same samples as on one device: those of a `Distribution`, or rows from a source that draws as the shards do.
"""

import json
import os
import re
import sys
import tempfile
import warnings

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax

jax.config.update("jax_enable_x64", True)

import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import lariax as lx  # noqa: E402
from lariax.loop._compiled import advance  # noqa: E402

METHODS = {
    "QuadraticPenalty": lx.QuadraticPenalty(step_size=0.1),
    "DualPenalty": lx.DualPenalty(step_size=0.1, penalty=1.0, dual_step=0.1),
    "LinearizedALM": lx.LinearizedALM(lipschitz=2.0),
    "TrackedLagrangian": lx.TrackedLagrangian(),
    "one_backward": lx.TrackedLagrangian(one_backward=True),
    "TangentNormal": lx.TangentNormal(),
    "Optax": lx.Optax(optax.adam(1e-2)),
    "GradientTracking": lx.rivals.GradientTracking(step_size=0.1),
    "ProxPDA": lx.rivals.ProxPDA(step_size=0.1, penalty=1.0),
    "SpiderADMM": lx.rivals.SpiderADMM(step_size=0.02, penalty=1.0),
}
D, ROWS, BATCH, ITERATIONS = 6000, 4096, 16, 50
AGENTS, P_EACH = 64, 128
X0 = {"matrix": jnp.full((100, 60), 0.1), "vector": jnp.zeros(D), "whole": jnp.ones(7)}
SPECS = {"matrix": P(None, "model"), "vector": P("model"), "whole": P()}
DATA = np.random.default_rng(0).normal(1.0, 0.5, (ROWS, D // 10))


def objective(x, row):
    shift = x["vector"].reshape(10, -1) - row
    return (jnp.sum(shift**2) + jnp.sum((x["matrix"] - 2) ** 2) + jnp.sum(x["whole"] ** 2)) / 2


def level(x):
    return jnp.stack([jnp.mean(x["vector"]), jnp.mean(x["matrix"] ** 2)])


def constraints(method):
    if method == "LinearizedALM":
        return {"mean": lx.Linear(lambda x: jnp.mean(x["vector"])[None], 0.1, shape=(1, 12_007))}
    return {"level": lx.AtMost(level, jnp.array([0.05, 0.02]), samples=None)}


class SameDraws(lx.AbstractSource):
    """The rows that the shards of another source draw, from arrays on one device."""

    sharded: lx.Dataset
    plain: lx.Dataset
    from_host = False
    rows_per_sample = 1
    population_size = None

    def draw(self, key, iterations, count):
        if count == 1:  # for the shape of a sample
            return self.plain.draw(key, iterations, 1)
        drawn = self.sharded.draw_from_shards(key, iterations, count)
        by_shard = drawn.reshape(len(iterations), self.sharded.shards.count, -1)
        return by_shard.swapaxes(1, 2).reshape(drawn.shape)  # halves and copies of a batch are those of each shard

    def fetch(self, ticket):
        return self.plain.fetch(ticket)


def sources(mesh, where):
    if where == "x":
        noise = lx.Distribution(lambda key: 1 + 0.5 * jax.random.normal(key, (D // 10,)))
        return noise, noise
    sharded = lx.Dataset(jax.device_put(DATA, NamedSharding(mesh, P("data"))))
    return sharded, SameDraws(eqx.tree_at(lambda s: s.arrays, sharded, DATA), lx.Dataset(DATA))


def coupled(where):
    """Agents along an axis of the mesh: neighbours on a ring agree, or all share what there is."""
    if where == "ring":
        ring = lx.Linear(lambda x: (x - jnp.roll(x, -1, axis=0)).ravel(), 0.0, shape=(AGENTS * P_EACH,) * 2, norm=2.0)
        return {"agree": ring}
    total = lx.Linear(lambda x: jnp.sum(x, axis=0), 0.5, shape=(P_EACH, AGENTS * P_EACH), norm=AGENTS**0.5)
    return {"share": total}


def of_agents(x, rows):
    """A sample has a row for each agent."""
    return jnp.sum((x - rows[:, None]) ** 2) / 2


def main_of_agents(kind, name, where):
    mesh = jax.make_mesh((8,), ("agents",), **({"axis_types": (AxisType.Auto,)} if kind == "auto" else {}))
    rows = np.random.default_rng(0).normal(1.0, 0.5, (512, AGENTS))
    x0 = jnp.zeros((AGENTS, P_EACH))

    def run(x0, rows):
        problem = lx.Problem(of_agents, samples=lx.Dataset(rows), constraints=coupled(where))
        return lx.solve(problem, x0, METHODS[name], iterations=ITERATIONS, batch_size=4)

    placed = jax.device_put(x0, NamedSharding(mesh, P("agents")))
    result, alone = run(placed, jax.device_put(rows, NamedSharding(mesh, P(None, "agents")))), run(x0, rows)
    report({"x": result.x}, {"x": alone.x}, {"x": x0}, {"x": placed}, result, alone)


def main_of_sweep(name):
    """Sixteen seeds along a mesh, in all the ways to say it, beside the same on one device."""
    noise = lx.Distribution(lambda key: jax.random.normal(key, (3,)))
    total = lx.AtMost(lambda x, z: jnp.sum(x + z), 2.0)
    problem = lx.Problem(lambda x, z: jnp.sum((x - 1 - z) ** 2), samples=noise, constraints={"total": total})
    settings = {"iterations": ITERATIONS, "batch_size": 4}
    many = jax.vmap(lambda seed: lx.solve(problem, jnp.zeros(3), METHODS[name], seed=seed, **settings))
    alone = many(jnp.arange(16)).x
    explicit, auto = (jax.make_mesh((8,), ("runs",), axis_types=(kind,)) for kind in (AxisType.Explicit, AxisType.Auto))
    place = lambda mesh: jax.device_put(jnp.arange(16), NamedSharding(mesh, P("runs")))  # noqa: E731
    found = {"automatic": jax.jit(many)(place(auto)).x}
    with jax.set_mesh(explicit):
        program = jax.jit(many).lower(place(explicit)).compile()
        found["compiled"] = program(place(explicit)).x
        found["called"] = many(place(explicit)).x
        own = jax.shard_map(many, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)
        found["mapped"] = jax.jit(lambda seeds: own(seeds).x)(place(explicit))
    apart = {way: float(jnp.abs(np.asarray(x) - np.asarray(alone)).max()) for way, x in found.items()}
    rows = {way: sorted({part.data.shape[0] for part in x.addressable_shards}) for way, x in found.items()}
    sent = re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", program.as_text())
    print(json.dumps({"apart": apart, "rows": rows, "sent": sent}))


def main_of_resume(name):
    """A run on the rows of eight devices goes on on four, then on one that has them without a mesh, then on eight."""

    def problem(devices, data=DATA):
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        rows = jax.device_put(data, NamedSharding(mesh, P("data"))) if devices > 1 else data
        return lx.Problem(
            lambda x, row: jnp.sum((x - row[:4]) ** 2),
            samples=lx.Dataset(rows),
            constraints={"total": lx.AtMost(lambda x, row: x @ row[:4], 3.0)},
        )

    settings = {"iterations": 200, "batch_size": BATCH}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", lx.LariaxWarning)
        lx.solve(problem(8), jnp.zeros(4), METHODS[name], checkpoint=folder, **settings)
        for devices in (4, 1, 8):
            result = lx.resume(folder, problem(devices), iterations=200)
        try:
            lx.resume(folder, problem(1, DATA[::-1]), iterations=200)
            refused = ""
        except lx.CheckpointError as error:
            refused = str(error)
    alone = lx.solve(problem(1), jnp.zeros(4), METHODS[name], **settings | {"iterations": 800})
    words = [str(each.message) for each in said if "bits" in str(each.message)]
    found = {"iterations": result.iterations, "x": result.x.tolist(), "alone": alone.x.tolist()}
    print(json.dumps(found | {"said": words, "refused": refused}))


def communicated(result):
    """The most entries that the compiled loop gathers at once, and that devices send on piece by piece."""
    run = result.continuation
    setup, every = run.setup, jnp.int32(10)
    program = eqx.filter_jit(advance.__wrapped__)
    lowered = program.lower(
        setup.oracle, setup.method, run.loop, jnp.int32(60), every, setup.feeder.nothing, setup.blocks, 8
    )
    text = lowered.compile().compiled.as_text()
    assert " all-reduce" in text or " all-gather" in text, "nothing is sharded"
    return [most_entries(text, kinds) for kinds in ("all-gather", r"[\w-]*all-to-all|collective-permute")]


def most_entries(text, kinds):
    shapes = re.findall(r"\w\[([\d,]*)\]", " ".join(re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)))
    return max((int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes), default=0)


def main(kind, name, where):
    mesh = jax.make_mesh((4, 2), ("data", "model"), **({"axis_types": (AxisType.Auto,) * 2} if kind == "auto" else {}))
    placed = {key: jax.device_put(X0[key], NamedSharding(mesh, SPECS[key])) for key in X0}
    start = X0 if where == "rows" else placed
    sharded, plain = sources(mesh, where)
    given = {"constraints": constraints(name)}

    def run(samples, x0):
        problem = lx.Problem(objective, samples=samples, **given)
        return lx.solve(problem, x0, METHODS[name], iterations=ITERATIONS, batch_size=BATCH)

    with jax.set_mesh(mesh):
        result = run(sharded, start)
    alone = run(plain, X0)
    report(result.x, alone.x, X0, start, result, alone)


def report(found, expected, x0, start, result, alone):
    gathered, sent = communicated(result)
    apart = [np.abs(np.asarray(found[key]) - np.asarray(expected[key])).max() for key in x0]
    moved = max(float(np.abs(np.asarray(expected[key]) - np.asarray(x0[key])).max()) for key in x0)
    print(
        json.dumps(
            {
                "apart": float(max(apart)),
                "moved": moved,
                "kept": [found[key].sharding == start[key].sharding for key in x0],
                "gathered": gathered,
                "sent": sent,
                "status": [result.status, alone.status],
                "multipliers": float(
                    max(
                        np.abs(np.asarray(result.multipliers[n]) - np.asarray(y)).max()
                        for n, y in alone.multipliers.items()
                    )
                ),
                "strata": result.continuation.oracle.strata,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] in ("sweep", "resume"):
        sys.exit({"sweep": main_of_sweep, "resume": main_of_resume}[sys.argv[1]](sys.argv[2]))
    (main_of_agents if sys.argv[3] in ("ring", "sharing") else main)(*sys.argv[1:])
