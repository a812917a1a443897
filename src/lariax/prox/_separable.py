"""Terms that act on each entry of x alone."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._base import AbstractProximable
from lariax.prox._numerics import (
    as_arrays,
    l1_subgradient,
    require_weight,
    soft_threshold,
    spread,
    spread_mismatch,
)


class Zero(AbstractProximable):
    """h(x) = 0: no term at all. Its proximal map leaves x where it is.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import Zero
    >>> print(Zero().prox(jnp.array([1.0, -2.0]), 0.5))
    [ 1. -2.]
    """

    separable: ClassVar[bool] = True

    def value(self, x: PyTree) -> Float[Array, ""]:
        return jnp.zeros((), jnp.result_type(*jax.tree.leaves(x)))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return x

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        return jax.tree.map(jnp.zeros_like, direction)

    def _mismatch(self, x: PyTree) -> str | None:
        return None


class L1(AbstractProximable):
    """h(x) = sum_i w_i |x_i|, which drives entries to exactly zero.

    The proximal map is soft thresholding: sign(x) max(|x| - step_size * w, 0). It makes exact zeros, so by
    default only exact zeros count as zero in `nearest_subgradient`.

    Args:
        weight: w >= 0, one number or a tree that broadcasts against x.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import L1
    >>> print(L1(0.5).prox(jnp.array([2.0, -0.25, -3.0]), 1.0))
    [ 1.5  0.  -2.5]
    """

    weight: PyTree[Array] = eqx.field(converter=as_arrays)

    separable: ClassVar[bool] = True

    def __check_init__(self) -> None:
        require_weight(self, "weight", self.weight)

    def value(self, x: PyTree) -> Float[Array, ""]:
        terms = jax.tree.map(lambda leaf, w: jnp.sum(w * jnp.abs(leaf)), x, spread(self.weight, x))
        return sum(jax.tree.leaves(terms), start=jnp.zeros((), jnp.result_type(*jax.tree.leaves(x))))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return jax.tree.map(
            lambda leaf, w, t: soft_threshold(leaf, t * w), x, spread(self.weight, x), spread(step_size, x)
        )

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        zero = 0 if tolerance is None else tolerance
        return jax.tree.map(lambda leaf, n, w: l1_subgradient(leaf, n, w, zero), x, direction, spread(self.weight, x))

    def _mismatch(self, x: PyTree) -> str | None:
        return spread_mismatch("the weight of L1", self.weight, x)


class ElasticNet(AbstractProximable):
    """h(x) = l1 ||x||_1 + (l2 / 2) ||x||^2.

    The proximal map is soft thresholding at step_size * l1 followed by division by 1 + step_size * l2.

    Args:
        l1: weight >= 0 of the 1-norm, one number or a tree that broadcasts against x.
        l2: weight >= 0 of the squared 2-norm, likewise.

    >>> import jax.numpy as jnp
    >>> from lariax.prox import ElasticNet
    >>> print(ElasticNet(l1=1.0, l2=1.0).prox(jnp.array([3.0, -0.5]), 1.0))
    [1. 0.]
    """

    l1: PyTree[Array] = eqx.field(converter=as_arrays)
    l2: PyTree[Array] = eqx.field(converter=as_arrays)

    separable: ClassVar[bool] = True

    def __check_init__(self) -> None:
        require_weight(self, "l1", self.l1)
        require_weight(self, "l2", self.l2)

    def value(self, x: PyTree) -> Float[Array, ""]:
        squares = jax.tree.map(lambda leaf, w: jnp.sum(w / 2 * jnp.square(leaf)), x, spread(self.l2, x))
        return L1(self.l1).value(x) + sum(jax.tree.leaves(squares))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        shrunk = L1(self.l1).prox(x, step_size)
        return jax.tree.map(lambda leaf, w, t: leaf / (1 + t * w), shrunk, spread(self.l2, x), spread(step_size, x))

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        smooth = jax.tree.map(jnp.multiply, spread(self.l2, x), x)
        rest = jax.tree.map(jnp.subtract, direction, smooth)
        return jax.tree.map(jnp.add, smooth, L1(self.l1).nearest_subgradient(x, rest, tolerance))

    def _mismatch(self, x: PyTree) -> str | None:
        return spread_mismatch("l1 of ElasticNet", self.l1, x) or spread_mismatch("l2 of ElasticNet", self.l2, x)
