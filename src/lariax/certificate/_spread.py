"""Batch means as the intervals use them: the mean over all batches, and how the batches differ."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Vector = Float[Array, " p"]

KEPT_ENTRIES = 2**21  # numbers in all contrasts together that are kept in the precision of the mean
SHORT = jnp.float16  # what others are kept in, each contrast in units of its largest entry


def is_large(batches: int, entries: int) -> bool:
    """Whether so many batch means of so many entries each are more than memory should be spent on."""
    return batches > 1 and batches * entries > KEPT_ENTRIES


class BatchMeans(NamedTuple):
    """k batch means b_1 .. b_k, as their mean and the contrast of each with the mean m_{j-1} of those before it.

        m_j = m_{j-1} + c_j / j,     c_j = b_j - m_{j-1},     b_i - m_k = c_i - sum over j >= i of c_j / j

    Contrasts can be had while batches come in, k - 1 of them say all that deviations from m_k do, and only the length
    of intervals depends on them: for large x they are kept in half precision, which is off by less than 1 in 2,000.
    """

    mean: Vector
    contrasts: Float[Array, "k-1 p"]  # in units of
    scales: Float[Array, " k-1"]

    @classmethod
    def of(cls, means: Float[Array, "k p"]) -> "BatchMeans":
        """Of batch means that are all there."""
        k, p = means.shape
        if is_large(k, p):
            numbered = (means, jnp.arange(k))
            return jax.lax.scan(lambda spread, each: (spread.plus(*each), None), cls.room(k, means[0]), numbered)[0]
        mean = jnp.mean(means, axis=0)
        contrasts = jnp.matmul(jnp.asarray(_contrasting(k), means.dtype), means - mean, precision="highest")
        return cls(mean, contrasts, jnp.ones(k - 1, means.dtype))

    @classmethod
    def room(cls, batches: int, like: Vector) -> "BatchMeans":
        """No batch yet, and room for so many of a large x."""
        others = batches - 1
        return cls(jnp.zeros_like(like), jnp.zeros((others, like.size), SHORT), jnp.ones(others, like.dtype))

    def plus(self, batch: Vector, before: Int[Array, ""]) -> "BatchMeans":
        """With the mean of one more batch, after so many."""
        contrast = batch - self.mean
        largest = jnp.max(jnp.abs(contrast))
        scale = jnp.where(largest > 0, largest, 1)
        place = jnp.maximum(before - 1, 0)  # what is there of the first batch is written over by the second
        return BatchMeans(
            self.mean + contrast / (before + 1).astype(batch.dtype),
            self.contrasts.at[place].set((contrast / scale).astype(SHORT)),
            self.scales.at[place].set(scale),
        )

    @property
    def batches(self) -> int:
        return self.scales.shape[0] + 1

    @property
    def is_short(self) -> bool:
        return bool(self.contrasts.dtype != self.mean.dtype)

    @property
    def largest(self) -> Float[Array, ""]:
        """Of all entries of contrasts."""
        return jnp.max(self.scales) if self.is_short else jnp.max(jnp.abs(self.contrasts))

    def contrast(self, j: Int[Array, ""]) -> Vector:
        return self.contrasts[j].astype(self.mean.dtype) * self.scales[j]

    def deviation(self, weights: Float[Array, " k"]) -> Vector:
        """sum over i of w_i (b_i - m_k)."""
        each = jnp.matmul(weights, self.mixing, precision="highest")
        if not self.is_short:
            return jnp.matmul(each, self.contrasts, precision="highest")

        def add(j: Int[Array, ""], total: Vector) -> Vector:  # a product of matrices would make all of them long
            return total + each[j] * self.contrast(j)

        return jax.lax.fori_loop(0, self.batches - 1, add, jnp.zeros_like(self.mean))

    @property
    def mixing(self) -> Float[Array, "k k-1"]:
        """Deviations from contrasts."""
        return jnp.asarray(_mixing(self.batches), self.mean.dtype)


@cache
def _contrasting(k: int) -> np.ndarray:
    before = np.tri(k, k, -1)
    return np.eye(k)[1:] - (before / np.maximum(before.sum(1, keepdims=True), 1))[1:]


@cache
def _mixing(k: int) -> np.ndarray:
    number = np.arange(2, k + 1)
    own = np.arange(1, k + 1)[:, None]
    return (own == number) - (own <= number) / number
