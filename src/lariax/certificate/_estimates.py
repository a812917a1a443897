"""What samples show of a point: every interval of a certificate."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lariax.certificate._cone import Face
from lariax.certificate._draws import PointMeans, SampledPoint, batch_means
from lariax.certificate._interval import Errors, Intervals, Level, errors, interval, level, mean_intervals
from lariax.certificate._multipliers import Fit, fit_dense, fit_multipliers
from lariax.certificate._sizes import Magnitudes, row_sizes, sizes_at
from lariax.certificate._spread import BatchMeans, is_large
from lariax.compilation import compiled
from lariax.oracle import AbstractStructure, Vector
from lariax.prox import Zero
from lariax.sets import Everything

Multipliers = Float[Array, " m"]


class Measures(NamedTuple):
    """The measures that are 0 at a solution: in the units of the problem and, where sizes are known, in their own."""

    stationarity: Intervals
    feasibility: Intervals
    complementarity: Intervals


class Estimates(NamedTuple):
    """Everything that samples show of a point, as arrays."""

    measures: Measures
    natural_residual: Intervals
    objective: Intervals
    residuals: Intervals
    outside: Float[Array, ""]


class Levels(NamedTuple):
    """Of what depends on the multipliers, and of what does not: values may come from more samples."""

    lengths: Level
    values: Level


def levels_for(structure: AbstractStructure, judged: int, seen: int, confidence: float, share: float = 1.0) -> Levels:
    """From so many batches each. What depends on multipliers has a `share` of what may go wrong."""
    together = structure.layout.entrywise([block.size for block in structure.blocks], float)
    entries = max(structure.coordinates.size, structure.rows)
    return Levels(
        level(1 - share * (1 - confidence), judged, entries, together, structure.dtype),
        level(confidence, seen, entries, together, structure.dtype),
    )


@compiled()
def fit(point: SampledPoint, least: Array) -> Fit:
    """Least-squares multipliers, of the residuals."""
    sizes = sizes_at(point, jnp.zeros_like(point.oracle.bounds), least)
    return fit_multipliers(point, to_cone(point.oracle, point.z), sizes.rows)


def estimate(point: SampledPoint, y: Multipliers, least: Array, at: Levels, fitted: Fit | None = None) -> Estimates:
    """Every interval of a certificate, for multipliers of the residuals that do not depend on these samples.

    Where they were fitted on others, values come from both, and the lower end of stationarity is that of the best
    multipliers. One compiled program; for large x several, so that each has the memory that the others have left.
    """
    whole = _estimate if is_large(point.plan.batches, point.z.size) else _at_once
    return whole(point, y, least, at, fitted)


def _estimate(point: SampledPoint, y: Multipliers, least: Array, at: Levels, fitted: Fit | None) -> Estimates:
    return estimates(point.oracle, means_of(point, y), point.z, y, at, sizes_at(point, y, least), fitted)


_at_once = compiled()(_estimate)


@eqx.filter_jit
def means_of(point: SampledPoint, y: Multipliers) -> PointMeans:
    """Of the objective, the residuals and the gradient of the Lagrangian."""
    return batch_means(point, lambda view: view.pull(point.oracle.split(y)), apart=True)


def estimates(
    structure: AbstractStructure,
    means: PointMeans,
    z: Vector,
    y: Multipliers,
    at: Levels,
    sizes: Magnitudes | None,
    fitted: Fit | None = None,
) -> Estimates:
    """The same from batch means of the objective, the residuals and the gradient of the Lagrangian."""
    bends = not isinstance(structure.simple, Everything | Zero)
    sampled = means.gradient.batches > 1
    face = fitted.face if fitted is not None and sampled else None
    if sizes is not None:  # of terms that some samples do not show, their sum shows something
        sizes = sizes._replace(entries=jnp.maximum(sizes.entries, jnp.abs(means.gradient.mean)))
    left = _stationarities(structure, means.gradient, z, at.lengths, bends, sizes, face)
    step = natural_residual(structure, means.gradient, z, at.lengths) if bends else None
    seen = means._replace(gradient=None)
    if fitted is not None and fitted.seen is not None and sampled:
        seen = jax.tree.map(lambda *parts: jnp.concatenate(parts), fitted.seen, seen)
    return _intervals(structure, means.residuals, seen, z, y, at, left, step, sizes)


def _stationarities(
    structure: AbstractStructure,
    spread: BatchMeans,
    z: Vector,
    at: Level,
    bends: bool,
    sizes: Magnitudes | None,
    face: Face | None,
) -> Errors:
    """Stationarity in the units of the problem and in those of the entries, with and without a face: [face, unit]."""
    units = [jnp.ones((), z.dtype)] + ([] if sizes is None else [_inverse(sizes.entries) / float(np.sqrt(z.size))])
    ways = [(unit, part) for part in range(1 if face is None else 2) for unit in units]
    if is_large(spread.batches, z.size):
        each = [stationarity(structure, spread, z, at, bends, unit, face if part else None) for unit, part in ways]
        found = jax.tree.map(lambda *parts: jnp.stack(parts), *each)
    else:  # all of it in one piece of code
        some = jnp.stack([jnp.broadcast_to(unit, z.shape) for unit, _ in ways])
        parts = jnp.asarray([part for _, part in ways], z.dtype)
        found = jax.lax.map(
            lambda way: stationarity(structure, spread, z, at, bends, way[0], None if face is None else way[1] * face),
            (some, parts),
        )
    return jax.tree.map(lambda part: part.reshape(-1, len(units), *part.shape[1:]), found)


@eqx.filter_jit
def stationarity(
    structure: AbstractStructure, spread: BatchMeans, z: Vector, at: Level, bends: bool, unit: Array, face: Face | None
) -> Errors:
    """Of what is left of the gradient; in other units, and without what lies in a face."""
    cone = to_cone(structure, z)

    def left(gradient: Vector) -> Vector:
        residual = cone(gradient)
        return unit * (residual if face is None else residual - (face @ residual) @ face)

    return errors(spread, left, at, kinks=bends)


@eqx.filter_jit
def natural_residual(structure: AbstractStructure, spread: BatchMeans, z: Vector, at: Level) -> Errors:
    return errors(spread, _one_step(structure, z), at, kinks=True)


@eqx.filter_jit
def _intervals(
    structure: AbstractStructure,
    judged: Float[Array, "k m"],
    seen: PointMeans,
    z: Vector,
    y: Multipliers,
    at: Levels,
    left: Errors,
    step: Errors | None,
    sizes: Magnitudes | None,
) -> Estimates:
    gaps = _outside(structure, z, sizes)
    whole, *without = [jax.tree.map(lambda part, i=i: part[i], left) for i in range(left.length.shape[0])]
    measured = {"whole": (whole, at.lengths)}
    if without:
        measured["without"] = (without[0], at.lengths)
    if step is not None:
        measured["step"] = (jax.tree.map(lambda part: part[None], step), at.lengths)
    if structure.rows:
        measured["slackness"] = (_slackness(structure, judged, y, at.lengths, sizes), at.lengths)
        measured["violation"] = (_violation(structure, seen.residuals, gaps, at.values, sizes), at.values)
    found = {"slackness": _without_error(0 * gaps), "violation": _without_error(gaps)} | _ends(measured)
    stationary = found["whole"]
    if without:  # at the lower end the best multipliers count, whichever they are
        stationary = stationary._replace(low=jnp.minimum(stationary.low, found["without"].low))
    numbers = jnp.concatenate([seen.objective[:, None], seen.residuals], axis=1)
    each = mean_intervals(numbers, at.values._replace(rows=jnp.append(at.values.student, at.values.rows)))
    return Estimates(
        Measures(stationary, found["violation"], found["slackness"]),
        jax.tree.map(lambda part: part[0], found.get("step", stationary)),
        jax.tree.map(lambda part: part[0], each),
        jax.tree.map(lambda part: part[1:], each),
        gaps[0],
    )


def _violation(
    structure: AbstractStructure,
    residuals: Float[Array, "k m"],
    gaps: Float[Array, " u"],
    at: Level,
    sizes: Magnitudes | None,
) -> Errors:
    """Of residuals of equalities, excesses over bounds and the distance to the set."""
    uneven = structure.has_inequalities
    units = [jnp.ones(structure.rows, structure.dtype)] + ([] if sizes is None else [_inverse(sizes.rows)])

    def seen(unit: Multipliers, gap: Float[Array, ""]) -> Errors:
        def length(r: Multipliers) -> Float[Array, " m+1"]:
            return jnp.append(unit * jnp.where(structure.inequality, jnp.maximum(r, 0), r), gap)

        return errors(BatchMeans.of(residuals), length, at, kinks=uneven)

    return jax.vmap(seen)(jnp.stack(units), gaps)


def _slackness(
    structure: AbstractStructure, residuals: Float[Array, "k m"], y: Multipliers, at: Level, sizes: Magnitudes | None
) -> Errors:
    """Of multipliers times residuals. Without units, of residuals in theirs, each as far as its multiplier has a share
    in what the Lagrangian exchanges."""
    weights = [y]
    if sizes is not None:
        share = jnp.minimum(jnp.abs(y) * sizes.rows * _inverse(sizes.exchanged), 1)
        weights.append(share * _inverse(sizes.rows))

    def seen(weight: Multipliers) -> Errors:
        return errors(
            BatchMeans.of(residuals), lambda r: jnp.where(structure.inequality, weight * r, 0), at, kinks=False
        )

    return jax.vmap(seen)(jnp.stack(weights))


def _ends(measured: dict[str, tuple[Errors, Level]]) -> dict[str, Intervals]:
    """The intervals of lengths; of those from as many batches in one piece of code."""
    found = {}
    for batches in sorted({seen.along.shape[-1] for seen, _ in measured.values()}):
        some = {name: pair for name, pair in measured.items() if pair[0].along.shape[-1] == batches}
        counts = [seen.length.shape[0] for seen, _ in some.values()]
        seen = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(seen for seen, _ in some.values()))
        levels = [jax.tree.map(jnp.asarray, at._replace(rows=0.0)) for _, at in some.values()]
        at = jax.tree.map(lambda *parts, counts=counts: jnp.repeat(jnp.stack(parts), np.asarray(counts), 0), *levels)
        each = jax.vmap(interval)(seen, at)
        places = np.cumsum([0, *counts])
        for name, first, last in zip(some, places[:-1], places[1:], strict=True):
            found[name] = jax.tree.map(lambda part, first=first, last=last: part[first:last], each)
    return found


def _outside(structure: AbstractStructure, z: Vector, sizes: Magnitudes | None) -> Float[Array, " u"]:
    """How far x lies outside of its set, and that with every entry in units of its own."""
    simple, x = structure.simple, structure.coordinates.unravel(z)
    nearest = structure.coordinates.ravel(simple.prox(x, 0.0))
    inside = jnp.isfinite(simple.value(x))
    units = [jnp.ones_like(z)]
    if sizes is not None:
        units.append(_inverse(jnp.maximum(sizes.lengths, jnp.maximum(jnp.abs(z), jnp.abs(nearest)))))
    return jnp.where(inside, 0, jnp.stack([jnp.sqrt(jnp.sum((unit * (z - nearest)) ** 2)) for unit in units]))


def _inverse(size: Array) -> Array:
    """1 / size; what is of size 0 is 0, in any unit."""
    return jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)


def _without_error(value: Array) -> Intervals:
    return Intervals(value, value, value, jnp.zeros(value.shape, bool))


def to_cone(structure: AbstractStructure, z: Vector) -> Callable[[Vector], Vector]:
    """g -> what is left of -g beside the normal cone, or the subdifferential, at x."""
    simple, coordinates, x = structure.simple, structure.coordinates, structure.coordinates.unravel(z)

    def residual(gradient: Vector) -> Vector:
        nearest = simple.nearest_subgradient(x, coordinates.unravel(-gradient))
        return -gradient - coordinates.ravel(nearest)

    return residual


def _one_step(structure: AbstractStructure, z: Vector) -> Callable[[Vector], Vector]:
    """g -> x - P(x - g)."""
    simple, coordinates = structure.simple, structure.coordinates
    return lambda gradient: z - coordinates.ravel(simple.prox(coordinates.unravel(z - gradient), 1.0))


@compiled(briefly=True)
def estimates_from_means(
    means: PointMeans, structure: AbstractStructure, z: Vector, y: Multipliers, at: Levels, fitted: Fit | None
) -> Estimates:
    """`estimates` without units of their own, from batch means that another library has made."""
    return estimates(structure, means._replace(gradient=BatchMeans.of(means.gradient)), z, y, at, None, fitted)


@compiled(briefly=True)
def fit_from_means(
    means: PointMeans, structure: AbstractStructure, z: Vector, slope: Vector, jacobian: Float[Array, "m d"]
) -> Fit:
    """Least-squares multipliers from batch means of the values, the mean of grad f and the mean Jacobian."""
    sizes = row_sizes(structure, jnp.mean(means.residuals, axis=0))
    return fit_dense(structure, means, slope, jacobian, to_cone(structure, z), sizes)
