"""A term and a set together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._base import AbstractProximable


class Restricted(AbstractProximable):
    """h(x) in a set and infinity outside, for a term and a set that both act on every entry of x alone.

    In one dimension a convex function, restricted to an interval, is least at the point of the interval that is nearest
    to where it was least before: so the proximal map is that of h, then the projection. Subgradients are sums of those
    of h and of normals.

    Args:
        term: a separable term, such as `L1`.
        set: a separable set, such as `Box`.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import L1, Restricted
    >>> from lariax.sets import Box
    >>> print(Restricted(L1(1.0), Box(-1.0, 1.0)).prox(jnp.array([0.5, 1.5, -4.0]), 1.0))
    [ 0.   0.5 -1. ]
    """

    term: AbstractProximable
    set: AbstractProximable

    def __check_init__(self) -> None:
        for part in (self.term, self.set):
            if not part.separable:
                raise ValueError(
                    f"{type(part).__name__} ties entries of x together, so {type(self.term).__name__} within "
                    f"{type(self.set).__name__} has no proximal map in general. Keep the one that is harder to write "
                    "as a constraint, and state the other as an inequality."
                )

    @property
    def separable(self) -> bool:
        return True

    def value(self, x: PyTree) -> Float[Array, ""]:
        return self.term.value(x) + self.set.value(x)

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return self.set.prox(self.term.prox(x, step_size), step_size)

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        own = self.term.nearest_subgradient(x, direction, tolerance)
        rest = jax.tree.map(jnp.subtract, direction, own)
        return jax.tree.map(jnp.add, own, self.set.nearest_subgradient(x, rest, tolerance))

    def _mismatch(self, x: PyTree) -> str | None:
        return self.term.mismatch(x) or self.set.mismatch(x)
