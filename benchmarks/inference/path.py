"""The second opinion: random scaling along runs of the default method."""

import time

import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks.inference.cases import D, cases
from benchmarks.inference.run import Numbers, parts_of, truth_of


def measured(seeds: int, iterations: int = 10_000) -> tuple[str, Numbers]:
    """One run a seed, each with a path of its own."""
    start = time.process_time()
    case = next(case for case in cases() if case.name == "noisy equality")
    rows = []
    for seed in range(seeds):
        path = lx.RandomScaling()
        result = lx.solve(case.problem, jnp.zeros(D), iterations=iterations, callback=path, seed=seed)
        found = result.inference(method=path)
        rows.append([_flat(found, part) for part in ("estimate", "low", "high")])
    estimate, low, high = np.stack(rows, axis=1)
    seconds = time.process_time() - start
    name = f"noisy equality, random scaling along {seeds} runs of {iterations:,} draws"
    return name, Numbers(estimate, low, high, truth_of(case), parts_of(case) | {"objective": slice(0, 0)}, 0, seconds)


def _flat(found: lx.Inference, part: str) -> np.ndarray:
    return np.append(getattr(found.x, part), [getattr(found.multipliers["c"], part), 0.0])
