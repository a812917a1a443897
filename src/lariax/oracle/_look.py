"""What one pass over a batch shows."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

Vector = Float[Array, " d"]
Rows = tuple[Float[Array, "n m"], ...]
"""Residuals sample by sample, one array a source of samples (`Layout.sources`); deterministic ones have one row."""


class Look(NamedTuple):
    """One forward pass at a point: objective and residuals sample by sample, and the way back."""

    objective: Float[Array, " n"]
    residuals: Rows
    pull: Callable[[tuple[Float[Array, " n"], Rows]], tuple[Vector]]

    def gradient(self, weights: Rows | None = None, objective: ArrayLike = 1.0) -> Vector:
        """mean of w_0 grad f + sum over rows of J_i^T w_i / n: one backward pass, the Jacobian is never formed.

        `weights` has one row for all samples, or one for each; `objective` is w_0.
        """
        n = self.objective.shape[0]
        if weights is None:
            weights = tuple(jnp.zeros_like(r) for r in self.residuals)
        spread = tuple(jnp.broadcast_to(w, r.shape) / r.shape[0] for w, r in zip(weights, self.residuals, strict=True))
        return self.pull((jnp.full_like(self.objective, objective / n), spread))[0]


class Parts(NamedTuple):
    """The mean of a vector over a batch, as its means over one or two parts of it: two show its noise."""

    means: tuple[Vector, ...]
    shares: tuple[float, ...]  # of the parts in the batch

    @property
    def mean(self) -> Vector:
        if len(self.means) == 1:
            return self.means[0]
        return self.shares[0] * self.means[0] + self.shares[1] * self.means[1]

    @property
    def noise(self) -> Float[Array, ""]:
        """The variance of the mean, summed over the entries."""
        (first, second), (share, rest) = self.means, self.shares
        return share * rest * jnp.sum((first - second) ** 2)

    def __sub__(self, other: "Parts") -> "Parts":
        return Parts(tuple(a - b for a, b in zip(self.means, other.means, strict=True)), self.shares)
