"""From Adam with multipliers to an exact phase: what TrackedLagrangian does in its first passes over the data.

    python -m benchmarks.multipliers.handover [--steps 300] [--seed 0]

Adult, 64-32, a loss gap of 0.005: Adam with `Multipliers`, then `TrackedLagrangian` on the same batches, once from
those multipliers and once from none. The multiplier is the net one of the gap, which is bounded from both sides.
"""

import argparse
import copy
import itertools
from pathlib import Path

import numpy as np
import torch

import lariax.torch as lt
from benchmarks.multipliers.scenarios import Training, scenarios


def net(multipliers: dict[str, object]) -> float:
    """Of the gap: the two sides pull against each other."""
    one, other = np.ravel(np.asarray(multipliers["c"]))
    return float(other - one)


def said(training: Training, multipliers: dict[str, object]) -> str:
    objective, residuals = training.exact()
    return f"objective {objective:.4f}, {residuals.max():+.4f} beyond the bound, multiplier {net(multipliers):.2f}"


def adam(training: Training, steps: int, rate_at: object) -> lt.Multipliers:
    optimizer = torch.optim.Adam(training.model.parameters(), lr=1.0)
    multipliers = lt.Multipliers(training.constraints, steps=steps, parameters=training.model.parameters())
    for k, batch in zip(range(1, steps + 1), training.batches, strict=False):
        optimizer.param_groups[0]["lr"] = rate_at(k)  # type: ignore[operator]
        optimizer.zero_grad()
        multipliers.lagrangian(*training.closure(batch)).backward()
        optimizer.step()
    return multipliers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = scenarios(options.data)["adult"]
    training = scenario.make(options.seed)
    multipliers = adam(training, scenario.steps, scenario.rate_at)
    print(f"Adam: {said(training, multipliers.multipliers)}")
    batches = list(itertools.islice(training.batches, options.steps))
    start = copy.deepcopy(training.model.state_dict())
    for title, given in (("given", {"multipliers": multipliers.multipliers}), ("none", {})):
        training.model.load_state_dict(start)
        exact = lt.TrackedLagrangian(training.model, training.constraints, **given)
        for k, batch in enumerate(batches, 1):
            exact.step(training.closure, batch)
            if k in (20, 50, 100, 200, options.steps):
                print(f"{title}, {k}: {said(training, exact.multipliers)}", flush=True)


if __name__ == "__main__":
    main()
