"""Error bars without matrices: Hessian-vector products, MINRES, and forward differentiation sample by sample.

The curvature and the noise are estimated from some of the samples, the means from all of them. x keeps to the face of
its set: the proximal map tells the directions in which it may move, and how the face bends. With M_t the derivative of
the proximal map of step t at x - t g, P the projection on the face's tangents and B its curvature,
M_t = (1 + t B)^-1 P, so

    P = 2 M_t - M_2t + O((t B)^2),      B = (M_t - M_2t) / t + O(t B^2)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

import scipy
from lariax.inference._errors import InferenceError
from lariax.inference._inference import Candidate, standard_errors
from lariax.inference._models import choices_of
from lariax.inference._moments import Load, Sample, covariance, means, product, weighted
from lariax.inference._samples import part_of
from lariax.oracle import Oracle
from lariax.prox import Zero

Vector = np.ndarray
CURVED = 1024  # samples for the curvature, twice: to solve with and to check with
VARIED = 2048  # samples for the noise
MOST_STEPS = 8  # of Newton's method
SMALL = 0.01  # of the noise: a residual that counts as none
PRECISE, MOST_PRODUCTS = 1e-5, 400  # of MINRES
FLAT = 1e-3  # by which a projection may change what it projected
UNEXPLAINED = 0.3  # of a right-hand side, on other samples than those it was solved with


class Large(NamedTuple):
    """The solution on the samples, as far as it is known without matrices."""

    candidates: list[Candidate]
    ambiguous: Bool[np.ndarray, " m"]
    complete: bool


class _Place(NamedTuple):
    """A point, its multipliers, and how x may move there."""

    sample: Sample
    curved: Sample
    varied: Sample
    z: Vector
    y: Vector
    along: Callable[[Vector], Vector]
    bend: Callable[[Vector], Vector]


def fitted_large(sample: Sample, z: Vector, y: Vector, threshold: float) -> Large:
    """Newton's method with the rows active that have a multiplier, then the others looked at one by one."""
    if not isinstance(sample.oracle.problem.regularizer, Zero):
        raise InferenceError(
            "beyond 300 entries of x a regularizer has no error bars. Put a smooth one into the objective; for others "
            "fix the entries that it sets to 0, and infer the rest."
        )
    curved, varied = part_of(sample, CURVED, 1), part_of(sample, VARIED, 2)
    inequality = np.asarray(sample.oracle.inequality)
    active = ~inequality | (y > 0)
    place, residual = _moved_to(sample, curved, varied, z, y)
    _check_face(place)
    rounding = np.finfo(sample.oracle.dtype).eps * (1 + _length(z, *residual))
    least = max(SMALL * _length(*_noise(sample, z, y)), 16 * rounding)
    for _ in range(MOST_STEPS):
        if _length(residual[0], residual[1][active]) <= least:
            break
        dz, dy = solve(place, active, -residual[0], -residual[1])
        z, y = _within(sample.oracle, place.z + dz), np.where(active, place.y + dy, 0)
        active = ~inequality | (active & (y > 0)) | (~active & (residual[1] > 0))
        place, residual = _moved_to(sample, curved, varied, z, np.where(active, y, 0))
    else:
        raise InferenceError(
            "Newton's method does not settle on these samples: x is not near a solution. Solve longer."
        )
    _check_curvature(place, active)
    own = candidate_of(place, active, residual[1])
    ambiguous = _ambiguous(place, own, active, inequality, threshold)
    others, complete = choices_of(active, ambiguous)
    candidates = [own]
    for other in others:
        dz, dy = solve(place, other, -residual[0] + _pulled(place, np.where(other, 0, place.y)), -residual[1])
        there = place._replace(z=place.z + dz, y=np.where(other, place.y + dy, 0))
        values = residual[1] + _pushed(place, dz)
        candidates.append(candidate_of(there, other, values))
    return Large(candidates, ambiguous, complete)


def _moved_to(sample: Sample, curved: Sample, varied: Sample, z: Vector, y: Vector) -> tuple[_Place, Any]:
    """The place, and (gradient of the Lagrangian along the face, residuals) there."""
    dtype = sample.oracle.dtype
    seen = means(sample, jnp.asarray(z, dtype), jnp.asarray(y, dtype))
    gradient = np.asarray(seen.gradient, float)
    face = Face(sample.oracle, jnp.asarray(z, dtype), jnp.asarray(gradient, dtype))
    place = _Place(sample, curved, varied, z, y, face.along, face.bend)
    return place, (face.along(gradient), np.asarray(seen.residuals, float))


def _within(oracle: Oracle, z: Vector) -> Vector:
    """The nearest point of the set."""
    nearest = oracle.problem.within.project(oracle.coordinates.unravel(jnp.asarray(z, oracle.dtype), cast=False))
    return np.asarray(oracle.coordinates.ravel(nearest), float)


def _noise(sample: Sample, z: Vector, y: Vector) -> tuple[Vector, Vector]:
    """A vector with the covariance of the noise of (gradient of the Lagrangian, residuals): from two parts of the
    samples, as far apart as these means are."""
    dtype, size = sample.oracle.dtype, int(sample.steps) * sample.oracle.batch_size
    most = max(1, min(VARIED, size // 2))
    point = jnp.asarray(z, dtype), jnp.asarray(y, dtype)
    one, other = (means(part_of(sample, most, number), *point) for number in (4, 5))
    of_z, of_y = (np.asarray(a - b, float) for a, b in zip(one[1:], other[1:], strict=True))
    scale = np.sqrt(most / (2 * size))
    return scale * of_z, scale * of_y


def _optimism(place: _Place, active: Bool[np.ndarray, " m"]) -> float:
    """By how much the least value on the samples is too low on average: F^T K^-1 F / 2, with F as the noise."""
    of_z, of_y = _noise(place.sample, place.z, place.y)
    dz, dy = solve(place, active, of_z, of_y)
    return float(of_z @ dz + of_y @ dy) / 2


class Face(NamedTuple):
    """Where x lies on its set, and the gradient that presses it there."""

    oracle: Oracle
    z: Array
    gradient: Array

    def along(self, vector: Vector) -> Vector:
        """A direction, as far as x can move that way."""
        return vector if self.oracle.is_free else self._seen(vector)[0]

    def bend(self, vector: Vector) -> Vector:
        """What the curvature of the face adds to that of the Lagrangian."""
        return np.zeros_like(vector) if self.oracle.is_free else self._seen(vector)[1]

    def _seen(self, vector: Vector) -> tuple[Vector, Vector]:
        along, bend = _tangent_and_bend(*self, jnp.asarray(vector, self.z.dtype))
        return np.asarray(along, float), np.asarray(bend, float)


@eqx.filter_jit
def _tangent_and_bend(oracle: Oracle, z: Array, gradient: Array, vector: Array) -> tuple[Array, Array]:
    step = jnp.cbrt(jnp.finfo(z.dtype).eps) * (1 + jnp.linalg.norm(z)) / (1 + jnp.linalg.norm(gradient))

    def derivative(times: float) -> Array:
        def prox(point: Array) -> Array:
            return oracle.prox(point, times * step)

        return jax.jvp(prox, (z - times * step * gradient,), (vector,))[1]

    once, twice = derivative(1.0), derivative(2.0)
    return 2 * once - twice, (once - twice) / step


# --- solving


def apply(place: _Place, active: Vector, dz: Vector, dy: Vector, other: bool = False) -> tuple[Vector, Vector]:
    """K (dz, dy), on the samples for the curvature."""
    sample = part_of(place.sample, CURVED, 3) if other else place.curved
    dtype = sample.oracle.dtype
    arrays = (jnp.asarray(part, dtype) for part in (place.z, place.y, place.along(dz), np.where(active, dy, 0)))
    of_z, of_y = product(sample, *arrays)
    return place.along(np.asarray(of_z, float) + place.bend(dz)), np.where(active, np.asarray(of_y, float), 0)


def solve(place: _Place, active: Bool[np.ndarray, " m"], of_z: Vector, of_y: Vector) -> tuple[Vector, Vector]:
    """K^-1 (of_z, of_y) along the face, by MINRES."""
    d = place.z.size
    right = np.concatenate([place.along(of_z), of_y[active]])
    if not np.any(right):
        return np.zeros(d), np.zeros(active.size)

    def matvec(vector: Vector) -> Vector:
        dy = np.zeros(active.size)
        dy[active] = vector[d:]
        found = apply(place, active, vector[:d], dy)
        return np.concatenate([found[0], found[1][active]])

    operator = scipy.sparse.linalg.LinearOperator((right.size, right.size), matvec=matvec, dtype=float)
    found, info = scipy.sparse.linalg.minres(operator, right, rtol=PRECISE, maxiter=MOST_PRODUCTS)
    if info != 0:
        raise InferenceError(
            f"the curvature is too uneven for {MOST_PRODUCTS} Hessian-vector products, or a direction has none. "
            "Scale the entries of x to like curvature, and fix redundant ones."
        )
    dy = np.zeros(active.size)
    dy[active] = found[d:]
    return place.along(found[:d]), dy


def _signs(place: _Place) -> Vector:
    return np.random.default_rng(0).choice([-1.0, 1.0], place.z.size)


def _check_face(place: _Place) -> None:
    """Refuse where the proximal map does not tell the face: its derivative must project on the tangents."""
    once = place.along(_signs(place))
    if not _length(place.along(once) - once) <= FLAT * _length(once):
        raise InferenceError(
            f"the derivative of the projection on {type(place.sample.oracle.problem.simple).__name__} does not tell "
            "the directions in which x can move there: x lies on an edge of it, or is large. Write the set as "
            "constraints, such as lx.AtMost(lambda x: x @ x, radius**2, samples=None)."
        )


def _check_curvature(place: _Place, active: Bool[np.ndarray, " m"]) -> None:
    """Refuse where so few samples do not determine the curvature: other samples must explain the same step."""
    right = place.along(_signs(place))
    found = solve(place, active, right, np.zeros(active.size))
    seen = apply(place, active, *found, other=True)
    if _length(seen[0] - right) > UNEXPLAINED * _length(right):
        raise InferenceError(
            "the curvature differs too much between samples to be known from these: there are more variables than the "
            "samples can tell apart. Draw more, or ask for fewer variables."
        )


# --- what noise does


def candidate_of(place: _Place, active: Bool[np.ndarray, " m"], residuals: Vector) -> Candidate:
    m = active.size

    def spread(gradients: Float[np.ndarray, "q p"]) -> Float[np.ndarray, "q q"]:
        return _covariance(place, [_load(place, active, row) for row in gradients])

    def times(vector: Vector) -> Vector:
        load = _load(place, active, np.concatenate([[0.0], vector, np.zeros(2 * m)]))
        dtype = place.sample.oracle.dtype
        found = weighted(place.varied, jnp.asarray(place.z, dtype), jnp.asarray(place.y, dtype), load)
        of_z, of_y = (np.asarray(part, float) for part in found)
        return -solve(place, active, of_z, of_y)[0]

    at = means(place.sample, *(jnp.asarray(part, place.sample.oracle.dtype) for part in (place.z, place.y)))
    objective = float(at.objective) + _optimism(place, active)
    held = np.where(active, 0, residuals)
    return Candidate(place.z, place.y, objective, held, spread, np.ones(m, bool), 0.0, times)


def _load(place: _Place, active: Bool[np.ndarray, " m"], row: Vector) -> Load:
    """What a number takes of the means, from its derivative in (E f, x, y, r)."""
    d, m = place.z.size, active.size
    of_f, of_x, of_y, of_r = row[0], row[1 : 1 + d], row[1 + d : 1 + d + m], row[1 + d + m :]
    of_r = np.where(active, 0, of_r)  # active rows hold, whatever the noise
    right = of_x + (_pulled(place, of_r) if of_r.any() else 0)
    dz, dy = solve(place, active, right, np.where(active, of_y, 0))
    dtype = place.sample.oracle.dtype
    of_means = of_f * np.where(active, place.y, 0) + of_r - dy  # of the objective by the envelope theorem
    return Load(*(jnp.asarray(part, dtype) for part in (of_f, -dz, of_means)))


def _covariance(place: _Place, loads: list[Load]) -> Float[np.ndarray, "q q"]:
    dtype = place.sample.oracle.dtype
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *loads)
    found = covariance(place.varied, jnp.asarray(place.z, dtype), jnp.asarray(place.y, dtype), stacked)
    return np.asarray(found, float)


def _pulled(place: _Place, weights: Vector) -> Vector:
    """J^T w"""
    return _product(place, np.zeros_like(place.z), weights)[0]


def _pushed(place: _Place, dz: Vector) -> Vector:
    """J dz"""
    return _product(place, dz, np.zeros_like(place.y))[1]


def _product(place: _Place, dz: Vector, dy: Vector) -> tuple[Vector, Vector]:
    dtype = place.sample.oracle.dtype
    found = product(place.curved, *(jnp.asarray(part, dtype) for part in (place.z, place.y, dz, dy)))
    return np.asarray(found[0], float), np.asarray(found[1], float)


def _ambiguous(
    place: _Place, own: Candidate, active: Bool[np.ndarray, " m"], inequality: Bool[np.ndarray, " m"], threshold: float
) -> Bool[np.ndarray, " m"]:
    """Inequalities whose multiplier, or whose slack, is not `threshold` standard errors above 0."""
    places = np.flatnonzero(inequality)
    if not places.size:
        return np.zeros_like(inequality)
    d, m = place.z.size, active.size
    rows = np.zeros((places.size, 1 + d + 2 * m))
    rows[np.arange(places.size), 1 + d + places + np.where(active[places], 0, m)] = 1
    errors = standard_errors(own.covariance(rows))
    sizes = np.where(active, own.multipliers, -own.residuals)[places]
    ambiguous = np.zeros_like(inequality)
    ambiguous[places] = ~(sizes > threshold * errors)
    return ambiguous


def _length(*vectors: Vector) -> float:
    return float(np.sqrt(sum(float(v @ v) for v in vectors)))
