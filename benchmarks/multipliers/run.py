"""Runs, and what they are worth."""

import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.multipliers.methods import ABLATIONS, FRONT, METHODS, PLAIN, Method, Weigh
from benchmarks.multipliers.scenarios import Scenario
from lariax.tuned import _pressure


class Outcome(NamedTuple):
    objective: float
    violation: float
    seconds: float
    quality: float | None


class Merit(NamedTuple):
    """Of a method's best setting, in the mean over seeds."""

    merit: float
    error: float  # standard error of that mean
    objective: float
    violation: float
    seconds: float
    quality: float | None
    setting: Any


class Found(NamedTuple):
    """All that was found on one scenario."""

    spreads: tuple[float, float]  # of objective and violation over the front
    methods: dict[str, Merit]


def kept(path: Path | None) -> dict[str, Found]:
    """Figures from an earlier run."""
    if path is None or not path.exists():
        return {}
    stored = json.loads(path.read_text())
    return {n: Found(tuple(s), {t: Merit(*m) for t, m in methods.items()}) for n, (s, methods) in stored.items()}


def keep(path: Path | None, found: dict[str, Found]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1))


def train(scenario: Scenario, seed: int, method: Method, setting: Any) -> Outcome:
    """One run."""
    training = scenario.make(seed)
    optimizer = torch.optim.Adam(training.model.parameters(), lr=scenario.rate)
    weigh = method.build(training, scenario.steps, setting)
    begin = time.perf_counter()
    for k, batch in zip(range(1, scenario.steps + 1), training.batches, strict=False):
        optimizer.param_groups[0]["lr"] = scenario.rate_at(k)
        losses, values = training.closure(batch)
        optimizer.zero_grad()
        weigh(losses, values).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    objective, residuals = training.exact()
    equality = not next(iter(training.constraints.values())).inequality
    violation = float(np.abs(residuals).max() if equality else np.maximum(residuals, 0).max())
    return Outcome(objective, violation, seconds, training.quality() if training.quality else None)


def figures(known: dict[str, Scenario], seeds: int, wanted: list[str] | None) -> dict[str, Found]:
    found = {}
    for name, scenario in known.items():
        front = [train(scenario, 0, FRONT, weight) for weight in FRONT.grid]
        spreads = tuple(float(np.ptp([run[part] for run in front])) for part in range(2))
        chosen = {}
        for title, method in METHODS.items():
            if wanted is None or title in wanted:
                chosen[title] = best(scenario, seeds, method, spreads)
                print(name, title, chosen[title], flush=True)
        chosen["fixed weight"] = best(scenario, seeds, FRONT, spreads)
        print(name, "fixed weight", chosen["fixed weight"], flush=True)
        found[name] = Found(spreads, chosen)
    return found


def best(scenario: Scenario, seeds: int, method: Method, spreads: tuple[float, ...]) -> Merit:
    """Of the setting that is best for the first seed, in the mean over all."""
    first = [(train(scenario, 0, method, setting), setting) for setting in method.grid]
    run, setting = min(first, key=lambda pair: np.nan_to_num(_merits([pair[0]], spreads)[0], nan=np.inf))
    return _merit([run, *(train(scenario, seed, method, setting) for seed in range(1, seeds))], spreads, setting)


def _merits(runs: list[Outcome], spreads: tuple[float, ...]) -> list[float]:
    return [run.objective / spreads[0] + 2 * run.violation / spreads[1] for run in runs]


def _merit(runs: list[Outcome], spreads: tuple[float, ...], setting: Any) -> Merit:
    merits = _merits(runs, spreads)
    error = float(np.std(merits, ddof=1) / len(merits) ** 0.5) if len(merits) > 1 else np.nan
    objective, violation, seconds = (float(np.mean([run[i] for run in runs])) for i in range(3))
    quality = (
        None if runs[0].quality is None else float(np.mean([run.quality for run in runs if run.quality is not None]))
    )
    return Merit(float(np.mean(merits)), error, objective, violation, seconds, quality, setting)


def cost(scenario: Scenario, repeats: int = 9, inner: int = 256) -> tuple[float, float, float]:
    """Microseconds of processor time of a step with a fixed weight and with ours, in turns, and the median ratio."""
    training = scenario.make(0)
    optimizer = torch.optim.Adam(training.model.parameters(), lr=0.0)
    batches = itertools.cycle(list(itertools.islice(training.batches, 64)))
    ways = [method.build(training, 10_000, setting) for method, setting in ((PLAIN, 0.1), (METHODS["ours"], None))]

    def clock(weigh: Weigh) -> float:
        begin = time.process_time()
        for batch in itertools.islice(batches, inner):
            losses, values = training.closure(batch)
            optimizer.zero_grad()
            weigh(losses, values).backward()
            optimizer.step()
        return (time.process_time() - begin) / inner * 1e6

    for weigh in ways:
        clock(weigh)
    pairs = [tuple(clock(weigh) for weigh in ways) for _ in range(repeats)]
    plain, own = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return plain, own, float(np.median([b / a for a, b in pairs]))


def ablations(known: dict[str, Scenario], seeds: int, found: dict[str, Found]) -> dict[str, dict[str, float]]:
    """What the merit loses with a part of the rule turned off."""
    whole = {name: best(each, seeds, METHODS["ours"], found[name].spreads).merit for name, each in known.items()}
    lost: dict[str, dict[str, float]] = {}
    for title, constants in ABLATIONS.items():
        kept = {name: getattr(_pressure, name) for name in constants}
        for name, value in constants.items():
            setattr(_pressure, name, value)
        lost[title] = {
            name: best(scenario, seeds, METHODS["ours"], found[name].spreads).merit - whole[name]
            for name, scenario in known.items()
        }
        for name, value in kept.items():
            setattr(_pressure, name, value)
    return lost
