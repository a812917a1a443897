"""Seeds of a case: solve on the samples, infer, compare with the truth."""

import time
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks.inference.cases import Case
from lariax.inference._infer import SURELY, assembled, candidates_of
from lariax.inference._models import MOST_STEPS, Stage, stepped, with_alternatives
from lariax.inference._moments import KeptSample, moments
from lariax.inference._samples import Extras, Wanted, sample_of

PARTS = ("estimate", "low", "high")
BATCH = 10  # rows an iteration of the runs over data sets
AWAY = 1.5  # standard errors of the start: as far from the solution as runs end


class Numbers(NamedTuple):
    """Of each seed, one row: x, multipliers, objective in one vector."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    truth: np.ndarray
    parts: dict[str, slice]
    refused: int
    seconds: float
    ambiguous: float = 0.0  # the share of seeds with a row that may or may not be active


def measured(case: Case, seeds: int) -> Numbers:
    """For as many seeds: data are solved on and inferred from one after another, fresh draws all together."""
    start = time.process_time()
    rows, ambiguous = _of_runs(case, range(seeds)) if case.data else _of_draws(case, seeds)
    estimate, low, high = np.stack(rows, axis=1)
    seconds = time.process_time() - start
    return Numbers(estimate, low, high, truth_of(case), parts_of(case), seeds - len(rows), seconds, ambiguous / seeds)


def _of_runs(case: Case, seeds: range) -> tuple[list[Any], int]:
    """A data set, a run over many epochs of it and `result.inference()` for each seed."""
    assert case.data is not None
    data = jax.jit(case.data)
    rows, ambiguous = [], 0
    for seed in seeds:
        problem = case.problem.with_sources({0: lx.Dataset(data(jax.random.key(1000 + seed)))})
        start, draws = jnp.zeros(case.truth.x.size), case.epochs * case.draws
        result = lx.solve(problem, start, draws=draws, batch_size=BATCH, seed=seed)
        try:
            found = result.inference()
        except lx.InferenceError:
            continue
        ambiguous += len(found.candidates) > 1
        rows.append([_flat(found, part) for part in PARTS])
    return rows, ambiguous


def _of_draws(case: Case, seeds: int) -> tuple[list[Any], int]:
    """`lx.inference` on draws of each seed's own, which take each step of Newton's method together."""
    keys = jax.random.split(jax.random.key(7), seeds)
    sample = sample_of(case.problem, jnp.asarray(case.truth.x), Wanted(None, case.draws), 0, Extras())
    look = eqx.filter_jit(jax.vmap(partial(_look, sample)))
    y = np.concatenate([np.ravel(y) for y in case.truth.multipliers.values()] or [np.zeros(0)])
    rng = np.random.default_rng(3)
    spread = AWAY / np.sqrt(case.draws)
    starts = case.truth.x + spread * rng.normal(size=(seeds, case.truth.x.size))
    starts = np.asarray(jax.vmap(case.problem.within.project)(jnp.asarray(starts)))
    stages = [Stage(z, y * rng.uniform(0.8, 1.2, y.size)) for z in starts]
    refused: set[int] = set()
    for _ in range(MOST_STEPS):
        seen = look(keys, jnp.stack([s.z for s in stages]), jnp.stack([s.y for s in stages]))
        seen = jax.tree.map(np.asarray, seen)
        for i, stage in enumerate(stages):
            if not stage.small and i not in refused:
                stages[i] = _step(sample, stage, jax.tree.map(lambda leaf, i=i: leaf[i], seen), i, refused)
        if all(s.small or i in refused for i, s in enumerate(stages)):
            break
    rows, ambiguous = [], 0
    for i, (stage, z) in enumerate(zip(stages, starts, strict=True)):
        if i not in refused and stage.small:
            fitted = with_alternatives(stage, SURELY)
            ambiguous += bool(fitted.ambiguous.any())
            found = assembled(sample, candidates_of(fitted), z, 0.95)
            rows.append([_flat(found, part) for part in PARTS])
    return rows, ambiguous


def _look(sample: KeptSample, key, z, y):
    sample = eqx.tree_at(lambda s: s.key, sample, jax.random.fold_in(key, 1))
    return moments(sample, z, y)


def _step(sample, stage, seen, i, refused) -> Stage:
    try:
        return stepped(sample.oracle, stage, seen)
    except lx.InferenceError:
        refused.add(i)
        return stage


def truth_of(case: Case) -> np.ndarray:
    truth = case.truth
    return np.concatenate([truth.x, *(np.ravel(y) for y in truth.multipliers.values()), [truth.objective]])


def parts_of(case: Case) -> dict[str, slice]:
    d, m = case.truth.x.size, sum(np.size(y) for y in case.truth.multipliers.values())
    return {"x": slice(0, d), "multipliers": slice(d, d + m), "objective": slice(d + m, d + m + 1)}


def _flat(found: lx.Inference, part: str) -> np.ndarray:
    multipliers = [np.ravel(getattr(each, part)) for each in found.multipliers.values()]
    return np.concatenate([np.ravel(getattr(found.x, part)), *multipliers, [getattr(found.objective, part)]])


def coverage(numbers: Numbers, part: str) -> float:
    """The share of seeds and entries whose interval holds the truth, over the entries that vary."""
    place = numbers.parts[part]
    truth, varies = numbers.truth[place], _varies(numbers, part)
    rounding = 1e-9 * (1 + np.abs(truth))
    inside = (numbers.low[:, place] <= truth + rounding) & (truth - rounding <= numbers.high[:, place])
    return float(np.mean(inside[:, varies])) if varies.any() else float("nan")


def width(numbers: Numbers, part: str) -> float:
    """Beside that of an oracle which knows how much the estimate varies: 2 * 1.96 * its standard deviation."""
    place, varies = numbers.parts[part], _varies(numbers, part)
    oracle = 2 * 1.959964 * np.std(numbers.estimate[:, place], axis=0)[varies]
    ratio = np.mean(numbers.high[:, place] - numbers.low[:, place], axis=0)[varies] / oracle
    return float(np.mean(ratio)) if varies.any() else float("nan")


def _varies(numbers: Numbers, part: str) -> np.ndarray:
    spread = np.std(numbers.estimate, axis=0)
    return (spread > 1e-9 * np.max(spread))[numbers.parts[part]]
