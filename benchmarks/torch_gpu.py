"""The torch optimizers on an accelerator: the update against the copy bandwidth, a step against its bare passes.

python -m benchmarks.torch_gpu --out gpu.json
python -m benchmarks.torch_gpu --report gpu.json                            # into benchmarks/results
python -m benchmarks.torch_gpu --device cpu --parameters 1e5 --rows 64      # the same code, small
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

import lariax.torch as lt
from benchmarks._results import table, write
from lariax.torch import _kernels
from lariax.tuned.constants import RARELY, SETTLED

BOUND = 0.1
BATCHES = 8  # that take turns
PASSES = 32  # that are timed at once
WARM = 320  # calls, of which the first 256 measure
LATE = 2 * SETTLED  # as many calls into a run, curvature is measured as rarely as it ever is
METHODS: dict[str, tuple[Callable, dict[str, object], int, int]] = {  # and bare passes: forward alone, and both ways
    "QuadraticPenalty": (lt.QuadraticPenalty, {"lr": 1e-3}, 0, 2),
    "DualPenalty": (lt.DualPenalty, {"lr": 1e-3}, 0, 2),
    "TrackedLagrangian": (lt.TrackedLagrangian, {}, 0, 2),
    "TrackedLagrangian, adaptive metric": (lt.TrackedLagrangian, {"adaptive_metric": True}, 0, 2),
    "TrackedLagrangian, one backward": (lt.TrackedLagrangian, {"one_backward": True}, 1, 1),
}
GOALS = {"compiled": 0.9, **dict.fromkeys(["QuadraticPenalty", "DualPenalty", "TrackedLagrangian"], 1.05)}


class Clock:
    """By the device's own events where it has them."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _mark(self) -> Any:
        if self.device != "cuda":
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3 if self.device == "cuda" else end - start

    def in_turn(self, *runs: Callable[[], object]) -> list[float]:
        """Seconds of each, medians of repeated rounds: a device that slows down slows all of them."""
        rounds = []
        for _ in range(self.repeats):
            self._wait()
            marks = [self._mark()]
            for run in runs:
                run()
                marks.append(self._mark())
            self._wait()
            rounds.append([self._between(*pair) for pair in itertools.pairwise(marks)])
        return [statistics.median(times) for times in zip(*rounds, strict=True)]


def network(parameters: float, device: str) -> torch.nn.Module:
    """Six square layers."""
    width = max(16, round((parameters / 6) ** 0.5) // 16 * 16)
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers[:-1]).to(device)


def closure_for(model: torch.nn.Module) -> Callable:
    def closure(x):
        out = model(x)
        return (out**2).mean(), {"mean": out[:, :2]}

    return closure


def bare(model: torch.nn.Module, batches: Iterator[torch.Tensor], forward: int, both: int) -> Callable[[], None]:
    """Passes with fixed weights, and nothing else."""
    closure, params = closure_for(model), list(model.parameters())
    like = next(batches)
    weight = torch.full((len(like), 2), 1 / len(like), device=like.device)

    def run() -> None:
        batch = next(batches)
        for _ in range(both):
            loss, values = closure(batch)
            torch.autograd.grad([loss, values["mean"]], params, [torch.ones_like(loss), weight])
        with torch.no_grad():
            for _ in range(forward):
                closure(batch)

    return run


def update_times(clock: Clock, model: torch.nn.Module) -> dict[str, float]:
    params = [p.detach().clone() for p in model.parameters()]
    size = sum(p.numel() for p in params)
    previous, estimate, fresh, stale = ([torch.randn_like(p) for p in params] for _ in range(4))
    numbers = torch.full((1 + 2 * len(params),), 1e-6, device=params[0].device)
    sure = torch.ones((), dtype=torch.bool, device=params[0].device)
    other = torch.empty(7 * size // 2, device=params[0].device)  # as many bytes as the update moves
    source = torch.randn_like(other)
    update = _kernels.Update(params, params, previous, estimate, fresh, stale, None, sure, numbers)
    compiled = _kernels.update_on(params[0].device)
    kinds = {"calls one by one": _kernels.advance, "compiled": compiled, "with sums": partial(compiled, summed=True)}
    runs = {"copy": lambda: other.copy_(source)}
    runs |= {name: torch.no_grad()(lambda f=function: f(update)) for name, function in kinds.items()}
    for run in runs.values():
        run()
    times = clock.in_turn(*(partial(_often, run, 5) for run in runs.values()))
    return dict(zip(runs, [seconds / 5 for seconds in times], strict=True))


def _often(run: Callable[[], object], times: int) -> None:
    for _ in range(times):
        run()


def step_times(
    clock: Clock, parameters: float, rows: int, device: str, method: tuple[Callable, dict[str, object], int, int]
) -> dict[str, float]:
    make, options, *passes_of = method
    model = network(parameters, device)
    opt, closure = make(model, {"mean": lt.AtMost([BOUND, BOUND])}, **options), closure_for(model)
    batches = itertools.cycle([torch.randn(rows, model[0].in_features, device=device) for _ in range(BATCHES)])
    passes = bare(model, batches, *passes_of)
    tunes = isinstance(opt, lt.TrackedLagrangian)
    cycle = RARELY if tunes else PASSES

    def late(first: int, count: int) -> None:
        """Calls as they are late in a run; refreshes are rare and further and further apart."""
        if tunes:
            opt.calls, opt.calendar.next_refresh = LATE + first - 1 + opt.calendar.start, 10**9
        for batch in itertools.islice(batches, count):
            opt.step(closure, batch)

    for batch in itertools.islice(batches, WARM if tunes else cycle):
        opt.step(closure, batch)
    late(0, cycle)
    passes()
    bare_memory = _peak(device, passes)
    each, first, others = clock.in_turn(lambda: _often(passes, PASSES), lambda: late(0, 1), lambda: late(1, cycle - 1))
    seconds, step, ordinary = each / PASSES, (first + others) / cycle, others / (cycle - 1)
    return {
        "refused": opt.observe().get("backed_off", 0.0),
        "passes": seconds,
        "step": step,
        "ratio": step / seconds,
        "ordinary_ratio": ordinary / seconds,
        "memory": (_peak(device, lambda: late(1, 2)) - bare_memory) / 4 / sum(p.numel() for p in model.parameters()),
    }


def _peak(device: str, function: Callable[[], object]) -> int:
    """Bytes, where they can be counted."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated()


def report(figures: dict[str, Any]) -> str:
    """The page of the results."""
    moved, updates = 7 * 4 * figures["parameters"], figures["update_seconds"]
    of_updates, of_steps = [], []
    for name, seconds in updates.items():
        share, goal = updates["copy"] / seconds, GOALS.get(name)
        told = "" if goal is None else f"{goal:.0%}{'' if share >= goal else ', missed'}"
        of_updates.append((name, f"{seconds * 1e3:.2f} ms", f"{moved / seconds / 1e12:.2f} TB/s", f"{share:.0%}", told))
    for name, step in figures["steps"].items():
        goal = GOALS.get(name)
        told = "" if goal is None else f"{goal}{'' if step['ratio'] <= goal else ', missed'}"
        times = (f"{step[key] * 1e3:.2f} ms" for key in ("passes", "step"))
        ratios = (f"{step[key]:.3f}" for key in ("ratio", "ordinary_ratio"))
        of_steps.append((name, *times, *ratios, told, f"{step['memory']:.2f}"))
    return "\n".join(
        [
            "## PyTorch on an accelerator",
            "",
            f"`python -m benchmarks.torch_gpu --repeats {figures['repeats']} --out gpu.json`, {figures['date']}, "
            f"{figures['device']}, torch {figures['torch']}. Six square layers, {figures['parameters']:,} parameters, "
            f"float32, batches of {figures['rows']:,} rows. The update reads or writes seven streams of parameters; "
            "with sums: as `TrackedLagrangian` has it.",
            "",
            *table(("update", "time", "bandwidth", "of a copy", "goal"), of_updates),
            "",
            *table(("step", "passes", "step", "ratio", "ordinary", "goal", "memory"), of_steps),
            "",
            "Bare passes are two forward and backward passes; for one backward, one of these and a forward pass. Steps "
            f"are those of a settled run (call {LATE:,} and on), in which one of {RARELY} measures noise, drift and "
            "curvature on halves of the batch, with three more backward passes; `ordinary`: the ratio of the others. "
            "Memory beyond that of the passes, in units of the parameters: the previous ones, the estimate, and a "
            "gradient that is kept while the next is computed. "
            f"Steps taken back: {sum(step['refused'] for step in figures['steps'].values()):.0f}.",
            *(f"\n{note}" for note in figures.get("notes", [])),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--report", type=Path, help="write such figures into benchmarks/results, and measure nothing")
    options = parser.parse_args()
    if options.report:
        write("torch-gpu", report(json.loads(options.report.read_text())))
        return
    torch.set_float32_matmul_precision("high")
    clock = Clock(options.device, options.repeats)
    model = network(options.parameters, options.device)
    figures: dict[str, Any] = {
        "date": str(date.today()),
        "repeats": options.repeats,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rows": options.rows,
        "update_seconds": update_times(clock, model),
        "steps": {},
    }
    del model
    for name, method in METHODS.items():
        figures["steps"][name] = step_times(clock, options.parameters, options.rows, options.device, method)
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1))
    print(report(figures))


if __name__ == "__main__":
    main()
