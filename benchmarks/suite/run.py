"""The suite: `python -m benchmarks.suite [names] [--seeds 16] [--draws 2000,10000,100000] [--batch 2]`.

For each problem and number of draws, the rms over seeds of stationarity and feasibility, divided by the statistical
limit. N draws are N from the objective's source and N from the constraints', all that the run took: also those of its
start. Nothing is set by hand: `lx.solve` with `lx.TrackedLagrangian()`.
"""

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import lariax as lx
from benchmarks._results import origin, progress, table, write
from benchmarks.suite import baselines, figures
from benchmarks.suite.case import Case
from benchmarks.suite.hard import HARD
from benchmarks.suite.limits import Solved, solve
from benchmarks.suite.problems import SUITE, by_name
from benchmarks.suite.units import Units, in_units

GOALS = {2_000: None, 10_000: (1.4, 3.0), 100_000: (1.2, 1.6)}
"""By number of draws: geometric mean over problems and measures, and the worst of them."""


class Ends(NamedTuple):
    """Where the seeds of a run stood after some number of draws."""

    x: jax.Array  # (seeds, d)
    status: list[str]
    gain: float  # k alpha, the median: 1 means that the method averages all it has seen
    backed_off: int  # the most steps that a seed refused


def solved_by_lariax(
    case: Case, draws: list[int], seeds: range, batch: int, dtype: str, method: lx.TrackedLagrangian | None = None
) -> Iterator[dict[int, Ends]]:
    """Seed by seed, each run continued from one number of draws to the next."""
    sources = sum(source is not None for source in case.problem.sources)
    x0, method = case.x0.astype(dtype), method or lx.TrackedLagrangian()
    for seed in seeds:
        result, ends, spent = None, {}, 0
        for n in draws:
            if result is None:
                result = lx.solve(case.problem, x0, method, draws=n * sources, batch_size=batch, seed=seed)
            else:
                result = lx.solve(case.problem, result, draws=(n - spent) * sources)
            spent = n
            sound = len(result.history) > 0  # not so if the run diverged at once
            gain = float(result.history["gain"][-1]) * result.iterations if sound else np.nan
            refused = int(result.history["backed_off"][-1]) if sound else 0
            ends[n] = Ends(result.x[None].astype(float), [result.status], gain, refused)
            if result.status == "diverged":
                ends |= dict.fromkeys(draws[draws.index(n) :], ends[n])
                break
        yield ends


def joined(runs: list[dict[int, Ends]]) -> dict[int, Ends]:
    return {
        n: Ends(
            jnp.concatenate([run[n].x for run in runs]),
            [status for run in runs for status in run[n].status],
            float(np.median([run[n].gain for run in runs])),
            max(run[n].backed_off for run in runs),
        )
        for n in runs[0]
    }


class Score(NamedTuple):
    """Of one problem at one number of draws; pairs are stationarity and feasibility, over the limit."""

    name: str
    draws: int
    rms: np.ndarray
    worst: np.ndarray
    ends: Ends
    measures: int  # how many of the two count: not a violation that has no limit of its own

    @property
    def flagged(self) -> int:
        return self.ends.status.count("infeasible_stationary")


def scored(solved: Solved, ends: dict[int, Ends]) -> list[Score]:
    scores = []
    for n, end in ends.items():
        over = np.asarray(solved.errors(end.x))[:, :2] / solved.limit(n)[:2]
        measures = 1 if solved.exactly_feasible else 2
        scores.append(Score(solved.case.name, n, np.sqrt(np.mean(over**2, axis=0)), over.max(axis=0), end, measures))
    return scores


# --- the tables


def pair(values: np.ndarray) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def summary(scores: list[Score], n: int) -> tuple[float, float, float]:
    """Geometric mean, the worst rms, the worst seed."""
    rms = np.concatenate([score.rms[: score.measures] for score in scores if score.draws == n])
    worst = np.concatenate([score.worst[: score.measures] for score in scores if score.draws == n])
    return float(np.exp(np.mean(np.log(rms)))), float(rms.max()), float(worst.max())


Rivals = dict[str, dict[int, dict[str, np.ndarray]]]
"""rms errors over the limit by problem, number of draws and rival."""


def against(scores: list[Score], rivals: Rivals, n: int) -> str:
    """The larger of our two errors over that of the best rival, where that is worst."""

    def ratio(score: Score) -> float:
        best = min(float(rms[: score.measures].max()) for rms in rivals[score.name][n].values())
        return float(score.rms[: score.measures].max()) / best

    worst = max((score for score in scores if score.draws == n), key=ratio)
    return f"the larger error at most {ratio(worst):.2f} times that of the best rival ({worst.name})"


def markdown(title: str, scores: list[Score], rivals: Rivals) -> list[str]:
    """One row a problem, a pair of columns a number of draws."""
    counts = sorted({score.draws for score in scores})
    beside = sorted({name for each in rivals.values() for best in each.values() for name in best})
    head = [f"{n:,}" for n in counts] + [f"{n:,}, worst seed" for n in counts]
    tried = [n for n in counts if any(n in each for each in rivals.values())]
    head += [f"{rival} {n:,}" for rival in beside for n in tried]
    rows = []
    for name in dict.fromkeys(score.name for score in scores):
        own = {score.draws: score for score in scores if score.name == name}
        cells = [pair(own[n].rms) for n in counts] + [pair(own[n].worst) for n in counts]
        for rival in beside:
            found = [rivals.get(name, {}).get(n, {}).get(rival) for n in tried]
            cells += ["" if best is None else pair(best) for best in found]
        rows.append([name, *cells])
    lines = [f"### {title}", "", *table(["problem", *head], rows), ""]
    for n in counts:
        mean, worst, seed = summary(scores, n)
        goal = GOALS.get(n)
        aim = f" (goals {goal[0]} and {goal[1]})" if goal and "Suite" in title else ""
        told = f"; {against(scores, rivals, n)}" if n in tried else ""
        lines.append(
            f"- {n:,} draws: geometric mean {mean:.2f}, worst {worst:.2f}{aim}, worst single seed {seed:.2f}{told}"
        )
    return lines


# --- the command


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("names", nargs="*", help="problems; by default the suite and the hard ones")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--draws", default="2000,10000,100000")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"), help="of x; samples are float64")
    parser.add_argument("--units", type=int, help="in other units of x, rows and objective, drawn with this seed")
    parser.add_argument("--rivals", action="store_true", help="tuned rivals too: 16 settings each, the best one counts")
    parser.add_argument("--rivals-to", type=int, default=20_000, help="the most draws that rivals are run for")
    parser.add_argument("--figures", action="store_true", help="draw error over draws, into benchmarks/results")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    return parser.parse_args()


def main() -> None:
    options, console, began = arguments(), Console(), time.perf_counter()
    draws = [int(float(n)) for n in options.draws.split(",")]
    names = options.names or [*SUITE, *HARD]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    shown = sorted({*draws, *figures.PLACES}) if options.figures else draws
    shown = [n for n in shown if n <= max(draws)]
    scores: list[Score] = []
    rivals: Rivals = {}
    notes: list[str] = []
    with progress(console) as bar:
        task = bar.add_task("suite", total=len(names) * options.seeds)
        for name in names:
            bar.update(task, description=name)
            case = by_name(name)
            runs = []
            units = None if options.units is None else Units.drawn(case, options.units)
            for run in solved_by_lariax(
                case if units is None else in_units(case, units), shown, seeds, options.batch, options.dtype
            ):
                runs.append(run if units is None else {n: end._replace(x=end.x / units.x) for n, end in run.items()})
                bar.advance(task)
            ends = joined(runs)
            flags = {n: ends[n].status.count("infeasible_stationary") for n in draws}
            if case.infeasible:
                told = ", ".join(f"{flags[n]} of {options.seeds} seeds at {n:,} draws" for n in draws)
                notes.append(f"{case.name}: recognised as infeasible by {told}.")
                console.print(notes[-1])
                continue
            solved = solve(case)
            own = scored(solved, ends)
            scores += [score for score in own if score.draws in draws]
            for score in own:
                if score.draws in draws:
                    line = f"{case.name:10s} {score.draws:7,d}  rms {pair(score.rms)}  worst {pair(score.worst)}"
                    line += f"  k alpha {score.ends.gain:.2f}  refused {score.ends.backed_off}  flagged {score.flagged}"
                    console.print(line, highlight=False)
            lost = ends[max(draws)].status.count("diverged")
            if lost:
                notes.append(f"{case.name}: {lost} seeds diverged.")
            if any(flags.values()):
                notes.append(f"{case.name}: FALSE ALARM, {max(flags.values())} seeds called infeasible.")
            if options.rivals:
                rivals[case.name] = baselines.best(solved, [n for n in shown if n <= options.rivals_to])
            if options.figures:
                figures.draw(solved, own, rivals.get(case.name, {}))
            jax.clear_caches()
    report(console, options, scores, rivals, notes, time.perf_counter() - began)


def report(
    console: Console,
    options: argparse.Namespace,
    scores: list[Score],
    rivals: Rivals,
    notes: list[str],
    seconds: float,
) -> None:
    parts = {
        "Suite": [score for score in scores if score.name not in HARD],
        "Hard problems": [score for score in scores if score.name in HARD],
    }
    body: list[str] = []
    for title, part in parts.items():
        if not part:
            continue
        body += ["", *markdown(title, part, rivals)]
        lines = markdown(title, part, rivals)
        shown = Table(title=f"{title}: rms error over the limit, stationarity / feasibility", title_justify="left")
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|") and "---" not in line]
        for column in rows[0]:
            shown.add_column(column, justify="left" if column == "problem" else "right")
        for row in rows[1:]:
            shown.add_row(*row)
        console.print(shown)
        for line in lines:
            if line.startswith("- "):
                console.print(line)
    if not options.write:
        return
    title, section = "## The suite", "suite"
    if options.batch != 2:
        title, section = f"{title}, batch size {options.batch}", f"{section}-{options.batch}"
    if options.units is not None:
        title, section = f"{title}, in other units of x, rows and objective", f"{section}-units"
    head = [
        title,
        "",
        origin("benchmarks.suite", ("lariax", "jax", "numpy"), seconds),
        "",
        f"`lx.solve` with `TrackedLagrangian()` on its defaults, batch size {options.batch}"
        f"{' (which it raises to 2: pairs)' if options.batch == 1 else ''}, {options.dtype}, {options.seeds} seeds: "
        "rms error over the statistical limit, stationarity / feasibility. The sampling error of a ratio is 10 to "
        "20 %. The limit is the error of the exact solution of the sample-average problem over the same number of "
        "draws, linearised. Where the constraints are exact (consensus), the violation is divided by the limit's "
        "distance from the solution, and left out of the means. Rivals: the best of 16 settings each, "
        "picked at each number of draws on the same 4 seeds that are shown, which favours them.",
    ]
    page = write(section, "\n".join([*head, *body, "", *(f"- {note}" for note in notes)]))
    console.print(f"written to {page}")


if __name__ == "__main__":
    main()
