"""What every set can do, and the two ways in which most of them see x: as one vector, or as one matrix."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from lariax.prox._base import AbstractProximable
from lariax.prox._numerics import Allowance, allowance, matrix_mismatch, matrix_of, norm


class AbstractSet(AbstractProximable):
    """A closed convex set X with a cheap projection; as a term, zero in X and infinity outside.

    Its subdifferential at a point of X is the normal cone N_X(x) = {n : <n, z - x> <= 0 for all z in X}.
    Hence `nearest_subgradient` projects onto the normal cone, and `stationarity(x, g)` = dist(-g, N_X(x)),
    which is also the norm of the projection of -g onto the tangent cone: how fast <g, .> can still be
    decreased within X. Both are about points of X; outside they answer as for a nearby point of the boundary.

    >>> import jax.numpy as jnp, lariax as lx
    >>> lx.sets.Box(0.0, 1.0).project(jnp.array([-1.0, 0.5])).tolist()
    [0.0, 0.5]
    """

    @abstractmethod
    def project(self, x: PyTree) -> PyTree:
        """argmin over z in X of ||z - x||."""

    @abstractmethod
    def contains(self, x: PyTree, tolerance: ArrayLike | None = None) -> Bool[Array, ""]:
        """Whether x is within `tolerance` of X, by default a few rounding errors."""

    def value(self, x: PyTree) -> Float[Array, ""]:
        return jnp.where(self.contains(x), 0, jnp.inf).astype(jnp.result_type(*jax.tree.leaves(x)))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return self.project(x)


class AbstractArraySet(AbstractSet):
    """A set that sees x as a single array. A concrete one only writes formulas about that array."""

    separable: ClassVar[bool] = False

    @abstractmethod
    def _open(self, x: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
        """x as one array, and how to give such an array the structure of x."""

    @abstractmethod
    def _project(self, array: Array) -> Array:
        """`project` for the array."""

    @abstractmethod
    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        """`nearest_subgradient` for the array; `allow(scale)` is how near at that scale counts as equal."""

    @abstractmethod
    def _scale(self, array: Array) -> Array:
        """The size of the numbers whose rounding decides how precisely `_project` meets the set."""

    def project(self, x: PyTree) -> PyTree:
        array, rebuild = self._open(x)
        return rebuild(self._project(array))

    def contains(self, x: PyTree, tolerance: ArrayLike | None = None) -> Bool[Array, ""]:
        array, _ = self._open(x)
        return norm(array - self._project(array)) <= allowance(x, tolerance)(self._scale(array))

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        array, _ = self._open(x)
        target, rebuild = self._open(direction)
        return rebuild(self._nearest_normal(array, target, allowance(x, tolerance)))


class AbstractVectorSet(AbstractArraySet):
    """A set of vectors. A pytree is seen as all its entries in a row."""

    @abstractmethod
    def _size_mismatch(self, size: int) -> str | None:
        """None when vectors of this size can be in the set, else a sentence that says why not."""

    def _open(self, x: PyTree) -> tuple[Float[Array, " n"], Callable[[Array], PyTree]]:
        return ravel_pytree(x)

    def _mismatch(self, x: PyTree) -> str | None:
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(x))
        if size == 0:
            return f"x has no entries, but {type(self).__name__} needs at least one: give a non-empty x."
        return self._size_mismatch(size)


class AbstractMatrixSet(AbstractArraySet):
    """A set of matrices. x must be one two-dimensional array."""

    @abstractmethod
    def _shape_mismatch(self, rows: int, columns: int) -> str | None:
        """None when matrices of this shape can be in the set, else a sentence that says why not."""

    def _open(self, x: PyTree) -> tuple[Float[Array, "rows columns"], Callable[[Array], PyTree]]:
        return matrix_of(x)

    def _mismatch(self, x: PyTree) -> str | None:
        return matrix_mismatch(self, x) or self._shape_mismatch(*np.shape(jax.tree.leaves(x)[0]))
