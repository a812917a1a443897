"""Classifiers that treat two groups of people alike, within a stated bound."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._models import area_under_roc, forward, half_square, logistic, network, roc
from lariax.gallery._reference import kkt_point
from lariax.gallery._tables import People, dataset, embedded, prepared, read_csv
from lariax.problem import AtMost, Problem

TEST_SHARE = 0.3
"""Of the rows of a table that does not say itself which rows are for testing."""

EMBEDDED: dict[str, dict[str, Any]] = {
    "adult": {"target": "income_gt_50k", "sensitive": "sex", "group": "Female", "without": ()},
    "german_credit": {
        "target": "good_credit",
        "sensitive": "sex",
        "group": "female",
        "without": ("personal_status_sex",),
    },
}


def people(
    data: str | Path = "adult",
    target: str | None = None,
    sensitive: str | None = None,
    group: str | float | None = None,
    without: tuple[str, ...] | None = None,
) -> People:
    """A table made ready: "adult", "german_credit", or a CSV file with the columns that are named."""
    known = EMBEDDED.get(str(data), {})
    given = {"target": target, "sensitive": sensitive, "group": group, "without": without}
    chosen: dict[str, Any] = {name: known.get(name) if value is None else value for name, value in given.items()}
    chosen["without"] = chosen["without"] or ()
    missing = [name for name, value in chosen.items() if value is None]
    if missing:
        raise ValueError(
            f"data={str(data)!r} is not one of {', '.join(EMBEDDED)}, so say which columns count: give "
            f"{', '.join(f'{name}=' for name in missing)} (target and sensitive are columns, group is a value of the "
            "sensitive one)."
        )
    table = embedded(str(data)) if known else read_csv(data)
    for name in (chosen["target"], chosen["sensitive"], *chosen["without"]):
        if name not in table:
            raise ValueError(f"{data} has no column {name!r}; it has {', '.join(table)}.")
    if "split" in table:
        training = np.asarray(table["split"] == "train")
    else:
        rows = len(next(iter(table.values())))
        training = np.random.default_rng(0).random(rows) >= TEST_SHARE
    return prepared({name: column for name, column in table.items() if name != "split"}, training=training, **chosen)


class Criterion(NamedTuple):
    """What must be alike: the mean of `quantity` over rows with a label in `labels`, one gap for each entry."""

    quantity: str  # "loss" or "acceptance"
    labels: Mapping[str, tuple[int, ...]]  # name of the gap: which labels count


CRITERIA = {
    "demographic parity": Criterion("acceptance", {"acceptance": (0, 1)}),
    "equalised odds": Criterion("acceptance", {"false positives": (0,), "true positives": (1,)}),
    "loss gap": Criterion("loss", {"loss": (0, 1)}),
}


@entry
def fairness(
    criterion: str = "loss gap",
    model: str = "linear",
    bound: float = 0.005,
    data: str | Path = "adult",
    target: str | None = None,
    sensitive: str | None = None,
    group: str | float | None = None,
    without: tuple[str, ...] | None = None,
    ridge: float = 1e-4,
    own_rows: float = 0.0,
    seed: int = 0,
) -> Entry:
    """A classifier with a bounded gap between two groups.

        minimise    E[ loss(s(x; a), b) ] + ridge / 2 ||x||^2          a: inputs, b: label, s: score, g: group
        subject to  | E[ v | g = 1, b in B ] - E[ v | g = 0, b in B ] |  <=  bound      for each B

    loss is the logistic loss. The gap is one of three:

        demographic parity   v = sigmoid(s), B = {0, 1}: both groups are accepted at the same rate
        equalised odds       v = sigmoid(s), B = {0} and B = {1}: the same false and true positive rates
        loss gap             v = loss, B = {0, 1}: the model is as good for one group as for the other

    A gap is written as an expectation over all rows, E[ w (v - v0) ], where w is 1/P(g = 1, b in B) in group 1, minus
    1/P(g = 0, b in B) in group 0 and 0 elsewhere, with the shares of the rows it is used on (training or test). As
    E[ w ] = 0 the constant v0 changes nothing but the noise; it is the v of a model that only knows the share of b = 1.

    Scale: Adult has 32,561 training and 16,281 test rows of 43 features; a linear score has as many unknowns and one,
        the 64-32 network 4,961; 2 constraints (4 for equalised odds).
    Check: linear scores against the solution by SLSQP and Newton on all rows; networks by the certificate on all
        training rows (no sampling error) and on the test rows (with one).
    Arguments:
        criterion: "demographic parity", "equalised odds" or "loss gap".
        model: "linear", or "network" with layers of 64 and 32.
        bound: of each gap.
        data: "adult" and "german_credit" come with the package; or the path of a CSV file with a header.
        target, sensitive, group, without: for a CSV file: the column to predict (positive: > 0), the column that tells
            the groups, its value in group 1 (for numbers: the least), and columns to leave out.
        own_rows: this share of the training rows is kept for the constraint, and the loss sees only the others.
        ridge: how much x is held back.
        seed: of the network's start and of the rows that are kept.

    >>> from lariax import gallery
    >>> case = gallery.fairness(criterion="demographic parity", bound=0.02, data="german_credit")
    >>> sorted(case.problem.constraints)
    ['acceptance gap']
    """
    kind, ready = _checked(criterion, model, own_rows), people(data, target, sensitive, group, without)
    linear = model == "linear"
    d = ready.inputs.shape[1]
    x0: PyTree = jnp.zeros(d) if linear else network(jax.random.key(seed), (d, 64, 32, 1))
    score: Callable[[PyTree, Array], Array] = _linear if linear else _network
    rows = _rows(ready, kind, ready.training)
    heldout = dataset(_rows(ready, kind, ~ready.training))
    gaps = list(kind.labels)
    if own_rows:
        kept = np.random.default_rng(seed).random(len(rows["label"])) < own_rows
        own = dataset(_rows(ready, kind, np.flatnonzero(ready.training)[kept]))
        limits = {
            f"{gap} gap": AtMost(Partial(_one_gap, score, kind, i), jnp.asarray(bound), samples=own, heldout=heldout)
            for i, gap in enumerate(gaps)
        }
        others = dataset({name: column[~kept] for name, column in rows.items()})
        problem = Problem(Partial(_loss, score, ridge), samples=others, constraints=limits, heldout=heldout)
    else:
        problem = Problem.joint(
            Partial(_loss_and_gaps, score, kind, ridge),
            samples=dataset(rows),
            constraints={f"{gap} gap": AtMost(bound=jnp.asarray(bound)) for gap in gaps},
            heldout=heldout,
        )
    return Entry(
        problem=problem,
        x0=x0,
        defaults={"batch_size": 64, "iterations": 10_000},
        solve=partial(_solve, rows, kind, ridge, bound) if linear and not own_rows else None,
        draw=partial(_draw, ready, kind, score, bound),
        measure=partial(_measure, ready, kind, score),
    )


def _checked(criterion: str, model: str, own_rows: float) -> Criterion:
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(map(repr, CRITERIA))}, found {criterion!r}.")
    if model not in ("linear", "network"):
        raise ValueError(f"model must be 'linear' or 'network', found {model!r}.")
    if not 0 <= own_rows < 1:
        raise ValueError(f"own_rows is a share of the training rows, at least 0 and below 1, found {own_rows!r}.")
    return CRITERIA[criterion]


# --- rows, scores, gaps


def _rows(ready: People, kind: Criterion, which: np.ndarray) -> dict[str, np.ndarray]:
    """Rows with their weights in each gap, (rows, gaps), and the constant that is taken off."""
    labels, groups = ready.labels[which], ready.groups[which]
    share = ready.labels[ready.training].mean()
    constant = scipy.special.entr([share, 1 - share]).sum() if kind.quantity == "loss" else share
    contrast = np.zeros((len(labels), len(kind.labels)))
    for i, chosen in enumerate(kind.labels.values()):
        counted = np.isin(labels, chosen)
        for member, sign in ((1, 1.0), (0, -1.0)):
            chance = np.mean(counted & (groups == member))
            if chance == 0:
                raise ValueError(
                    f"no row of group {ready.group_names[member]!r} has a label in {chosen}: the gap is not defined. "
                    "Choose other groups, or another criterion."
                )
            contrast[counted & (groups == member), i] = sign / chance
    constants = np.full(len(labels), constant)
    return {"input": ready.inputs[which], "label": labels, "contrast": contrast, "constant": constants}


def _linear(x: Array, inputs: Array) -> Array:
    return inputs @ x


def _network(x: PyTree, inputs: Array) -> Array:
    return forward(x, inputs)[0]


def _quantity(kind: Criterion, score: Array, label: Array) -> Array:
    return logistic(score, label) if kind.quantity == "loss" else jax.nn.sigmoid(score)


def _gaps(kind: Criterion, score: Array, row: Mapping[str, Array]) -> Array:
    """Each gap in both directions, (gaps, 2)."""
    gaps = row["contrast"] * (_quantity(kind, score, row["label"]) - row["constant"])
    return jnp.stack([gaps, -gaps], axis=-1)


def _loss(score: Callable[..., Array], ridge: float, x: PyTree, row: Mapping[str, Array]) -> Array:
    return logistic(score(x, row["input"]), row["label"]) + ridge * half_square(x)


def _one_gap(score: Callable[..., Array], kind: Criterion, gap: int, x: PyTree, row: Mapping[str, Array]) -> Array:
    return _gaps(kind, score(x, row["input"]), row)[gap]


def _loss_and_gaps(
    score: Callable[..., Array], kind: Criterion, ridge: float, x: PyTree, row: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    s = score(x, row["input"])
    loss = logistic(s, row["label"]) + ridge * half_square(x)
    return loss, {f"{name} gap": gap for name, gap in zip(kind.labels, _gaps(kind, s, row), strict=True)}


# --- what is known, and what one looks at


def _solve(rows: Mapping[str, Any], kind: Criterion, ridge: float, bound: float) -> Solution:
    inputs, label, contrast = rows["input"], rows["label"], rows["contrast"]

    def objective(x: Array) -> Array:
        return jnp.mean(logistic(inputs @ x, label)) + ridge * half_square(x)

    def residuals(x: Array) -> Array:
        gaps = jnp.mean(contrast * _quantity(kind, inputs @ x, label)[:, None], axis=0)
        return jnp.stack([gaps, -gaps], axis=-1).ravel() - bound

    found = kkt_point(objective, residuals, [True] * 2 * contrast.shape[1], np.zeros(inputs.shape[1]))
    both = found.multipliers.reshape(-1, 2)
    return Solution(found.value, found.x, {f"{gap} gap": y for gap, y in zip(kind.labels, both, strict=True)})


def _scored(ready: People, kind: Criterion, score: Callable[..., Array], x: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Scores and the quantity that must be alike, for all rows."""
    inputs, labels = jnp.asarray(ready.inputs), jnp.asarray(ready.labels)
    scores = jax.jit(jax.vmap(score, (None, 0)))(x, inputs)
    return np.asarray(scores), np.asarray(_quantity(kind, scores, labels))


def _group_means(ready: People, quantity: np.ndarray, which: np.ndarray, labels: tuple[int, ...]) -> np.ndarray:
    counted = which & np.isin(ready.labels, labels)
    return np.asarray([quantity[counted & (ready.groups == member)].mean() for member in (0, 1)])


def _measure(ready: People, kind: Criterion, score: Callable[..., Array], x: PyTree) -> dict[str, float]:
    scores, quantity = _scored(ready, kind, score, x)
    loss = np.logaddexp(0, scores) - ready.labels * scores
    numbers = {}
    for where, which in (("training", ready.training), ("test", ~ready.training)):
        numbers[f"loss, {where}"] = float(loss[which].mean())
        numbers[f"accuracy, {where}"] = float(np.mean((scores > 0)[which] == ready.labels[which]))
        numbers[f"area under ROC, {where}"] = area_under_roc(scores[which], ready.labels[which])
        for gap, labels in kind.labels.items():
            means = _group_means(ready, quantity, which, labels)
            numbers[f"{gap} gap, {where}"] = float(means[1] - means[0])
    return numbers


def _draw(ready: People, kind: Criterion, score: Callable[..., Array], bound: float, x: PyTree) -> list[Picture]:
    scores, quantity = _scored(ready, kind, score, x)
    wheres = (("training rows", ready.training), ("test rows", ~ready.training))
    bars = [
        Picture(
            title=f"Mean {gap} by group; the two may differ by {bound:g}",
            kind="bars",
            categories=ready.group_names,
            series={where: _group_means(ready, quantity, which, labels) for where, which in wheres},
            y_label=f"mean {gap}",
        )
        for gap, labels in kind.labels.items()
    ]
    test = ~ready.training
    curves = {
        name: roc(scores[test & (ready.groups == member)], ready.labels[test & (ready.groups == member)])
        for member, name in enumerate(ready.group_names)
    }
    return [
        *bars,
        Picture("ROC by group, test rows", "lines", curves, "false positive rate", "true positive rate"),
    ]
