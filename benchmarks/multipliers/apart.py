"""Scenarios that no constant of the rule was chosen on: they were written after it, and looked at once."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

import lariax.torch as lt
from benchmarks.multipliers.scenarios import Scenario, Training, Values

F = nn.functional


def _rows(count: int, size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(count, (size,), generator=generator)


def _data(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(11))


def recall(seed: int) -> Training:
    """One row in ten is of a class whose recall is to be at least 0.9, which a loss stands in for."""
    x = _data(4096, 8)
    noise = torch.randn(4096, generator=torch.Generator().manual_seed(12))
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.7 * noise > 2.2).float()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))

    def parts(rows: Tensor) -> tuple[Tensor, lt.Proxy]:
        scores = model(x[rows]).squeeze(1)
        losses = F.binary_cross_entropy_with_logits(scores, y[rows], reduction="none")
        hit = (scores > 0).float().detach()
        return losses, lt.Proxy((0.9 - hit) * y[rows], losses * y[rows])

    def closure(rows: Tensor) -> tuple[Tensor, Values]:
        losses, missed = parts(rows)
        return losses, {"missed": missed}

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            losses, missed = parts(torch.arange(4096))
        return float(losses.mean()), np.array([float(missed.values.mean())])

    whole = (lambda rows: closure(rows)[1]), [torch.arange(4096)]
    return Training(model, _rows(4096, 64, seed), closure, {"missed": lt.AtMost(0.0)}, exact, whole=whole)


def gates(seed: int) -> Training:
    """A regression through 32 inputs, of which the open share of gates is to be at most 0.15."""
    x = _data(2048, 32)
    y = x[:, :8] @ torch.linspace(1.5, 0.2, 8) + torch.sin(2 * x[:, 0])
    torch.manual_seed(seed)
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))})
    model.register_parameter("gates", nn.Parameter(torch.full((32,), 1.0)))

    def open_share() -> Tensor:
        return torch.sigmoid(4 * model.gates).mean()

    def errors(rows: Tensor) -> Tensor:
        return (model["body"](x[rows] * torch.sigmoid(4 * model.gates)).squeeze(1) - y[rows]) ** 2

    def closure(rows: Tensor) -> tuple[Tensor, Values]:
        return errors(rows), {"open": open_share()}

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            return float(errors(torch.arange(2048)).mean()), np.array([float(open_share()) - 0.15])

    constraints, whole = {"open": lt.AtMost(0.15, samples=None)}, ((lambda _: {"open": open_share()}), [None])
    return Training(model, _rows(2048, 64, seed), closure, constraints, exact, whole=whole)


def heat(seed: int) -> Training:
    """u'' = -pi^2 sin(pi x) on (0, 1), with u(0) = 0 and u(1) = 1."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    ends, values = torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 1.0])

    def residual(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (bend.squeeze(1) + math.pi**2 * torch.sin(math.pi * x.squeeze(1))) ** 2

    def points() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.rand(32, 1, generator=generator)

    def at_ends(_: Tensor) -> Values:
        return {"ends": model(ends).squeeze(1)}

    def closure(x: Tensor) -> tuple[Tensor, Values]:
        return residual(x), at_ends(x)

    def exact() -> tuple[float, np.ndarray]:
        objective = float(residual(torch.linspace(0, 1, 256)[:, None]).mean().detach())
        return objective, (model(ends).squeeze(1) - values).detach().double().numpy()

    constraints = {"ends": lt.Equal(values, samples=None)}
    return Training(model, points(), closure, constraints, exact, whole=(at_ends, [None]))


def unbiased(seed: int) -> Training:
    """A small network regresses skewed targets by absolute errors; in three groups the mean error is to be 0."""
    x = _data(3072, 6)
    group = F.one_hot(torch.arange(3072) % 3, 3).float()
    scale = torch.tensor([0.3, 0.8, 1.5])[torch.arange(3072) % 3]
    skew = torch.distributions.Exponential(1.0).icdf(torch.rand(3072, generator=torch.Generator().manual_seed(13)))
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + scale * skew
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 1))

    def errors(rows: Tensor) -> tuple[Tensor, Tensor]:
        error = model(torch.cat([x[rows], group[rows]], dim=1)).squeeze(1) - y[rows]
        return error.abs(), 3 * error[:, None] * group[rows]

    def closure(rows: Tensor) -> tuple[Tensor, Values]:
        losses, bias = errors(rows)
        return losses, {"bias": bias}

    def exact() -> tuple[float, np.ndarray]:
        with torch.no_grad():
            losses, bias = errors(torch.arange(3072))
        return float(losses.mean()), bias.mean(0).double().numpy()

    whole = (lambda rows: closure(rows)[1]), [torch.arange(3072)]
    return Training(model, _rows(3072, 64, seed), closure, {"bias": lt.Equal(torch.zeros(3))}, exact, whole=whole)


def scenarios_apart() -> dict[str, Scenario]:
    made = {"recall": recall, "gates": gates, "heat": heat, "unbiased": unbiased}
    return {
        name: Scenario(str(make.__doc__).split("\n", maxsplit=1)[0], make, 1000, 5e-3) for name, make in made.items()
    }
