"""x as one vector: methods do arithmetic on vectors, the user's functions see the user's own structure."""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


@dataclass(frozen=True)
class Coordinates:
    """The way from a pytree to a vector and back. Hashable, so that equal structures share compiled code."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, x: PyTree[Array]) -> "Coordinates":
        leaves, structure = jax.tree.flatten(x)
        return cls(structure, tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> Any:
        """The precision of the arithmetic: the widest of the leaves, and at least single."""
        return jnp.promote_types(jnp.result_type(*self.dtypes), jnp.float32)

    def ravel(self, x: PyTree[Array]) -> Float[Array, " d"]:
        return jnp.concatenate([jnp.ravel(leaf).astype(self.dtype) for leaf in jax.tree.leaves(x)])

    def unravel(self, vector: Float[Array, " d"], cast: bool = True) -> PyTree[Array]:
        """The pytree of a vector; `cast` gives every leaf its own precision again."""
        leaves, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            leaf = vector[start : start + prod(shape)].reshape(shape)
            leaves.append(leaf.astype(dtype) if cast else leaf)
            start += prod(shape)
        return jax.tree.unflatten(self.structure, leaves)
