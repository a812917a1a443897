"""Networks that Adam trains under constraints, each in seconds on one core.

A scenario makes a `Training`: a model, batches, a closure as in `lariax.torch` and an exact look at all training rows.
"""

import itertools
import math
import site
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lariax.torch as lt
from benchmarks.peers.problems import problems
from benchmarks.peers.tasks import Rows

Values = dict[str, Any]
F = nn.functional


@dataclass
class Training:
    """One run of a scenario, before it begins."""

    model: nn.Module
    batches: Iterator[Any]
    closure: Callable[[Any], tuple[Tensor, Values]]
    constraints: Mapping[str, Any]
    exact: Callable[[], tuple[float, np.ndarray]]  # the objective and all residuals on all training rows
    quality: Callable[[], float] | None = None  # on held-out rows
    whole: tuple[Callable[[Any], Values], list[Any]] | None = (
        None  # values of a batch, and batches of all training rows
    )

    def settle(self) -> None:
        """Onto the bounds of all training rows, the same way after each method: what is told is no method's."""
        if self.whole is not None:
            values, batches = self.whole
            multipliers = lt.Multipliers(self.constraints, parameters=self.model)
            multipliers.settle(lambda batch: (torch.zeros(()), values(batch)), batches)


@dataclass(frozen=True)
class Scenario:
    about: str
    make: Callable[[int], Training]
    steps: int
    rate: float  # Adam's largest
    warm_up: int = 50

    def rate_at(self, k: int) -> float:
        """Of step k = 1, 2, ...: a warm-up, then a cosine down to a tenth."""
        return self.rate * min(1.0, k / self.warm_up) * (0.1 + 0.45 * (1 + math.cos(math.pi * k / self.steps)))


# --- bytes: the loss on code is minimised, that on text is bounded

CONTEXT = 8


@cache
def byte_rows(kind: str, count: int = 20_000) -> Tensor:
    """Windows of the sources, or of the readmes and licences, of installed packages."""
    patterns = {
        "code": ["torch/optim/*.py", "jax/_src/*.py"],
        "text": ["*.dist-info/METADATA", "*.dist-info/**/LICENSE*"],
    }
    text = bytearray()
    roots = dict.fromkeys([path for path in sys.path if path.endswith("-packages")] + site.getsitepackages())
    for root, pattern in itertools.product(roots, patterns[kind]):
        for file in sorted(Path(root).glob(pattern)):
            text += file.read_bytes()[:40_000] if file.is_file() else b""
    stream = torch.frombuffer(text, dtype=torch.uint8).long()
    starts = torch.randint(len(stream) - CONTEXT - 1, (count,), generator=torch.Generator().manual_seed(0))
    return stream[starts[:, None] + torch.arange(CONTEXT + 1)]


class ByteModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 12)
        self.body = nn.Sequential(nn.Linear(12 * CONTEXT, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 256)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(self.embed(rows).flatten(1)))


def byte_losses(model: nn.Module, rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]), rows[:, -1], reduction="none")


def draws(tables: list[Tensor], sizes: list[int], seed: int) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield [t[torch.randint(len(t), (n,), generator=generator)] for t, n in zip(tables, sizes, strict=True)]


@torch.no_grad()
def mean_loss(model: nn.Module, rows: Tensor) -> float:
    return float(byte_losses(model, rows).mean())


@cache
def trained_on_code(seed: int, width: int, steps: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    model = ByteModel(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for (rows,) in itertools.islice(draws([byte_rows("code")], [128], seed), steps):
        optimizer.zero_grad()
        byte_losses(model, rows).mean().backward()
        optimizer.step()
    return model.state_dict()


def bytes_from_scratch(seed: int, width: int, bound: float) -> Training:
    torch.manual_seed(seed)
    return _bytes(ByteModel(width), "code", "text", bound, seed)


def bytes_without_forgetting(seed: int, width: int = 64, rise: float = 0.05) -> Training:
    """Trained on code, now on text, while the loss on code may rise by a little."""
    model = ByteModel(width)
    model.load_state_dict(trained_on_code(seed, width, 1200))
    return _bytes(model, "text", "code", mean_loss(model, byte_rows("code")) + rise, seed)


def _bytes(model: nn.Module, objective: str, bounded: str, bound: float, seed: int) -> Training:
    tables = [byte_rows(objective), byte_rows(bounded)]

    def closure(batch: list[Tensor]) -> tuple[Tensor, Values]:
        losses = byte_losses(model, torch.cat(batch))
        return losses[: len(batch[0])], {"bounded": losses[len(batch[0]) :]}

    def exact() -> tuple[float, np.ndarray]:
        return mean_loss(model, tables[0]), np.array([mean_loss(model, tables[1]) - bound])

    def values(rows: Tensor) -> Values:
        return {"bounded": byte_losses(model, rows)}

    whole = values, list(tables[1].split(2500))
    return Training(model, draws(tables, [96, 32], seed), closure, {"bounded": lt.AtMost(bound)}, exact, whole=whole)


# --- classifiers of `benchmarks.peers`


def classifier(seed: int, name: str, data: Path | None) -> Training:
    task = problems(data)[0][name]()
    assert isinstance(task, Rows)
    model = task.model(seed)

    def means() -> Tensor:
        return torch.stack([task.losses(model, s.inputs, s.labels).mean() for s in task.training])

    def residuals() -> Tensor:
        return means() @ task.matrix - task.bounds

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            return float(means() @ task.shares), residuals().double().numpy()

    return Training(
        model,
        task.batches(seed),
        task.closure(model),
        {"c": lt.AtMost(0.0)},
        exact,
        lambda: task.look(model).quality,
        (lambda _: {"c": residuals()[None]}, [None]),
    )


# --- physics


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x[:, None]).squeeze(1)


def physics(seed: int, width: float) -> Training:
    """width u'' + u' = 1 on (0, 1), with u(0) = u(1) = 0 as two equalities of the parameters alone."""
    torch.manual_seed(seed)
    model, ends = Wave(), torch.tensor([0.0, 1.0])

    def residual(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (width * bend + slope - 1) ** 2

    def points() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.rand(64, generator=generator)

    def exact() -> tuple[float, np.ndarray]:
        objective = float(residual(torch.linspace(0, 1, 512)).mean().detach())
        return objective, model(ends).detach().double().numpy()

    def values(_: Any) -> Values:
        return {"ends": model(ends)}

    def closure(x: Tensor) -> tuple[Tensor, Values]:
        return residual(x), values(x)

    return Training(model, points(), closure, {"ends": lt.Equal(samples=None)}, exact, whole=(values, [None]))


# --- reinforcement


def cart(seed: int) -> Training:
    """A mass is pushed for ten steps and is to go far at a mean energy of at most 3. REINFORCE, 128 runs a step."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def rollouts(runs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        place, speed = torch.zeros(runs), 0.3 * torch.randn(runs, generator=generator)
        score, energy = torch.zeros(runs), torch.zeros(runs)
        for t in range(10):
            mean = torch.tanh(policy(torch.stack([place, speed, torch.full((runs,), t / 10)], dim=1)).squeeze(1))
            push = (mean + 0.3 * torch.randn(runs, generator=generator)).detach()
            score = score - (push - mean) ** 2 / (2 * 0.3**2)
            energy = energy + push**2
            speed = 0.9 * speed + 0.3 * push
            place = place + 0.3 * speed
        return place, energy, score

    own = torch.Generator().manual_seed(seed)

    def closure(_: int) -> tuple[Tensor, Values]:
        place, energy, score = rollouts(128, own)
        gain, cost = place - place.mean(), energy - energy.mean()
        return -gain * score, {"energy": lt.Proxy(energy, cost * score)}

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            place, energy, _ = rollouts(20_000, torch.Generator().manual_seed(0))
        return -float(place.mean()), np.array([float(energy.mean()) - 3.0])

    return Training(policy, itertools.count(), closure, {"energy": lt.AtMost(3.0)}, exact)


# --- constraints that fight


def five(seed: int) -> Training:
    """Six functions through one layer of four units: the error in one is minimised, those in five are bounded."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(4096, 6, generator=generator)
    teacher = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))
    for parameter in teacher.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.7 if parameter.ndim == 2 else 0.1)
    with torch.no_grad():
        targets = teacher(inputs)
        targets = (targets - targets.mean(0)) / targets.std(0)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6))
    bounds = torch.tensor([0.15, 0.2, 0.25, 0.3, 0.35])

    def errors(rows: Tensor) -> Tensor:
        return (model(inputs[rows]) - targets[rows]) ** 2

    def closure(rows: Tensor) -> tuple[Tensor, Values]:
        each = errors(rows)
        return each[:, 0], {"tasks": each[:, 1:]}

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            means = errors(torch.arange(len(inputs))).mean(0)
        return float(means[0]), (means[1:] - bounds).double().numpy()

    batches = (rows for (rows,) in draws([torch.arange(len(inputs))], [64], seed))
    whole = (lambda rows: closure(rows)[1]), [torch.arange(len(inputs))]
    return Training(model, batches, closure, {"tasks": lt.AtMost(bounds)}, exact, whole=whole)


def scenarios(data: Path | None) -> dict[str, Scenario]:
    """By name; those whose data are not there are left out."""
    found = {
        "loose": Scenario(
            "bytes, a bound that is soon kept", partial(bytes_from_scratch, width=64, bound=3.0), 1500, 3e-3
        ),
        "tight": Scenario("bytes, a bound that costs", partial(bytes_from_scratch, width=64, bound=2.45), 1500, 3e-3),
        "small": Scenario("bytes, 16 units to share", partial(bytes_from_scratch, width=16, bound=2.9), 1500, 3e-3),
        "forget": Scenario("bytes, fine-tuning without forgetting", bytes_without_forgetting, 1000, 2e-3),
        "adult": Scenario(
            "Adult, 64-32, a loss gap of 0.005", partial(classifier, name="adult-gap-64-32", data=data), 2500, 3e-3
        ),
        "physics": Scenario("a wide boundary layer, two equalities", partial(physics, width=0.25), 1500, 3e-3),
        "layer": Scenario("a thin boundary layer, two equalities", partial(physics, width=0.05), 1500, 3e-3),
        "cart": Scenario("policy gradient with a budget of energy", cart, 400, 1e-2),
        "five": Scenario("five bounds that fight", five, 2500, 1e-2),
    }
    if data is not None and (data / "fashion_mnist_8k.npz").exists():
        found["fashion"] = Scenario(
            "Fashion-MNIST, a bound for each class", partial(classifier, name="fashion", data=data), 2000, 1e-3
        )
    return found
