"""The problems, each stated once in numbers and told to torch and to JAX; and how a point is looked at, exactly."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

import lariax as lx
from benchmarks.suite.case import Case
from lariax.gallery._models import area_under_roc, forward, logistic

Batch = tuple[Tensor, ...]
Closure = Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
"""A batch -> losses, one a sample, and constraint values, (samples, rows), whose mean is 0 or at most 0."""


class Look(NamedTuple):
    """At a point, without sampling error: the loss, and by how much the worst constraint is broken (negative: not)."""

    loss: float
    excess: float
    quality: float  # AUC on held-out rows; for a problem with a known solution, the distance from it


class Heldout(NamedTuple):
    """AUC and excess on held-out rows, with their standard errors."""

    auc: float
    auc_error: float
    excess: float
    excess_error: float


@dataclass(frozen=True)
class Shape:
    """What every method is told of a problem."""

    name: str
    rows: int  # constraints
    equality: bool
    batch: int  # samples in a batch
    draws: int  # rows or random numbers' draws that a sample counts for
    epoch: int  # batches in a pass over the data
    seconds: float  # the whole budget of a run
    slack: float  # an excess up to here counts as within


# --- rows of data


@dataclass(frozen=True)
class Stratum:
    """Rows of one kind. A sample holds one row of every stratum."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Rows:
    """A classifier. Objective and constraints are linear in the mean losses l of the strata:

    minimise shares . l subject to matrix' l <= bounds.
    """

    shape: Shape
    training: tuple[Stratum, ...]
    heldout: tuple[Stratum, ...]
    shares: Tensor
    matrix: Tensor
    bounds: Tensor
    sizes: tuple[int, ...]  # of the layers

    better = "AUC"

    def model(self, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        layers = [part for a, b in itertools.pairwise(self.sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        return torch.nn.Sequential(*layers[:-1])

    def losses(self, model: torch.nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        scores = model(inputs)
        if self.sizes[-1] == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(scores.squeeze(-1), labels, reduction="none")
        flat = torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
        return flat.view(labels.shape)

    def closure(self, model: torch.nn.Module) -> Closure:
        def closure(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            losses = self.losses(model, *batch)  # (samples, strata)
            return losses @ self.shares, {"c": losses @ self.matrix - self.bounds}

        return closure

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            picks = [torch.randint(len(s.labels), (self.shape.batch,), generator=generator) for s in self.training]
            chosen = list(zip(self.training, picks, strict=True))
            yield tuple(torch.stack([getattr(s, part)[i] for s, i in chosen], dim=1) for part in ("inputs", "labels"))

    @torch.no_grad()
    def look(self, model: torch.nn.Module) -> Look:
        means = torch.stack([self.losses(model, s.inputs, s.labels).mean() for s in self.training])
        excess = float((means @ self.matrix - self.bounds).max())
        return Look(float(means @ self.shares), excess, self._auc(model)[0])

    @torch.no_grad()
    def judge(self, model: torch.nn.Module) -> Heldout:
        losses = [self.losses(model, s.inputs, s.labels).double() for s in self.heldout]
        means = torch.stack([each.mean() for each in losses])
        variances = torch.stack([each.var() / len(each) for each in losses])
        excess = means @ self.matrix.double() - self.bounds.double()
        worst = int(excess.argmax())
        error = float(torch.sqrt(variances @ self.matrix[:, worst].double() ** 2))
        return Heldout(*self._auc(model), float(excess[worst]), error)

    @torch.no_grad()
    def _auc(self, model: torch.nn.Module) -> tuple[float, float]:
        """On held-out rows, with a standard error; of several classes the mean, each against the others."""
        scores = torch.cat([model(s.inputs) for s in self.heldout]).numpy()
        labels = torch.cat([s.labels for s in self.heldout]).numpy()
        if not np.isfinite(scores).all():
            return np.nan, np.nan
        kinds = [labels > 0.5] if scores.shape[1] == 1 else [labels == c for c in range(scores.shape[1])]
        areas = [area_under_roc(scores[:, c], kind) for c, kind in enumerate(kinds)]
        errors = [area_error(area, kind.sum(), (~kind).sum()) for area, kind in zip(areas, kinds, strict=True)]
        return float(np.mean(areas)), float(np.mean(errors))

    # --- the same in JAX

    @cached_property
    def problem(self) -> lx.Problem:
        inputs = np.concatenate([s.inputs.numpy() for s in self.training])
        labels = np.concatenate([s.labels.numpy() for s in self.training])
        member = np.repeat(np.arange(len(self.training)), [len(s.labels) for s in self.training])
        shares, matrix, bounds = (jnp.asarray(part.numpy()) for part in (self.shares, self.matrix, self.bounds))

        def both(x: Any, sample: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
            scores, labels = forward(x, sample["input"]), sample["label"]
            if self.sizes[-1] == 1:
                losses = logistic(scores[:, 0], labels)
            else:
                own = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
                losses = jax.nn.logsumexp(scores, axis=1) - own
            return losses @ shares, {"c": losses @ matrix}

        source = lx.Stratified({"input": inputs, "label": labels}, by=member)
        return lx.Problem.joint(both, samples=source, constraints={"c": lx.AtMost(bound=bounds)})

    def point(self, model: torch.nn.Module) -> list[dict[str, jax.Array]]:
        linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        arrays = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear]
        return [{"weights": jnp.array(weights), "bias": jnp.array(bias)} for weights, bias in arrays]

    def load(self, model: torch.nn.Module, x: list[dict[str, jax.Array]]) -> None:
        linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        with torch.no_grad():
            for layer, own in zip(linear, x, strict=True):
                layer.weight.copy_(torch.tensor(np.array(own["weights"])).T)
                layer.bias.copy_(torch.tensor(np.array(own["bias"])))


def area_error(area: float, positive: int, negative: int) -> float:
    """The standard error of an area under a ROC curve, by Hanley and McNeil."""
    two, both = area / (2 - area), 2 * area**2 / (1 + area)
    parts = area * (1 - area) + (positive - 1) * (two - area**2) + (negative - 1) * (both - area**2)
    return float(np.sqrt(parts / (positive * negative)))


# --- problems with a known solution


class Point(torch.nn.Module):
    def __init__(self, x: np.ndarray) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(x, dtype=torch.float32))


@dataclass(frozen=True)
class Known:
    """A case of the suite: its samples are normal numbers, its solution is known."""

    shape: Shape
    case: Case
    solved: Callable[[], np.ndarray]
    sampled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, normal numbers) -> losses and constraint values
    noise: int  # normal numbers in a sample

    better = "distance"

    def model(self, seed: int) -> torch.nn.Module:
        return Point(np.asarray(self.case.x0))

    def closure(self, model: torch.nn.Module) -> Closure:
        def closure(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            losses, values = self.sampled(model.x, batch[0])
            return losses, {"c": values}

        return closure

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield (torch.randn((self.shape.batch, self.noise), generator=generator),)

    @cached_property
    def solution(self) -> np.ndarray:
        return self.solved()

    @cached_property
    def _exact(self) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
        return jax.jit(lambda x: (self.case.objective(x), jnp.max(jnp.abs(self.case.constraints(x)))))

    def look(self, model: torch.nn.Module) -> Look:
        x = model.x.detach().numpy()
        loss, excess = self._exact(jnp.asarray(x))
        return Look(float(loss), float(excess), float(np.linalg.norm(x - self.solution)))

    def judge(self, model: torch.nn.Module) -> None:
        return None

    @property
    def problem(self) -> lx.Problem:
        return self.case.problem

    def point(self, model: torch.nn.Module) -> jax.Array:
        return jnp.array(model.x.detach().numpy())

    def load(self, model: torch.nn.Module, x: jax.Array) -> None:
        with torch.no_grad():
            model.x.copy_(torch.tensor(np.array(x)))


Task = Rows | Known
