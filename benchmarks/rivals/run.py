"""Tune every method on a grid, run the best setting on fresh seeds, say when it got there."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks.rivals.methods import DEFAULT, ENTRIES, Scales
from benchmarks.rivals.problems import problems
from benchmarks.suite.limits import Solved, solve
from lariax.methods import AbstractMethod

DRAWS, TUNING_DRAWS = 400_000, 100_000
BATCH = 2
TUNING_SEEDS, SEEDS = (1000, 1001), tuple(range(8))
PLACES = 28  # numbers of draws at which a run is looked at, from 1 / 1000 of the budget on
TARGETS = (1e-1, 1e-2, 1e-3)


@dataclass(frozen=True)
class Track:
    """Runs of one method on one problem: (seeds, places) of draws, and of stationarity and feasibility."""

    problem: str
    method: str
    setting: str
    draws: np.ndarray
    errors: np.ndarray  # (seeds, places, 2)
    pace: float  # seconds of CPU time a draw

    @property
    def worse(self) -> np.ndarray:
        """The larger of stationarity and feasibility."""
        return self.errors.max(axis=2)

    def reached(self, target: float) -> np.ndarray:
        """By seed, draws at the first place at which both are within the target; infinite if there is none."""
        good = self.worse <= target
        there = self.draws[np.arange(len(good)), np.argmax(good, axis=1)]
        return np.where(good.any(axis=1), there, np.inf)


def scales_of(solved: Solved) -> Scales:
    free = int(solved.free.sum())
    return Scales(
        float(np.linalg.norm(solved.kkt[:free, :free], 2)), float(np.linalg.norm(solved.kkt[free:, :free], 2))
    )


def _errors(solved: Solved, x: jax.Array) -> np.ndarray:
    """(stationarity, feasibility); infinite at a point that is not finite."""
    found = np.asarray(solved.errors(x[None]))[0, :2]
    return np.where(np.isfinite(found), found, np.inf)


def _follow(solved: Solved, method: AbstractMethod | str, seed: int, places: np.ndarray) -> tuple[list, list]:
    """One run, looked at after each number of draws: the draws it took, and its errors there."""
    problem, draws, errors = solved.case.problem, [], []
    result, spent = solved.case.x0, 0
    for place in places:
        if spent == 0:
            result = lx.solve(problem, result, method, draws=int(place), batch_size=BATCH, seed=seed)
        elif result.status != "diverged":
            result = lx.solve(problem, result, draws=int(place - spent))
        spent = place
        draws.append(place)
        errors.append(_errors(solved, result.x) if result.status != "diverged" else np.full(2, np.inf))
    return draws, errors


def _pace(solved: Solved, method: AbstractMethod | str, budget: int) -> float:
    """CPU seconds a draw, in one uninterrupted run of code that is compiled already."""
    began = time.process_time()
    result = lx.solve(solved.case.problem, solved.case.x0, method, draws=budget, batch_size=BATCH)
    return (time.process_time() - began) / result.draws


def _tuned(solved: Solved, name: str, budget: int) -> tuple[AbstractMethod, str]:
    """The setting of the grid whose larger error in the end is least, in the geometric mean over the tuning seeds."""
    entry, scales = ENTRIES[name], scales_of(solved)

    def score(setting: tuple[float, float]) -> float:
        method = entry.make(scales, *setting)
        ends = [_follow(solved, method, seed, np.array([budget]))[1][-1].max() for seed in TUNING_SEEDS]
        return float(np.mean(np.log(ends)))

    best = min(entry.grid, key=score)
    return entry.make(scales, *best), f"{entry.first} {best[0]:g}, {entry.meaning} {best[1]:g}"


def _untuned(solved: Solved) -> tuple[str, str]:
    """The choice of `lx.solve`, and a word on which it was."""
    result = lx.solve(solved.case.problem, solved.case.x0, "auto", iterations=1, batch_size=BATCH)
    return "auto", f"none ({type(result.continuation.method).__name__})"


def track(problem: str, name: str, found: np.ndarray, data: Path | None, budget: int) -> Track:
    """Tune a method, then run it on the seeds of the report. `found` is the solution."""
    case = problems(data)[0][problem][1]()
    solved = solve(replace(case, guess=jnp.asarray(found)))
    tuning = min(TUNING_DRAWS, budget)
    method, setting = _untuned(solved) if name == DEFAULT else _tuned(solved, name, tuning)
    places = np.unique(np.geomspace(budget / 1000, budget, PLACES).astype(int))
    draws, errors = zip(*(_follow(solved, method, seed, places) for seed in SEEDS), strict=True)
    return Track(problem, name, setting, np.asarray(draws), np.asarray(errors), _pace(solved, method, tuning))


def jobs(data: Path | None, only: list[str] | None) -> list[tuple[str, str]]:
    """(problem, method), for every method of the problem's case."""
    pairs = []
    for problem, (case, _) in problems(data)[0].items():
        if only is None or problem in only:
            names = [name for name, entry in ENTRIES.items() if case in entry.cases]
            pairs += [(problem, name) for name in (DEFAULT, *names)]
    return pairs


def tracks(pairs: list[tuple[str, str]], data: Path | None, budget: int, processes: int) -> Iterator[Track]:
    """All of them, side by side in processes of one thread each."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=in_double_precision) as pool:
        names = list(dict.fromkeys(problem for problem, _ in pairs))
        solutions = dict(zip(names, pool.map(solution, names, [data] * len(names)), strict=True))
        running = [pool.submit(track, problem, name, solutions[problem], data, budget) for problem, name in pairs]
        for job in as_completed(running):
            yield job.result()


def in_double_precision() -> None:
    jax.config.update("jax_enable_x64", True)


def solution(problem: str, data: Path | None) -> np.ndarray:
    solved = solve(problems(data)[0][problem][1]())
    if not solved.residual < 1e-8:
        raise RuntimeError(f"{problem}: the exact solution was not found, the KKT residual is {solved.residual:.1e}.")
    return np.asarray(solved.x)
