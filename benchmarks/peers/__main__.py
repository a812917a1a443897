"""`python -m benchmarks.peers`, the comparison from a shell."""

import argparse
import os
import pickle
from itertools import groupby
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

from rich.console import Console

from benchmarks._results import figures, origin, progress, write
from benchmarks.peers.figures import draw
from benchmarks.peers.jobs import Plan, outcomes, task_of
from benchmarks.peers.methods import JAX, RIVALS, TORCH
from benchmarks.peers.problems import GAP, problems
from benchmarks.peers.report import front_table, problem_table, summary_table, words
from benchmarks.peers.run import ROUNDS, SEEDS, WEIGHT, Outcome
from benchmarks.peers.tasks import Shape, Task

DESCRIPTION = (
    "cooper-optim and humancompatible-train, tuned, beside Lariax on its defaults. The whole: python -m "
    "benchmarks.peers --data FOLDER --write. What was run is kept in --results, so an interrupted comparison goes on."
)
NOTES = Path(__file__).with_name("notes.md")
METHODS = (JAX, TORCH, *RIVALS)


def section(found: list[Outcome], missing: list[str], plan: Plan, folder: Path) -> str:
    """The page of the results."""
    seconds = sum(each.spent for each in found)
    settings = " ".join(f"{name}: {len(rival.grid[: plan.settings])}." for name, rival in RIVALS.items())
    rounds = ", ".join(
        f"{'every setting' if keep is None else f'the best {keep}'} for {share:.2g}" for keep, share, _ in ROUNDS
    )
    lines = [
        "## Peers: cooper-optim and humancompatible-train",
        "",
        origin("benchmarks.peers", ("lariax", "jax", "torch", "cooper-optim", "humancompatible-train"), seconds),
        "",
        "CPU time of one core. Everybody has the same problems, batch sizes, models, starting points and seconds. Ours "
        f"have no setting. Settings of the rivals' grids (`benchmarks/peers/methods.py`): {settings} Tuning, on one "
        f"seed and training rows, by the least merit: {rounds} of the seconds. The best runs with {plan.seeds} other "
        "seeds. "
        f"Merit: loss + {WEIGHT:g} times the excess over the bound, in the mean over the last third of the looks. "
        "The clock stands while a point is looked at; batches for torch are drawn off the clock, compiled runs draw on "
        "it; compiling is off it too, and told below.",
        "",
        "Excess: the largest constraint value over its bound on *all* training rows (absolute value, for equations), "
        "without sampling error. Within: an excess of at most the slack; for the loss gap that is twice the bound. For "
        "good: from then on at every look, a tenth of the run at least. Late: over the last third of the looks. "
        "Medians over seeds [least, most]; held-out figures with 95 % intervals.",
    ]
    everything: list[tuple[Shape, str, list[Outcome]]] = []
    body: list[str] = []
    for data, members in groupby(found, key=lambda each: each.problem.split("-")[0]):
        parts = []
        for name, own in groupby(members, key=lambda each: each.problem):
            task, here = task_of(plan, name), list(own)
            parts.append((task.shape, task.better, here))
            body += ["", *problem_section(task, here)]
            if name == "adult-gap-64-32":
                body += ["", FRONT, *front_table(here, GAP)]
        draw(data, parts, folder)
        everything += parts
    lines += ["", "Of the rivals the one that is best in the end, by its merit:", "", *summary_table(everything), *body]
    lines += ["", *(f"Left out: {what}." for what in missing), "", NOTES.read_text().strip()]
    return "\n".join(lines)


def problem_section(task: Task, found: list[Outcome]) -> list[str]:
    shape = task.shape
    return [
        f"### {shape.name}",
        "",
        f"{shape.seconds:g} s, batches of {shape.batch}, slack {shape.slack:g}; compiling took "
        f"{max(each.compiling for each in found):.0f} s.",
        "",
        *problem_table(shape, task.better, found),
    ]


FRONT = (
    "How soon, for what AUC on test rows; a model that has learned nothing has no gap, so a time means nothing without "
    "its AUC. Ours may have an AUC that is 0.002 lower. Goal: a ratio of at most 0.25."
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=DESCRIPTION)
    parser.add_argument("--data", type=Path, default=None, help="a folder with COMPAS, a9a and Fashion-MNIST")
    parser.add_argument("--only", action="append", help="a problem by its short name; may be repeated")
    parser.add_argument("--processes", type=int, default=1, help="methods side by side (1)")
    parser.add_argument("--settings", type=int, default=None, help="only so many settings of each grid (all)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help=f"of the report ({len(SEEDS)})")
    parser.add_argument("--scale", type=float, default=1.0, help="of all budgets of seconds (1)")
    parser.add_argument("--quick", action="store_true", help="a minute: two problems, four settings, one seed")
    parser.add_argument("--results", type=Path, default=Path("peers-results"), help="folder for what was run")
    parser.add_argument("--again", action="append", default=[], help="a method to run again, in --results or not")
    parser.add_argument("--report", action="store_true", help="run nothing: tell of the problems that are done")
    parser.add_argument("--write", action="store_true", help="write tables and figures to benchmarks")
    options = parser.parse_args()
    if options.quick:
        options.only = options.only or ["bias2", "german-gap-linear"]
        options.settings, options.seeds, options.scale = 4, 1, 0.5
    known, missing = problems(options.data)
    for name in options.only or []:
        if name not in known:
            left_out = f" ({'; '.join(missing)} left out)" if missing else ""
            parser.error(f"there is no problem {name!r}; there are {', '.join(known)}{left_out}")
    for name in options.again:
        if name not in METHODS:
            parser.error(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return options


def main() -> None:
    options, console = arguments(), Console()
    plan = Plan(options.data, options.scale, options.settings, options.seeds)
    known, missing = problems(options.data)
    for what in missing:
        console.print(f"left out: {what}")
    folder = options.results / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in known if not options.only or name in options.only]
    pairs = [(name, method) for name in names for method in METHODS]
    files = {pair: folder / f"{pair[0]}--{pair[1].replace(' ', '-')}.pickle" for pair in pairs}
    wanted = [pair for pair in pairs if pair[1] in options.again or not files[pair].exists()]
    if options.report:
        undone = {problem for problem, _ in wanted}
        missing += [f"{problem} (not run yet)" for problem in names if problem in undone]
        pairs, wanted = [pair for pair in pairs if pair[0] not in undone], []
    with progress(console) as bar:
        task = bar.add_task("methods", total=len(wanted))
        for each in outcomes(plan, wanted, options.processes):
            files[each.problem, each.method].write_bytes(pickle.dumps(each))
            console.print(
                f"{each.problem:18s} {each.method:18s} merit {each.traces[0].merit:.4f}  {words(each.setting)}"
            )
            bar.update(task, advance=1, description=f"{each.problem}: {each.method}")
    found = [pickle.loads(files[pair].read_bytes()) for pair in pairs]
    text = section(found, missing, plan, figures("peers") if options.write else options.results)
    console.print(text, markup=False, soft_wrap=True)
    if options.write:
        console.print(f"written to {write('peers', text)}")


if __name__ == "__main__":
    main()
