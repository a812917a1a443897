"""Random problems: `python -m benchmarks.fuzz [--count 500] [--seed S] [--case N] [--draws 2e4] [--processes 2]`.

Up to 6 variables and 12 rows: linear, convex and not, all kinds of constraints, sets and sources, feasible, degenerate,
infeasible and unbounded, each with its truth. `lx.solve` with method="auto". An answer is WRONG if the run ends with
its budget spent, its point is no solution, and its message does not say so; a verdict is false if the problem has one.
"""

import argparse
import sys
import time
from collections import Counter
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console

import lariax as lx
from benchmarks._pool import side_by_side
from benchmarks._results import origin, progress, table, write
from benchmarks.fuzz.draw import TOGETHER, TRUTHS, case_of
from benchmarks.fuzz.judge import TIMES, Verdict, judged
from benchmarks.fuzz.problems import Case

DRAWS = 20_000
WORDS = ("right", "said not", "late", "WRONG", "false infeasible", "missed")
FAILURES = ("late", "WRONG", "false infeasible", "missed")
LATE = 10
"""A wrong answer that so many times the draws put right is late."""


class Ended(NamedTuple):
    """A case, and what became of it."""

    number: int
    truth: str
    about: str
    status: str
    doubt: str  # of a spent budget
    verdict: Verdict

    @property
    def fails(self) -> bool:
        return self.verdict.word in FAILURES


def about(case: Case) -> str:
    """Its shape in a few words."""
    shape = case.shape
    blocks = ", ".join(f"{b.kind} {b.rows} {b.terms} {b.samples}" for b in shape.blocks) or "no constraints"
    joint = ", joint" if shape.joint else ""
    return f"d={shape.d} {shape.within}; {shape.objective}; {blocks}; {shape.source}, batch {shape.batch}{joint}"


def solved(case: Case, draws: int = DRAWS) -> lx.Result:
    start = case.within.project(case.structured(case.start))
    batch = case.shape.batch
    return lx.solve(case.problem, start, iterations=draws // batch, batch_size=batch)


def judged_run(case: Case, number: int, draws: int) -> tuple[str, str, Verdict]:
    """Its status, the doubt that comes with it, and what to think of both."""
    try:
        result = solved(case, draws)
    except Exception as error:  # whatever it is, the others are to be tried too
        return "error", "", Verdict("WRONG", np.inf, f"{type(error).__name__}: {error}")
    x = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(result.x)])
    return result.status, result.doubt, judged(case, result.status, x, draws, number, result.doubt)


def ended(seed: int, number: int, draws: int = DRAWS) -> Ended:
    case = case_of(seed, number)
    status, doubt, verdict = judged_run(case, number, draws)
    if verdict.word == "WRONG" and judged_run(case, number, LATE * draws)[2].word == "right":
        verdict = verdict._replace(word="late")
    return Ended(number, case.truth, about(case), status, doubt, verdict)


def of_one_shape(seed: int, numbers: list[int], draws: int) -> list[Ended]:
    ends = [ended(seed, number, draws) for number in numbers]
    jax.clear_caches()
    return ends


# --- what is told


def told(end: Ended, seed: int, draws: int) -> str:
    how = f"python -m benchmarks.fuzz --seed {seed} --case {end.number}" + (f" --draws {draws}" * (draws != DRAWS))
    return f"{end.verdict.word}: {end.truth}, status {end.status}, {end.verdict.why} [{end.about}] `{how}`"


def counts(ends: list[Ended]) -> list[list[object]]:
    """One row for each truth: how many of each verdict, and the median and largest error of right answers."""
    rows: list[list[object]] = []
    for truth in TRUTHS:
        own = [end for end in ends if end.truth == truth]
        found = Counter(end.verdict.word for end in own)
        ratios = [end.verdict.ratio * TIMES for end in own if end.verdict.word == "right"]
        ratios = [ratio for ratio in ratios if np.isfinite(ratio)]
        errors = f"{np.median(ratios):.2f}, {max(ratios):.1f}" if ratios else ""
        rows.append([truth, len(own), *(found[word] for word in WORDS), doubted(own), errors])
    found = Counter(end.verdict.word for end in ends)
    rows.append(["all", len(ends), *(found[word] for word in WORDS), doubted(ends), ""])
    return rows


def doubted(ends: list[Ended]) -> int:
    """Right answers that are said to be no solutions yet."""
    return sum(end.verdict.word == "right" and bool(end.doubt) for end in ends)


HEAD = ("truth", "cases", *WORDS, "right, and doubted", "errors of right answers: median, largest")


def section(ends: list[Ended], seed: int, draws: int, seconds: float) -> str:
    words = (
        f"Random problems of up to 6 variables and 12 rows, stream {seed}, some {draws:,} draws each, the default "
        f"method. Right: a point within {TIMES:g} statistical limits of the solution or, without a unique one, of the "
        "KKT conditions of the exact expectations; for infeasible and unbounded problems, a verdict that says so. Said "
        "not: another verdict than a spent budget, or a spent budget whose message says that x is no solution yet "
        "(`result.doubt`). WRONG: a spent budget, no solution, and no word of it; late, if it is there after "
        f"{LATE} times the draws. Missed: the same where there is none. Errors are in statistical limits."
    )
    where = origin("benchmarks.fuzz", ("lariax", "jax", "numpy", "scipy"), seconds)
    failures = [f"- {told(end, seed, draws)}" for end in ends if end.fails]
    return "\n".join(["## Random problems", "", where, "", words, "", *table(HEAD, counts(ends)), "", *failures])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the stream of problems")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--draws", type=float, default=DRAWS, help="from each source")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    return parser.parse_args()


def show(seed: int, number: int, draws: int, console: Console) -> None:
    """One case in full."""
    jax.config.update("jax_enable_x64", True)
    case = case_of(seed, number)
    console.print(f"{case.truth}: {about(case)}")
    result = solved(case, draws)
    console.print(f"x {np.round(np.concatenate([np.ravel(a) for a in jax.tree.leaves(result.x)]), 4)}", highlight=False)
    if case.solution is not None:
        console.print(f"solution {np.round(case.solution, 4)}", highlight=False)
    console.print(result.message, highlight=False, markup=False)
    end = ended(seed, number, draws)
    console.print(told(end, seed, draws), highlight=False, markup=False)
    sys.exit(end.fails)


def main() -> None:
    options, console, began = arguments(), Console(width=180), time.perf_counter()
    draws = int(options.draws)
    if options.case is not None:
        show(options.seed, options.case, draws, console)
    numbers = list(range(options.count))
    jobs = [(options.seed, numbers[i : i + TOGETHER], draws) for i in range(0, len(numbers), TOGETHER)]
    ends: list[Ended] = []
    with progress(console) as bar:
        task = bar.add_task("problems", total=len(numbers))
        for done in side_by_side(of_one_shape, jobs, options.processes):
            ends += done
            bar.advance(task, len(done))
            for end in done:
                if end.fails:
                    console.print(told(end, options.seed, draws), highlight=False, markup=False)
    ends.sort(key=lambda end: end.number)
    for line in table(HEAD, counts(ends)):
        console.print(line, highlight=False)
    if options.write:
        page = write("fuzz", section(ends, options.seed, draws, time.perf_counter() - began))
        console.print(f"written to {page}")
    sys.exit(any(end.fails for end in ends))
