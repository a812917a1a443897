"""After training, `Multipliers.settle`: steps onto the bounds, with means over all training rows.

    python -m benchmarks.multipliers.settling --data FOLDER [--seeds 20 21 22 30 31 32] [--methods NAME ...]

Adult, 64-32, a loss gap of 0.005: what the end of training, and that of those steps, is worth, for ours and for each
peer at the setting that is best on the benchmark's page, violations by their range.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.multipliers.methods import METHODS
from benchmarks.multipliers.scenarios import Scenario, Training, scenarios

BEST = {
    "ours": None,
    "dual ascent": 1e-2,
    "augmented": (1e-2, 1.0),
    "PID": (1.0, 1e-2, 10.0),
    "cooper nuPI": (1e-2, 10.0),
    "penalty-barrier": ("dimin_adapt", 0.9),
}


def ends(training: Training) -> list[float]:
    assert training.quality is not None
    objective, residuals = training.exact()
    return [objective, max(float(residuals.max()), 0.0), training.quality()]


def run(scenario: Scenario, title: str, seed: int) -> list[float]:
    """Objective, violation and AUC, and seconds of the processor, before and after."""
    training = scenario.make(seed)
    optimizer = torch.optim.Adam(training.model.parameters(), lr=scenario.rate)
    weigh = METHODS[title].build(training, scenario.steps, BEST[title])
    begin = time.process_time()
    for k, batch in zip(range(1, scenario.steps + 1), training.batches, strict=False):
        optimizer.param_groups[0]["lr"] = scenario.rate_at(k)
        optimizer.zero_grad()
        weigh(*training.closure(batch)).backward()
        optimizer.step()
    trained = time.process_time() - begin
    before, begin = ends(training), time.process_time()
    training.settle()
    return [*before, trained, *ends(training), trained + time.process_time() - begin]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, nargs="*", default=[20, 21, 22, 30, 31, 32])
    parser.add_argument("--methods", nargs="*", default=list(BEST), choices=list(BEST))
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = scenarios(options.data)["adult"]
    print("| method | objective | violation | AUC | seconds | objective | violation | AUC | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for title in options.methods:
        found = np.array([run(scenario, title, seed) for seed in options.seeds])
        for some in (slice(0, 3), slice(3, None)):
            if len(found[some]):
                mean = found[some].mean(axis=0)
                cells = [f"{each:.2f}" if i in (3, 7) else f"{each:.4f}" for i, each in enumerate(mean)]
                print(f"| {title}, {options.seeds[some]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
