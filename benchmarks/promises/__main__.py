"""Over many resamplings, does a promised bound hold? `python -m benchmarks.promises --write`

A table is the population. Rows are drawn from it with replacement, every way gets the same ones, and the truth is the
rate over the whole table: exact, so that nothing but the promise is measured. The rates on the rows that were not drawn
are told too; there the error of a few hundred or thousand rows comes on top.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import lariax.sklearn as ls
from benchmarks import _results
from benchmarks.promises.data import TASKS, Table, Task, table
from benchmarks.promises.rivals import kept, rivals, value
from lariax.gallery._models import area_under_roc

OURS = "ConstrainedClassifier"
OURS_SEEING = "ConstrainedClassifier, group among the features (sees the group)"


def run(task: Task, population: Table, seed: int, ways: Sequence[str] = ("ours", "rivals")) -> Iterator[dict[str, Any]]:
    """Every way on the same rows, judged on all others."""
    chosen = np.random.default_rng(seed).permutation(len(population.y))
    own, rest = population.at(np.sort(chosen[: task.rows])), population.at(np.sort(chosen[task.rows :]))
    if "ours" in ways:
        yield from ours(task, own, rest, seed)
    if "rivals" in ways:
        start = time.process_time()
        for name, predict in rivals(task, own.x, own.y, own.group, seed):
            seconds = time.process_time() - start
            yield judged(task, rest, seed, name, *predict(rest.x, rest.group), seconds, True)
            start = time.process_time()


def ours(task: Task, own: Table, rest: Table, seed: int) -> Iterator[dict[str, Any]]:
    """For a gap also with the group among the features, to stand beside what sees the group."""
    for name in (OURS, OURS_SEEING) if task.rate == "selection_rate" else (OURS,):
        x, new = (t.x if name == OURS else np.column_stack([t.x, t.group]) for t in (own, rest))
        start = time.process_time()
        model = ls.ConstrainedClassifier({task.rate: task.limit}, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, own.y, sensitive_features={"group": own.group})
        seconds = time.process_time() - start
        scores = model.decision_function(new)
        yield judged(task, rest, seed, name, scores > 0, scores, seconds, model.status_ == "promised")


def judged(
    task: Task,
    rest: Table,
    seed: int,
    name: str,
    decisions: np.ndarray,
    scores: np.ndarray,
    seconds: float,
    promised: bool,
) -> dict[str, Any]:
    found = value(task, decisions, rest.y, rest.group)
    return {
        "task": task.name,
        "seed": seed,
        "way": name,
        "promised": promised,
        "value": found,
        "kept": kept(task, found),
        "accuracy": float(np.mean(decisions == rest.y)),
        "auc": area_under_roc(scores, rest.y) if np.ptp(scores) > 0 else 0.5,
        "seconds": seconds,
    }


def page(records: list[dict[str, Any]], origin: str) -> str:
    cells: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        cells[record["task"]][record["way"]].append(record)
    head = ("", "promised", "broken", "broken on the rest", "accuracy", "area under ROC", "CPU seconds")
    lines = ["## Promises", "", origin, "", *ABOUT.strip().split("\n"), ""]
    for task, ways in cells.items():
        rows = []
        for way, all_found in ways.items():
            found = [one for one in all_found if one["promised"]]
            if not found:
                rows.append((way, f"0 of {len(all_found)}", "-", "-", "-", "-", "-"))
                continue
            broken, rest = (np.mean([not one[key] for one in found]) for key in ("kept", "kept on the rest"))
            accuracy, auc, seconds = (np.mean([one[key] for one in found]) for key in ("accuracy", "auc", "seconds"))
            mark = "**" if broken <= 0.05 else ""
            share = f"{len(found)} of {len(all_found)}" if way == OURS else "says nothing"
            cells_of = (f"{mark}{broken:.1%}{mark}", f"{rest:.1%}", f"{accuracy:.4f}", f"{auc:.3f}", f"{seconds:.2f}")
            rows.append((way, share, *cells_of))
        lines += [f"### {task}", "", *_results.table(head, rows), ""]
    return "\n".join(lines)


ABOUT = """
A table is the population; rows are drawn from it with replacement, the same for every way, and *broken* is how often
the rate over the whole table is beyond the bound (in bold: in at most 5 % of the fits). *On the rest* is the same on
the rows that were not drawn; there the sampling error of these rows comes on top, which no promise about the population
covers. Accuracy and area are over the whole table; ours are means over the fits that promise. Rivals say nothing, so
that all their fits count. Their margins are chosen in hindsight: the rival to compare with is the one with the least
margin whose bound was kept in 95 % of the fits. A user has no such table, and would have to guess.
ExponentiatedGradient and ThresholdOptimizer are randomised; the latter sees the group when it predicts.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resamplings", type=int, default=200)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where COMPAS and a9a are")
    parser.add_argument("--keep", type=Path, help="a file of JSON lines that results are added to and read from")
    parser.add_argument("--until", help="a time of the day, HH:MM, at which to stop")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    args = parser.parse_args()
    records = []
    if args.keep and args.keep.exists():
        records = [json.loads(line) for line in args.keep.read_text().splitlines()]
    done = {(record["task"], record["seed"]) for record in records}
    start = time.time()
    for seed in range(args.resamplings):
        for task in TASKS:
            population = table(task.table, args.data)
            if population is None or (task.name, seed) in done:
                continue
            if args.until and time.strftime("%H:%M") >= args.until:
                break
            with threadpool_limits(1):
                found = list(run(task, population, seed))
            records += found
            if args.keep:
                with args.keep.open("a") as file:
                    file.write("".join(json.dumps(record) + "\n" for record in found))
    packages = ("scikit-learn", "fairlearn", "numpy", "scipy")
    text = page(records, _results.origin("benchmarks.promises", packages, time.time() - start))
    print(text)
    if args.write:
        _results.write("promises", text)


if __name__ == "__main__":
    main()
