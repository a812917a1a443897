"""Sets that tie the entries of x together: balls, simplices, half-spaces, affine spaces, a cone."""

from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.prox._numerics import (
    Allowance,
    as_arrays,
    cast,
    known,
    l1_subgradient,
    level,
    matmul,
    norm,
    onto_simplex,
    require_positive,
)
from lariax.sets._base import AbstractVectorSet
from lariax.utils import Converted


class L2Ball(AbstractVectorSet):
    """{x : ||x - center||_2 <= radius}.

    At the boundary the normal cone is the ray of x - center.

    Args:
        radius: positive number.
        center: one number, or a point in the structure of x.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import L2Ball
    >>> print(L2Ball(1.0).project(jnp.array([3.0, 4.0])))
    [0.6 0.8]
    """

    radius: Converted = eqx.field(converter=jnp.asarray)
    center: PyTree[Array] = eqx.field(converter=as_arrays, default=0.0)

    def __check_init__(self) -> None:
        require_positive(self, "radius", self.radius)
        _require_finite(self, "center", self.center)

    def _project(self, array: Array) -> Array:
        radius, center = cast(self.radius, array), self._center(array)
        offset = array - center
        length = norm(offset)
        return jnp.where(length <= radius, array, center + offset / jnp.maximum(length, radius) * radius)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        radius = cast(self.radius, array)
        offset = array - self._center(array)
        length = norm(offset)
        outward = offset / jnp.where(length > 0, length, 1)
        ray = jnp.maximum(jnp.vdot(outward, direction, precision="highest"), 0) * outward
        return jnp.where(length >= radius - allow(self._scale(array)), ray, 0)

    def _scale(self, array: Array) -> Array:
        return cast(self.radius, array) + norm(jnp.broadcast_to(self._center(array), array.shape))

    def _center(self, array: Array) -> Array:
        return cast(ravel_pytree(self.center)[0], array)

    def _size_mismatch(self, size: int) -> str | None:
        found = ravel_pytree(self.center)[0].size
        if found in (1, size):
            return None
        return f"The center of L2Ball has {found} entries and x has {size}: give one number, or a point like x."


class L1Ball(AbstractVectorSet):
    """{x : sum_i |x_i| <= radius}.

    The projection soft-thresholds all entries at the level that makes the sum of their sizes equal to the
    radius. At the boundary the normal cone is {t s : t >= 0, s_i = sign(x_i) where x_i is not 0, |s_i| <= 1
    where it is}.

    Args:
        radius: positive number.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import L1Ball
    >>> print(L1Ball(1.0).project(jnp.array([2.0, -1.5, 0.25])))
    [ 0.75 -0.25  0.  ]
    """

    radius: Converted = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        require_positive(self, "radius", self.radius)

    def _project(self, array: Array) -> Array:
        radius, sizes = cast(self.radius, array), jnp.abs(array)
        boundary = jnp.sign(array) * onto_simplex(sizes, radius)
        return jnp.where(jnp.sum(sizes) <= radius, array, boundary)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        radius, sizes = cast(self.radius, array), jnp.abs(array)
        zero = allow(jnp.max(sizes))
        nonzero = sizes > zero
        outward = jnp.where(nonzero, jnp.sign(array) * direction, jnp.abs(direction))
        weight = jnp.maximum(level(outward, 0, nonzero), 0)
        normal = l1_subgradient(array, direction, weight, zero)
        return jnp.where(jnp.sum(sizes) >= radius - allow(radius), normal, 0)

    def _scale(self, array: Array) -> Array:
        return cast(self.radius, array)

    def _size_mismatch(self, size: int) -> str | None:
        return None


class Simplex(AbstractVectorSet):
    """{x : x_i >= 0, sum_i x_i = total}.

    The projection is max(x - t, 0) with the t that makes the sum right. The normal cone at x is
    {n : n_i = t where x_i > 0, n_i <= t where x_i = 0, for some number t}.

    Args:
        total: positive number; by default 1, for probabilities.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import Simplex
    >>> print(Simplex().project(jnp.array([0.75, 0.75, -1.0])))
    [0.5 0.5 0. ]
    """

    total: Converted = eqx.field(converter=jnp.asarray, default=1.0)

    def __check_init__(self) -> None:
        require_positive(self, "total", self.total)

    def _project(self, array: Array) -> Array:
        return onto_simplex(array, cast(self.total, array))

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        largest = jnp.max(array)
        positive = array > jnp.minimum(allow(largest), largest / 2)
        middle = jnp.sum(jnp.where(positive, direction, 0)) / jnp.sum(positive)
        centred = direction - middle
        shared = level(centred, 0, positive)
        return jnp.where(positive, shared, jnp.minimum(centred, shared)) + middle

    def _scale(self, array: Array) -> Array:
        return cast(self.total, array)

    def _size_mismatch(self, size: int) -> str | None:
        return None


class HalfSpace(AbstractVectorSet):
    """{x : <normal, x> <= offset}.

    Args:
        normal: a vector that is not zero, in the structure of x.
        offset: one number.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import HalfSpace
    >>> print(HalfSpace(jnp.array([0.0, 2.0]), 2.0).project(jnp.array([3.0, 4.0])))
    [3. 1.]
    """

    normal: PyTree[Array] = eqx.field(converter=as_arrays)
    offset: Converted = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        _require_finite(self, "normal", self.normal)
        _require_finite(self, "offset", self.offset)
        parts = [known(leaf) for leaf in jax.tree.leaves(self.normal)]
        if all(part is not None and not part.any() for part in parts):
            raise ValueError("HalfSpace was given a normal that is zero: give a vector with a non-zero entry.")

    def _project(self, array: Array) -> Array:
        unit, offset = self._unit(array)
        near = array
        for _ in range(2):  # again, for what rounding left of a far step
            near = near - (jnp.sum(unit * near) - offset) / jnp.sum(unit * unit) * unit
        return jnp.where(jnp.sum(unit * array) <= offset, array, near)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        unit, offset = self._unit(array)
        ray = jnp.maximum(jnp.vdot(unit, direction, precision="highest"), 0) * unit
        return jnp.where(jnp.sum(unit * array) >= offset - allow(self._scale(array)), ray, 0)

    def _scale(self, array: Array) -> Array:
        unit, offset = self._unit(array)
        return jnp.abs(offset) + jnp.sum(jnp.abs(unit * array))

    def _unit(self, array: Array) -> tuple[Array, Array]:
        """The same half-space with a normal of length one."""
        normal = cast(ravel_pytree(self.normal)[0], array)
        length = norm(normal)
        return normal / length, cast(self.offset, array) / length

    def _size_mismatch(self, size: int) -> str | None:
        found = ravel_pytree(self.normal)[0].size
        if found == size:
            return None
        return f"The normal of HalfSpace has {found} entries and x has {size}: give it the structure of x."


class Affine(AbstractVectorSet):
    """{x : A x = b} for a dense matrix A, whose rows may depend on each other.

    With B an orthonormal basis of the row space of A, found once, the projection is x - B^T (B x - c), where
    c are the coordinates B x of any solution; the normal cone is the row space.

    Args:
        A: matrix with a column for each entry of x.
        b: vector with an entry for each row of A, such that A x = b has a solution.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import Affine
    >>> nearest = Affine(jnp.array([[1.0, 1.0]]), jnp.array([1.0])).project(jnp.array([4.0, 2.0]))
    >>> [round(float(entry), 3) for entry in nearest]
    [1.5, -0.5]
    """

    basis: Float[Array, "rank n"]
    coordinates: Float[Array, " rank"]

    def __init__(self, A: ArrayLike, b: ArrayLike):
        traced = isinstance(A, jax.core.Tracer) or isinstance(b, jax.core.Tracer)
        convert: Any = jnp.asarray if traced else np.asarray
        matrix, target = convert(A), convert(b)
        if matrix.ndim != 2 or target.shape != matrix.shape[:1]:
            raise ValueError(
                f"Affine was given A of shape {matrix.shape} and b of shape {target.shape}: give a matrix A, "
                "with a column for each entry of x, and a vector b with an entry for each row of A."
            )
        exact = not jnp.issubdtype(matrix.dtype, jnp.floating)
        precision = float(jnp.finfo(jnp.float32 if exact else matrix.dtype).eps)
        if traced:
            with jax.default_matmul_precision("highest"):
                self.basis, self.coordinates, _ = _row_space(matrix, target, precision, jnp)
            return
        matrix, target = matrix.astype(np.float64), target.astype(np.float64)
        _require_finite(self, "A", matrix)
        basis, coordinates, kept = _row_space(matrix, target, precision, np)
        _require_solution(matrix, target, basis.T @ coordinates, precision)
        self.basis, self.coordinates = jnp.asarray(basis[kept]), jnp.asarray(coordinates[kept])

    def _project(self, array: Array) -> Array:
        near = array - self._excess(array)
        return near - self._excess(near)  # again, for what rounding left of a far step

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        basis = cast(self.basis, array)
        return matmul(basis.T, matmul(basis, direction))

    def _scale(self, array: Array) -> Array:
        return norm(self.coordinates).astype(array.dtype) + norm(array)

    def _excess(self, array: Array) -> Array:
        """The step in the row space from the set to `array`."""
        basis = cast(self.basis, array)
        return matmul(basis.T, matmul(basis, array) - cast(self.coordinates, array))

    def _size_mismatch(self, size: int) -> str | None:
        columns = self.basis.shape[1]
        if columns == size:
            return None
        return f"A of Affine has {columns} columns and x has {size} entries: give one column for each entry."


class SecondOrderCone(AbstractVectorSet):
    """{(t, z) : ||z||_2 <= t}, with t the first entry of x and z the others.

    At the apex 0 the normal cone is minus the cone itself; elsewhere at the boundary it is the ray of (-t,
    z).

    >>> import jax.numpy as jnp
    >>> from lariax.sets import SecondOrderCone
    >>> print(SecondOrderCone().project(jnp.array([0.0, 2.0, 0.0])))
    [1. 1. 0.]
    """

    def _project(self, array: Array) -> Array:
        first, others = array[0], array[1:]
        length = norm(others).astype(array.dtype)
        height = (first + length) / 2
        boundary = jnp.concatenate([height[None], others / jnp.where(length > 0, length, 1) * height])
        return jnp.where(length <= first, array, jnp.where(height <= 0, 0, boundary))

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        first, length = array[0], norm(array[1:]).astype(array.dtype)
        near = allow(norm(array))
        outward = array.at[0].set(-length) / (jnp.where(length > 0, length, 1) * 2**0.5)
        ray = jnp.maximum(jnp.vdot(outward, direction, precision="highest"), 0) * outward
        boundary = jnp.where(first - length <= near, ray, 0)
        return jnp.where(norm(array) <= near, -self._project(-direction), boundary)

    def _scale(self, array: Array) -> Array:
        return norm(array)

    def _size_mismatch(self, size: int) -> str | None:
        return None


def _require_finite(owner: object, name: str, value: PyTree[Array]) -> None:
    for leaf in jax.tree.leaves(value):
        numbers = known(leaf)
        if numbers is not None and not np.all(np.isfinite(numbers)):
            raise ValueError(f"{type(owner).__name__} was given {name}={numbers}: all entries must be finite.")


def _row_space(matrix: Any, target: Any, precision: Any, library: ModuleType) -> tuple[Any, Any, Any]:
    """A basis of the row space, orthonormal; the coordinates of the solutions; which rows are in use.

    Rows of the basis that are not in use, because rows of the matrix depend on each other, are zero.
    """
    left, sizes, right = library.linalg.svd(matrix, full_matrices=False)
    kept = sizes > max(matrix.shape) * precision * library.max(sizes, initial=0)
    coordinates = (left * kept).T @ target / library.where(kept, sizes, 1)
    return right * kept[:, None], coordinates, kept


def _require_solution(matrix: np.ndarray, target: np.ndarray, solution: np.ndarray, precision: float) -> None:
    gap = float(np.linalg.norm(matrix @ solution - target))
    scale = float(np.linalg.norm(matrix) * np.linalg.norm(solution) + np.linalg.norm(target))
    if not gap <= 16 * max(matrix.shape) * precision * scale:
        raise ValueError(
            f"Affine was given A x = b without a solution: the best x leaves ||A x - b|| = {gap:.3g}, beyond "
            "rounding. Remove rows that contradict each other, and check that all entries are finite."
        )
