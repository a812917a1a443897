"""Principal components as an optimisation problem with orthogonality constraints."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._tables import dataset
from lariax.gallery.fairness import people
from lariax.problem import Equal, Problem


@entry
def principal_components(components: int = 3, seed: int = 0) -> Entry:
    """Principal components of people.

        minimise    - E[ sum_j n_j (a . X_j)^2 ] / 2         a: a row, centred; X_j: the columns of X
        subject to  X' X = I                                 upper triangle

    The weights n_j = (k - j + 1) / k fall, so that the columns are the eigenvectors of the covariance themselves and
    not just a basis of their space. Rows are the features of Adult, scaled so that the largest eigenvalue is 1.

    Scale: 43 features and 3 components: 129 unknowns, 6 exact constraints, 32,561 rows.
    Check: the eigenvectors, up to sign; the multiplier of X_j' X_j is n_j times half its eigenvalue, others are 0.
    Arguments:
        components: how many.
        seed: of the start.

    >>> from lariax import gallery
    >>> case = gallery.principal_components(components=2)
    >>> sorted(case.problem.constraints)
    ['orthonormal']
    """
    ready = people("adult")
    rows = ready.inputs[ready.training][:, :-1]
    rows = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    rows = rows / np.sqrt(values[-1])
    values, vectors = values[::-1][:components] / values[-1], vectors[:, ::-1][:, :components]
    weights = np.arange(components, 0, -1) / components
    upper = np.triu_indices(components)

    def spread(x: Array, row: Array) -> Array:
        return -0.5 * jnp.sum(weights * (row @ x) ** 2)

    def products(x: Array) -> Array:
        return (x.T @ x - jnp.eye(components, dtype=x.dtype))[upper]

    start = jnp.linalg.qr(jax.random.normal(jax.random.key(seed), (rows.shape[1], components)))[0]
    return Entry(
        problem=Problem(spread, samples=dataset(rows), constraints={"orthonormal": Equal(products, samples=None)}),
        x0=start,
        defaults={"batch_size": 64, "iterations": 10_000},
        solve=partial(_solve, values, vectors, weights),
        draw=partial(_draw, rows, ready.labels[ready.training], ready.names[:-1]),
        measure=partial(_measure, vectors),
    )


def _solve(values: np.ndarray, vectors: np.ndarray, weights: np.ndarray) -> Solution:
    diagonal = np.diag(weights * values / 2)[np.triu_indices(len(values))]
    return Solution(float(-np.sum(weights * values) / 2), vectors, {"orthonormal": diagonal})


def _measure(vectors: np.ndarray, x: PyTree) -> dict[str, float]:
    aligned = np.abs(np.sum(vectors * np.asarray(x, float), axis=0))
    return {f"|cosine| with eigenvector {j + 1}": float(cosine) for j, cosine in enumerate(aligned)}


def _draw(rows: np.ndarray, labels: np.ndarray, names: tuple[str, ...], x: PyTree) -> list[Picture]:
    x = np.asarray(x, float)
    some = np.random.default_rng(0).permutation(len(rows))[:1000]
    shown = rows[some] @ x[:, :2]
    heavy = np.argsort(-np.abs(x[:, 0]))[:12]
    words = ("income at most 50,000 dollars", "income above")
    return [
        Picture(
            "1,000 people, by the first two components",
            "scatter",
            {word: shown[labels[some] == label] for label, word in enumerate(words)},
            x_label="component 1",
            y_label="component 2",
        ),
        Picture(
            "What the first component is made of",
            "bars",
            {"weight": x[heavy, 0]},
            categories=tuple(names[i] for i in heavy),
            y_label="weight",
        ),
    ]
