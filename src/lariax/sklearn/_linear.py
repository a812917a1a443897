"""Linear models on inputs as the user has them: scaled for training, and back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from threadpoolctl import ThreadpoolController

from lariax.sklearn._choose import decided, probabilities
from lariax.sklearn._pool import STEPS
from lariax.sklearn._rates import Plan
from lariax.sklearn._train import Objective, Rows, Trained, train


@dataclass(frozen=True)
class LinearModel:
    """Scores X @ coef + intercept, one for two classes, else one a class; and how the model came about."""

    coef: np.ndarray  # (features, outputs)
    intercept: np.ndarray  # (outputs,)
    multipliers: np.ndarray
    values: np.ndarray
    loss: float
    iterations: int

    def scores(self, inputs: Any) -> np.ndarray:
        return np.asarray(inputs @ self.coef + self.intercept)

    def shifted(self, label: int, shift: float) -> "LinearModel":
        """With the score of one class less by `shift`."""
        intercept = self.intercept.copy()
        intercept[0 if len(intercept) == 1 else label] -= shift
        return replace(self, intercept=intercept)

    def mixed(self, other: "LinearModel", share: float) -> "LinearModel":
        """The model between the two."""

        def mix(name: str) -> Any:
            return (1 - share) * getattr(self, name) + share * getattr(other, name)

        names = ("coef", "intercept", "multipliers", "values", "loss")
        return LinearModel(**{name: mix(name) for name in names}, iterations=0)


def scaling(inputs: Any, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (0 for sparse inputs, which stay sparse) and deviation of each feature."""
    share = weights / weights.sum()
    if scipy.sparse.issparse(inputs):
        middle = np.zeros(inputs.shape[1])
        spread = np.sqrt(np.asarray(inputs.power(2).T @ share).ravel())
    else:
        middle = share @ inputs
        spread = np.sqrt(share @ (inputs - middle) ** 2)
    tiny = 1e-10 * np.maximum(np.abs(middle), 1e-200)
    return middle, np.where(spread > tiny, spread, 1.0)


def scaled(inputs: Any, middle: np.ndarray, spread: np.ndarray) -> Any:
    """Features of mean 0 and deviation 1, and a last column of ones."""
    if scipy.sparse.issparse(inputs):
        ones = np.ones((inputs.shape[0], 1))
        return scipy.sparse.hstack([inputs @ scipy.sparse.diags_array(1 / spread), ones], format="csr")
    return np.concatenate([(inputs - middle) / spread, np.ones((len(inputs), 1))], axis=1)


SMALL = 5_000_000
"""Entries up to which sparse inputs are trained on as dense ones."""


@dataclass(frozen=True)
class LinearTrainer:
    """Trains linear models; C as of `sklearn.linear_model.LogisticRegression`, on scaled features."""

    C: float

    levels: ClassVar[tuple[float, ...]] = (0.0, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0)
    flatters: ClassVar[bool] = False
    steps: ClassVar[int] = STEPS

    def path(self, rows: Rows, plan: Plan, targets: Sequence[np.ndarray | None]) -> list[LinearModel]:
        """One model for each vector of bounds, each from the one before."""
        with one_thread():
            small = scipy.sparse.issparse(rows.inputs) and np.prod(rows.inputs.shape) <= SMALL
            inputs = rows.inputs.toarray() if small else rows.inputs
            middle, spread = scaling(inputs, rows.weights)
            inside = replace(rows, inputs=scaled(inputs, middle, spread))
            objective = Objective(inside, plan, 1 / (self.C * float(rows.weights.sum())))
            found: list[Trained] = []
            for target in targets:
                bounds = None if target is None else softened(objective, target, found[-1] if found else None)
                found.append(train(objective, bounds, found[-1] if found else None))
        return [_back(trained, middle, spread) for trained in found]


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # to look for libraries takes longer than many a fit


def one_thread() -> Any:
    """Products of this size gain little from a second thread and lose much to a busy one."""
    return _threads().limit(limits=1)


def softened(objective: Objective, target: np.ndarray, last: Trained | None) -> np.ndarray:
    """Bounds on soft rates that ask for about these hard ones, by how the two differ for the last model: rates by a
    distance, gaps by a factor."""
    if last is None:
        return target
    rows, plan = objective.rows, objective.plan
    counts = plan.counts(
        decided(rows.inputs @ last.theta), rows.y, probabilities(rows.inputs @ last.theta), rows.counted
    )
    hard = plan.values(np.asarray([one.rate for one in counts]))
    gap = np.asarray([row.second is not None and row.bound > 0 for row in plan.rows], bool)
    told = gap & (hard > target / 4)  # too small a gap tells nothing
    factor = np.clip(last.values / np.where(told, hard, np.inf), 0.1, 1.0)
    factor = np.where(told, factor, factor[told].max(initial=0.1) if told.any() else 1.0)
    return np.where(gap, target * factor, target + np.nan_to_num(last.values - hard))


def _back(trained: Trained, middle: np.ndarray, spread: np.ndarray) -> LinearModel:
    coef = trained.theta[:-1] / spread[:, None]
    intercept = trained.theta[-1] - middle @ coef
    return LinearModel(coef, intercept, trained.multipliers, trained.values, trained.loss, trained.iterations)
