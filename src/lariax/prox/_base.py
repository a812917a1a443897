"""What every simple convex term can do."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._numerics import norm


class AbstractProximable(eqx.Module):
    """A simple convex function h: one with a cheap proximal map.

    x is any pytree of floating-point arrays. Constants of the term are cast to the precision of x, so nothing
    changes the precision of what passes through. All methods but `mismatch` are pure and can be compiled and
    vectorised.

    >>> import jax.numpy as jnp, lariax as lx
    >>> isinstance(lx.prox.L1(0.1), lx.prox.AbstractProximable)
    True
    """

    @property
    @abstractmethod
    def separable(self) -> bool:
        """Whether h is a sum over the single entries of x. Then `prox` also takes a step size per entry."""

    @abstractmethod
    def value(self, x: PyTree) -> Float[Array, ""]:
        """h(x)."""

    @abstractmethod
    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        """argmin over z of h(z) + ||z - x||^2 / (2 step_size)."""

    @abstractmethod
    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        """The element of the subdifferential of h at x that is nearest to `direction`.

        x is taken to be where h is finite. Whatever is within `tolerance` of a kink or a boundary counts as
        on it; by default that is a small multiple of the rounding error of `prox`.
        """

    @abstractmethod
    def _mismatch(self, x: PyTree) -> str | None:
        """`mismatch`, once the entries of x are known to be floating-point numbers."""

    def stationarity(self, x: PyTree, gradient: PyTree, tolerance: ArrayLike | None = None) -> Float[Array, ""]:
        """dist(-gradient, subdifferential of h at x): zero exactly where x minimises <gradient, .> + h."""
        descent = jax.tree.map(jnp.negative, gradient)
        nearest = self.nearest_subgradient(x, descent, tolerance)
        return norm(jax.tree.map(jnp.subtract, descent, nearest))

    def tied(self, x: PyTree) -> PyTree[np.ndarray]:
        """Which entries of x the term ties together, so that they have one unit: a label >= 0; -1 for the others."""
        return jax.tree.map(lambda leaf: np.full(np.shape(leaf), -1 if self.separable else 0), x)

    def mismatch(self, x: PyTree) -> str | None:
        """None when this term fits an x of this structure, else a sentence that says what does not fit.

        Looks at structure, shapes and kinds of numbers only. To be called outside compiled code.
        """
        for path, leaf in jax.tree.leaves_with_path(x):
            kind = jnp.result_type(leaf)
            if not jnp.issubdtype(kind, jnp.floating):
                return (
                    f"x{jax.tree_util.keystr(path)} holds {kind}, but {type(self).__name__} needs "
                    "floating-point numbers: convert it, for instance with jnp.asarray(x, float)."
                )
        return self._mismatch(x)
