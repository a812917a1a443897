"""Which problems there are, and where their data come from."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.tasks import Known, Rows, Shape, Stratum, Task
from benchmarks.suite.limits import solve
from benchmarks.suite.problems import biased, read_svm, toy50
from lariax.gallery.fairness import people

GAP, ALARMS, CLASSES = 0.005, 0.35, 0.1
"""Bounds: of the gap between the groups' losses, of the loss on negatives, of a class's loss over the mean."""

HIDDEN = {"linear": (), "64-32": (64, 32)}


def _bias2(seconds: float) -> Known:
    def sampled(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        loss = 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2)
        return loss.expand(len(z)), x[0] + x[1] - 1 + 2 * z * (x[0] - x[1])

    shape = Shape("biased, 2 variables", 1, True, 8, 1, 100, seconds, 0.05)
    return Known(shape, biased(noise=2.0), lambda: np.array([-0.5, 1.5]), sampled, 1)


def _toy50(seconds: float) -> Known:
    centres = torch.linspace(1.0, 2.0, 50)

    def sampled(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        losses = (1 - torch.exp(-((x - centres - 0.3 * z[:, :50]) ** 2) / 4)).sum(dim=1)
        sphere = (x**2).sum() - 4 + 0.5 * z[:, 50] * x[0]
        return losses, torch.stack([sphere, x[0] - x[1] + 0.1 * z[:, 51]], dim=1)

    def solved() -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(solve(toy50()).x)

    shape = Shape("wells, 50 variables", 2, True, 8, 1, 100, seconds, 0.05)
    return Known(shape, toy50(), solved, sampled, 52)


def _strata(inputs: np.ndarray, labels: np.ndarray, kinds: np.ndarray, which: np.ndarray) -> tuple[Stratum, ...]:
    tensor = partial(torch.tensor, dtype=torch.float32)
    return tuple(
        Stratum(tensor(inputs[own]), tensor(labels[own]))
        for k in (0, 1)
        if len(own := np.flatnonzero(which & (kinds == k)))
    )


def _classifier(
    name: str,
    data: tuple[np.ndarray, ...],
    constraint: str,
    model: str,
    seconds: float,
) -> Rows:
    """Gap: strata are the groups. Neyman-Pearson: strata are the labels, negatives first."""
    inputs, labels, groups, training = data
    gap = constraint == "gap"
    kinds = groups if gap else labels.astype(int)
    strata, heldout = (_strata(inputs, labels, kinds, which) for which in (training, ~training))
    counts = np.array([len(s.labels) for s in strata], float)
    shares = counts / counts.sum() if gap else np.array([0.0, 1.0])
    matrix = np.array([[-1.0, 1.0], [1.0, -1.0]]) if gap else np.array([[1.0], [0.0]])
    bound = GAP if gap else ALARMS
    shape = Shape(
        name=f"{name}, {'loss gap' if gap else 'Neyman-Pearson'}, {model}",
        rows=matrix.shape[1],
        equality=False,
        batch=32,
        draws=2,
        epoch=int(counts.sum()) // 64,
        seconds=seconds,
        slack=GAP if gap else 0.01,
    )
    tensors = [torch.tensor(part, dtype=torch.float32) for part in (shares, matrix, np.full(matrix.shape[1], bound))]
    return Rows(shape, strata, heldout, *tensors, (inputs.shape[1], *HIDDEN[model], 1))


def _people(table: str | Path, **columns: object) -> tuple[np.ndarray, ...]:
    ready = people(table, **columns)
    return ready.inputs, ready.labels, ready.groups, ready.training


def _compas(path: Path) -> tuple[np.ndarray, ...]:
    answers = ("is_recid", "is_violent_recid", "score_text", "v_score_text", "decile_score", "v_decile_score")
    without = (*answers, "age_cat", "propublica_filter")
    return _people(path, target="two_year_recid", sensitive="race", group="African-American", without=without)


def _a9a(path: Path) -> tuple[np.ndarray, ...]:
    parts = [read_svm(file) for file in (path, path.with_name("a9a_test.npz"))]
    inputs = np.concatenate([np.pad(rows, ((0, 0), (0, 123 - rows.shape[1]))) for rows, _ in parts])
    labels = np.concatenate([(own > 0).astype(float) for _, own in parts])
    training = np.arange(len(labels)) < len(parts[0][1])
    return inputs, labels, np.zeros(len(labels), int), training


def _images(path: Path, seconds: float) -> Rows:
    """The mean loss of each class at most 0.1 above the mean of all classes."""
    with np.load(path) as stored:
        arrays = {part: stored[part] for part in ("x_train", "y_train", "x_test", "y_test")}

    def strata(part: str) -> tuple[Stratum, ...]:
        inputs = torch.tensor(arrays[f"x_{part}"]).flatten(1).float() / 255
        labels = torch.tensor(arrays[f"y_{part}"]).long()
        return tuple(Stratum(inputs[labels == c], labels[labels == c]) for c in range(10))

    training = strata("train")
    counts = torch.tensor([float(len(s.labels)) for s in training])
    shape = Shape("Fashion-MNIST, loss of each class, 64-32", 10, False, 8, 10, int(counts.sum()) // 80, seconds, 0.01)
    matrix = torch.eye(10) - 0.1
    return Rows(
        shape, training, strata("test"), counts / counts.sum(), matrix, torch.full((10,), CLASSES), (784, 64, 32, 10)
    )


def problems(data: Path | None, scale: float = 1.0) -> tuple[dict[str, Callable[[], Task]], list[str]]:
    """By a short name, how each is made (budgets times `scale`); and what is missing, in words."""
    found: dict[str, Callable[[], Task]] = {
        "bias2": lambda: _bias2(1.5 * scale),
        "toy50": lambda: _toy50(1.0 * scale),
    }
    missing: list[str] = []

    def classifiers(key: str, name: str, load: Callable[[], tuple[np.ndarray, ...]], seconds: dict[str, float]) -> None:
        for kind, budget in seconds.items():
            constraint, model = kind.split("-", 1)
            found[f"{key}-{kind}"] = lambda c=constraint, m=model, t=budget: _classifier(name, load(), c, m, t * scale)

    small = dict.fromkeys(("gap-linear", "gap-64-32", "np-linear", "np-64-32"), 0.6)
    large = {"gap-linear": 1.0, "gap-64-32": 4.0, "np-linear": 1.0, "np-64-32": 1.5}
    classifiers("adult", "Adult", lambda: _people("adult"), large)
    classifiers("german", "German credit", lambda: _people("german_credit"), small)
    files = {
        "compas": ("COMPAS", "compas_two_years.csv.gz"),
        "a9a": ("a9a", "a9a.npz"),
        "fashion": ("Fashion-MNIST", "fashion_mnist_8k.npz"),
    }
    for key, (name, file) in files.items():
        path = None if data is None else data / file
        if path is None or not path.exists():
            missing.append(f"{name} (give --data with a folder that holds {file})")
        elif key == "compas":
            classifiers(key, name, partial(_compas, path), small)
        elif key == "a9a":  # its columns do not say who belongs to which group
            classifiers(key, name, partial(_a9a, path), {"np-linear": 1.0, "np-64-32": 1.5})
        else:
            found[key] = lambda path=path: _images(path, 2.5 * scale)
    return found, missing
