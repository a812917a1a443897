"""`python -m benchmarks.rivals`, the comparison from a shell."""

import argparse
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks._results import figures, progress, write
from benchmarks.rivals.methods import CONSTANT, FALLING
from benchmarks.rivals.problems import problems
from benchmarks.rivals.report import figure, table
from benchmarks.rivals.run import BATCH, DRAWS, SEEDS, TUNING_DRAWS, TUNING_SEEDS, Track, jobs, tracks

DESCRIPTION = (
    "Tune every method on the same budget, run it on the same problems, say in how many draws it got where. A full run "
    "on a machine with N cores: python -m benchmarks.rivals --processes N --write"
)
DISCUSSION = Path(__file__).with_name("discussion.md")


def section(found: list[Track], missing: list[str], options: argparse.Namespace, minutes: float) -> str:
    """The page of the results: what was done, one table a problem, the discussion."""
    steps = f"{', '.join(map(str, FALLING))} (falling) or {', '.join(map(str, CONSTANT))} (constant steps)"
    lines = [
        "## Rivals",
        "",
        f"`python -m benchmarks.rivals --processes {options.processes} --write`, {date.today()}, lariax "
        f"{version('lariax')}, {minutes:.0f} minutes. Every method of a case on the same problems: {options.draws:,} "
        f"draws, batch size {BATCH}, {len(SEEDS)} seeds. Each was tuned on a grid of 12 settings of its own, by the "
        f"larger error after {min(TUNING_DRAWS, options.draws):,} draws with {len(TUNING_SEEDS)} other seeds: "
        f"four steps, as fractions {steps} of 1 / (L + rho J^2), times three penalties, momenta, dual steps or "
        'tolerances (`methods.py`). `method="auto"` has no settings.',
        "",
        "Cells: draws until stationarity (with the best multipliers) and feasibility (rows scaled by their gradients) "
        "are both within the target, median over seeds [least .. most], and the CPU time of so many draws, without "
        "compiling; (n of 8): only so many seeds got there; empty: none. In the end: median stationarity / feasibility "
        "after all draws.",
    ]
    cases = {name: case for name, (case, _) in problems(options.data)[0].items()}
    for problem in dict.fromkeys(track.problem for track in found):
        own = [track for track in found if track.problem == problem]
        figure(problem, own, options.output)
        lines += ["", f"### Case {cases[problem]}: {problem}", "", *table(own), ""]
    lines += ["", *(f"Left out: {what}." for what in missing)]
    if DISCUSSION.exists():
        lines += ["", DISCUSSION.read_text().strip()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=DESCRIPTION)
    parser.add_argument("--processes", type=int, default=2, help="methods side by side (2)")
    parser.add_argument("--data", type=Path, default=None, help="a folder with a9a.npz, for one more problem")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"the budget of every run ({DRAWS:,})")
    parser.add_argument("--only", action="append", help="a problem by name; may be repeated")
    parser.add_argument("--output", type=Path, default=figures("rivals"), help="folder for figures and rivals.md")
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options = parser.parse_args()
    known, missing = problems(options.data)
    unknown = [name for name in options.only or [] if name not in known]
    if unknown:
        parser.error(f"there is no problem {unknown[0]!r}; there are {', '.join(map(repr, known))}")
    console = Console()
    for what in missing:
        console.print(f"left out: {what}")
    options.output.mkdir(parents=True, exist_ok=True)
    pairs, began, found = jobs(options.data, options.only), time.monotonic(), {}
    with progress(console) as bar:
        task = bar.add_task("methods", total=len(pairs))
        for track in tracks(pairs, options.data, options.draws, options.processes):
            found[track.problem, track.method] = track
            bar.update(task, advance=1, description=f"{track.problem}: {track.method}")
    text = section([found[pair] for pair in pairs], missing, options, (time.monotonic() - began) / 60)
    (options.output / "rivals.md").write_text(text + "\n")
    console.print(text, markup=False, soft_wrap=True)
    if options.write:
        console.print(f"written to {write('rivals', text)}")


if __name__ == "__main__":
    main()
