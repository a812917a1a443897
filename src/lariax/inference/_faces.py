"""A set as rows r(x) = 0 and r(x) <= 0, so that a bound is treated alike wherever it is written.

Intervals, simplices, balls, half-spaces and affine spaces have rows of their own. Any other set, and any regulariser,
is seen through its proximal map around the solution: the directions in which that lets x move, and how it bends there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from lariax.inference._errors import InferenceError
from lariax.oracle import Oracle
from lariax.prox import AbstractProximable
from lariax.sets import Affine, Everything, HalfSpace, L2Ball, Product, Simplex
from lariax.sets._intervals import AbstractIntervals

Vector = np.ndarray
SETTLED = 16  # disturbances of the gradient under which a face must stay the same
REACH = 3.0  # standard errors of which each is at most


class FaceRows(NamedTuple):
    """Residuals at a point, their gradients, and which of them are inequalities.

    `bends` are the second derivatives of the rows that are not linear, by row: each is a number times the identity on
    some entries of x.
    """

    values: Vector
    gradients: Float[np.ndarray, "a d"]
    inequality: np.ndarray
    bends: dict[int, Vector]

    def bend(self, multipliers: Vector) -> Float[np.ndarray, "d d"]:
        """The sum over the rows of multiplier times second derivative."""
        total = np.zeros(self.gradients.shape[1])
        for i, bend in self.bends.items():
            total += multipliers[i] * bend
        return np.diag(total)


def has_rows(term: AbstractProximable) -> bool:
    """Whether the set is known by rows."""
    if isinstance(term, Product):
        return all(has_rows(part) for part in jax.tree.leaves(term.parts, is_leaf=_is_term))
    return isinstance(term, Everything | AbstractIntervals | Simplex | L2Ball | HalfSpace | Affine)


def rows_of(oracle: Oracle, z: Vector) -> FaceRows:
    """All rows of the problem's set."""
    d = z.size
    x = _unravel(oracle, z)
    places = _unravel(oracle, np.arange(d))
    found = _collect(oracle.problem.simple, x, places, d)
    if not found:
        return FaceRows(np.zeros(0), np.zeros((0, d)), np.zeros(0, bool), {})
    bends: dict[int, Vector] = {}
    for part, start in zip(found, np.cumsum([0, *(part.values.size for part in found)]), strict=False):
        bends |= {int(start) + i: bend for i, bend in part.bends.items()}
    values, gradients, inequality = (np.concatenate([part[k] for part in found]) for k in range(3))
    return FaceRows(values, gradients, inequality, bends)


def _collect(term: AbstractProximable, x: PyTree, places: PyTree, d: int) -> list[FaceRows]:
    if isinstance(term, Everything):
        return []
    if isinstance(term, Product):
        parts: list[list[FaceRows]] = []
        term._map(lambda part, piece, where: parts.append(_collect(part, piece, where, d)), x, places)
        return [rows for part in parts for rows in part]
    flat, where = _flat(x), _flat(places).astype(int)
    if isinstance(term, AbstractIntervals):
        lower, upper = (_flat(bound) for bound in term._bounds(jax.tree.map(jnp.asarray, x)))
        return _intervals(flat, lower, upper, where, d)
    if isinstance(term, Simplex):
        zero, none = np.zeros(flat.size), np.full(flat.size, np.inf)
        total = _rows([flat.sum() - float(term.total)], np.ones((1, flat.size)), False, where, d)
        return [total, *_intervals(flat, zero, none, where, d)]
    if isinstance(term, L2Ball):
        offset, radius = flat - _flat(term.center), float(term.radius)
        bend = np.zeros(d)
        bend[where] = 1 / radius
        rows = _rows([(offset @ offset / radius - radius) / 2], offset[None] / radius, True, where, d)
        return [rows._replace(bends={0: bend})]
    if isinstance(term, HalfSpace):
        normal = _flat(term.normal)
        return [_rows([normal @ flat - float(term.offset)], normal[None], True, where, d)]
    assert isinstance(term, Affine)
    basis, coordinates = np.asarray(term.basis, float), np.asarray(term.coordinates, float)
    return [_rows(basis @ flat - coordinates, basis, False, where, d)]


def _intervals(flat: Vector, lower: Vector, upper: Vector, where: np.ndarray, d: int) -> list[FaceRows]:
    eye = np.eye(flat.size)
    both, low, high = lower == upper, (lower > -np.inf) & (lower < upper), (upper < np.inf) & (lower < upper)
    return [
        _rows((flat - lower)[both], eye[both], False, where, d),
        _rows((lower - flat)[low], -eye[low], True, where, d),
        _rows((flat - upper)[high], eye[high], True, where, d),
    ]


def _rows(values: Any, gradients: Float[np.ndarray, "a k"], inequality: bool, where: np.ndarray, d: int) -> FaceRows:
    wide = np.zeros((len(gradients), d))
    wide[:, where] = gradients
    return FaceRows(np.asarray(values, float), wide, np.full(len(gradients), inequality), {})


# --- any other set, and regularisers


class Smooth(NamedTuple):
    """A set or a regulariser around x: x moves along `tangent`, where the term bends by `bend`; across it stays.

    With M the derivative of prox(x - t g), x - prox(x - t g) = 0 is, to first order,

        across the range of M     dx = -residual
        within it                 (M^-1 - 1) / t dx + H dx = -gradient,      gradient = M^-1 residual / t
    """

    tangent: Float[np.ndarray, "d k"]
    normal: Float[np.ndarray, "d-k d"]
    bend: Float[np.ndarray, "d d"]
    gradient: Vector
    residual: Vector


def smooth_at(oracle: Oracle, z: Vector, gradient: Vector, step: float) -> Smooth:
    """Through the proximal map, by forward differentiation."""
    moved, derivative = _prox_and_derivative(oracle, z - step * gradient, step)
    derivative = (derivative + derivative.T) / 2
    values, vectors = np.linalg.eigh(derivative)
    kept = values > 1e-6
    tangent, inverse = vectors[:, kept], 1 / values[kept]
    residual = z - moved
    bend = (tangent * (inverse - 1) / step) @ tangent.T
    own = tangent @ (inverse * (tangent.T @ residual)) / step
    normal = vectors[:, ~kept].T
    return Smooth(tangent, normal, bend, own, normal @ residual)


def check_settled(oracle: Oracle, z: Vector, gradient: Vector, errors: Vector, step: float) -> None:
    """Refuse a face that the noise of the gradient could change: the limit law is not normal there."""
    generator = np.random.default_rng(0)
    here = _rank(oracle, z - step * gradient, step)
    for _ in range(SETTLED):
        noise = REACH * errors * generator.choice([-1.0, 1.0], z.size)
        if _rank(oracle, z - step * (gradient + noise), step) != here:
            raise InferenceError(
                f"the noise can move x to another face of {type(oracle.problem.simple).__name__}, where the limit law "
                "is not normal. Draw more samples; bounds that are written as lx.sets.Box or lx.AtMost are dealt with."
            )


def _rank(oracle: Oracle, point: Vector, step: float) -> int:
    return int(np.sum(np.linalg.eigvalsh(_prox_and_derivative(oracle, point, step)[1]) > 1e-6))


def _prox_and_derivative(oracle: Oracle, point: Vector, step: float) -> tuple[Vector, Float[np.ndarray, "d d"]]:
    simple, coordinates = oracle.problem.simple, oracle.coordinates

    def prox(vector: Any) -> Any:
        return coordinates.ravel(simple.prox(coordinates.unravel(vector, cast=False), step))

    where = jnp.asarray(point, oracle.dtype)
    return np.asarray(prox(where), float), np.asarray(jax.jacfwd(prox)(where), float)


def _is_term(node: object) -> bool:
    return isinstance(node, AbstractProximable)


def _flat(tree: PyTree) -> Vector:
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def _unravel(oracle: Oracle, vector: np.ndarray) -> PyTree:
    return unravel(oracle.coordinates, vector)


def unravel(coordinates: Any, vector: np.ndarray) -> PyTree:
    """The structure of x, in NumPy: nothing is narrowed."""
    sizes = [int(np.prod(shape)) for shape in coordinates.shapes]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    leaves = [part.reshape(shape) for part, shape in zip(parts, coordinates.shapes, strict=True)]
    return jax.tree.unflatten(coordinates.structure, leaves)
