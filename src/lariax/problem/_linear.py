"""A x = b: the matrix in whatever form it comes, and what a method may want to know of it."""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, PyTree

import scipy
from lariax.compilation import on_cpu, on_device, on_host
from lariax.problem import _spectrum as spectrum
from lariax.problem._constraints import AbstractConstraint, _Shared
from lariax.problem._sources import AbstractSource


class Linear(AbstractConstraint):
    """A x = b, exactly known. A may be rank-deficient.

    Arguments:
        A: a matrix (NumPy, JAX, scipy.sparse or `jax.experimental.sparse.BCOO`), which multiplies the vector of all
            entries of x in the order of `jax.tree.leaves`; or a function `product(x) -> vector` of x itself; or a pair
            of functions `(product, transposed)`, where `transposed(vector)` returns something like x.
        b: the right-hand side, a vector; a number stands for all rows.
        shape: (rows, entries of x), needed for functions only.
        norm, smallest: ||A|| and the smallest nonzero eigenvalue of A^T A, where you know better than to have them
            computed: they are found exactly for up to 1,000 rows or columns, and beyond that by a matrix-free
            eigensolver to a relative accuracy of 1e-6.

    >>> import jax.numpy as jnp, lariax as lx
    >>> budget = lx.Linear(jnp.ones((1, 3)), 1.0)
    >>> difference = lx.Linear(lambda x: x[1:] - x[:-1], 0.0, shape=(2, 3))
    >>> round(difference.smallest_eigenvalue(), 6)
    1.0
    """

    fun: Callable[..., Array]
    bound: Array
    samples: AbstractSource | _Shared | None
    heldout: AbstractSource | None
    shape: tuple[int, int] = eqx.field(static=True)
    _norm: float | None = eqx.field(static=True)
    _smallest: float | None = eqx.field(static=True)

    sign: ClassVar[float] = 1.0
    inequality: ClassVar[bool] = False
    relation: ClassVar[str] = "="

    def __init__(
        self,
        A: Any,
        b: ArrayLike = 0.0,
        *,
        shape: tuple[int, int] | None = None,
        norm: float | None = None,
        smallest: float | None = None,
    ):
        pair = A if isinstance(A, tuple) and len(A) == 2 else (A, None)
        if callable(pair[0]):
            if shape is None:
                raise ValueError("Linear with functions needs shape=(rows, entries of x), found none.")
            self.fun = _FunctionProduct(*pair)
            self.shape = shape
        else:
            matrix = _matrix(A)
            self.fun = _MatrixProduct(matrix)
            self.shape = matrix.shape
        b = b if isinstance(b, jax.Array) else np.asarray(b)
        self.bound = on_device(b, float if jnp.issubdtype(b.dtype, jnp.integer) else None)
        if self.bound.shape not in ((), (self.shape[0],)):
            raise ValueError(
                f"b must have one entry for each of the {self.shape[0]} rows of A, found shape {self.bound.shape}."
            )
        self.samples = self.heldout = None
        self._norm, self._smallest = (None if value is None else float(value) for value in (norm, smallest))

    def norm(self, like: PyTree | None = None) -> float:
        """||A||, the largest singular value. `like` is an x, wanted when A is a function of a structured x."""
        return LinearSystem([self], like).norm()

    def smallest_eigenvalue(self, like: PyTree | None = None) -> float:
        """delta, the smallest nonzero eigenvalue of A^T A."""
        return LinearSystem([self], like).smallest_eigenvalue()

    @property
    def precisions(self) -> list[Any]:
        """In which A and b are given."""
        matrix = [self.fun.matrix.dtype] if isinstance(self.fun, _MatrixProduct) else []
        return [self.bound.dtype, *matrix]

    def operator(self, like: PyTree | None) -> "scipy.sparse.linalg.LinearOperator":
        """A in double precision, on the host."""
        if isinstance(self.fun, _MatrixProduct):
            return scipy.sparse.linalg.aslinearoperator(_to_host(self.fun.matrix))
        like = jnp.zeros(self.shape[1]) if like is None else like
        size, dtype = sum(jnp.size(leaf) for leaf in jax.tree.leaves(like)), jnp.result_type(*jax.tree.leaves(like))
        if size != self.shape[1]:
            raise ValueError(f"shape= says that A has {self.shape[1]} columns, but x has {size} entries.")
        return scipy.sparse.linalg.LinearOperator(
            self.shape,
            matvec=lambda v: np.asarray(_forward(self.fun, like, jnp.asarray(np.ravel(v), dtype)), float),
            rmatvec=lambda w: np.asarray(_backward(self.fun, like, jnp.asarray(np.ravel(w), dtype)), float),
            dtype=float,
        )


@eqx.filter_jit
def _forward(fun: Callable[[PyTree], Array], like: PyTree, vector: Array) -> Array:
    return fun(ravel_pytree(like)[1](vector))


@eqx.filter_jit
def _backward(fun: Callable[[PyTree], Array], like: PyTree, weights: Array) -> Array:
    flat, unravel = ravel_pytree(like)
    return jax.vjp(lambda v: fun(unravel(v)), flat)[1](weights)[0]


class LinearSystem:
    """All linear constraints of a problem as one A x = b, on the host."""

    def __init__(self, constraints: Sequence[Linear], like: PyTree):
        self._constraints, self._like = constraints, like
        self._precision = max(float(jnp.finfo(kind).eps) for c in constraints for kind in c.precisions)

    @cached_property
    def _operator(self) -> "scipy.sparse.linalg.LinearOperator":
        """Not before it is needed: a matrix that is being traced, with its norm given, cannot be looked at."""
        return spectrum.stack([constraint.operator(self._like) for constraint in self._constraints])

    @property
    def _b(self) -> np.ndarray:
        return np.concatenate([np.broadcast_to(np.asarray(c.bound, float), c.shape[:1]) for c in self._constraints])

    def norm(self) -> float:
        """||A||"""
        known = self._constraints[0]._norm if len(self._constraints) == 1 else None
        return known if known is not None else spectrum.norm(self._operator, self._precision)

    def smallest_eigenvalue(self) -> float:
        """delta, the smallest nonzero eigenvalue of A^T A."""
        known = self._constraints[0]._smallest if len(self._constraints) == 1 else None
        return known if known is not None else spectrum.smallest_eigenvalue(self._operator, self._precision)

    def least_violation(self) -> float:
        """min over x of ||A x - b||: 0, up to rounding, if A x = b has a solution."""
        if not self._b.any():  # x = 0 is one
            return 0.0
        violation, rounding = spectrum.least_violation(self._operator, self._b, self._precision)
        return 0.0 if violation <= rounding else violation


class _MatrixProduct(eqx.Module):
    """x -> A x, for a matrix."""

    matrix: Any

    def __call__(self, x: PyTree) -> Array:
        entries = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(x)])
        if entries.shape[0] != self.matrix.shape[1]:
            raise ValueError(f"A has {self.matrix.shape[1]} columns, but x has {entries.shape[0]} entries.")
        return self.matrix.astype(entries.dtype) @ entries


class _FunctionProduct(eqx.Module):
    """x -> A x, for functions; a transposed product, if there is one, serves as the way back."""

    product: Callable[[PyTree], Array]
    transposed: Callable[[Array], PyTree] | None

    def __call__(self, x: PyTree) -> Array:
        transposed = self.transposed
        if transposed is None:
            return self.product(x)
        multiply = jax.custom_vjp(self.product)
        multiply.defvjp(lambda x: (self.product(x), None), lambda _, w: (transposed(w),))
        return multiply(x)


def _matrix(A: Any) -> Any:
    """A dense JAX array or a BCOO matrix."""
    if _is_sparse(A):
        matrix: Any = A
    elif scipy.sparse.issparse(A):
        from jax.experimental import sparse

        matrix = sparse.BCOO.from_scipy_sparse(scipy.sparse.csr_array(A).sorted_indices())
    else:
        given = A if isinstance(A, jax.Array) else np.asarray(A)
        matrix = on_device(given, float if given.dtype.kind in "iub" else None)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"A must be a matrix with rows and columns, found shape {matrix.shape}. One row is A[None].")
    entries = matrix.data if _is_sparse(matrix) else matrix
    if not isinstance(entries, jax.core.Tracer) and not _is_finite(entries):
        raise ValueError("A holds entries that are not finite.")
    return matrix


def _is_finite(entries: Array) -> bool:
    """On a CPU without a program for it."""
    values = on_host(entries) if on_cpu() else entries
    return bool((np if isinstance(values, np.ndarray) else jnp).isfinite(values).all())


def _is_sparse(matrix: Any) -> bool:
    """Whether it is a BCOO matrix. `import lariax` does without the module that has them, which is slow to load."""
    module = sys.modules.get("jax.experimental.sparse")
    return module is not None and isinstance(matrix, module.BCOO)


def _to_host(matrix: Any) -> Any:
    if _is_sparse(matrix):
        rows, columns = np.asarray(matrix.indices).T
        return scipy.sparse.csr_array((np.asarray(matrix.data, float), (rows, columns)), shape=matrix.shape)
    return np.asarray(matrix, float)
