"""Runs, and what they are worth."""

import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.multipliers.methods import ABLATIONS, FRONT, METHODS, Method, joined
from benchmarks.multipliers.scenarios import Scenario
from lariax.tuned import _pressure

WINDOW = 0.05  # share of the steps whose batches say how well a value at the end can be known


class Outcome(NamedTuple):
    objective: float
    violation: float
    seconds: float  # of the processor
    quality: float | None
    error: float  # standard error of the mean value of the worst constraint over the last window of batches


class Merit(NamedTuple):
    """Of a method's best setting, in the mean over seeds."""

    merit: float
    error: float  # standard error of that mean
    objective: float
    violation: float
    seconds: float
    quality: float | None
    setting: Any
    kept: int  # seeds whose violation is below two standard errors of the last window


class Found(NamedTuple):
    """All that was found on one scenario."""

    spreads: tuple[float, float]  # of objective and violation over the front
    methods: dict[str, Merit]


class Runs:
    """Runs made until now, kept in a file if there is one: a line each, added when it is done."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Outcome] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            key, outcome = json.loads(line)
            self.known[key] = Outcome(*outcome)

    def get(self, name: str, scenario: Scenario, title: str, method: Method, setting: Any, seed: int) -> Outcome:
        key = json.dumps([name, title, setting, seed])
        if key not in self.known:
            self.known[key] = train(scenario, seed, method, setting)
            print(key, *(round(x, 4) if x is not None else "" for x in self.known[key]), flush=True)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


def train(scenario: Scenario, seed: int, method: Method, setting: Any) -> Outcome:
    """One run."""
    training = scenario.make(seed)
    optimizer = torch.optim.Adam(training.model.parameters(), lr=scenario.rate)
    weigh = method.build(training, scenario.steps, setting)
    last: list[np.ndarray] = []
    begin = time.process_time()
    for k, batch in zip(range(1, scenario.steps + 1), training.batches, strict=False):
        optimizer.param_groups[0]["lr"] = scenario.rate_at(k)
        losses, values = training.closure(batch)
        optimizer.zero_grad()
        weigh(losses, values).backward()
        optimizer.step()
        if k > (1 - WINDOW) * scenario.steps:
            last.append(joined(training, values).values.double().numpy())
    seconds = time.process_time() - begin
    objective, residuals = training.exact()
    equality = not next(iter(training.constraints.values())).inequality
    broken = np.abs(residuals) if equality else np.maximum(residuals, 0)
    error = np.std(last, axis=0, ddof=1)[np.argmax(broken)] / len(last) ** 0.5
    quality = training.quality() if training.quality else None
    return Outcome(objective, float(broken.max()), seconds, quality, float(error))


FINALISTS = 2  # settings of a grid that go on to the other seeds


def figures(known: dict[str, Scenario], seeds: int, wanted: list[str] | None, runs: Runs) -> dict[str, Found]:
    """Of a method with a grid the settings that are best for the first seed go on, and the best of those in the mean
    over all seeds counts."""
    methods = {"fixed weight": FRONT, **METHODS}
    chosen = {title: method for title, method in methods.items() if wanted is None or title in wanted}
    spreads = {}
    for name, scenario in known.items():
        front = [runs.get(name, scenario, "fixed weight", FRONT, weight, 0) for weight in FRONT.grid]
        spreads[name] = tuple(float(np.ptp([run[part] for run in front])) for part in range(2))
    for (name, scenario), (title, method) in itertools.product(known.items(), chosen.items()):
        for setting in method.grid:
            runs.get(name, scenario, title, method, setting, 0)
    return {
        name: Found(
            spreads[name],
            {
                title: best(name, scenario, title, method, seeds, spreads[name], runs)
                for title, method in chosen.items()
            },
        )
        for name, scenario in known.items()
    }


def best(
    name: str, scenario: Scenario, title: str, method: Method, seeds: int, spreads: tuple[float, ...], runs: Runs
) -> Merit:
    def merit(setting: Any, count: int) -> Merit:
        outcomes = [runs.get(name, scenario, title, method, setting, seed) for seed in range(count)]
        return _merit(outcomes, spreads, setting)

    def order(found: Merit) -> float:
        return float(np.nan_to_num(found.merit, nan=np.inf))

    first = sorted((merit(setting, 1) for setting in method.grid), key=order)
    return min((merit(found.setting, seeds) for found in first[:FINALISTS]), key=order)


def _merits(runs: list[Outcome], spreads: tuple[float, ...]) -> list[float]:
    return [run.objective / spreads[0] + 2 * run.violation / spreads[1] for run in runs]


def _merit(runs: list[Outcome], spreads: tuple[float, ...], setting: Any) -> Merit:
    merits = _merits(runs, spreads)
    error = float(np.std(merits, ddof=1) / len(merits) ** 0.5) if len(merits) > 1 else np.nan
    objective, violation, seconds = (float(np.mean([run[i] for run in runs])) for i in range(3))
    quality = (
        None if runs[0].quality is None else float(np.mean([run.quality for run in runs if run.quality is not None]))
    )
    kept = sum(run.violation <= 2 * run.error for run in runs)
    return Merit(float(np.mean(merits)), error, objective, violation, seconds, quality, setting, kept)


def ablations(known: dict[str, Scenario], seeds: int, found: dict[str, Found]) -> dict[str, dict[str, float]]:
    """What the merit loses with a part of the rule turned off."""

    def merit(name: str, scenario: Scenario) -> float:
        outcomes = [train(scenario, seed, METHODS["ours"], None) for seed in range(seeds)]
        return _merit(outcomes, found[name].spreads, None).merit

    whole = {name: merit(name, scenario) for name, scenario in known.items()}
    lost: dict[str, dict[str, float]] = {}
    for title, constants in ABLATIONS.items():
        before = {name: getattr(_pressure, name) for name in constants}
        for name, value in constants.items():
            setattr(_pressure, name, value)
        lost[title] = {name: merit(name, scenario) - whole[name] for name, scenario in known.items()}
        for name, value in before.items():
            setattr(_pressure, name, value)
    return lost
