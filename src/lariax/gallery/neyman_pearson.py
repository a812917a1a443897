"""Classifiers whose errors do not cost the same: the loss on some classes is bounded, on another it is least."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._models import half_square, roc
from lariax.gallery._reference import kkt_point
from lariax.gallery._tables import dataset, embedded, prepared
from lariax.gallery.fairness import people
from lariax.problem import AtMost, Problem

DEGREES = ("school", "college", "degree")
"""Education of Adult in three classes: up to 9 years of `education_num`, up to 12, and beyond."""


@entry
def neyman_pearson(bound: float = 0.35, ridge: float = 1e-2) -> Entry:
    """Few misses at a bounded rate of false alarms.

        minimise    E[ log(1 + exp(-x . a)) | b = 1 ] + ridge / 2 ||x||^2          a: inputs, b: label
        subject to  E[ log(1 + exp(x . a)) | b = 0 ]  <=  bound

    The logistic loss stands for the error on both sides. The rows of each class are a source of their own, and so are
    its test rows.

    Scale: Adult has 7,841 training rows with b = 1 and 24,720 with b = 0, of 43 features: 44 unknowns, 1 constraint.
    Check: SLSQP and Newton on all rows give x and the multiplier; the problem is convex.
    Arguments:
        bound: of the loss on b = 0.
        ridge: how much x is held back.

    >>> from lariax import gallery
    >>> case = gallery.neyman_pearson(bound=0.3)
    >>> sorted(case.problem.constraints)
    ['false alarms']
    """
    ready = people("adult")
    kinds = ready.labels.astype(int)
    split = _Split(ready.inputs, kinds, ready.training, ("income up to 50,000", "income above"))
    return _parts(split, np.zeros(ready.inputs.shape[1]), _two_scores, 1, {"false alarms": (0, bound)}, ridge)


@entry
def neyman_pearson_multiclass(bound: float = 0.9, ridge: float = 1e-2) -> Entry:
    """Three classes, two of them with a bounded loss.

        minimise    E[ loss(X' a, 0) | class 0 ] + ridge / 2 ||X||^2          X' a: one score for each class
        subject to  E[ loss(X' a, k) | class k ]  <=  bound   for k = 1, 2

    loss is the cross-entropy of the softmax of the scores. The classes are the education of people in Adult, from the
    other columns: school (up to high school), college (without a bachelor's degree), degree.

    Scale: 44 features and 3 classes: 132 unknowns, 2 constraints, 32,561 rows.
    Check: SLSQP and Newton on all rows give X and the multipliers; the problem is convex.
    Arguments:
        bound: of the loss on each of the two classes; log 3 = 1.099 is what guessing costs.
        ridge: how much X is held back.

    >>> from lariax import gallery
    >>> case = gallery.neyman_pearson_multiclass(bound=0.8)
    >>> len(case.problem.constraints)
    2
    """
    table = embedded("adult")
    years = table["education_num"]
    kinds = np.digitize(years, (9.5, 12.5))
    training = np.asarray(table["split"] == "train")
    ready = prepared(
        {name: column for name, column in table.items() if name != "split"},
        target="income_gt_50k",
        sensitive="sex",
        group="Female",
        without=("education_num",),
        training=training,
    )
    inputs = np.column_stack([ready.inputs, ready.labels])
    bounds = {DEGREES[k]: (k, bound) for k in (1, 2)}
    start = np.zeros((inputs.shape[1], len(DEGREES)))
    return _parts(_Split(inputs, kinds, training, DEGREES), start, _many_scores, 0, bounds, ridge)


class _Split(NamedTuple):
    """Rows by class, for training and for testing."""

    inputs: np.ndarray
    kinds: np.ndarray
    training: np.ndarray
    names: tuple[str, ...]

    def rows(self, kind: int, training: bool) -> np.ndarray:
        return self.inputs[(self.kinds == kind) & (self.training == training)]


Scores = Callable[[Any, Any], Any]
"""(x, inputs) -> scores of the classes along the last axis."""


def _two_scores(x: Any, inputs: Any) -> Any:
    """Only the difference matters, so class 0 has the score 0."""
    score = inputs @ x
    return jnp.stack([jnp.zeros_like(score), score], axis=-1)


def _many_scores(x: Any, inputs: Any) -> Any:
    return inputs @ x


def _loss(scores: Any, kind: int) -> Any:
    return jax.nn.logsumexp(scores, axis=-1) - scores[..., kind]


def _parts(
    split: _Split,
    start: np.ndarray,
    score: Scores,
    least: int,
    bounds: dict[str, tuple[int, float]],
    ridge: float,
) -> Entry:
    """The loss on class `least` is minimised, those on the classes in `bounds` are bounded."""

    def bounded(kind: int, bound: float) -> AtMost:
        return AtMost(
            lambda x, row: _loss(score(x, row), kind),
            jnp.asarray(bound),
            samples=dataset(split.rows(kind, True)),
            heldout=dataset(split.rows(kind, False)),
        )

    return Entry(
        problem=Problem(
            lambda x, row: _loss(score(x, row), least) + ridge * half_square(x),
            samples=dataset(split.rows(least, True)),
            constraints={name: bounded(*each) for name, each in bounds.items()},
            heldout=dataset(split.rows(least, False)),
        ),
        x0=jnp.asarray(start),
        defaults={"batch_size": 64, "iterations": 10_000},
        solve=partial(_solve, split, start.shape, score, least, bounds, ridge),
        draw=partial(_draw, split, score),
        measure=partial(_measure, split, score),
    )


def _solve(
    split: _Split,
    shape: tuple[int, ...],
    score: Scores,
    least: int,
    bounds: dict[str, tuple[int, float]],
    ridge: float,
) -> Solution:
    rows = {kind: split.rows(kind, True) for kind in range(len(split.names))}

    def mean(x: Array, kind: int) -> Array:
        return jnp.mean(_loss(score(x.reshape(shape), rows[kind]), kind))

    found = kkt_point(
        lambda x: mean(x, least) + ridge * half_square(x),
        lambda x: jnp.stack([mean(x, kind) - bound for kind, bound in bounds.values()]),
        [True] * len(bounds),
        np.zeros(shape).ravel(),
    )
    return Solution(found.value, found.x.reshape(shape), dict(zip(bounds, found.multipliers, strict=True)))


def _confusion(split: _Split, score: Scores, x: PyTree, training: bool) -> np.ndarray:
    """Row k: how the rows of class k are classified."""
    count = len(split.names)
    guesses = [np.asarray(score(x, split.rows(kind, training))).argmax(axis=-1) for kind in range(count)]
    return np.stack([np.bincount(guess, minlength=count) / len(guess) for guess in guesses])


def _measure(split: _Split, score: Scores, x: PyTree) -> dict[str, float]:
    return {
        f"error on {name}, {where}": float(1 - _confusion(split, score, x, training)[kind, kind])
        for where, training in (("training", True), ("test", False))
        for kind, name in enumerate(split.names)
    }


def _draw(split: _Split, score: Scores, x: PyTree) -> list[Picture]:
    shares = {where: _confusion(split, score, x, where == "training rows") for where in ("training rows", "test rows")}
    pictures = [
        Picture(
            "Error of each class",
            "bars",
            {where: 1 - np.diag(table) for where, table in shares.items()},
            categories=split.names,
            y_label="share classified as another class",
        )
    ]
    if len(split.names) == 2:
        scores = {where: np.asarray(score(x, split.inputs))[:, 1] for where in shares}
        which = {"training rows": split.training, "test rows": ~split.training}
        curves = {where: roc(scores[where][which[where]], split.kinds[which[where]]) for where in shares}
        pictures.append(Picture("ROC", "lines", curves, "false alarms", "found"))
    else:
        pictures.append(
            Picture(
                "How test rows are classified: true class upwards, guess to the right",
                "heatmap",
                {"share": shares["test rows"]},
                x_label=" / ".join(split.names),
                y_label=" / ".join(split.names),
            )
        )
    return pictures
