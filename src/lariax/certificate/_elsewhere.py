"""Certificates from batch means that were made elsewhere: by a library that computes its own gradients."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.certificate._certificate import Certificate
from lariax.certificate._certify import SHARE
from lariax.certificate._draws import Means, Plan
from lariax.certificate._judge import Findings, Levels, findings, levels_for, to_cone
from lariax.certificate._multipliers import Fit, fit_dense, forms_jacobian
from lariax.certificate._report import Ask, given, worded
from lariax.certificate._samples import Case
from lariax.certificate._sizes import row_sizes
from lariax.certificate._spread import Spread
from lariax.certificate._tolerance import better, refutes
from lariax.oracle import Oracle, as_arrays, bind, sample_structure
from lariax.problem import AbstractConstraint, Dataset, Problem
from lariax.prox import AbstractProximable
from lariax.sets import AbstractSet


class Court:
    """Judges a point by numbers that others bring: `certify` without sources and functions.

    `blocks` has (constraint without a function, shape of one value) by name.
    """

    def __init__(
        self,
        x: PyTree,
        blocks: Mapping[str, tuple[AbstractConstraint, tuple[int, ...]]],
        simple: AbstractProximable | None,
        confidence: float,
        tolerance: float | None,
    ) -> None:
        if not 0.5 <= confidence < 1:
            raise ValueError(f"confidence must be at least 0.5 and below 1, found {confidence!r}.")

        def shapes(point: PyTree, row: Array) -> tuple[Array, dict[str, Array]]:
            zero = 0 * jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(point)]).sum()
            return zero, {name: zero + jnp.zeros(shape, zero.dtype) for name, (_, shape) in blocks.items()}

        constraints = {name: constraint for name, (constraint, _) in blocks.items()}
        place = "within" if isinstance(simple, AbstractSet) else "regularizer"
        options: dict[str, Any] = {} if simple is None else {place: simple}
        source = Dataset(jnp.zeros(2))
        problem = Problem.joint(shapes, samples=source, constraints=constraints, **options)
        self.point = as_arrays(problem, x, "x")
        self.oracle: Oracle = bind(
            problem, self.point, (sample_structure(source),), batch_size=1, copies=1, has_slacks=False
        )
        precision = float(jnp.finfo(self.oracle.dtype).eps ** 0.5)
        self.ask = Ask(confidence, precision if tolerance is None else tolerance)
        self.z = self.oracle.coordinates.ravel(self.point)

    @property
    def can_fit(self) -> bool:
        """Whether there are few enough constraints for a Jacobian."""
        return forms_jacobian(self.oracle)

    def fit(self, objective: ArrayLike, residuals: ArrayLike, slope: ArrayLike, jacobian: ArrayLike) -> Fit:
        """Least-squares multipliers of the residuals, from batch means of the objective and the residuals, the mean of
        grad f and the Jacobian."""
        return _fit(self.oracle, self.z, *map(self._array, (objective, residuals, slope, jacobian)))

    def given(self, multipliers: Mapping[str, ArrayLike]) -> tuple[np.ndarray, tuple[str, ...]]:
        """The user's multipliers as those of the residuals, and what had to be changed."""
        y, notes = given(self.oracle, multipliers)
        return np.asarray(y), notes

    def refutes(self, certificate: Certificate) -> bool:
        """Whether its multipliers are surely wrong."""
        return refutes(certificate, self.ask.tolerance)

    def better(self, one: Certificate, other: Certificate) -> Certificate:
        """Of two, for different multipliers, the one that is not refuted, or else is clearly better."""
        return better(one, other, self.ask.tolerance)

    def judge(
        self,
        objective: ArrayLike,
        residuals: ArrayLike,
        gradient: ArrayLike,
        multipliers: ArrayLike,
        *,
        rows: int,
        draws: int,
        population: bool,
        about: str,
        notes: tuple[str, ...],
        fitted: Fit | None = None,
        alone: bool = True,
    ) -> Certificate:
        """From means over batches of `rows` independent rows each; a single batch is exact. `alone`: these are the only
        multipliers that will be judged."""
        means = Means(*map(self._array, (objective, residuals, gradient)))
        plan = Plan(means.objective.shape[0], rows, np.asarray(1, np.int32))
        exact = plan.batches == 1
        seen = plan.batches + (0 if fitted is None or fitted.seen is None or exact else fitted.seen.objective.shape[0])
        at = levels_for(self.oracle, plan.batches, seen, self.ask.confidence, 1.0 if alone else SHARE)
        y = self._array(multipliers)
        found = _findings(self.oracle, means, self.z, y, at, fitted)
        case = Case(self.oracle, (), plan, population, exact=exact, about=about)
        return worded(case, found, y, at, self.ask, notes, fitted is not None, draws, plan)

    def _array(self, part: ArrayLike) -> Array:
        return jnp.asarray(part, self.oracle.dtype)


@eqx.filter_jit
def _findings(
    oracle: Oracle, means: Means, z: Float[Array, " d"], y: Float[Array, " m"], at: Levels, fitted: Fit | None
) -> Findings:
    return findings(oracle, means._replace(gradient=Spread.of(means.gradient)), z, y, at, None, fitted)


@eqx.filter_jit
def _fit(
    oracle: Oracle,
    z: Float[Array, " d"],
    objective: Float[Array, " k"],
    residuals: Float[Array, "k m"],
    slope: Float[Array, " d"],
    jacobian: Float[Array, "m d"],
) -> Fit:
    sizes = row_sizes(oracle, jnp.mean(residuals, axis=0))
    return fit_dense(oracle, Means(objective, residuals, None), slope, jacobian, to_cone(oracle, z), sizes)
