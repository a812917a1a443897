"""Certificates of one point: with multipliers that are given, with fitted ones, or with whichever are better."""

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lariax.certificate._certificate import Certificate
from lariax.certificate._estimates import Levels, Multipliers, levels_for
from lariax.certificate._multipliers import Fit
from lariax.certificate._report import Evidence, Scope, as_certificate
from lariax.certificate._tolerance import RelativeTolerance, Tolerance, better, refutes
from lariax.compilation import on_device
from lariax.oracle import AbstractStructure
from lariax.problem import describe_shape

SHARE = 0.5  # of what may go wrong, for a run's own multipliers; the rest is for fitted ones


class Judged(NamedTuple):
    """A certificate, and how often every sample was looked at for it."""

    certificate: Certificate
    passes: int


class AbstractCertifier(abc.ABC):
    """One point, and samples that it is judged by. A concrete one passes over them."""

    def __init__(
        self,
        structure: AbstractStructure,
        z: Float[Array, " d"],
        scope: Scope,
        confidence: float,
        tolerance: Tolerance | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        precision = float(jnp.finfo(jnp.result_type(*structure.coordinates.dtypes)).eps ** 0.5)
        self.structure, self.z, self.scope, self.confidence, self.notes = structure, z, scope, confidence, notes
        self.tolerance: Tolerance = precision if tolerance is None else tolerance
        self._in_words = precision if isinstance(self.tolerance, RelativeTolerance) else float(self.tolerance)

    @property
    @abc.abstractmethod
    def can_fit(self) -> bool:
        """Whether multipliers can be fitted on some of the samples and judged on others."""

    @abc.abstractmethod
    def fit(self) -> Fit:
        """Least-squares multipliers, on some of the samples; the others are for `estimate`."""

    @abc.abstractmethod
    def estimate(self, y: Multipliers, share: float, fit: Fit | None) -> Evidence:
        """For multipliers of the residuals. `share` is that of `levels`; `fit` is where y comes from, None if it was
        given."""

    @cached_property
    def fitted(self) -> Fit:
        return self.fit()

    def of_given(self, multipliers: Mapping[str, ArrayLike], share: float = 1.0) -> Certificate:
        """With the user's multipliers, by name."""
        y, notes = _residual_multipliers(self.structure, multipliers)
        return self._certificate(y, notes, share, None)

    def of_fit(self, fit: Fit, share: float = 1.0) -> Certificate:
        """With fitted multipliers."""
        return self._certificate(fit.multipliers, (), share, fit)

    def of_run(self, multipliers: Mapping[str, ArrayLike]) -> Judged:
        """With a run's own multipliers, unless they are refuted and fitted ones are clearly better.

        Two sets of multipliers are two chances to be wrong, so each has half of 1 - confidence to itself: whichever is
        shown, its intervals hold. What does not depend on multipliers is not touched by that.
        """
        if not self.can_fit:
            return Judged(self.of_given(multipliers), 1)
        own = self.of_given(multipliers, SHARE)
        if not refutes(own, self.tolerance):
            return Judged(own, 1)
        return Judged(better(own, self.of_fit(self.fitted, 1 - SHARE), self.tolerance), 2)

    def levels(self, batches: int, share: float, fit: Fit | None) -> Levels:
        """From so many batches. What depends on multipliers has a `share` of what may go wrong."""
        return levels_for(self.structure, batches, batches + self.earlier(fit), self.confidence, share)

    def earlier(self, fit: Fit | None) -> int:
        """The batches of the fit, whose values count as well; of all rows nothing is left to add."""
        return 0 if fit is None or fit.seen is None or self.scope.exact else fit.seen.objective.shape[0]

    def _certificate(self, y: Multipliers, notes: tuple[str, ...], share: float, fit: Fit | None) -> Certificate:
        return as_certificate(
            self.structure,
            self.scope,
            self.estimate(y, share, fit),
            y,
            fitted=fit is not None,
            confidence=self.confidence,
            tolerance=self._in_words,
            notes=notes + self.notes,
        )


def _residual_multipliers(
    structure: AbstractStructure, multipliers: Mapping[str, ArrayLike]
) -> tuple[Multipliers, tuple[str, ...]]:
    """The user's multipliers as those of the residuals, and what had to be changed."""
    layout = structure.layout
    if not isinstance(multipliers, Mapping) or set(multipliers) != set(layout.names):
        found = sorted(multipliers) if isinstance(multipliers, Mapping) else type(multipliers).__name__
        raise ValueError(
            f"multipliers must be a dictionary with the names {layout.names}, found {found}. Take result.multipliers, "
            "or None."
        )
    for block in layout.blocks:
        given = multipliers[block.name]
        if np.shape(given) not in ((), block.shape):
            raise ValueError(
                f"the multipliers of {block.name!r} must have shape {block.shape}, found {describe_shape(given)}."
            )
    own = layout.signs * layout.unnamed(np, multipliers, structure.dtype)
    wrong = layout.named(np.where(layout.inequality, np.maximum(-own, 0), 0))
    notes = tuple(
        f"{np.count_nonzero(by)} of the multipliers of {name!r} had a sign that the constraint does not "
        f"allow (by up to {np.max(by):.3g}) and count as 0."
        for name, by in wrong.items()
        if np.any(by > 0)
    )
    return on_device(structure.signed(np.asarray(own, structure.dtype))), notes
