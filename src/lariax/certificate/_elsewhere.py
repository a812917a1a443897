"""Certificates from batch means that were made elsewhere: by a library that computes its own gradients."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.certificate._certificate import Certificate
from lariax.certificate._certify import Findings, Part, _Ask, _Case, _given, _to_cone, findings, level_for, worded
from lariax.certificate._draws import Means, Plan
from lariax.certificate._interval import Level
from lariax.certificate._multipliers import fit_dense, forms_jacobian
from lariax.certificate._spread import Spread
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
        self.ask = _Ask(None, confidence, precision if tolerance is None else tolerance)
        self.z = self.oracle.coordinates.ravel(self.point)

    @property
    def can_fit(self) -> bool:
        """Whether there are few enough constraints for a Jacobian."""
        return forms_jacobian(self.oracle)

    def fit(self, residuals: ArrayLike, slope: ArrayLike, jacobian: ArrayLike) -> np.ndarray:
        """Least-squares multipliers of the residuals, from their batch means, the mean of grad f and the Jacobian."""
        if not self.oracle.rows:
            return np.zeros(0)
        dtype = self.oracle.dtype
        return np.asarray(
            _fit(self.oracle, self.z, *(jnp.asarray(part, dtype) for part in (residuals, slope, jacobian)))
        )

    def given(self, multipliers: Mapping[str, ArrayLike]) -> tuple[np.ndarray, tuple[str, ...]]:
        """The user's multipliers as those of the residuals, and what had to be changed."""
        y, notes = _given(self.oracle, multipliers)
        return np.asarray(y), notes

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
        fitted: bool,
    ) -> Certificate:
        """From means over batches of `rows` independent rows each; a single batch is exact."""
        dtype = self.oracle.dtype
        means = Means(*(jnp.asarray(part, dtype) for part in (objective, residuals, gradient)))
        plan = Plan(means.objective.shape[0], rows, np.asarray(1, np.int32))
        y, at = jnp.asarray(multipliers, dtype), level_for(self.oracle, plan, self.ask.confidence)
        found = _findings(self.oracle, means, self.z, y, at)
        part = Part(self.oracle, (), plan, draws)
        case = _Case(part, None, population, exact=means.objective.shape[0] == 1, about=about)
        return worded(case, found, y, at, self.ask, notes, fitted, draws)


@eqx.filter_jit
def _findings(oracle: Oracle, means: Means, z: Float[Array, " d"], y: Float[Array, " m"], at: Level) -> Findings:
    return findings(oracle, means._replace(gradient=Spread.of(means.gradient)), z, y, at)


@eqx.filter_jit
def _fit(
    oracle: Oracle,
    z: Float[Array, " d"],
    residuals: Float[Array, "k m"],
    slope: Float[Array, " d"],
    jacobian: Float[Array, "m d"],
) -> Float[Array, " m"]:
    return fit_dense(oracle, residuals, slope, jacobian, _to_cone(oracle, z))
