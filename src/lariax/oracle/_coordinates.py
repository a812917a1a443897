"""x as one vector: methods do arithmetic on vectors, the user's functions see the user's own structure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lariax.compilation import SMALL
from lariax.oracle._shards import Shards


@dataclass(frozen=True)
class Coordinates:
    """The way from a pytree to a vector and back. Hashable, so that equal structures share compiled code."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    shards: Shards | None = None  # of the vector, on a mesh

    @classmethod
    def of(cls, x: PyTree[Array]) -> "Coordinates":
        leaves, structure = jax.tree.flatten(x)
        return cls(
            structure, tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves), Shards.of(leaves)
        )

    @property
    def size(self) -> int:
        return sum(self.sizes) if self.shards is None else self.shards.size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the leaves."""
        return tuple(map(prod, self.shapes))

    @property
    def dtype(self) -> Any:
        """The precision of the arithmetic: the widest of the leaves, and at least single."""
        return jnp.promote_types(jnp.result_type(*self.dtypes), jnp.float32)

    def ravel(self, x: PyTree[Array]) -> Float[Array, " d"]:
        leaves = [leaf.astype(self.dtype) for leaf in jax.tree.leaves(x)]
        return jnp.concatenate(list(map(jnp.ravel, leaves))) if self.shards is None else self.shards.ravel(leaves)

    def ravel_small(self, x: PyTree[Array]) -> Array | np.ndarray:
        """`ravel`; on the host, where nothing has to be compiled, if x is small and on no mesh."""
        if self.shards is not None or self.size > SMALL:
            return self.ravel(x)
        return np.concatenate([np.ravel(leaf).astype(self.dtype) for leaf in jax.device_get(jax.tree.leaves(x))])

    def unravel(self, vector: Float[Array, " d"], cast: bool = True) -> PyTree[Array]:
        """The pytree of a vector; `cast` gives every leaf its own precision again.

        By one split, whose transpose is one concatenation: that of as many slices would be a sum of padded vectors.
        """
        parts: Sequence[Array] = [vector]
        if self.shards is not None:
            parts = self.shards.unravel(vector)
        elif len(self.shapes) > 1:
            parts = jax.lax.split(vector, self.sizes)
        leaves = [
            part.reshape(shape).astype(dtype if cast else part.dtype)
            for part, shape, dtype in zip(parts, self.shapes, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    # --- a vector with more entries behind those of x

    def extended(self, vector: Float[Array, " d"], more: Float[Array, " s"]) -> Float[Array, " d+s"]:
        """On a mesh each part of the vector gets its share of them, filled up with zeros."""
        xp = np if isinstance(vector, np.ndarray) else jnp
        if self.shards is None:
            return xp.concatenate([vector, more])
        count = self.shards.count
        filled = xp.pad(more, (0, -more.size % count))
        return self.shards.placed(
            xp.concatenate([vector.reshape(count, -1), filled.reshape(count, -1)], axis=1).reshape(-1)
        )

    def extended_size(self, more: int) -> int:
        return self.size + more + (0 if self.shards is None else -more % self.shards.count)

    def parts(self, vector: Float[Array, " d+s"], more: int) -> tuple[Float[Array, " d"], Float[Array, " s"]]:
        """Such a vector taken apart again."""
        if self.shards is None or not more:
            return vector[: self.size], vector[self.size :]
        rows = vector.reshape(self.shards.count, -1)
        own = self.size // self.shards.count
        return self.shards.placed(rows[:, :own].reshape(-1)), rows[:, own:].reshape(-1)[:more]

    # --- for files, which know of no mesh

    @property
    def plain(self) -> "Coordinates":
        """The same structure on one device."""
        return replace(self, shards=None)

    def to_plain(self, vector: Any, more: int) -> Any:
        """A vector of NumPy, with more entries behind those of x, in the order that it has on one device."""
        if self.shards is None:
            return vector
        own, rest = self.parts(vector, more)
        return np.concatenate([*(np.ravel(leaf) for leaf in self.shards.unravel(own)), rest])

    def from_plain(self, vector: Any, more: int) -> Any:
        """The way back."""
        if self.shards is None:
            return vector
        cuts = np.cumsum(self.sizes)
        parts: list[Any] = np.split(vector, cuts)
        own = self.shards.ravel([part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=False)])
        return self.extended(own, parts[-1]) if more else own
