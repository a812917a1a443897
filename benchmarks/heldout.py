"""A bound that holds on the training rows, and the test rows: what helps. `python -m benchmarks.heldout --write`

A 64-32 network on Adult is trained by Adam for a while without a constraint, then goes on under a bound on the gap of
the losses of two groups (`lariax.gallery.fairness`), in the direction that binds: the loss of men may exceed that of
women by so much. Every row of the table is run from several starts.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import lariax as lx
from benchmarks import _results
from lariax import gallery
from lariax.gallery._models import network

BOUND = 0.005
ITERATIONS = 20_000
LONG, SHORT = 30_000, 1_000  # steps of Adam


@dataclass(frozen=True)
class Way:
    """One row of the table."""

    title: str
    constrained: bool = True
    model: str = "network"
    steps: int = LONG
    ridge: float = 0.0
    bound: float = BOUND
    own_rows: float = 0.0
    batch_size: int = 64


HEAD = " ".join(
    f"""## Held-out constraints

`python -m benchmarks.heldout --write`, 2 cores shared with other work, 3 starts each. The loss of men may exceed that
of women by {BOUND} on Adult (32,561 training rows, 16,281 test rows), 64-32 network: {LONG:,} steps of Adam without the
constraint (stopped early: {SHORT:,}), batches of 128, then {ITERATIONS:,} iterations of the default method with it,
batches of 64. Means over the starts, with the range for gaps. The standard error is that of the gap on the test rows:
for new rows a gap is known no better than that. Read it with [docs/heldout.md](../docs/heldout.md).""".split("\n")
).replace("  ", "\n\n")
SAME = "constraint on the same rows"
WAYS = [
    Way("no constraint", constrained=False),
    Way(SAME),
    Way(f"{SAME}, bound 0", bound=0.0),
    Way(f"{SAME}, bound -0.05", bound=-0.05),
    Way(f"{SAME}, batches of 256", batch_size=256),
    Way(f"{SAME}, ridge 0.001", ridge=1e-3),
    Way(f"{SAME}, stopped early", steps=SHORT),
    Way("30 % of the rows for the constraint alone", own_rows=0.3),
    Way("30 % of the rows for the constraint alone, ridge 0.001", own_rows=0.3, ridge=1e-3),
    Way("30 % of the rows for the constraint alone, stopped early", own_rows=0.3, steps=SHORT),
    Way("linear model, constraint on the same rows", model="linear", steps=SHORT),
]


@dataclass(frozen=True)
class OneWay:
    """Of the gaps in both directions the one that binds, men over women. Equal ones share their compiled code."""

    joint: bool
    fun: Any

    def __call__(self, x: Any, row: Any) -> Any:
        found = self.fun(x, row)
        return (found[0], {"loss gap": found[1]["loss gap"][1]}) if self.joint else found[1]


def one_way(problem: lx.Problem) -> lx.Problem:
    """The problem of the gallery with the binding direction alone."""
    gap = problem.constraints["loss gap"]
    if problem.is_joint:
        limit = lx.AtMost(bound=gap.bound)
        return lx.Problem.joint(
            OneWay(True, problem.objective),
            samples=problem.samples,
            constraints={"loss gap": limit},
            heldout=problem.heldout,
        )
    limit = lx.AtMost(OneWay(False, gap.fun), gap.bound, samples=gap.samples, heldout=gap.heldout)
    return lx.Problem(
        problem.objective, samples=problem.samples, constraints={"loss gap": limit}, heldout=problem.heldout
    )


def loss_of(problem: lx.Problem, x: Any, row: Any) -> jax.Array:
    value = problem.objective(x, row)
    return value[0] if problem.is_joint else value


@eqx.filter_jit
def by_adam(problem: lx.Problem, x: Any, key: jax.Array, steps: int) -> Any:
    """The unconstrained objective on batches of 128."""
    rule, rows = optax.adam(3e-3), problem.samples.arrays

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        x, state = carry
        batch = jax.tree.map(lambda a: a[jax.random.randint(key, (128,), 0, len(a))], rows)
        slope = jax.grad(lambda x: jnp.mean(jax.vmap(lambda row: loss_of(problem, x, row))(batch)))(x)
        change, state = rule.update(slope, state, x)
        return (optax.apply_updates(x, change), state), None

    return jax.lax.scan(step, (x, rule.init(x)), jax.random.split(key, steps))[0][0]


def run(way: Way, seeds: int) -> dict[str, Any]:
    """The gap on the rows of the constraint and on the test rows, seed by seed, and what it cost."""
    case = gallery.fairness(model=way.model, ridge=way.ridge, bound=way.bound, own_rows=way.own_rows)
    problem = one_way(case.problem)
    sizes = (problem.samples.arrays["input"].shape[1], 64, 32, 1)
    found = []
    for seed in range(seeds):
        key = jax.random.key(seed)
        x = by_adam(problem, case.x0 if way.model == "linear" else network(key, sizes), key, way.steps)
        if way.constrained:
            x = lx.solve(problem, x, iterations=ITERATIONS, batch_size=way.batch_size, seed=seed).x
        found.append(measured(case, problem, x))
    return {**asdict(way), **{name: [one[name] for one in found] for name in found[0]}}


def measured(case: gallery.Case, problem: lx.Problem, x: Any) -> dict[str, float]:
    """Gaps with the standard error of the one on test rows, loss and accuracy on test rows."""
    gap = problem.constraints["loss gap"]
    own = gap.samples if isinstance(gap.samples, lx.Dataset) else problem.samples
    numbers = case.measures(x)

    def gaps(rows: Mapping[str, jax.Array]) -> np.ndarray:
        one = gap.fun or (lambda x, row: problem.objective(x, row)[1]["loss gap"])
        return np.asarray(jax.vmap(one, (None, 0))(x, rows))

    test = gaps(problem.heldout.arrays)
    return {
        "gap on its rows": float(gaps(own.arrays).mean()),
        "gap on test rows": float(test.mean()),
        "standard error": float(test.std() / len(test) ** 0.5),
        "loss on training rows": numbers["loss, training"],
        "loss on test rows": numbers["loss, test"],
        "accuracy on test rows": numbers["accuracy, test"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown: means over the seeds, of gaps the range too."""
    lines = [
        "| | gap on the rows of the constraint | gap on test rows | its standard error | loss, training rows | "
        "loss, test rows | accuracy, test rows |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        mine, other = (np.asarray(row[f"gap on {which} rows"]) for which in ("its", "test"))
        mean = {name: float(np.mean(row[name])) for name in row if isinstance(row[name], list)}
        lines.append(
            f"| {row['title']} | {mine.mean():.4f} ({mine.min():.4f} to {mine.max():.4f}) | "
            f"{other.mean():.3f} ({other.min():.3f} to {other.max():.3f}) | {mean['standard error']:.3f} | "
            f"{mean['loss on training rows']:.3f} | {mean['loss on test rows']:.3f} | "
            f"{mean['accuracy on test rows']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the ways to run, from 0")
    parser.add_argument("--keep", type=Path, help="a file of JSON lines that results are added to and read from")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    args = parser.parse_args()
    kept = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep and args.keep.exists() else []
    done = {row["title"]: row for row in kept}
    for number, way in enumerate(WAYS):
        if way.title in done or (args.only is not None and number not in args.only):
            continue
        done[way.title] = run(way, args.seeds)
        print(table([done[way.title]]).splitlines()[-1], flush=True)
        if args.keep:
            with args.keep.open("a") as file:
                file.write(json.dumps(done[way.title]) + "\n")
    text = table([done[way.title] for way in WAYS if way.title in done])
    print(text)
    if args.write:
        _results.write("heldout", f"{HEAD}\n\n{text}\n")


if __name__ == "__main__":
    main()
