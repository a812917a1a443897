"""x as one vector: methods do arithmetic on vectors, the user's functions see the user's own structure."""

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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

    def ravel_on_host(self, x: PyTree[Array]) -> np.ndarray:
        return np.concatenate([np.ravel(leaf).astype(self.dtype) for leaf in jax.device_get(jax.tree.leaves(x))])

    def unravel(self, vector: Float[Array, " d"], cast: bool = True) -> PyTree[Array]:
        """The pytree of a vector; `cast` gives every leaf its own precision again.

        By one split, whose transpose is one concatenation: that of as many slices would be a sum of padded vectors.
        """
        parts = jax.lax.split(vector, [prod(shape) for shape in self.shapes]) if len(self.shapes) > 1 else [vector]
        leaves = [
            part.reshape(shape).astype(dtype if cast else part.dtype)
            for part, shape, dtype in zip(parts, self.shapes, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)
