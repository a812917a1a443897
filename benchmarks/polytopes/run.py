"""Polytopes: `python -m benchmarks.polytopes [--only NAME] [--seeds 8] [--draws 1e4,1e5] [--processes 2] [--write]`.

Noisy inequalities, from a fifth to ten times as many as variables: random, degenerate, repeated, nearly parallel, in
bands, with equalities, boxes and simplices, of very different scales. For each, the rms distance from the exact
solution over seeds, divided by that of exact solutions of sample-average problems of as many draws. Nothing is set by
hand: `lx.solve` with batches of 2.
"""

import argparse
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import lariax as lx
from benchmarks._pool import side_by_side
from benchmarks._results import origin, progress, table, write
from benchmarks.polytopes.cases import CASES
from benchmarks.polytopes.problems import Case
from benchmarks.polytopes.reference import limit, solve

BATCH = 2
RMS, WORST = 2.0, 5.0
"""At the last number of draws, the most limits that the rms distance and that of a single seed may be."""


class Score(NamedTuple):
    """How the seeds of a case ended, by number of draws."""

    name: str
    d: int
    m: int
    limit: dict[int, float]
    distance: dict[int, list[float]]
    status: list[str]
    seconds: float

    def rms(self, draws: int) -> float:
        return float(np.sqrt(np.mean(np.square(self.distance[draws])))) / self.limit[draws]

    def worst(self, draws: int) -> float:
        return max(self.distance[draws]) / self.limit[draws]

    @property
    def wrong(self) -> dict[str, int]:
        """Verdicts that a solvable problem must not get, of all looks at all seeds."""
        return {status: self.status.count(status) for status in sorted({*self.status} - {"budget"})}

    @property
    def passes(self) -> bool:
        last = max(self.limit)
        return self.rms(last) <= RMS and self.worst(last) <= WORST and not self.wrong


def distances(case: Case, x: np.ndarray, draws: list[int], seed: int) -> tuple[list[float], list[str]]:
    """Of one seed, its run continued from one number of draws to the next: how far it is from x, and its status."""
    away, statuses, result, spent = [], [], None, 0
    for n in draws:
        if result is None:
            result = lx.solve(case.problem, case.x0, draws=n, batch_size=BATCH, seed=seed)
        elif result.status != "diverged":
            result = lx.solve(case.problem, result, draws=n - spent)
        spent = n
        away.append(float(np.linalg.norm(np.asarray(result.x) - x)))
        statuses.append(result.status)
    return away, statuses


def scored(case: Case, draws: list[int], seeds: int) -> Score:
    began, solved = time.perf_counter(), solve(case)
    runs = [distances(case, solved.x, draws, seed) for seed in range(seeds)]
    return Score(
        case.name,
        case.d,
        case.m,
        {n: limit(case, solved, n) for n in draws},
        {n: [away[i] for away, _ in runs] for i, n in enumerate(draws)},
        [status for _, statuses in runs for status in statuses],
        time.perf_counter() - began,
    )


def group(names: list[str], draws: list[int], seeds: int) -> list[Score]:
    """Cases of one shape, which share their compiled code."""
    scores = [scored(CASES[name](), draws, seeds) for name in names]
    jax.clear_caches()
    return scores


def grouped(names: list[str]) -> list[list[str]]:
    """By shape, the longest work first."""
    groups: dict[object, list[str]] = {}
    work: dict[object, int] = {}
    for name in names:
        case = CASES[name]()
        groups.setdefault(case.shape, []).append(name)
        work[case.shape] = work.get(case.shape, 0) + case.m * case.d
    return sorted(groups.values(), key=lambda names: -work[CASES[names[0]]().shape])


# --- the table


def row(score: Score) -> list[str]:
    last, wrong = max(score.limit), ", ".join(f"{n} {status}" for status, n in score.wrong.items())
    cells = [score.name, str(score.d), str(score.m), f"{score.limit[last]:.2g}"]
    cells += [f"{score.rms(n):.2f}" for n in score.limit]
    return [*cells, f"{score.worst(last):.2f}", wrong, "" if score.passes else "FAILS"]


def head(draws: list[int]) -> list[str]:
    ends = [f"{n:,}" for n in draws]
    return ["problem", "d", "m", f"limit at {ends[-1]}", *ends, f"worst seed at {ends[-1]}", "wrong verdicts", ""]


def summary(scores: list[Score], draws: list[int]) -> str:
    last = draws[-1]
    rms, failing = [score.rms(last) for score in scores], [score.name for score in scores if not score.passes]
    mean = np.exp(np.mean(np.log(rms)))
    beyond = sum(score.worst(last) > WORST for score in scores)
    return (
        f"{len(scores)} problems at {last:,} draws: rms over limit {mean:.2f} in the geometric mean, "
        f"worst {max(rms):.2f}; {sum(r > RMS for r in rms)} above {RMS:g}, {beyond} with a seed beyond {WORST:g}, "
        f"{sum(bool(score.wrong) for score in scores)} with a wrong verdict. "
        f"{'PASS' if not failing else f'FAIL: {len(failing)} of {len(scores)}'}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.polytopes", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="problems with this in their name")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--draws", default="10000,100000", help="the last number is judged")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    return parser.parse_args()


def main() -> None:
    options, console, began = arguments(), Console(width=150), time.perf_counter()
    draws = sorted(int(float(n)) for n in options.draws.split(","))
    names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
    if not names:
        raise SystemExit(f"no problem has {options.only} in its name; there are: {'; '.join(CASES)}.")
    jobs = [(group_of_names, draws, options.seeds) for group_of_names in grouped(names)]
    scores: list[Score] = []
    with progress(console) as bar:
        task = bar.add_task("polytopes", total=len(names))
        for done in side_by_side(group, jobs, options.processes):
            scores += done
            for score in done:
                console.print(" | ".join([*row(score), f"{score.seconds:.0f} s"]), highlight=False)
                bar.advance(task)
    scores.sort(key=lambda score: names.index(score.name))
    shown = Table(title="rms distance from the solution over the statistical limit", title_justify="left")
    for column in head(draws):
        shown.add_column(column, justify="left" if column == "problem" else "right")
    for score in scores:
        shown.add_row(*row(score))
    console.print(shown)
    console.print(summary(scores, draws))
    if options.write:
        page = write("polytopes", section(scores, draws, options.seeds, time.perf_counter() - began))
        console.print(f"written to {page}")
    sys.exit(any(not score.passes for score in scores))


def section(scores: list[Score], draws: list[int], seeds: int, seconds: float) -> str:
    about = (
        f"`lx.solve` on its defaults, batch size {BATCH}, float64, {seeds} seeds: rms distance from the exact solution "
        "over the statistical limit, which is the rms distance of exact solutions of sample-average problems of as "
        f"many draws (200 of them). A problem passes if that is at most {RMS:g} at {draws[-1]:,} draws, no seed is "
        f"beyond {WORST:g}, and no look at any seed has a verdict other than a spent budget: all are solvable."
    )
    where = origin("benchmarks.polytopes", ("lariax", "jax", "numpy", "scipy"), seconds)
    lines = table(head(draws), [row(score) for score in scores])
    return "\n".join(["## Polytopes", "", where, "", about, "", *lines, "", f"- {summary(scores, draws)}"])
