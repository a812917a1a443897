"""A set as a term."""

import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._base import AbstractProximable


class Indicator(AbstractProximable):
    """h(x) = 0 in a set and infinity outside; the proximal map is the projection, whatever the step size.

    Args:
        set: any set of `lariax.sets`. Each is such a term by itself, so whatever takes a term takes the set as it is.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import Indicator
    >>> from lariax.sets import NonNegative
    >>> print(Indicator(NonNegative()).prox(jnp.array([1.0, -2.0]), 0.1))
    [1. 0.]
    """

    set: AbstractProximable

    @property
    def separable(self) -> bool:
        return self.set.separable

    def value(self, x: PyTree) -> Float[Array, ""]:
        return self.set.value(x)

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return self.set.prox(x, step_size)

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        return self.set.nearest_subgradient(x, direction, tolerance)

    def tied(self, x: PyTree) -> PyTree[np.ndarray]:
        return self.set.tied(x)

    def _mismatch(self, x: PyTree) -> str | None:
        return self.set.mismatch(x)
