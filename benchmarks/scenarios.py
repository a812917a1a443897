"""A CVaR portfolio by its linear program and by sampling: `python -m benchmarks.scenarios [--seeds 3] [--write]`.

Fifty assets, the CVaR (95 %) of the loss at most 0.15. The sample-average problem over N scenarios is a linear program
with N more unknowns, which HiGHS solves to the end; Lariax draws the same rows, or new ones without end. Returns are
normal, so what fresh scenarios would show of an answer is known without drawing them: `regret` is the mean return that
is given up, plus the price of the CVaR times what is above its bound. Each run is a process of its own: seconds are
those of the CPU, from the rows on, compiling included; memory is the largest that the process had, less what it had
before.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from scipy.optimize import linprog, minimize

import lariax as lx
from benchmarks._results import origin, table, write
from lariax.gallery.risk import market
from scipy import sparse, stats

ASSETS, LEVEL, BOUND = 50, 0.95, 0.15
SCENARIOS = (10_000, 30_000, 100_000)
WAYS = ("HiGHS, interior point", "HiGHS, dual simplex", "Lariax, the same rows", "Lariax, rows drawn as it goes")
BATCH = 64
RETURNS = market(ASSETS, seed=0)


def true_risk(shares: np.ndarray) -> tuple[float, float]:
    """Mean return, and CVaR of the loss."""
    mean, spread = RETURNS.mean @ shares, np.sqrt(shares @ RETURNS.covariance @ shares)
    beyond = stats.norm.pdf(stats.norm.ppf(LEVEL)) / (1 - LEVEL)
    return float(mean), float(beyond * spread - mean)


def reference() -> tuple[float, float]:
    """The best return, and what a unit of CVaR is worth."""

    def best(bound: float) -> float:
        limits = (
            {"type": "eq", "fun": lambda w: w.sum() - 1},
            {"type": "ineq", "fun": lambda w: bound - true_risk(w)[1]},
        )
        start, options = np.full(ASSETS, 1 / ASSETS), {"ftol": 1e-14, "maxiter": 1000}
        found = minimize(
            lambda w: -true_risk(w)[0], start, bounds=[(0, 1)] * ASSETS, constraints=limits, options=options
        )
        return -float(found.fun)

    step = 1e-3
    return best(BOUND), (best(BOUND + step) - best(BOUND - step)) / (2 * step)


def rows_of(scenarios: int, seed: int) -> np.ndarray:
    rng, factors = np.random.default_rng(seed), RETURNS.loadings.shape[1]
    common, own = rng.standard_normal((scenarios, factors)), rng.standard_normal((scenarios, ASSETS))
    return RETURNS.mean + common @ RETURNS.loadings.T + RETURNS.own * own


def by_program(rows: np.ndarray, solver: str) -> np.ndarray:
    """Unknowns: shares, the value at risk t, and one excess a scenario, at least -r.w - t and at least 0."""
    n = len(rows)
    excess = sparse.hstack([sparse.csr_array(-rows), -np.ones((n, 1)), -sparse.eye_array(n)])
    tail = np.concatenate([np.zeros(ASSETS), [1.0], np.full(n, 1 / (n * (1 - LEVEL)))])
    found = linprog(
        np.concatenate([-rows.mean(axis=0), np.zeros(n + 1)]),
        A_ub=sparse.vstack([excess, sparse.csr_array(tail[None])], format="csr"),
        b_ub=np.append(np.zeros(n), BOUND),
        A_eq=sparse.csr_array(np.concatenate([np.ones(ASSETS), np.zeros(n + 1)])[None]),
        b_eq=[1.0],
        bounds=[(0, 1)] * ASSETS + [(None, None)] + [(0, None)] * n,
        method=solver,
    )
    return found.x[:ASSETS]


def by_sampling(source: lx.Distribution | lx.Dataset, draws: int) -> np.ndarray:
    def loss(shares: jax.Array, row: jax.Array) -> jax.Array:
        return -(row @ shares)

    problem = lx.Problem(
        loss,
        samples=source,
        constraints={"tail": lx.AtMost(lx.risk.CVaR(loss, LEVEL), BOUND)},
        within=lx.sets.Simplex(),
    )
    start = jnp.full(ASSETS, 1 / ASSETS)
    return np.asarray(lx.solve(problem, start, iterations=draws // BATCH, batch_size=BATCH).x)


def one(way: str, scenarios: int, seed: int, passes: int) -> dict[str, float]:
    """In this process."""
    jax.config.update("jax_enable_x64", True)
    jnp.zeros(1).block_until_ready()  # the library is there
    drawn = way == WAYS[3]
    rows = None if drawn else rows_of(scenarios, seed)
    held, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if drawn:
        shares = by_sampling(lx.Distribution(RETURNS.sample), passes * scenarios)
    elif rows is not None and way == WAYS[2]:
        shares = by_sampling(lx.Dataset(jnp.asarray(rows)), passes * scenarios)
    else:
        assert rows is not None
        shares = by_program(rows, "highs-ipm" if way == WAYS[0] else "highs-ds")
    seconds = time.process_time() - began
    mean, risk = true_risk(shares)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    return {"seconds": seconds, "megabytes": memory, "mean": mean, "risk": risk}


def row_of(way: str, scenarios: int, seeds: int, passes: int, best: tuple[float, float]) -> tuple[str, ...]:
    found = []
    for seed in range(seeds):
        command = [sys.executable, "-m", "benchmarks.scenarios", "--one", way, str(scenarios), str(seed), str(passes)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    regret = [best[0] - each["mean"] + best[1] * max(each["risk"] - BOUND, 0) for each in found]
    above = [each["risk"] - BOUND for each in found]
    seconds, megabytes = (np.median([each[name] for each in found]) for name in ("seconds", "megabytes"))
    shown = f"{1e4 * np.mean(regret):.2f} [{1e4 * max(regret):.2f}]"
    return way, f"{scenarios:,}", f"{seconds:.1f}", f"{megabytes:,.0f}", shown, f"{1e4 * np.mean(above):+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scenarios", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=30, help="draws of Lariax for each scenario")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--without", nargs="*", default=[], choices=WAYS, help="ways to leave out")
    parser.add_argument("--keep", type=Path, help="a file of finished rows, to go on from")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, began = parser.parse_args(), time.perf_counter()
    if options.one:
        print(json.dumps(one(options.one[0], *map(int, options.one[1:]))))
        return
    console, best = Console(width=140), reference()
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    for scenarios in SCENARIOS:
        for way in WAYS:
            key = f"{way}, {scenarios}"
            if way in options.without or key in kept:
                continue
            kept[key] = row_of(way, scenarios, options.seeds, options.passes, best)
            console.print(*kept[key], sep=" | ", highlight=False)
            if options.keep:
                options.keep.write_text(json.dumps(kept))
    if options.write:
        about = (
            f"{origin('benchmarks.scenarios', ('lariax', 'jax', 'scipy'), time.perf_counter() - began)} {ASSETS} "
            f"assets, CVaR ({LEVEL:.0%}) of the loss at most {BOUND}, {options.seeds} seeds. Lariax draws "
            f"{options.passes} times as many rows as there are scenarios, in batches of {BATCH}. "
            "Seconds of CPU and memory: medians. "
            "Regret: mean [largest], in basis points (1e-4 of the money), against the best portfolio of the "
            f"distribution, which earns {best[0]:.4f}; a unit of CVaR is worth {best[1]:.3f}. Above: CVaR over its "
            "bound on fresh scenarios, mean, in basis points."
        )
        head = ("way", "scenarios", "seconds", "MB", "regret", "above")
        write(
            "scenarios",
            "\n".join(["# A CVaR portfolio: linear program or sampling", "", about, "", *table(head, kept.values())]),
        )


if __name__ == "__main__":
    main()
