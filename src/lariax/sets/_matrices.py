"""Sets of matrices, described by eigenvalues or singular values."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from lariax.prox._numerics import (
    Allowance,
    allowance,
    cast,
    level,
    matmul,
    norm,
    nuclear_subgradients,
    onto_simplex,
    require_positive,
)
from lariax.sets._base import AbstractMatrixSet
from lariax.utils import Converted


class PSDCone(AbstractMatrixSet):
    """{X : X symmetric, all its eigenvalues >= 0}, as a set of square matrices.

    The projection takes the symmetric part (X + X^T) / 2, which is the nearest symmetric matrix, and replaces
    its negative eigenvalues by zero. The normal cone at X is {Z + K : Z symmetric, no eigenvalue positive, Z
    X = 0, and K^T = -K}: the skew part of a gradient does not matter.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import PSDCone
    >>> print(jnp.round(PSDCone().project(jnp.diag(jnp.array([2.0, -1.0]))), 3) + 0.0)
    [[2. 0.]
     [0. 0.]]
    """

    def _project(self, array: Array) -> Array:
        symmetric = _symmetric(array)
        values, vectors = jnp.linalg.eigh(symmetric)
        unsure = allowance(array, None)(self._scale(array))  # eigenvalues are known to this precision only
        clipped = _compose(vectors, jnp.where(values > unsure, values, 0))
        return jnp.where(jnp.all(values >= 0), symmetric, clipped)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        values, vectors = jnp.linalg.eigh(_symmetric(array))
        kernel = vectors * (values <= allow(self._scale(array)))
        symmetric = _symmetric(direction)
        inner, turn = jnp.linalg.eigh(_symmetric(matmul(kernel.T, matmul(symmetric, kernel))))
        return direction - symmetric + _compose(matmul(kernel, turn), jnp.minimum(inner, 0))

    def _scale(self, array: Array) -> Array:
        return norm(array) * len(array) ** 0.5

    def _shape_mismatch(self, rows: int, columns: int) -> str | None:
        if rows == columns:
            return None
        return f"PSDCone holds square matrices, but x has shape {(rows, columns)}: give a square x."


class AbstractSingularValueBall(AbstractMatrixSet):
    """Matrices with a norm of their singular values of at most `radius`."""

    radius: Converted = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        require_positive(self, "radius", self.radius)

    def _scale(self, array: Array) -> Array:
        return cast(self.radius, array) * max(array.shape) ** 0.5

    def _shape_mismatch(self, rows: int, columns: int) -> str | None:
        return None


class SpectralBall(AbstractSingularValueBall):
    """{X : largest singular value <= radius}.

    The projection clips the singular values. With U, V the singular vectors of those equal to the radius, the
    normal cone is {U H V^T : H symmetric, no eigenvalue negative}.

    Args:
        radius: positive number.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import SpectralBall
    >>> print(jnp.round(SpectralBall(1.0).project(jnp.diag(jnp.array([2.0, 0.5]))), 3) + 0.0)
    [[1.  0. ]
     [0.  0.5]]
    """

    def _project(self, array: Array) -> Array:
        radius = cast(self.radius, array)
        left, sizes, right = jnp.linalg.svd(array, full_matrices=False)
        clipped = matmul(left * jnp.minimum(sizes, radius), right)
        return jnp.where(jnp.all(sizes <= radius), array, clipped)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        left, sizes, right = jnp.linalg.svd(array, full_matrices=False)
        longest = sizes >= cast(self.radius, array) - allow(self._scale(array))
        left, right = left * longest, right * longest[:, None]
        inner, turn = jnp.linalg.eigh(_symmetric(matmul(left.T, matmul(direction, right.T))))
        return matmul(left, matmul(_compose(turn, jnp.maximum(inner, 0)), right))


class NuclearBall(AbstractSingularValueBall):
    """{X : sum of the singular values <= radius}.

    The projection soft-thresholds the singular values at the level that makes their sum equal to the radius.
    At the boundary, with X = U S V^T over the non-zero singular values, the normal cone is {t (U V^T + W) : t
    >= 0, U^T W = 0, W V = 0, largest singular value of W <= 1}.

    Args:
        radius: positive number.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import NuclearBall
    >>> print(jnp.round(NuclearBall(3.0).project(jnp.diag(jnp.array([3.0, 2.0]))), 3) + 0.0)
    [[2. 0.]
     [0. 1.]]
    """

    def _project(self, array: Array) -> Array:
        radius = cast(self.radius, array)
        left, sizes, right = jnp.linalg.svd(array, full_matrices=False)
        boundary = matmul(left * onto_simplex(sizes, radius), right)
        return jnp.where(jnp.sum(sizes) <= radius, array, boundary)

    def _nearest_normal(self, array: Array, direction: Array, allow: Allowance) -> Array:
        values, rigid, nearest = nuclear_subgradients(array, direction, allow)
        normal = nearest(jnp.maximum(level(values, 0, rigid), 0))
        size = jnp.sum(jnp.linalg.svdvals(array))
        return jnp.where(size >= cast(self.radius, array) - allow(self._scale(array)), normal, 0)


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _compose(vectors: Array, values: Array) -> Array:
    """Q diag(values) Q^T, symmetric to the last bit."""
    return _symmetric(matmul(vectors * values, vectors.T))
