"""A network that knows what it does not know: out-of-distribution detection at a bounded in-distribution error."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, entry
from lariax.gallery._models import area_under_roc, forward, half_square, network, roc
from lariax.gallery._tables import found
from lariax.problem import AtMost, Dataset, Problem

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@entry
def out_of_distribution(
    inside: str | Path = "mnist.npz",
    outside: str | Path = "fashion_mnist.npz",
    alarms: float = 0.1,
    classes: float = 0.2,
    hidden: tuple[int, ...] = (64, 32),
    ridge: float = 1e-4,
    seed: int = 0,
) -> Entry:
    """A network that tells digits apart and clothes from digits.

        minimise    E_out[ softplus(d(x; a)) ] + ridge / 2 ||x||^2        outsiders that are taken for digits
        subject to  E_in[ softplus(-d(x; a)) ]          <=  alarms        digits that are taken for outsiders
                    E_in[ cross-entropy(s(x; a), b) ]   <=  classes       digits that are taken for other digits

    One network gives ten scores s and one number d, positive for "a digit". a are images from the inside (MNIST) or the
    outside (Fashion-MNIST), b is the digit. A sample is one image of each kind, in pairs that mean nothing.

    Scale: images of 28 by 28 and layers of 64 and 32: 52,683 unknowns, 2 constraints, as many pairs as images.
    Check: no solution is known. The certificate on all training pairs and on held-out ones tells whether both bounds
        hold; area under ROC and error rates on test images tell whether the network is any good.
    Arguments:
        inside, outside: paths of NumPy archives with x_train, y_train, x_test, y_test: images (bytes) and labels.
        alarms, classes: the bounds. Guessing costs log 2 = 0.693 and log 10 = 2.303.
        hidden: widths of the layers between.
        ridge: how much x is held back.
        seed: of the network's start.

    >>> from lariax import gallery
    >>> case = gallery.out_of_distribution("mnist.npz", "fashion_mnist.npz")  # doctest: +SKIP
    """
    archives = _read(inside), _read(outside)
    training, test = (_pairs(*archives, part) for part in ("train", "test"))
    count = int(max(training["label"].max(), test["label"].max())) + 1
    sizes = (training["inside"].shape[1], *hidden, count + 1)
    return Entry(
        problem=Problem.joint(
            partial(_losses, ridge),
            samples=Dataset(training),
            constraints={
                "alarms": AtMost(bound=jnp.asarray(alarms)),
                "classes": AtMost(bound=jnp.asarray(classes)),
            },
            heldout=Dataset(test),
        ),
        x0=network(jax.random.key(seed), sizes),
        defaults={"batch_size": 64, "iterations": 3_000},
        draw=partial(_draw, test),
        measure=partial(_measure, test),
    )


def _read(path: str | Path) -> dict[str, np.ndarray]:
    path = found(path, f"a NumPy archive (.npz) with {', '.join(ARRAYS)}")
    with np.load(path, allow_pickle=False) as stored:
        missing = [name for name in ARRAYS if name not in stored]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(stored) or 'nothing'}.")
        return {name: stored[name] for name in ARRAYS}


def _pairs(inside: Mapping[str, np.ndarray], outside: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """One image of each kind a row, as many as the smaller set has, as numbers around 0."""
    rows = min(len(inside[f"x_{part}"]), len(outside[f"x_{part}"]))

    def images(archive: Mapping[str, np.ndarray]) -> np.ndarray:
        return archive[f"x_{part}"][:rows].reshape(rows, -1).astype(np.float32) / 255 - 0.25

    return {
        "inside": images(inside),
        "outside": images(outside),
        "label": inside[f"y_{part}"][:rows].astype(np.int32),
    }


def _losses(ridge: float, x: PyTree, pair: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    out = forward(x, pair["outside"])
    own = forward(x, pair["inside"])
    alarm = jax.nn.softplus(-own[-1])
    wrong = jax.nn.logsumexp(own[:-1]) - own[pair["label"]]
    return jax.nn.softplus(out[-1]) + ridge * half_square(x), {"alarms": alarm, "classes": wrong}


def _outputs(x: PyTree, images: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(forward, (None, 0)))(x, jnp.asarray(images)))


def _measure(test: Mapping[str, np.ndarray], x: PyTree) -> dict[str, float]:
    own, out = _outputs(x, test["inside"]), _outputs(x, test["outside"])
    scores = np.concatenate([own[:, -1], out[:, -1]])
    labels = np.repeat([1, 0], [len(own), len(out)])
    return {
        "area under ROC, test": area_under_roc(scores, labels),
        "insiders rejected, test": float(np.mean(own[:, -1] <= 0)),
        "outsiders accepted, test": float(np.mean(out[:, -1] > 0)),
        "wrong digits, test": float(np.mean(own[:, :-1].argmax(axis=1) != test["label"])),
    }


def _draw(test: Mapping[str, np.ndarray], x: PyTree) -> list[Picture]:
    own, out = _outputs(x, test["inside"])[:, -1], _outputs(x, test["outside"])[:, -1]
    labels = np.repeat([1, 0], [len(own), len(out)])
    low, high = np.percentile(np.concatenate([own, out]), (0.5, 99.5))
    edges = np.linspace(float(low), float(high), 41)
    middles = (edges[1:] + edges[:-1]) / 2
    counts = {
        name: np.stack([middles, np.histogram(scores, edges, density=True)[0]], axis=1)
        for name, scores in (("inside", own), ("outside", out))
    }
    return [
        Picture("d on test images; what is above 0 is accepted", "lines", counts, "d", "density"),
        Picture(
            "Telling the inside from the outside, test images",
            "lines",
            {"ROC": roc(np.concatenate([own, out]), labels)},
            "outsiders accepted",
            "insiders accepted",
        ),
    ]
