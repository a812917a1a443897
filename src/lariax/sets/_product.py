"""A set for each part of x."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree

from lariax.sets._base import AbstractSet


class Product(AbstractSet):
    """{x : each part of x is in its own set}.

    Everything happens part by part: projection, normal cone, tolerance.

    Args:
        parts: a dict, list or tuple of sets, nested at will, whose structure is a prefix of that of x: each
            set gets the part of x that stands in its place. `Everything()` leaves a part free.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import NonNegative, Product, Simplex
    >>> both = Product({"mix": Simplex(), "rest": NonNegative()})
    >>> nearest = both.project({"mix": jnp.array([0.75, 0.75]), "rest": jnp.array([-1.0])})
    >>> print(nearest["mix"], nearest["rest"])
    [0.5 0.5] [0.]
    """

    parts: PyTree[AbstractSet]

    def __check_init__(self) -> None:
        for path, part in jax.tree.leaves_with_path(self.parts, is_leaf=lambda node: node is None or _is_set(node)):
            if not isinstance(part, AbstractSet):
                raise ValueError(
                    f"Product was given {part!r} at {jax.tree_util.keystr(path)}, but every part is a set: "
                    "give one from lariax.sets, or Everything() to leave that part of x free."
                )

    @property
    def separable(self) -> bool:
        return all(part.separable for part in jax.tree.leaves(self.parts, is_leaf=_is_set))

    def project(self, x: PyTree) -> PyTree:
        return self._map(lambda part, piece: part.project(piece), x)

    def contains(self, x: PyTree, tolerance: ArrayLike | None = None) -> Bool[Array, ""]:
        flags = self._map(lambda part, piece: part.contains(piece, tolerance), x)
        return jnp.all(jnp.stack(jax.tree.leaves(flags)))

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        return self._map(lambda part, piece, target: part.nearest_subgradient(piece, target, tolerance), x, direction)

    def tied(self, x: PyTree) -> PyTree[np.ndarray]:
        numbers = itertools.count()

        def labels(part: AbstractSet, piece: PyTree) -> PyTree[np.ndarray]:
            first = next(numbers)
            return jax.tree.map(lambda own: np.where(own < 0, own, first), part.tied(piece))

        return self._map(labels, x)

    def _mismatch(self, x: PyTree) -> str | None:
        try:
            found = self._map(lambda part, piece: (part.mismatch(piece),), x)
        except (ValueError, TypeError) as error:
            return (
                f"The parts of Product are arranged differently from x ({error}): give the dict, list or "
                "tuple of sets the outer structure of x."
            )
        for path, complaint in jax.tree.leaves_with_path(found):
            return f"In part {jax.tree_util.keystr(path[:-1])} of Product: {complaint}"
        return None

    def _map(self, function: Callable[..., PyTree], *trees: PyTree) -> PyTree:
        return jax.tree.map(function, self.parts, *trees, is_leaf=_is_set)


def _is_set(node: object) -> bool:
    return isinstance(node, AbstractSet)
