"""What the guards of the default method are worth: `python -m benchmarks.suite.guards [--seeds 8] [--write]`.

Each row has one guard taken out, by setting a number of `lariax.tuned.constants` to where it no longer acts, or by
leaving out a function. Errors are those of all problems of the suite and of the hard list, in units of the statistical
limit, on seeds that no other benchmark uses.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402 (the precision is chosen first)
from rich.console import Console  # noqa: E402

from benchmarks._results import origin, table, write  # noqa: E402
from benchmarks.suite.hard import HARD  # noqa: E402
from benchmarks.suite.limits import Solved, solve  # noqa: E402
from benchmarks.suite.problems import SUITE, by_name  # noqa: E402
from benchmarks.suite.run import Score, joined, scored, solved_by_lariax  # noqa: E402

DRAWS = (2_000, 20_000)
FIRST_SEED = 1_000
LOST = 8.0
"""A seed whose error is more limits than this is lost."""


def _never(xp: Any, shape: Any, multipliers: Any) -> Any:
    return xp.sum(multipliers) > xp.inf


def _as_long_as_curvature_permits(xp: Any, curvature: Any, tiny: Any) -> Any:
    return xp.inf + 0 * curvature.largest


GUARDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no secant bound": {"rule.secant_bound": _as_long_as_curvature_permits},
    "no bound on multipliers": {"rule.MULTIPLIER_LIMIT": 1e30},
    "no bound on the penalty's force": {"rule.PENALTY_LIMIT": 1e30},
    "no least penalty": {"rule.LEAST_PENALTY": 0.0},
    "no noisier steps early": {"rates.EARLY_NOISE": 0.0},
    "no noisier steps on a signal": {"rates.MOST_SIGNAL": 1.0},
    "innovations not cut off": {"filter.OUTLIER": 1e30},
    "lost estimates not reopened": {"filter.LOST": 1e30},
    "no step refused": {"rule.OUTLIER": 1e30},
    "no share of the eigenvalue": {"curvature.EIGENVALUE_SHARE": 0.0},
    "no curvature from the gradient": {"curvature.LINEAR_CURVATURE": 0.0},
    "L forgotten at one rate": {"curvature.FORGET_FAST": 0.5},
    "coupling kept to the next refresh": {"rule.has_lost_coupling": _never},
    "measured in each iteration": {"rates.INTERVALS": {}},
}


@contextmanager
def replaced(changes: dict[str, Any]) -> Iterator[None]:
    """With names of modules of `lariax.tuned` standing for something else."""
    places = [
        (sys.modules[f"lariax.tuned.{key.split('.')[0]}"], key.split(".")[1], new) for key, new in changes.items()
    ]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, new in places:
        setattr(module, name, new)
    jax.clear_caches()
    try:
        yield
    finally:
        for (module, name, _), old in zip(places, before, strict=True):
            setattr(module, name, old)


class Row(NamedTuple):
    """One guard taken out."""

    name: str
    means: dict[int, float]  # geometric mean over the suite, by draws
    hard: dict[int, float]  # and over the hard list
    worst: tuple[float, str]  # the largest rms at the end, and whose
    lost: int  # seeds beyond LOST limits at the end


def row(name: str, cases: dict[str, Solved], seeds: range, show: Callable[[str], None]) -> Row:
    scores: list[Score] = []
    for case in cases:
        with replaced(GUARDS[name]):
            runs = solved_by_lariax(cases[case].case, list(DRAWS), seeds, 2, "float64")
            scores += scored(cases[case], joined(list(runs)))
        show(f"{name:36s} {case:10s} " + "  ".join(f"{_larger(s.rms, s):.2f}" for s in scores[-len(DRAWS) :]))
    last = [score for score in scores if score.draws == DRAWS[-1]]
    largest = max(last, key=lambda score: _larger(score.rms, score))
    return Row(
        name,
        {n: _mean(scores, n, hard=False) for n in DRAWS},
        {n: _mean(scores, n, hard=True) for n in DRAWS},
        (_larger(largest.rms, largest), largest.name),
        sum(_lost(score, cases[score.name]) for score in last),
    )


def _larger(values: np.ndarray, score: Score) -> float:
    return float(values[: score.measures].max())


def _lost(score: Score, solved: Solved) -> int:
    over = np.asarray(solved.errors(score.ends.x))[:, :2] / solved.limit(score.draws)[:2]
    return int(np.sum(~(over[:, : score.measures].max(axis=1) < LOST)))


def _mean(scores: list[Score], draws: int, *, hard: bool) -> float:
    chosen = [score for score in scores if score.draws == draws and (score.name in HARD) == hard]
    return float(np.exp(np.mean([np.log(score.rms[: score.measures]).mean() for score in chosen]))) if chosen else 1.0


def page(rows: list[Row], seeds: int, seconds: float) -> str:
    head = ["", *(f"suite, {n:,}" for n in DRAWS), *(f"hard, {n:,}" for n in DRAWS), "worst problem", "lost seeds"]
    cells = [
        [
            row.name,
            *(f"{row.means[n]:.2f}" for n in DRAWS),
            *(f"{row.hard[n]:.2f}" for n in DRAWS),
            f"{row.worst[0]:.3g} ({row.worst[1]})",
            str(row.lost),
        ]
        for row in rows
    ]
    about = (
        f"The default method with one guard taken out, batch size 2, {seeds} seeds from {FIRST_SEED} on: the geometric "
        "mean of rms errors over the statistical limit, over the suite and over the hard list, after so many draws; "
        f"the worst problem and the seeds beyond {LOST:g} limits at the last of them, of both lists."
    )
    where = origin("benchmarks.suite.guards", ("lariax", "jax", "numpy"), seconds)
    return "\n".join(["# Guards of the default method", "", where, "", about, "", *table(head, cells)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite.guards", description=__doc__)
    parser.add_argument("guards", nargs="*", default=[*GUARDS])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=160), time.perf_counter()
    names = [name for name in [*SUITE, *HARD] if not by_name(name).infeasible]
    solved = [solve(by_name(name)) for name in names]
    cases = {each.case.name: each for each in solved}  # one may go by another name, without its data
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    rows = [row(name, cases, seeds, lambda line: console.print(line, highlight=False)) for name in options.guards]
    text = page(rows, options.seeds, time.perf_counter() - began)
    console.print(text, highlight=False)
    if options.write:
        console.print(f"written to {write('guards', text)}")


if __name__ == "__main__":
    main()
