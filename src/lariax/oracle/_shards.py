"""A pytree on a mesh as one vector on the same mesh, without moving an entry.

A vector that is cut into equal parts, one a device, cannot hold one leaf after the other: their parts would have to
move to where the vector is cut. It holds, device after device, what that device has of each leaf:

    vector = [ part 0 of leaf a, part 0 of leaf b, ... | part 1 of leaf a, part 1 of leaf b, ... | ... ]

A leaf that is whole on several devices, where others are cut, is cut among these, and filled up with zeros to parts of
one length: entries that no function looks at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from lariax.problem import Axes, mesh_of, splits_of

SMALL = 4096
"""Up to so many entries x is whole on every device inside: to send it takes less time than to begin sending."""


@dataclass(frozen=True)
class Shards:
    """The way from a pytree to a vector on the same mesh, and back. Hashable, as meshes are."""

    mesh: Mesh
    axes: Axes  # of the mesh that some leaf is cut along, in the mesh's order
    shapes: tuple[tuple[int, ...], ...]  # of the leaves
    splits: tuple[tuple[Axes, ...], ...]  # for each axis of each leaf, what it is cut along
    extra: int = 0  # entries more in each part: by these one sees which arrays are vectors like x

    @classmethod
    def of(cls, x: PyTree[Array]) -> "Shards | None":
        """None: x is whole on every device, or small."""
        leaves = jax.tree.leaves(x)
        if sum(prod(leaf.shape) for leaf in leaves) <= SMALL:
            return None
        mesh, splits = mesh_of(leaves), tuple(map(splits_of, leaves))
        used = {axis for leaf in splits for axes in leaf for axis in axes}
        if mesh is None or not used:
            return None
        axes = tuple(axis for axis in mesh.axis_names if axis in used)
        return cls(mesh, axes, tuple(leaf.shape for leaf in leaves), splits)

    @property
    def count(self) -> int:
        """Parts of the vector."""
        return self._length(self.axes)

    @property
    def lengths(self) -> list[int]:
        """Of the part of each leaf that a device has."""
        return [
            -(-prod(shape) // self.count) if self._missing(own) == () else self._padded(shape, own)
            for shape, own in zip(self.shapes, map(self._own, self.splits), strict=True)
        ]

    def _padded(self, shape: tuple[int, ...], own: Axes) -> int:
        return -(-(prod(shape) // self._length(own)) // self._length(self._missing(own)))

    @property
    def size(self) -> int:
        """Of the vector."""
        return self.count * (sum(self.lengths) + self.extra)

    def placed(self, vector: Array) -> Array:
        """A vector like x, or several stacked along leading axes, with its entries where they belong. On the host (and
        so for all that follows) an array of NumPy stays one."""
        if isinstance(vector, np.ndarray):
            return vector
        spec = PartitionSpec(*(None,) * (vector.ndim - 1), self.axes)
        return jax.lax.with_sharding_constraint(vector, NamedSharding(self.mesh, spec))

    def ravel(self, leaves: list[Array]) -> Float[Array, " d"]:
        parts = [self._cut(leaf, splits) for leaf, splits in zip(leaves, self.splits, strict=True)]
        xp = np if isinstance(parts[0], np.ndarray) else jnp
        if self.extra:
            parts.append(xp.zeros((self.count, self.extra), parts[0].dtype))
        return self.placed(xp.concatenate(parts, axis=1).reshape(-1))

    def unravel(self, vector: Float[Array, " d"]) -> list[Array]:
        rows = self.placed(vector).reshape(self.count, -1)
        if isinstance(rows, np.ndarray):
            parts: Sequence[Any] = np.split(rows, np.cumsum(self.lengths), axis=1)
        else:
            parts = jax.lax.split(rows, [*self.lengths, self.extra], axis=1)
        return [self._joined(*each) for each in zip(parts, self.shapes, self.splits, strict=False)]

    def _length(self, axes: Axes) -> int:
        return prod(self.mesh.shape[axis] for axis in axes)

    def _own(self, splits: tuple[Axes, ...]) -> Axes:
        """The axes that a leaf is cut along, in the order of its own."""
        return tuple(axis for axes in splits for axis in axes)

    def _missing(self, own: Axes) -> Axes:
        return tuple(axis for axis in self.axes if axis not in own)

    def _order(self, own: Axes) -> list[int]:
        """From the leaf's axes of the mesh, then those it lacks, to the vector's."""
        found = (*own, *self._missing(own))
        return [found.index(axis) for axis in self.axes]

    def _on(self, array: Array, *entries: Any) -> Array:
        if isinstance(array, np.ndarray):
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, PartitionSpec(*entries)))

    def _apart(self, shape: tuple[int, ...], splits: tuple[Axes, ...]) -> tuple[list[int], list[int], list[int]]:
        """The shape with every cut as an axis of its own, and which of these are cuts and which are not."""
        apart: list[int] = []
        cuts, rest = [], []
        for size, axes in zip(shape, splits, strict=True):
            cuts += [len(apart) + i for i in range(len(axes))]
            apart += [self.mesh.shape[axis] for axis in axes]
            rest.append(len(apart))
            apart.append(size // self._length(axes))
        return apart, cuts, rest

    def _cut(self, leaf: Array, splits: tuple[Axes, ...]) -> Float[Array, "count part"]:
        own, (apart, cuts, rest) = self._own(splits), self._apart(leaf.shape, splits)
        missing = self._missing(own)
        pieces = self._on(leaf, *splits).reshape(apart).transpose(*cuts, *rest)
        pieces = self._on(pieces.reshape(*(apart[i] for i in cuts), -1), *own)
        more = -pieces.shape[-1] % self._length(missing)
        if more:
            xp = np if isinstance(pieces, np.ndarray) else jnp
            pieces = xp.pad(pieces, [(0, 0)] * len(own) + [(0, more)])
        pieces = pieces.reshape(*pieces.shape[:-1], *(self.mesh.shape[axis] for axis in missing), -1)
        pieces = pieces.transpose(*self._order(own), len(self.axes))
        return self._on(self._on(pieces, *self.axes).reshape(self.count, -1), self.axes)

    def _joined(self, part: Float[Array, "count part"], shape: tuple[int, ...], splits: tuple[Axes, ...]) -> Array:
        own, (apart, cuts, rest) = self._own(splits), self._apart(shape, splits)
        order = self._order(own)
        pieces = self._on(part, self.axes).reshape(*(self.mesh.shape[axis] for axis in self.axes), -1)
        pieces = self._on(pieces, *self.axes).transpose(*(order.index(i) for i in range(len(order))), len(order))
        pieces = self._on(pieces.reshape(*pieces.shape[: len(own)], -1), *own)
        local = prod(apart[i] for i in rest)
        pieces = pieces[..., :local].reshape([apart[i] for i in (*cuts, *rest)])
        back = (*cuts, *rest)
        return self._on(pieces.transpose(*(back.index(i) for i in range(len(back)))).reshape(shape), *splits)
