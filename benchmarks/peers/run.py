"""Tune a rival on its grid, follow the best setting over fresh seeds. Clocks stand still while a point is looked at."""

import itertools
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

import lariax as lx
import lariax.torch as lt
from benchmarks.peers.methods import JAX, RIVALS, TORCH, Build, Setting, with_lariax
from benchmarks.peers.tasks import Heldout, Look, Task

SEEDS, TUNING_SEED = (0, 1, 2), 1000
LOOKS = 24
ROUNDS = ((None, 1 / 12, 6), (5, 1 / 3, 9), (2, 1, 12))
"""Of tuning: how many settings (None: all), which share of the budget each, how many looks."""

WEIGHT = 10.0
"""Of the excess in the merit of a setting: more than any multiplier here, so that the solution has the least merit."""

CHUNK = 10  # batches that are drawn before the clock runs
PIECE = 50  # iterations of a compiled run between two looks at the clock, at least


class Trace(NamedTuple):
    """Where a run stood at its looks."""

    seconds: list[float]
    draws: list[int]
    looks: list[Look]

    @property
    def table(self) -> np.ndarray:
        """(looks, 3): loss, excess, quality."""
        return np.asarray(self.looks, float)

    @property
    def merit(self) -> float:
        """Loss and weighted excess, in the mean over the last third of the looks."""
        late = self.table[-(len(self.looks) // 3) :]
        merit = float(np.mean(late[:, 0] + WEIGHT * np.maximum(late[:, 1], 0)))
        return merit if np.isfinite(merit) else np.inf


class Outcome(NamedTuple):
    """Of one method on one problem."""

    problem: str
    method: str
    setting: Setting
    tuning: list[tuple[Setting, Trace]]
    traces: list[Trace]  # of the best setting, by seed
    heldout: list[Heldout | None]
    compiling: float  # seconds, before the clock
    spent: float  # seconds of CPU time on all of it


def clock(seconds: float, looks: int) -> np.ndarray:
    """When to look: close together at first, as the square of evenly spaced numbers."""
    return seconds * (np.arange(1, looks + 1) / looks) ** 2


class Stepping:
    """A training loop in torch. Batches are drawn off the clock."""

    def __init__(self, task: Task, model: torch.nn.Module, build: Build, setting: Setting, seed: int) -> None:
        self.task, self.batches = task, task.batches(seed)
        began = time.process_time()
        self.step = build(task, model, setting)
        self.spent, self.iterations, self.compiling = time.process_time() - began, 0, 0.0

    def advance(self, until: float) -> None:
        while self.spent < until:
            some = list(itertools.islice(self.batches, CHUNK))
            began = time.process_time()
            for batch in some:
                self.step(batch)
            self.spent += time.process_time() - began
            self.iterations += CHUNK


class Compiled:
    """`lx.solve`, piece by piece. Compiling is off the clock, and reported; draws are made on the clock."""

    def __init__(self, task: Task, model: torch.nn.Module, seed: int) -> None:
        self.task, self.model, self.seed = task, model, seed
        self.x0, self.result = task.point(model), None
        self.spent, self.iterations, self.pace = 0.0, 0, np.inf
        began = time.process_time()
        for _ in range(2):
            self._more(PIECE)
        self.compiling = time.process_time() - began
        self.spent, self.iterations, self.result = 0.0, 0, None

    def _more(self, iterations: int) -> None:
        began = time.process_time()
        if self.result is None:
            size = self.task.shape.batch
            self.result = lx.solve(self.task.problem, self.x0, iterations=iterations, batch_size=size, seed=self.seed)
        else:
            self.result = lx.solve(self.task.problem, self.result, iterations=iterations)
        jax.block_until_ready(self.result.x)
        took = time.process_time() - began
        self.pace = took / iterations
        self.spent += took
        self.iterations += iterations

    def advance(self, until: float) -> None:
        while self.spent < until:
            self._more(max(PIECE, int((until - self.spent) / self.pace)))
        self.task.load(self.model, self.result.x)


def followed(task: Task, runner: Stepping | Compiled, model: torch.nn.Module, seconds: float, looks: int) -> Trace:
    trace = Trace([], [], [])
    for moment in clock(seconds, looks):
        runner.advance(moment)
        trace.seconds.append(runner.spent)
        trace.draws.append(runner.iterations * task.shape.batch * task.shape.draws)
        trace.looks.append(task.look(model))
        if not np.isfinite(trace.looks[-1].loss):
            break
    return trace


def _run(task: Task, name: str, setting: Setting, seed: int, seconds: float, looks: int) -> tuple[Trace, Any, float]:
    model = task.model(seed)
    if name == JAX:
        runner = Compiled(task, model, seed)
    else:
        build = with_lariax(lt.TrackedLagrangian) if name == TORCH else RIVALS[name].build
        runner = Stepping(task, model, build, setting, seed)
    trace = followed(task, runner, model, seconds, looks)
    return trace, model, runner.compiling


def tuned(task: Task, name: str, settings: list[Setting]) -> tuple[Setting, list[tuple[Setting, Trace]]]:
    """Successive halving on one seed and on training rows: the best of a short round have a longer one."""
    tried: list[tuple[Setting, Trace]] = []
    for keep, share, looks in ROUNDS:
        chosen = settings[:keep]
        seconds = share * task.shape.seconds
        ran = [(setting, _run(task, name, setting, TUNING_SEED, seconds, looks)[0]) for setting in chosen]
        tried += ran
        settings = [setting for setting, trace in sorted(ran, key=lambda pair: pair[1].merit)]
    return settings[0], tried


def outcome(task: Task, problem: str, name: str, settings: int | None, seeds: int) -> Outcome:
    """`settings` shortens the grid, for a quick look; None is all of it."""
    torch.set_num_threads(1)
    began = time.process_time()
    if name != JAX:  # what is loaded and allocated at the first use
        _run(task, name, {} if name == TORCH else RIVALS[name].grid[0], TUNING_SEED, 0.05, 1)
    setting, tried = ({}, []) if name in (JAX, TORCH) else tuned(task, name, RIVALS[name].grid[:settings])
    traces, heldout, compiling = [], [], 0.0
    for seed in SEEDS[:seeds]:
        trace, model, more = _run(task, name, setting, seed, task.shape.seconds, LOOKS)
        traces.append(trace)
        heldout.append(task.judge(model))
        compiling = max(compiling, more)
    return Outcome(problem, name, setting, tried, traces, heldout, compiling, time.process_time() - began)
