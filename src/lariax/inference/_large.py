"""Error bars without matrices: Hessian-vector products, SYMMLQ, and forward differentiation sample by sample.

The curvature and the noise are estimated from some of the samples, the means from all of them. x keeps to the face of
its set, which the proximal map tells. Numbers are dealt with one after another, so that however many there are, a few
vectors like x are held.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lariax.inference._errors import InferenceError
from lariax.inference._inference import Derivative, PossibleSolution
from lariax.inference._krylov import Both, System, symmlq
from lariax.inference._models import KINKED, REACH, choices_of, kinked
from lariax.inference._moments import KeptSample, Load, Means, covariance, means, weighted
from lariax.inference._samples import part_of
from lariax.oracle import Oracle
from lariax.prox import Zero

Vector = np.ndarray
CURVED = 1024  # samples for the curvature, twice: to solve with and to check with
VARIED = 2048  # samples for the noise
MOST_STEPS = 8  # of Newton's method
SMALL = 0.01  # of the noise: a residual that counts as none
PRECISE, MOST_PRODUCTS = 1e-5, 400  # of SYMMLQ
INEXACT = 100  # times as long the residual may be by rounding
FLAT = 1e-3  # by which a projection may change what it projected
UNEXPLAINED = 0.3  # of a right-hand side, on other samples than those it was solved with


class Large(NamedTuple):
    """The solution on the samples, as far as it is known without matrices."""

    candidates: list[PossibleSolution]
    ambiguous: Bool[np.ndarray, " m"]
    complete: bool


class _ActivePoint(NamedTuple):
    """A point with the rows that are active, what was seen there, and K."""

    sample: KeptSample
    varied: KeptSample
    system: System
    seen: Means

    @property
    def active(self) -> Bool[np.ndarray, " m"]:
        return np.asarray(self.system.active)

    @property
    def point(self) -> tuple[Array, Array]:
        return self.system.z, self.system.y

    @property
    def residual(self) -> Both:
        """Of the optimality conditions, along the face and for the active rows."""
        return self.masked(self.seen.gradient, self.seen.residuals)

    def masked(self, of_z: Any, of_y: Any) -> Both:
        dtype = self.system.z.dtype
        return self.system.kept(jnp.asarray(of_z, dtype), jnp.asarray(of_y, dtype))


def fitted_large(sample: KeptSample, z: Array, y: Vector, threshold: float) -> Large:
    """Newton's method with the rows active that have a multiplier, then the others looked at one by one."""
    if not isinstance(sample.oracle.problem.regularizer, Zero):
        raise InferenceError(
            "beyond 300 entries of x a regularizer has no error bars. Put a smooth one into the objective; for others "
            "fix the entries that it sets to 0, and infer the rest."
        )
    place = _settled(sample, z, y)
    _check_curvature(place)
    own = candidate_of(place)
    inequality = np.asarray(sample.oracle.inequality)
    ambiguous = _ambiguous(own, place.active, inequality, threshold)
    others, complete = choices_of(place.active, ambiguous)
    return Large([own, *(_otherwise(place, active) for active in others)], ambiguous, complete)


def _settled(sample: KeptSample, z: Array, y: Vector) -> _ActivePoint:
    """The solution on the samples, by Newton's method."""
    inequality = np.asarray(sample.oracle.inequality)
    active = ~inequality | (y > 0)
    curved, varied = part_of(sample, CURVED, 1), part_of(sample, VARIED, 2)
    place = _place(sample, curved, varied, z, y, active)
    _check_face(place)
    sizes = [_length(part) for part in (place.system.z, *place.seen[1:])]
    rounding = 16 * float(np.finfo(sample.oracle.dtype).eps) * (1 + sum(sizes))
    least: float = max(SMALL * float(_noise(place).length()), rounding)
    for _ in range(MOST_STEPS):
        if float(place.residual.length()) <= least:
            return _without_gradient(place)
        right, place = place.residual.scaled(-1), _without_gradient(place)
        dz, dy = solve(place, right)
        del right
        z = _within(sample.oracle, place.system.z + dz)
        y = np.where(active, np.asarray(place.system.y + dy), 0)
        active = ~inequality | (active & (y > 0)) | (~active & (np.asarray(place.seen.residuals) > 0))
        place = _place(sample, curved, varied, z, np.where(active, y, 0), active)
    raise InferenceError(
        "Newton's method does not settle on these samples: x is not near a solution, or a function has kinks (max, "
        "abs, a hinge). Solve longer, or round the kinks off."
    )


def _place(sample: KeptSample, curved: KeptSample, varied: KeptSample, z: Any, y: Any, active: Vector) -> _ActivePoint:
    point = jnp.asarray(z, sample.oracle.dtype), jnp.asarray(y, sample.oracle.dtype)
    seen = means(sample, *point)
    gradient = None if sample.oracle.is_free else seen.gradient
    return _ActivePoint(sample, varied, System(curved, *point, gradient, jnp.asarray(active)), seen)


def _without_gradient(place: _ActivePoint) -> _ActivePoint:
    """As long as x, and not needed again."""
    return place._replace(seen=place.seen._replace(gradient=jnp.zeros(0)))


def _within(oracle: Oracle, z: Array) -> Array:
    """The nearest point of the set."""
    return oracle.coordinates.ravel(oracle.problem.within.project(oracle.coordinates.unravel(z, cast=False)))


def _noise(place: _ActivePoint) -> Both:
    """A vector with the covariance of the noise of (gradient of the Lagrangian, residuals): from two parts of the
    samples, as far apart as these means are."""
    sample = place.sample
    size = int(sample.steps) * sample.oracle.batch_size
    most = max(1, min(VARIED, size // 2))
    one, other = (means(part_of(sample, most, number), *place.point) for number in (4, 5))
    scale = np.sqrt(most / (2 * size))
    return place.masked(one.gradient - other.gradient, one.residuals - other.residuals).scaled(scale)


# --- solving


def solve(place: _ActivePoint, right: Both) -> Both:
    """K^-1 right along the face."""
    size = float(right.length())
    if not size:
        return right
    found = symmlq(place.system, right, PRECISE, MOST_PRODUCTS)
    precise = max(PRECISE, INEXACT * float(jnp.finfo(right.z.dtype).eps))
    left = float(right.plus(-1, place.system.times(found)).length())
    if not left <= INEXACT * precise * size:
        raise InferenceError(
            f"the curvature is too uneven for {MOST_PRODUCTS} Hessian-vector products, or a direction has none. "
            "Scale the entries of x to like curvature, and fix redundant ones."
        )
    return found if place.sample.oracle.is_free else place.masked(*found)


def _signs(place: _ActivePoint) -> Both:
    signs = np.random.default_rng(0).choice([-1.0, 1.0], place.system.z.size)
    return place.masked(signs, np.zeros(place.active.size))


def _check_face(place: _ActivePoint) -> None:
    """Refuse where the proximal map does not tell the face: its derivative must project on the tangents."""
    once = _signs(place).z
    if not _length(place.system.along(once) - once) <= FLAT * _length(once):
        raise InferenceError(
            f"the derivative of the projection on {type(place.sample.oracle.problem.simple).__name__} does not tell "
            "the directions in which x can move there: x lies on an edge of it, or is large. Write the set as "
            "constraints, such as lx.AtMost(lambda x: x @ x, radius**2, samples=None)."
        )


def _check_curvature(place: _ActivePoint) -> None:
    """Refuse where so few samples do not determine the curvature: other samples must explain the same step."""
    other = replace(place.system, sample=part_of(place.sample, CURVED, 3))
    seen = other.times(solve(place, _signs(place)))
    right = _signs(place)
    if _length(seen.z - right.z) > UNEXPLAINED * _length(right.z):
        raise InferenceError(
            "the curvature differs too much between samples to be known from these: there are more variables than the "
            "samples can tell apart. Draw more, or ask for fewer variables."
        )


def _check_smooth(place: _ActivePoint, noise: Both, moved: Both) -> None:
    """Refuse functions whose mean gradient changes otherwise than its derivative says, within reach of the noise.

    As K (dz, dy) = noise, the gradient of the Lagrangian changes by the noise along (dz, dy).
    """
    system, (dz, dy) = place.system, moved
    ahead, behind = (means(system.sample, system.z + t * dz, system.y + t * dy).gradient for t in (REACH, -REACH))
    seen = system.along(ahead - behind) / (2 * REACH)
    expected = noise.z
    if not system.oracle.is_free:
        expected = expected - system.bend(dz)
    off, size = _length(seen - expected), _length(expected)
    if off > KINKED * size + np.sqrt(np.finfo(system.oracle.dtype).eps) * _length(seen):
        raise kinked(off / max(size, 1e-300))


# --- what noise does


def candidate_of(place: _ActivePoint) -> PossibleSolution:
    """The numbers at a place, and how precise they are."""
    active, m = place.active, place.active.size
    noise = _noise(place)
    moved = solve(place, noise)  # with the covariance of the estimate
    optimism = float(noise.dot(moved)) / 2
    sizes = _length(moved.z), float(jnp.max(jnp.abs(moved.z), initial=0))
    _check_smooth(place, noise, moved)
    del noise, moved  # each as long as x

    def errors(slopes: Iterable[Derivative]) -> Vector:
        return np.sqrt(np.maximum([_variance(place, slope) for slope in slopes], 0))

    def spread(slopes: Iterable[Derivative]) -> Float[Vector, "q q"]:
        loads = [_load(place, slope) for slope in slopes]
        return _covariance(place, [_no_load(place) if load is None else load for load in loads])

    def times_covariance(vector: Vector) -> Vector:
        load = _load(place, Derivative(0.0, vector, np.zeros(m), np.zeros(m)))
        found = weighted(place.varied, *place.point, _no_load(place) if load is None else load)
        return -np.asarray(solve(place, place.masked(*found)).z, float)

    def off(apart: Vector) -> float:
        ratios = [a / s for a, s in zip((_length(apart), np.max(np.abs(apart))), sizes, strict=True) if s > 0]
        return float(max(ratios, default=0.0))

    values = np.where(active, 0, np.asarray(place.seen.residuals, float))
    z, y = (np.asarray(part, float) for part in place.point)
    objective = float(place.seen.objective) + optimism
    return PossibleSolution(z, y, objective, values, spread, errors, np.ones(m, bool), 0.0, 0.0, times_covariance, off)


def _variance(place: _ActivePoint, slope: Derivative) -> float:
    load = _load(place, slope)
    return 0.0 if load is None else float(_covariance(place, [load])[0, 0])


def _load(place: _ActivePoint, slope: Derivative) -> Load | None:
    """What a number takes of the means, from its derivative; None: nothing."""
    dtype, system = place.system.z.dtype, place.system
    of_r = np.where(place.active, 0, slope.residuals)  # active rows hold, whatever the noise
    right = place.masked(jnp.zeros_like(system.z) if slope.x is None else slope.x, slope.multipliers)
    if of_r.any():
        right = right._replace(z=right.z + system.along(_pulled(place, of_r)))
    if not slope.objective and not of_r.any() and not float(right.length()):
        return None
    dz, dy = solve(place, right)
    of_means = slope.objective * system.held(system.y) + of_r - dy  # of the objective by the envelope theorem
    return Load(jnp.asarray(slope.objective, dtype), -dz, of_means.astype(dtype))


def _no_load(place: _ActivePoint) -> Load:
    z, y = place.point
    return Load(jnp.zeros((), z.dtype), jnp.zeros_like(z), jnp.zeros_like(y))


def _covariance(place: _ActivePoint, loads: list[Load]) -> Float[np.ndarray, "q q"]:
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *loads)
    return np.asarray(covariance(place.varied, *place.point, stacked), float)


def _pulled(place: _ActivePoint, weights: Any) -> Array:
    """J^T w along the face, whether rows are active or not."""
    z, y = place.point
    system = replace(place.system, active=jnp.ones_like(place.system.active))
    return system.times(Both(jnp.zeros_like(z), jnp.asarray(weights, y.dtype))).z


def _otherwise(place: _ActivePoint, active: Bool[np.ndarray, " m"]) -> PossibleSolution:
    """With other rows active: a step of Newton's method from the solution."""
    other = place._replace(system=replace(place.system, active=jnp.asarray(active)))
    dropped = _pulled(place, jnp.where(active, 0, place.system.y))
    right = other.masked(dropped - means(place.sample, *place.point).gradient, -place.seen.residuals)
    dz, dy = solve(other, right)
    z = _within(place.sample.oracle, place.system.z + dz)
    y = np.where(active, np.asarray(place.system.y + dy), 0)
    return candidate_of(_place(place.sample, place.system.sample, place.varied, z, y, active))


def _ambiguous(
    own: PossibleSolution, active: Bool[np.ndarray, " m"], inequality: Bool[np.ndarray, " m"], threshold: float
) -> Bool[np.ndarray, " m"]:
    """Inequalities whose multiplier, or whose slack, is not `threshold` standard errors above 0."""
    places, d, m = np.flatnonzero(inequality), own.x.size, active.size
    errors = own.errors(Derivative.unit(d, m, 1 + d + int(i) + (0 if active[i] else m)) for i in places)
    sizes = np.where(active, own.multipliers, -own.residuals)[places]
    ambiguous = np.zeros_like(inequality)
    ambiguous[places] = ~(sizes > threshold * errors)
    return ambiguous


def _length(vector: Any) -> float:
    return float(jnp.linalg.norm(vector))
