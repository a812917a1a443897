"""What the guards of the default method are worth: `python -m benchmarks.suite.guards [--seeds 8] [--write]`.

Each row has one guard taken out, by setting a number of `lariax.tuned.constants` to where it no longer acts, or by
leaving out a function. Errors are those of problems of the suite and of the hard list, in units of the statistical
limit, on seeds that no other benchmark uses. `--keep FILE` keeps what was run, a line a problem: a table can be made in
several goes.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402 (the precision is chosen first)
from rich.console import Console  # noqa: E402

from benchmarks._results import origin, table, write  # noqa: E402
from benchmarks.suite.hard import HARD  # noqa: E402
from benchmarks.suite.limits import Solved, solve  # noqa: E402
from benchmarks.suite.problems import SUITE, by_name  # noqa: E402
from benchmarks.suite.run import joined, scored, solved_by_lariax  # noqa: E402
from lariax.tuned.curvature import EIGENVALUE_SHARE  # noqa: E402

DRAWS = (2_000, 20_000)
FIRST_SEED = 1_000
LOST = 8.0
"""A seed whose error is more limits than this is lost."""

MATTERS = 1.3
"""Errors that differ by more than this, either way, are shown: over a few seeds they differ by 10 to 20 % by chance."""


def _never(xp: Any, shape: Any, multipliers: Any) -> Any:
    return xp.sum(multipliers) > xp.inf


def _as_long_as_curvature_permits(xp: Any, curvature: Any, tiny: Any) -> Any:
    return xp.inf + 0 * curvature.largest


def _without_jumps(xp: Any, filter: Any, curvature: Any, change: Any, explained: Any) -> Any:
    return filter, curvature


def _without_a_cap(xp: Any, curvature: Any, eigenvalue: Any, tiny: Any) -> Any:
    return curvature._replace(largest=xp.maximum(curvature.largest, EIGENVALUE_SHARE * eigenvalue))


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
    "L not capped at refreshes": {"rule.within_eigenvalue": _without_a_cap},
    "jumps neither error nor curvature": {"rule.with_jump": _without_jumps},
    "coupling kept to the next refresh": {"rule.has_lost_coupling": _never},
    "weak eigenvalues as they seem": {"shape.EIGENVALUE_NOISE": 0.0},
    "Jacobians that moved not reopened": {"shape.MOVED": 1e30},
    "measured in each iteration": {"rates.INTERVALS": {}},
    "means by measurements, not iterations": {"rates.CURVATURE_CATCH_UP": 1, "rates.NOISE_CATCH_UP": 1},
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


class Found(NamedTuple):
    """Of one problem, with one guard taken out; by draws."""

    mean: dict[int, float]  # of stationarity and feasibility, rms over seeds, over the limit: the geometric mean
    worse: dict[int, float]  # the larger of the two
    lost: int  # seeds beyond LOST limits at the end


def found(name: str, solved: Solved, seeds: range) -> Found:
    with replaced(GUARDS[name]):
        runs = solved_by_lariax(solved.case, list(DRAWS), seeds, 2, "float64")
        scores = scored(solved, joined(list(runs)))
    rms = {score.draws: score.rms[: score.measures] for score in scores}
    last = scores[-1]
    over = np.asarray(solved.errors(last.ends.x))[:, : last.measures] / solved.limit(last.draws)[: last.measures]
    return Found(
        {n: float(np.exp(np.log(values).mean())) for n, values in rms.items()},
        {n: float(values.max()) for n, values in rms.items()},
        int(np.sum(~(over.max(axis=1) < LOST))),
    )


class Runs:
    """What was found, kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.known = path, {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            name, case, seeds, (mean, worse, lost) = json.loads(line)
            by_draws = ({int(n): value for n, value in each.items()} for each in (mean, worse))
            self.known[name, case, seeds] = Found(*by_draws, lost)

    def get(self, name: str, case: str, seeds: range, solved: Callable[[], Solved]) -> Found:
        key = (name, case, len(seeds))
        if key not in self.known:
            self.known[key] = found(name, solved(), seeds)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([*key, self.known[key]]) + "\n")
        return self.known[key]


def cells(name: str, known: dict[str, Found]) -> list[str]:
    """A row of the table."""

    def mean(draws: int, *, hard: bool) -> str:
        logs = [np.log(each.mean[draws]) for case, each in known.items() if (case in HARD) == hard]
        return f"{np.exp(np.mean(logs)):.2f}" if logs else ""

    worst = max(known, key=lambda case: known[case].worse[DRAWS[-1]])
    return [
        name,
        *(mean(n, hard=False) for n in DRAWS),
        *(mean(n, hard=True) for n in DRAWS),
        f"{known[worst].worse[DRAWS[-1]]:.3g} ({worst})",
        str(sum(each.lost for each in known.values())),
    ]


def differences(known: dict[str, Found], whole: dict[str, Found]) -> str:
    """Problems on which it matters: the larger error at the end, without the guard and with it."""
    pairs = {case: (each.worse[DRAWS[-1]], whole[case].worse[DRAWS[-1]]) for case, each in known.items()}
    apart = [case for case, (a, b) in pairs.items() if not 1 / MATTERS < a / b < MATTERS]
    return ", ".join(f"{case} {pairs[case][0]:.3g} ({pairs[case][1]:.3g})" for case in apart)


def page(rows: dict[str, dict[str, Found]], seeds: range, seconds: float) -> str:
    head = ["", *(f"suite, {n:,}" for n in DRAWS), *(f"hard, {n:,}" for n in DRAWS), "worst problem", "lost seeds"]
    lines, whole = [cells(name, known) for name, known in rows.items()], rows.get("as it is")
    if whole:
        head.append(f"other by more than {MATTERS:g} times (as it is)")
        lines = [[*row, differences(known, whole)] for row, known in zip(lines, rows.values(), strict=True)]
    cases = next(iter(rows.values()))
    about = (
        f"The default method with one guard taken out, batch size 2, seeds {seeds[0]:,} to {seeds[-1]:,}, on "
        f"{', '.join(cases)}: the geometric mean of rms errors over the statistical limit, over those of the suite and "
        f"those of the hard list, after so many draws; at the last of them the worst problem, seeds beyond {LOST:g} "
        "limits, and the larger error where it differs."
    )
    where = origin("benchmarks.suite.guards", ("lariax", "jax", "numpy"), seconds)
    return "\n".join(["# Guards of the default method", "", where, "", about, "", *table(head, lines)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite.guards", description=__doc__)
    parser.add_argument("guards", nargs="*", default=[*GUARDS])
    parser.add_argument("--problems", nargs="+", default=[*SUITE, *HARD])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a file for what is found, and of what was found before")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=200), time.perf_counter()
    seeds, runs, rows = range(FIRST_SEED, FIRST_SEED + options.seeds), Runs(options.keep), {}
    cases = {case.name: case for case in map(by_name, options.problems) if not case.infeasible}
    solved = cache(lambda name: solve(cases[name]))
    for name in options.guards:
        rows[name] = {case: runs.get(name, case, seeds, partial(solved, case)) for case in cases}
        console.print("  ".join(cells(name, rows[name])), highlight=False)
    text = page(rows, seeds, time.perf_counter() - began)
    console.print(text, highlight=False)
    if options.write:
        console.print(f"written to {write('guards', text)}")


if __name__ == "__main__":
    main()
