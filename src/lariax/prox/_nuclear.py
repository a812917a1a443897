"""The nuclear norm, which drives a matrix to low rank."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._base import AbstractProximable
from lariax.prox._numerics import (
    allowance,
    cast,
    matmul,
    matrix_mismatch,
    matrix_of,
    nuclear_subgradients,
    require_weight,
)
from lariax.utils import Converted


class Nuclear(AbstractProximable):
    """h(X) = w sum_i sigma_i(X), the sum of the singular values of one matrix.

    The proximal map soft-thresholds the singular values at step_size * w and keeps the singular vectors.
    By default singular values at the level of rounding against the largest count as zero.

    Args:
        weight: w >= 0, one number.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import Nuclear
    >>> print(jnp.round(Nuclear(1.0).prox(jnp.diag(jnp.array([3.0, 0.5])), 1.0), 3) + 0.0)
    [[2. 0.]
     [0. 0.]]
    """

    weight: Converted = eqx.field(converter=jnp.asarray)

    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        require_weight(self, "weight", self.weight)

    def value(self, x: PyTree) -> Float[Array, ""]:
        matrix, _ = matrix_of(x)
        return cast(self.weight, matrix) * jnp.sum(jnp.linalg.svdvals(matrix))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        matrix, rebuild = matrix_of(x)
        left, sizes, right = jnp.linalg.svd(matrix, full_matrices=False)
        shrunk = jnp.maximum(sizes - cast(step_size, matrix) * cast(self.weight, matrix), 0)
        return rebuild(matmul(left * shrunk, right))

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        matrix, _ = matrix_of(x)
        target, rebuild = matrix_of(direction)
        _, _, nearest = nuclear_subgradients(matrix, target, allowance(x, tolerance))
        return rebuild(nearest(cast(self.weight, matrix)))

    def _mismatch(self, x: PyTree) -> str | None:
        if self.weight.shape != ():
            return f"Nuclear has a weight of shape {self.weight.shape}, but it is one number: give a scalar."
        return matrix_mismatch(self, x)
