"""What a multiplier costs in a training step: our rule beside a weighted sum with a fixed weight, a whole run of each.

    python -m benchmarks.multipliers.cost [--device cuda] [--only adult transformer] [--steps 2000 500]

Rows are random numbers: only their shapes matter. `adult` is a 44-64-32-1 network with 32 rows of each of two groups in
a batch and a gap bounded from both sides; `transformer` reads bytes, 10.8 million parameters, 64 rows of 256. Both ways
take turns in blocks, on one model. Processor time on a CPU, the clock's time on a GPU.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import lariax.torch as lt

BLOCK = 50  # steps
LENGTH, WIDTH, LAYERS, HEADS = 256, 384, 6, 6
Weigh = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Workload(NamedTuple):
    model: nn.Module
    constraints: dict[str, Any]
    closure: Callable[[], tuple[Tensor, dict[str, Tensor]]]
    steps: int


class Cost(NamedTuple):
    """Microseconds of a step: the mean over the run, and how much longer ours takes."""

    plain: float
    ours: float
    ratio: float


def adult(device: str) -> Workload:
    model = nn.Sequential(nn.Linear(44, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    inputs = torch.randn(1000, 2, 44, device=device)
    labels = (inputs[..., 0] + torch.randn(1000, 2, device=device) > 0).float()
    shares = torch.tensor([0.67, 0.33], device=device)
    matrix = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], device=device)

    def closure() -> tuple[Tensor, dict[str, Tensor]]:
        rows = torch.randint(1000, (32,), device=device)
        scores = model(inputs[rows]).squeeze(-1)
        losses = nn.functional.binary_cross_entropy_with_logits(scores, labels[rows], reduction="none")
        return losses @ shares, {"gap": losses @ matrix}

    return Workload(model, {"gap": lt.AtMost(0.005)}, closure, 2500)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.between(x))


def transformer(device: str) -> Workload:
    blocks = [Block() for _ in range(LAYERS)]
    parts = [nn.Embedding(256, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)]
    model = nn.Sequential(*parts).to(device)
    text = torch.randint(256, (512, LENGTH + 1), device=device)

    def closure() -> tuple[Tensor, dict[str, Tensor]]:
        rows = text[torch.randint(512, (64,), device=device)]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            scores = model(rows[:, :-1])
        losses = nn.functional.cross_entropy(scores.float().transpose(1, 2), rows[:, 1:], reduction="none").mean(dim=1)
        return losses[:48], {"text": losses[48:]}

    return Workload(model, {"text": lt.AtMost(5.0)}, closure, 500)


def plain(losses: Tensor, values: dict[str, Tensor]) -> Tensor:
    """What a loop without a rule does."""
    total = losses.mean()
    for value in values.values():
        total = total + 0.1 * value.mean()
    return total


def cost(work: Workload, device: str, steps: int | None = None) -> Cost:
    """Of the steps of a whole run with ours; the plain ones take turns with them."""
    steps = steps or work.steps
    optimizer = torch.optim.Adam(work.model.parameters(), lr=1e-4)
    ours = lt.Multipliers(work.constraints, steps=steps, parameters=work.model.parameters()).lagrangian
    clock = time.process_time if device == "cpu" else time.perf_counter

    def block(weigh: Weigh) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = clock()
        for _ in range(BLOCK):
            optimizer.zero_grad()
            weigh(*work.closure()).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (clock() - begin) / BLOCK * 1e6

    block(plain)
    times = np.array([[block(plain), block(ours)] for _ in range(steps // BLOCK)])
    slow = times[:, 0] > 3 * np.median(times[:, 0])  # another program had the machine
    means = times[~slow].mean(axis=0)
    return Cost(float(means[0]), float(means[1]), float(means[1] / means[0]))


WORK = {"adult": adult, "transformer": transformer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="*", default=list(WORK), choices=list(WORK))
    parser.add_argument("--steps", nargs="*", type=int, default=None, help="of each, in the place of its own number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for i, name in enumerate(options.only):
        torch.manual_seed(0)
        work = WORK[name](options.device)
        found = cost(work, options.device, options.steps[i] if options.steps else None)
        print(f"{name}, {options.device}: {found.plain:.0f} -> {found.ours:.0f} us, {found.ratio:.3f}")


if __name__ == "__main__":
    main()
