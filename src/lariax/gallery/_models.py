"""Models that the entries train: linear ones and small networks, and numbers about their scores."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Key, PyTree


def network(key: Key[Array, ""], sizes: Sequence[int]) -> list[dict[str, Array]]:
    """Weights of a network with these layer sizes, normal with variance 2 / inputs; biases 0."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"weights": jax.random.normal(k, (inputs, outputs)) * np.sqrt(2 / inputs), "bias": jnp.zeros(outputs)}
        for k, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def forward(layers: list[dict[str, Array]], inputs: Float[Array, " d"]) -> Float[Array, " outputs"]:
    """The outputs of a network for one row, with rectifiers between the layers."""
    for i, layer in enumerate(layers):
        inputs = (jax.nn.relu(inputs) if i else inputs) @ layer["weights"] + layer["bias"]
    return inputs


def logistic(score: Array, label: Array) -> Array:
    """The loss of a score when the label is 0 or 1."""
    return jax.nn.softplus(score) - label * score


def half_square(x: PyTree) -> Array:
    """||x||^2 / 2."""
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(x)), start=jnp.zeros(())) / 2


def roc(scores: np.ndarray, labels: np.ndarray, points: int = 200) -> np.ndarray:
    """(false positive rate, true positive rate) as the threshold falls, in so many points."""
    order = np.argsort(-scores, kind="stable")
    positive = labels[order] > 0
    rates = np.stack([np.cumsum(~positive) / max((~positive).sum(), 1), np.cumsum(positive) / max(positive.sum(), 1)])
    kept = np.unique(np.linspace(0, len(scores) - 1, points).astype(int))
    return np.concatenate([[[0.0, 0.0]], rates.T[kept]])


def area_under_roc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of pairs of a positive and a negative row that the scores put in the right order."""
    positive = labels > 0
    ranks = scipy.stats.rankdata(scores)[positive]
    n, m = positive.sum(), (~positive).sum()
    return float((ranks.sum() - n * (n + 1) / 2) / (n * m))
