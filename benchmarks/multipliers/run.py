"""Runs, and what they are worth."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.multipliers.methods import ABLATIONS, FRONT, METHODS, Method, joined
from benchmarks.multipliers.scenarios import Scenario, Training
from lariax.tuned import pressure

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
    methods: dict[str, dict[str, Merit]]  # by measure and method


MEASURES = {
    "own": "in their own units",
    "range": "divided by their range over fixed weights",
    "own, settled": "in their own units, after `settle`",
    "range, settled": "divided by their range over fixed weights, after `settle`",
}
"""How violations are counted, and where."""
Ends = tuple[Outcome, Outcome]
"""At the end of training, and after `settle`."""


class Runs:
    """Runs made until now, kept in a file if there is one: a line each, added when it is done."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Ends] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            key, (trained, settled) = json.loads(line)
            self.known[key] = Outcome(*trained), Outcome(*settled)

    def get(self, name: str, scenario: Scenario, title: str, method: Method, setting: Any, seed: int) -> Ends:
        key = json.dumps([name, title, setting, seed])
        if key not in self.known:
            self.known[key] = train(scenario, seed, method, setting)
            print(key, *(round(x, 5) if x is not None else "" for end in self.known[key] for x in end), flush=True)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


def train(scenario: Scenario, seed: int, method: Method, setting: Any) -> Ends:
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
    trained = _outcome(training, seconds, last)
    begin = time.process_time()
    training.settle()
    seconds += time.process_time() - begin
    return trained, _outcome(training, seconds, last)


def _outcome(training: Training, seconds: float, last: list[np.ndarray]) -> Outcome:
    objective, residuals = training.exact()
    equality = not next(iter(training.constraints.values())).inequality
    broken = np.abs(residuals) if equality else np.maximum(residuals, 0)
    error = np.std(last, axis=0, ddof=1)[np.argmax(broken)] / len(last) ** 0.5
    quality = training.quality() if training.quality else None
    return Outcome(objective, float(broken.max()), seconds, quality, float(error))


def figures(
    known: dict[str, Scenario], tuning: Sequence[int], seeds: Sequence[int], wanted: list[str] | None, runs: Runs
) -> dict[str, Found]:
    """Of a method with a grid the setting counts that is best in the mean over the seeds for tuning."""
    methods = {"fixed weight": FRONT, **METHODS}
    chosen = {title: method for title, method in methods.items() if wanted is None or title in wanted}
    return {name: _found(partial(runs.get, name, scenario), chosen, tuning, seeds) for name, scenario in known.items()}


def _found(run: Callable[..., Ends], chosen: dict[str, Method], tuning: Sequence[int], seeds: Sequence[int]) -> Found:
    front = [run("fixed weight", FRONT, weight, tuning[0])[0] for weight in FRONT.grid]
    spreads = float(np.ptp([each.objective for each in front])), float(np.ptp([each.violation for each in front]))
    merits: dict[str, dict[str, Merit]] = {measure: {} for measure in MEASURES}
    for (title, method), measure in itertools.product(chosen.items(), MEASURES):
        price, end = 1.0 if measure.startswith("own") else 1 / spreads[1], int(measure.endswith("settled"))
        setting = method.grid[0]
        if len(method.grid) > 1:
            made = [[run(title, method, each, seed)[end] for seed in tuning] for each in method.grid]
            tuned = [_merit(each, spreads[0], price, which) for each, which in zip(made, method.grid, strict=True)]
            setting = min(tuned, key=lambda each: float(np.nan_to_num(each.merit, nan=np.inf))).setting
        merits[measure][title] = _merit(
            [run(title, method, setting, each)[end] for each in seeds], spreads[0], price, setting
        )
    return Found(spreads, merits)


def _merit(runs: list[Outcome], spread: float, price: float, setting: Any) -> Merit:
    merits = [run.objective / spread + 2 * price * run.violation for run in runs]
    error = float(np.std(merits, ddof=1) / len(merits) ** 0.5) if len(merits) > 1 else np.nan
    objective, violation, seconds = (float(np.mean([run[i] for run in runs])) for i in range(3))
    quality = (
        None if runs[0].quality is None else float(np.mean([run.quality for run in runs if run.quality is not None]))
    )
    kept = sum(run.violation <= 2 * run.error for run in runs)
    return Merit(float(np.mean(merits)), error, objective, violation, seconds, quality, setting, kept)


def ablations(known: dict[str, Scenario], seeds: Sequence[int], found: dict[str, Found]) -> dict[str, dict[str, float]]:
    """What the merit, with violations by their range, loses with a part of the rule turned off."""

    def merit(name: str, scenario: Scenario) -> float:
        spreads = found[name].spreads
        outcomes = [train(scenario, seed, METHODS["ours"], None)[0] for seed in seeds]
        return _merit(outcomes, spreads[0], 1 / spreads[1], None).merit

    whole = {name: merit(name, scenario) for name, scenario in known.items()}
    lost: dict[str, dict[str, float]] = {}
    for title, constants in ABLATIONS.items():
        before = {name: getattr(pressure, name) for name in constants}
        for name, value in constants.items():
            setattr(pressure, name, value)
        lost[title] = {name: merit(name, scenario) - whole[name] for name, scenario in known.items()}
        print(title, {name: round(each, 3) for name, each in lost[title].items()}, flush=True)
        for name, value in before.items():
            setattr(pressure, name, value)
    return lost
