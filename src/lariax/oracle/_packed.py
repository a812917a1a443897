"""A structure with many parts, taken apart once."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")


@jax.tree_util.register_pytree_node_class
class Packed(Generic[Tree]):
    """A pytree of which JAX sees the arrays in a row; what else is in it is part of the structure.

    Every call of a method of an equinox module takes the module apart, and a problem with a thousand constraints has
    thousands of parts: that took as long as compiling.
    """

    def __init__(self, arrays: Sequence[Any], rest: tuple[Any, ...], structure: Any) -> None:
        self.arrays, self.rest, self.structure = arrays, rest, structure
        self._tree: Any = None

    @classmethod
    def of(cls, tree: Tree) -> "Packed[Tree]":
        leaves, structure = jax.tree.flatten(tree)
        packed = cls(
            [leaf for leaf in leaves if _is_array(leaf)],
            tuple(_PLACE if _is_array(leaf) else leaf for leaf in leaves),
            structure,
        )
        packed._tree = tree
        return packed

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            arrays = iter(self.arrays)
            leaves = [next(arrays) if leaf is _PLACE else leaf for leaf in self.rest]
            self._tree = jax.tree.unflatten(self.structure, leaves)
        return self._tree

    def tree_flatten(self) -> tuple[Any, Any]:
        return self.arrays, (self.rest, self.structure)

    @classmethod
    def tree_unflatten(cls, rest: tuple[Any, Any], arrays: Sequence[Any]) -> "Packed[Tree]":
        return cls(arrays, *rest)


class _Place:
    """Where an array belongs."""


_PLACE = _Place()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)
