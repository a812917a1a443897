"""Do the recipes of the documentation keep their bounds? Rates as constraints, on many data sets.

    python -m benchmarks.recipes [--data FOLDER] [--passes 12] [--seeds 2] [--write]

Every recipe of docs/torch.md for a rate (recall, false alarms, precision) is trained as it stands there, with a linear
model and a 64-32 network, on data sets with usual and with rare positives (3 %): by Adam with `lt.Multipliers`, by
`lt.TrackedLagrangian`, and by Adam with a multiplier written by hand, the best of four rates of dual ascent (by merit:
loss + 2 x violation). For each: the rate on all training rows, the area under the ROC curve, and the range of the
multiplier in the second half of the run, marked with `!` where the optimizer warned that it does not get on. A rate is
marked with `*` where the recipe's last line, the certificate on all training rows, says that its bound is not kept.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import lariax as lx
import lariax.torch as lt
from benchmarks._results import origin, progress, table, write
from benchmarks.suite.problems import DATA, read_svm

ROWS, BATCH, RARE, STEP = 8000, 128, 0.03, 3e-3
HIDDEN: dict[str, tuple[int, ...]] = {"linear": (), "64-32": (64, 32)}
DUAL_RATES = (0.01, 0.1, 1.0, 10.0)
SLIGHT = 0.01  # of a rate


class Data(NamedTuple):
    name: str
    x: Tensor
    y: Tensor


class Recipe(NamedTuple):
    """A rate as docs/torch.md writes it: values and surrogate row by row, and the rate for people."""

    name: str
    constraint: lt.AtLeast | lt.AtMost
    values: Callable[[Tensor, Tensor, Tensor], lt.Proxy]  # decisions, labels, losses
    rate: Callable[[Tensor, Tensor], float]
    bound: float

    def excess(self, rate: float) -> float:
        """By how much the bound is missed."""
        return max(0.0, self.bound - rate if isinstance(self.constraint, lt.AtLeast) else rate - self.bound)


RECIPES = [
    Recipe(
        "recall >= 0.9",
        lt.AtLeast(0.0),
        lambda hit, y, losses: lt.Proxy((hit - 0.9) * y, -losses * y),
        lambda hit, y: float(hit[y > 0].mean()),
        0.9,
    ),
    Recipe(
        "false alarms <= 0.05",
        lt.AtMost(0.0),
        lambda hit, y, losses: lt.Proxy((hit - 0.05) * (1 - y), losses * (1 - y)),
        lambda hit, y: float(hit[y < 1].mean()),
        0.05,
    ),
    Recipe(
        "precision >= 0.8",
        lt.AtLeast(0.0),
        lambda hit, y, losses: lt.Proxy((y - 0.8) * hit, -losses),
        lambda hit, y: float(y[hit > 0].mean()) if bool((hit > 0).any()) else 1.0,
        0.8,
    ),
]


def data_sets(folder: Path) -> Iterator[Data]:
    for name in ("a9a", "mushrooms", "splice", "german.numer", "australian", "ionosphere"):
        if (folder / f"{name}.npz").exists():
            yield _ready(name, *read_svm(folder / f"{name}.npz"))
    for name in ("a9a", "mushrooms"):
        if (folder / f"{name}.npz").exists():
            yield _ready(f"{name}, rare", *_rarer(*read_svm(folder / f"{name}.npz")))
    rng = np.random.default_rng(0)
    rows = (rng.random((ROWS, 300)) < 0.1).astype(float)
    score = rows @ rng.normal(size=300)
    yield _ready("300 binary features, rare", rows, np.where(score > np.quantile(score, 1 - RARE), 1, -1))


def _ready(name: str, rows: np.ndarray, labels: np.ndarray) -> Data:
    chosen = np.random.default_rng(0).permutation(len(rows))[:ROWS]
    rows, labels = np.asarray(rows[chosen], float), labels[chosen]
    if not np.isin(rows, (0, 1)).all():
        rows = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-12)
    return Data(name, torch.tensor(rows, dtype=torch.float32), torch.tensor(labels > 0, dtype=torch.float32))


def _rarer(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    positive, negative = np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0)
    few = positive[: int(RARE / (1 - RARE) * len(negative))]
    kept = np.concatenate([few, negative])
    return rows[kept], labels[kept]


def network(data: Data, hidden: tuple[int, ...], seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    sizes, layers = (data.x.shape[1], *hidden, 1), []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [torch.nn.ReLU()] * (i > 0) + [torch.nn.Linear(a, b)]
    return torch.nn.Sequential(*layers)


def batches(data: Data, passes: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        order = torch.randperm(len(data.y), generator=generator)
        yield from (part for part in order.split(BATCH) if len(part) == BATCH)


def closure_of(data: Data, recipe: Recipe, model: torch.nn.Module) -> Callable[[Tensor], tuple[Tensor, dict]]:
    def closure(rows: Tensor) -> tuple[Tensor, dict]:
        out, y = model(data.x[rows]).squeeze(1), data.y[rows]
        losses = binary_cross_entropy_with_logits(out, y, reduction="none")
        return losses, {"rate": recipe.values((out > 0).float(), y, losses)}

    return closure


class Outcome(NamedTuple):
    rate: float
    loss: float
    auc: float
    multipliers: tuple[float, float]  # the range over the last half
    seconds: float
    warned: bool = False
    refuted: bool = False  # by the certificate


def by_ours(data: Data, recipe: Recipe, hidden: tuple[int, ...], passes: int, seed: int) -> Outcome:
    begin, model, seen = time.process_time(), network(data, hidden, seed), []
    optimizer, closure = lt.TrackedLagrangian(model, {"rate": recipe.constraint}), closure_of(data, recipe, model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in batches(data, passes, seed):
            optimizer.step(closure, rows)
            if multipliers := optimizer.multipliers:
                seen.append(float(multipliers["rate"]))
    outcome = _outcome(data, recipe, model, seen, time.process_time() - begin)
    warned = any(isinstance(each.message, lx.LariaxWarning) for each in told)
    return outcome._replace(warned=warned, refuted=is_refuted(data, model, closure, optimizer))


def by_multipliers(data: Data, recipe: Recipe, hidden: tuple[int, ...], passes: int, seed: int) -> Outcome:
    """Adam, with its usual step, and our multipliers; in the end, onto the bound."""
    begin, model, seen = time.process_time(), network(data, hidden, seed), []
    adam, closure = torch.optim.Adam(model.parameters(), lr=STEP), closure_of(data, recipe, model)
    steps = passes * (len(data.y) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    multipliers = lt.Multipliers({"rate": recipe.constraint}, steps=steps, parameters=model.parameters())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in batches(data, passes, seed):
            loss = multipliers.lagrangian(*closure(rows))
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            seen.append(float(multipliers["rate"]))
        multipliers.settle(closure, torch.arange(len(data.y)).split(BATCH))
    outcome = _outcome(data, recipe, model, seen, time.process_time() - begin)
    return outcome._replace(warned=bool(told), refuted=is_refuted(data, model, closure, multipliers))


def is_refuted(data: Data, model: torch.nn.Module, closure: Callable[[Tensor], tuple[Tensor, dict]], by: Any) -> bool:
    """Whether the certificate on all training rows says that the bound is not kept."""
    certificate = lt.certify(
        model, closure, torch.arange(len(data.y)).split(BATCH), by, population=False, tolerance=1e-6
    )
    return certificate.constraints["rate"].holds == "violated"


def by_hand(data: Data, recipe: Recipe, hidden: tuple[int, ...], passes: int, seed: int) -> Outcome:
    """The loop that people write, for the best of four dual rates."""
    tried = [_dual_ascent(data, recipe, hidden, passes, seed, rate) for rate in DUAL_RATES]
    return min(tried, key=lambda each: each.loss + 2 * recipe.excess(each.rate))


def _dual_ascent(
    data: Data, recipe: Recipe, hidden: tuple[int, ...], passes: int, seed: int, dual_rate: float
) -> Outcome:
    begin, model, y, seen = time.process_time(), network(data, hidden, seed), 0.0, []
    optimizer, closure = torch.optim.Adam(model.parameters(), lr=STEP), closure_of(data, recipe, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, passes * (len(data.y) // BATCH))
    sign = -1.0 if isinstance(recipe.constraint, lt.AtLeast) else 1.0
    for rows in batches(data, passes, seed):
        losses, values = closure(rows)
        proxy = values["rate"]
        optimizer.zero_grad()
        (losses.mean() + y * sign * proxy.surrogate.mean()).backward()
        optimizer.step()
        schedule.step()
        y = max(0.0, y + dual_rate * sign * float(proxy.values.mean()))
        seen.append(sign * y)
    return _outcome(data, recipe, model, seen, time.process_time() - begin)


def _outcome(data: Data, recipe: Recipe, model: torch.nn.Module, seen: list[float], seconds: float) -> Outcome:
    with torch.no_grad():
        out = model(data.x).squeeze(1)
    loss = float(binary_cross_entropy_with_logits(out, data.y))
    half = seen[len(seen) // 2 :]
    return Outcome(recipe.rate((out > 0).float(), data.y), loss, _auc(out, data.y), (min(half), max(half)), seconds)


def _auc(out: Tensor, y: Tensor) -> float:
    ranks = torch.empty(len(out), dtype=torch.float64)
    ranks[out.argsort()] = torch.arange(1.0, len(out) + 1, dtype=torch.float64)
    positive = y > 0
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(y) - count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="data sets whose names contain this")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console, begin, rows = Console(), time.time(), []
    found: list[list[tuple[float, Outcome]]] = [[], [], []]  # with what is missing of the bound
    cases = [
        (data, recipe, model)
        for data in data_sets(options.data)
        if options.only in data.name
        for recipe in RECIPES
        for model in HIDDEN
    ]
    with progress(console) as bar:
        for data, recipe, model in bar.track(cases, description="recipes"):
            passes = max(options.passes, 1500 * BATCH // len(data.y))
            cells = [
                [way(data, recipe, HIDDEN[model], passes, seed) for seed in range(options.seeds)]
                for way in (by_multipliers, by_ours, by_hand)
            ]
            for ways, outcomes in zip(found, cells, strict=True):
                ways += [(recipe.excess(each.rate), each) for each in outcomes]
            rows.append((data.name, recipe.name, model, *(text for each in cells for text in _cells(each))))
            console.print(*rows[-1], sep="  ")
    columns = [f"{way}: rate | AUC | multiplier" for way in ("Multipliers", "TrackedLagrangian", "by hand")]
    head = ("data", "recipe", "model", *" | ".join(columns).split(" | "))
    section = "\n".join(
        [
            "## Recipes",
            "",
            origin("benchmarks.recipes", ["lariax", "torch"], time.time() - begin),
            "",
            f"A number for each of {options.seeds} seeds. Rates on all training rows; the range of the multiplier is "
            "that of the second half of the run, with `!` where we warned: that it does not get on, or that the bound "
            "is not kept at the end. Rates with `*`: the certificate on all training rows says that the bound is not "
            f"kept. By hand: Adam and dual ascent, the best of {len(DUAL_RATES)} rates by loss + 2 x violation.",
            "",
            *table(head, rows),
            "",
            *map(_told, ("Multipliers", "TrackedLagrangian"), (found[0], found[1])),
        ]
    )
    if options.write:
        write("recipes", section)


def _told(way: str, outcomes: list[tuple[float, Outcome]]) -> str:
    """How many trainings miss their bound, and by what that is said."""
    missed = [each for excess, each in outcomes if excess >= SLIGHT]
    slightly = [each for excess, each in outcomes if 0 < excess < SLIGHT]
    kept = [each for excess, each in outcomes if excess == 0]
    return (
        f"- {way}: of {len(outcomes)} trainings {len(missed)} miss their bound by {SLIGHT} or more: "
        f"{sum(each.warned for each in missed)} with a warning, {sum(each.refuted for each in missed)} by the "
        f"certificate; {len(slightly)} by less: {sum(each.warned for each in slightly)} and "
        f"{sum(each.refuted for each in slightly)}; of the {len(kept)} that keep it {sum(e.warned for e in kept)} "
        f"are warned of, {sum(e.refuted for e in kept)} refuted."
    )


def _cells(outcomes: list[Outcome]) -> list[str]:
    return [
        " ".join(f"{each.rate:.3f}{'*' * each.refuted}" for each in outcomes),
        " ".join(f"{each.auc:.3f}" for each in outcomes),
        " ".join(f"{each.multipliers[0]:.2g}..{each.multipliers[1]:.2g}{'!' * each.warned}" for each in outcomes),
    ]


if __name__ == "__main__":
    main()
