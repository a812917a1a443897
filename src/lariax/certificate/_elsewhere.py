"""Certificates from batch means that were made elsewhere: by a library that computes its own gradients."""

from collections.abc import Mapping

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
from lariax.certificate._samples import Scope
from lariax.certificate._sizes import row_sizes
from lariax.certificate._spread import Spread
from lariax.certificate._tolerance import better, refutes
from lariax.oracle import Coordinates, Layout, Structure
from lariax.prox import AbstractProximable
from lariax.sets import Everything


class Court:
    """Judges a point by numbers that others bring: `certify` without sources and functions."""

    def __init__(
        self,
        x: PyTree,
        layout: Layout,
        bounds: ArrayLike,
        simple: AbstractProximable | None,
        confidence: float,
        tolerance: float | None,
    ) -> None:
        if not 0.5 <= confidence < 1:
            raise ValueError(f"confidence must be at least 0.5 and below 1, found {confidence!r}.")
        point = jax.tree.map(jnp.asarray, x)
        coordinates = Coordinates.of(point)
        bound = jnp.asarray(bounds, coordinates.dtype)
        self.structure = Structure(coordinates, layout, bound, Everything() if simple is None else simple)
        precision = float(jnp.finfo(coordinates.dtype).eps ** 0.5)
        self.ask = Ask(confidence, precision if tolerance is None else tolerance)
        self.z = coordinates.ravel(point)

    @property
    def can_fit(self) -> bool:
        """Whether there are few enough constraints for a Jacobian."""
        return forms_jacobian(self.structure)

    def fit(self, objective: ArrayLike, residuals: ArrayLike, slope: ArrayLike, jacobian: ArrayLike) -> Fit:
        """Least-squares multipliers of the residuals, from batch means of the objective and the residuals, the mean of
        grad f and the Jacobian."""
        return _fit(self.structure, self.z, *map(self._array, (objective, residuals, slope, jacobian)))

    def given(self, multipliers: Mapping[str, ArrayLike]) -> tuple[np.ndarray, tuple[str, ...]]:
        """The user's multipliers as those of the residuals, and what had to be changed."""
        y, notes = given(self.structure, multipliers)
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
        at = levels_for(self.structure, plan.batches, seen, self.ask.confidence, 1.0 if alone else SHARE)
        y = self._array(multipliers)
        found = _findings(self.structure, means, self.z, y, at, fitted)
        scope = Scope(population, exact, about)
        return worded(self.structure, scope, found, y, at, self.ask, notes, fitted is not None, draws, plan)

    def _array(self, part: ArrayLike) -> Array:
        return jnp.asarray(part, self.structure.dtype)


@eqx.filter_jit
def _findings(
    structure: Structure, means: Means, z: Float[Array, " d"], y: Float[Array, " m"], at: Levels, fitted: Fit | None
) -> Findings:
    return findings(structure, means._replace(gradient=Spread.of(means.gradient)), z, y, at, None, fitted)


@eqx.filter_jit
def _fit(
    structure: Structure,
    z: Float[Array, " d"],
    objective: Float[Array, " k"],
    residuals: Float[Array, "k m"],
    slope: Float[Array, " d"],
    jacobian: Float[Array, "m d"],
) -> Fit:
    sizes = row_sizes(structure, jnp.mean(residuals, axis=0))
    return fit_dense(structure, Means(objective, residuals, None), slope, jacobian, to_cone(structure, z), sizes)
