"""A norm a group, which drives whole groups of entries to zero."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from lariax.prox._base import AbstractProximable
from lariax.prox._numerics import cast, require_weight


class GroupL2(AbstractProximable):
    """h(x) = sum over groups G of w_G ||x_G||_2, which sets whole groups to exactly zero.

    The proximal map shrinks each group towards zero: x_G max(1 - step_size * w_G / ||x_G||, 0).

    Args:
        weight: w >= 0, one number, or one a group in increasing order of the labels.
        groups: an integer label per entry of x, in x's own structure or as one vector; entries with the same
            label form a group. By default each row along the leading axis of each array is a group: the
            weights of one unit of a layer, for instance. (In a vector each entry is then a group of its own.)

    >>> import jax.numpy as jnp
    >>> from lariax.prox import GroupL2
    >>> print(GroupL2(1.0).prox(jnp.array([[3.0, 4.0], [0.5, 0.5]]), 2.5))
    [[1.5 2. ]
     [0.  0. ]]
    """

    weight: Array
    labels: Int[Array, " n"] | None
    count: int | None = eqx.field(static=True)

    separable: ClassVar[bool] = False

    def __init__(self, weight: ArrayLike, groups: PyTree[ArrayLike] | None = None):
        self.weight = jnp.asarray(weight)
        require_weight(self, "weight", self.weight)
        if groups is None:
            self.labels, self.count = None, None
            return
        parts = [np.ravel(leaf) for leaf in jax.tree.leaves(groups)]
        given = np.concatenate(parts) if parts else np.zeros(0)
        if not np.issubdtype(given.dtype, np.integer):
            raise ValueError(
                f"GroupL2 was given groups of the kind {given.dtype}, but labels are whole numbers: give "
                "integers, the same one for all entries of a group."
            )
        distinct, labels = np.unique(given, return_inverse=True)
        self.labels, self.count = jnp.asarray(labels), len(distinct)

    def value(self, x: PyTree) -> Float[Array, ""]:
        vector, _ = ravel_pytree(x)
        labels, count = self._groups(x)
        return jnp.sum(cast(self.weight, vector) * _norms(vector, labels, count))

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        vector, rebuild = ravel_pytree(x)
        labels, count = self._groups(x)
        norms = _norms(vector, labels, count)
        reach = cast(step_size, vector) * cast(self.weight, vector)
        kept = jnp.where(norms > reach, 1 - reach / jnp.where(norms > 0, norms, 1), 0)
        return rebuild(vector * kept[labels])

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        vector, _ = ravel_pytree(x)
        target, rebuild = ravel_pytree(direction)
        labels, count = self._groups(x)
        norms, sizes = _norms(vector, labels, count), _norms(target, labels, count)
        weight = jnp.broadcast_to(cast(self.weight, vector), norms.shape)
        nonzero = norms > (0 if tolerance is None else tolerance)
        outward = (vector / jnp.where(nonzero, norms, 1)[labels]) * weight[labels]
        clipped = target * jnp.where(sizes > weight, weight / jnp.where(sizes > 0, sizes, 1), 1)[labels]
        return rebuild(jnp.where(nonzero[labels], outward, clipped))

    def _mismatch(self, x: PyTree) -> str | None:
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(x))
        if self.labels is not None and self.labels.size != size:
            return f"GroupL2 has {self.labels.size} labels and x has {size} entries: give a label for each."
        count = self.count if self.count is not None else sum(map(_rows, jax.tree.leaves(x)))
        if self.weight.shape not in ((), (count,)):
            return (
                f"GroupL2 has weights of shape {self.weight.shape}, but x has {count} groups: give one "
                f"number, or a vector of {count}."
            )
        return None

    def _groups(self, x: PyTree) -> tuple[Int[Array, " n"], int]:
        """The label of each entry, from zero on, and the number of groups."""
        if self.labels is not None and self.count is not None:
            return self.labels, self.count
        labels, count = [], 0
        for leaf in jax.tree.leaves(x):
            rows = _rows(leaf)
            shape = (rows, jnp.size(leaf) // max(rows, 1))
            labels.append(count + jax.lax.broadcasted_iota(int, shape, 0).ravel())
            count += rows
        return jnp.concatenate(labels), count


def _rows(leaf: ArrayLike) -> int:
    return int(np.shape(leaf)[0]) if np.ndim(leaf) else 1


def _norms(vector: Float[Array, " n"], labels: Int[Array, " n"], count: int) -> Float[Array, " groups"]:
    """The norm of each group, scaled by its largest entry against overflow."""
    largest = jax.ops.segment_max(jnp.abs(vector), labels, count)
    unit = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jax.ops.segment_sum(jnp.square(vector / unit[labels]), labels, count))
