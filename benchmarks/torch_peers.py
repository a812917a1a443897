"""Microseconds of a step in torch, ours and those of cooper and humancompatible-train, against a plain torch step.

    python -m benchmarks.torch_peers --data FOLDER --out steps.json

The problems are those of `benchmarks.peers`: Adult with a bounded loss gap and, where --data has it, Fashion-MNIST with
a bounded loss of each class, both with a 64-32 network. How well and how fast the methods train is told there.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import lariax.torch as lt
from benchmarks._results import origin, table, write
from benchmarks.peers.methods import with_alm, with_cooper, with_lariax
from benchmarks.peers.problems import problems
from benchmarks.peers.tasks import Batch, Task
from lariax.tuned.constants import RARELY, SETTLED

LATE = 2 * SETTLED
WARM = 1024  # calls before the clock runs
BATCHES = 64  # that take turns


def overhead(task: Task, repeats: int) -> list[dict]:
    """Processor time of a step over a plain Adam step with as many forward and backward passes, in turns.

    `TrackedLagrangian` is settled: one call in `RARELY` sees the batch in halves, with three more backward passes at
    one of the two points; its refreshes are rare and left out.
    """
    cases = {
        "lariax QuadraticPenalty": (with_lariax(lt.QuadraticPenalty), {"lr": 1e-3}, 2, 0),
        "lariax DualPenalty": (with_lariax(lt.DualPenalty), {"lr": 1e-3, "dual_step": 0.1}, 2, 0),
        "lariax TrackedLagrangian": (with_lariax(settled), {}, 2, 3),
        "cooper": (with_cooper, {"lr": 1e-3, "dual_lr": 0.1, "penalty": 1.0}, 1, 0),
        "humancompatible-train ALM": (with_alm, {"lr": 1e-3, "dual_lr": 0.1, "penalty": 1.0}, 1, 0),
    }
    found = []
    for name, (build, setting, points, more) in cases.items():
        model, batches = task.model(0), itertools.cycle(list(itertools.islice(task.batches(0), BATCHES)))
        step, closure = build(task, model, setting), task.closure(model)
        plain, calls = torch.optim.Adam(model.parameters(), lr=0.0), itertools.count()

        def bare(batch, points=points, closure=closure, plain=plain, calls=calls, more=more) -> None:
            plain.zero_grad()
            extra = more if next(calls) % RARELY == 0 else 0
            parts = list(zip(*(part.chunk(2 if extra else 1) for part in batch), strict=True))
            for point, piece in itertools.product(range(points), parts):
                losses, values = closure(piece)
                total = losses.mean() + values["c"].mean()
                for _ in range(extra if point else 0):
                    total.backward(retain_graph=True)
                total.backward()
            plain.step()

        for _ in range(WARM):
            step(next(batches))
        pairs = [(_clock(bare, batches), _clock(step, batches)) for _ in range(repeats)]
        bare_time, step_time = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        found.append({"method": name, "plain_us": bare_time * 1e6, "step_us": step_time * 1e6, "ratio": ratio})
    return found


def settled(*args, **options) -> lt.TrackedLagrangian:
    """From some call on as late in a run."""
    opt = lt.TrackedLagrangian(*args, **options)
    make = opt.step

    def step(closure, batch):
        if opt.calls == WARM // 2:
            opt.calls, opt.calendar.next_refresh = LATE + opt.calendar.start, 10 * LATE
        return make(closure, batch)

    opt.step = step
    return opt


def report(figures: dict[str, list[dict]], seconds: float) -> str:
    rows = [
        (task, row["method"], f"{row['plain_us']:.0f}", f"{row['step_us']:.0f}", f"{row['ratio']:.2f}")
        for task, steps in figures.items()
        for row in steps
    ]
    about = origin("benchmarks.torch_peers", ("torch", "cooper-optim", "humancompatible-train"), seconds)
    return "\n".join(
        [
            "## Microseconds of a step in PyTorch",
            "",
            f"{about} Processor time of a step over a plain Adam step with as many forward and backward passes, in "
            f"turns, medians; one core, 64-32 networks. `TrackedLagrangian` as late in a run: one call in {RARELY} "
            "measures, with three more backward passes over each half of the batch, which the plain step then makes "
            "too. The goal for ours is 1.15.",
            "",
            *table(("task", "method", "plain step", "step", "ratio"), rows),
        ]
    )


def _clock(function: Callable[[Batch], object], batches: Iterator[Batch], inner: int = 2 * RARELY) -> float:
    begin = time.process_time()
    for batch in itertools.islice(batches, inner):
        function(batch)
    return (time.process_time() - begin) / inner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="a folder with fashion_mnist_8k.npz")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    options = parser.parse_args()
    begin = time.perf_counter()
    torch.set_num_threads(1)
    known, missing = problems(options.data)
    for what in missing:
        if "Fashion" in what:
            print(f"left out: {what}")
    figures: dict[str, list[dict]] = {}
    for name in ("adult-gap-64-32", "fashion"):
        if name in known:
            task = known[name]()
            figures[task.shape.name] = overhead(task, options.repeats)
            for row in figures[task.shape.name]:
                numbers = f"{row['plain_us']:.0f} | {row['step_us']:.0f} | {row['ratio']:.2f}"
                print(f"| {task.shape.name} | {row['method']} | {numbers} |", flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=1))
    if options.write:
        write("torch-steps", report(figures, time.perf_counter() - begin))


if __name__ == "__main__":
    main()
