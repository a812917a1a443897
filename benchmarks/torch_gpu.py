"""The torch optimizers on an accelerator: the update against the copy bandwidth, a step against its bare passes.

python -m benchmarks.torch_gpu --out gpu.json
python -m benchmarks.torch_gpu --device cpu --parameters 1e5 --rows 64      # the same code, small
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import lariax.torch as lt
from lariax.torch import _optimizer

BOUND = 0.1


class Clock:
    """Medians of repeated runs, by the device's own events where it has them."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def __call__(self, function: Callable[[], object], inner: int = 1) -> float:
        """Seconds for one call, over `repeats` measurements of `inner` calls."""
        times = []
        for _ in range(self.repeats):
            if self.device == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                start.record()
                for _ in range(inner):
                    function()
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end) / 1e3 / inner)
            else:
                begin = time.process_time()
                for _ in range(inner):
                    function()
                times.append((time.process_time() - begin) / inner)
        return statistics.median(times)


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


def bare(model: torch.nn.Module, batches: list[torch.Tensor]) -> Callable[[], None]:
    """Forward and backward passes with fixed weights, and nothing else."""
    closure, params = closure_for(model), list(model.parameters())
    weights = [torch.full((len(batch), 2), 1 / len(batch), device=batch.device) for batch in batches]

    def run() -> None:
        for batch, weight in zip(batches, weights, strict=True):
            loss, values = closure(batch)
            torch.autograd.grad([loss, values["mean"]], params, [torch.ones_like(loss), weight])

    return run


def update_times(clock: Clock, model: torch.nn.Module) -> dict[str, float]:
    params = [p.detach().clone() for p in model.parameters()]
    size = sum(p.numel() for p in params)
    previous, estimate, fresh, stale = ([torch.randn_like(p) for p in params] for _ in range(4))
    numbers = torch.full((1 + len(params),), 1e-6, device=params[0].device)
    other = torch.empty(7 * size // 2, device=params[0].device)  # as many bytes as the update moves
    source = torch.randn_like(other)
    kinds = {"calls one by one": _optimizer._advance}
    if params[0].device.type == "cuda":
        kinds["one compiled kernel"] = _optimizer.fused()
    found = {"copy": clock(lambda: other.copy_(source), 5)}
    for name, function in kinds.items():
        run = torch.no_grad()(lambda f=function: f(params, previous, estimate, fresh, stale, numbers))
        run()
        found[name] = clock(run, 5)
    return found


def step_times(clock: Clock, parameters: float, rows: int, device: str) -> list[dict[str, object]]:
    constraints = {"mean": lt.AtMost([BOUND, BOUND])}
    table = []
    for name, make, parts in (
        ("QuadraticPenalty", lambda m: lt.QuadraticPenalty(m, constraints, lr=1e-3), 1),
        ("DualPenalty", lambda m: lt.DualPenalty(m, constraints, lr=1e-3), 1),
        ("TrackedLagrangian", lambda m: lt.TrackedLagrangian(m, constraints), 2),
        ("TrackedLagrangian, one backward", lambda m: lt.TrackedLagrangian(m, constraints, one_backward=True), 2),
    ):
        model = network(parameters, device)
        opt, closure = make(model), closure_for(model)
        width = model[0].in_features
        batch = torch.randn(rows, width, device=device)
        points = 1 if "one backward" in name else 2
        passes = bare(model, list(batch.chunk(parts)) * points)
        for _ in range(70):  # past the first 64, in which curvature is measured every time
            opt.step(closure, batch)
        passes()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = clock(passes)
        # sixteen calls hold two measurements of curvature; refreshes are rare and further and further apart
        if hasattr(opt, "next_refresh"):
            opt.next_refresh = 10**9
        step = clock(lambda opt=opt, closure=closure, batch=batch: opt.step(closure, batch), 16)
        after = clock(passes)
        bare_time = (before + after) / 2
        table.append({"method": name, "passes": bare_time, "step": step, "ratio": step / bare_time})
        del opt, model
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    clock = Clock(options.device, options.repeats)
    model = network(options.parameters, options.device)
    size = sum(p.numel() for p in model.parameters())
    moved = 7 * 4 * size
    updates = update_times(clock, model)
    del model
    print(f"{size:,} parameters, {options.rows} rows, {torch.__version__}, {_device_name(options.device)}")
    print(f"copy: {moved / updates['copy'] / 1e12:.3f} TB/s")
    for name, seconds in updates.items():
        share = updates["copy"] / seconds
        print(f"| update, {name} | {seconds * 1e3:.3f} ms | {moved / seconds / 1e12:.3f} TB/s | {share:.0%} of copy |")
    steps = step_times(clock, options.parameters, options.rows, options.device)
    for row in steps:
        bare_ms, step_ms = (float(row[key]) * 1e3 for key in ("passes", "step"))
        print(f"| {row['method']} | passes {bare_ms:.2f} ms | step {step_ms:.2f} ms | {row['ratio']:.3f} |")
    if options.out:
        figures = {"device": _device_name(options.device), "torch": torch.__version__, "parameters": size}
        with open(options.out, "w") as file:
            json.dump({**figures, "rows": options.rows, "update_seconds": updates, "steps": steps}, file, indent=1)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


if __name__ == "__main__":
    main()
