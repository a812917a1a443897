"""From a point to the solution on the samples, and to the rows that may be active there."""

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from lariax.inference._errors import InferenceError
from lariax.inference._faces import check_settled, has_rows, rows_of, smooth_at
from lariax.inference._moments import KeptSample, Moments, means, moments
from lariax.inference._system import ActiveModel, Local, settled, solved
from lariax.oracle import Oracle

Vector = np.ndarray
MOST_STEPS = 15  # of Newton's method; a point at the limit takes two
SMALL = 0.001  # standard errors: a step that counts as none
MOST_AMBIGUOUS = 5  # rows of which every combination is looked at
KINKED = 0.1  # of a change of the gradient, unexplained by its derivative
REACH = 3.0  # standard errors, as far as which the derivative must explain it


class SampleSolution(NamedTuple):
    """The solution on the samples, and every solution that differs from it by ambiguous rows.

    Attributes:
        point: x, as a vector; models hold steps from it.
        local: the problem there.
        models: the one of the samples first; several only where rows are ambiguous.
        ambiguous: which rows are neither surely active nor surely inactive.
        complete: whether every combination of ambiguous rows is among the models.
    """

    point: Vector
    local: Local
    models: tuple[ActiveModel, ...]
    ambiguous: Bool[np.ndarray, " M"]
    complete: bool


class Stage(NamedTuple):
    """Newton's method on the way: x, the multipliers of all rows (None: not known yet), and the last step taken.

    `small` tells whether that step is so small that the solution has been found.
    """

    z: Vector
    y: Vector
    weights: Vector | None = None
    local: Local | None = None
    model: ActiveModel | None = None
    errors: Vector | None = None
    small: bool = False


def fitted(sample: KeptSample, z: Vector, y: Vector, threshold: float) -> SampleSolution:
    """By Newton's method on the samples, from a point near the solution.

    Arguments:
        z, y: the point, and the multipliers of the constraints.
        threshold: standard errors beyond which a multiplier is surely positive, or a slack is.
    """
    dtype = sample.oracle.dtype
    stage = Stage(np.asarray(z, float), np.asarray(y, float))
    for _ in range(MOST_STEPS):
        seen = moments(sample, jnp.asarray(stage.z, dtype), jnp.asarray(stage.y, dtype))
        stage = stepped(sample.oracle, stage, seen)
        if stage.small:
            _check_smooth(sample, stage)
            return with_alternatives(stage, threshold)
        if not np.all(np.isfinite(stage.z)):
            break
    assert stage.model is not None
    raise InferenceError(
        f"Newton's method does not settle on these samples (the last step was {_length(stage.model.step):.3g} long, "
        f"after {_length(stage.z - z):.3g} in all): x is not near a solution, or a function has kinks. Solve longer."
    )


def stepped(oracle: Oracle, stage: Stage, seen: Moments) -> Stage:
    """One step of Newton's method, from what was seen at the point."""
    local = localized(oracle, stage, seen)
    first = _guess(local, stage.y) if stage.weights is None else stage.weights > 0
    model = settled(local, first)
    errors = np.sqrt(np.maximum(np.diag(model.covariance(local.noise))[1 : 1 + stage.z.size], 0))
    z = stage.z + model.step
    rounding = np.sqrt(np.finfo(oracle.dtype).eps) * (1 + np.abs(z))
    small = bool(np.all(np.abs(model.step) <= np.maximum(SMALL * errors, rounding)))
    return Stage(z, model.multipliers[: local.constraints], model.multipliers, local, model, errors, small)


def localized(oracle: Oracle, stage: Stage, seen: Moments) -> Local:
    """The problem at a point."""
    z, y, m = stage.z, stage.y, stage.y.size
    found: Any = jax.tree.map(lambda part: np.asarray(part, float), seen)
    jacobian, gradient, hessian = found.jacobian, found.means.gradient, found.hessian
    if has_rows(oracle.problem.simple):
        rows = rows_of(oracle, z)
        own = np.zeros(rows.values.size) if stage.weights is None else stage.weights[m:]
        bend, slope = rows.bend(own), gradient - y @ jacobian
        values, normals, inequality = rows.values, rows.gradients, rows.inequality
    else:
        step = 1 / max(float(np.linalg.norm(hessian, 2)), np.finfo(float).tiny)
        term = smooth_at(oracle, z, gradient, step)
        errors = np.sqrt(np.diag(found.noise)[1 : 1 + z.size])
        check_settled(oracle, z, gradient, errors, step)
        bend, slope = term.bend, term.gradient - y @ jacobian
        values, normals, inequality = term.residual, term.normal, np.zeros(len(term.normal), bool)
    return Local(
        float(found.means.objective),
        slope,
        (hessian + hessian.T) / 2 + bend,
        bend,
        np.vstack([jacobian, normals]),
        np.concatenate([found.means.residuals, values]),
        np.concatenate([[block.inequality for block in oracle.blocks for _ in range(block.size)], inequality]) > 0,
        found.noise,
        float(found.skew),
    )


def _guess(local: Local, y: Vector) -> Bool[np.ndarray, " M"]:
    """Rows that have a multiplier, or are met up to rounding."""
    near = local.values >= -1e-9 * (1 + np.linalg.norm(local.rows, axis=1))
    near[: len(y)] = np.where(local.inequality[: len(y)], y > 0, True)
    return near


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _check_smooth(sample: KeptSample, stage: Stage) -> None:
    """Refuse functions whose mean gradient changes otherwise than its derivative says, within reach of the noise."""
    dtype, z, local, errors = sample.oracle.dtype, stage.z, stage.local, stage.errors
    assert local is not None
    assert errors is not None
    signs = np.random.default_rng(0).choice([-1.0, 1.0], z.size)
    away = REACH * signs * np.where(errors > 0, errors, 0)
    if not away.any():
        return
    y = jnp.asarray(stage.y, dtype)
    ahead, behind = (means(sample, jnp.asarray(z + side * away, dtype), y) for side in (1, -1))
    seen = np.concatenate([np.asarray(a - b, float) / 2 for a, b in zip(ahead[1:], behind[1:], strict=True)])
    rows = local.rows[: local.constraints]
    expected = np.concatenate([(local.hessian - local.bend) @ away, rows @ away])
    units = np.sqrt(np.maximum(np.diag(local.noise)[1:], 0))
    units = np.where(units > 0, units, np.max(units, initial=0) + np.finfo(float).tiny)
    off = _length((seen - expected) / units)
    if off > KINKED * _length(expected / units) + np.sqrt(np.finfo(dtype).eps):
        raise kinked(off / max(_length(expected / units), 1e-300))


def kinked(share: float) -> InferenceError:
    """Why there are no error bars where the derivative does not explain such a share of a change."""
    return InferenceError(
        "within three standard errors of x the mean gradient changes otherwise than its derivative says "
        f"(off by {share:.0%}): a function has kinks (max, abs, a hinge), or there are too few samples for the normal "
        "law. Round the kinks off, or draw more."
    )


# --- rows that may be active or not


def with_alternatives(stage: Stage, threshold: float) -> SampleSolution:
    """The solution that was found, and those with ambiguous rows the other way round."""
    assert stage.local is not None
    assert stage.model is not None
    z, model, local = stage.z, stage.model, stage.local.moved(stage.model.step)
    ambiguous = _ambiguous(local, model, threshold)
    others, complete = choices_of(model.active, ambiguous)
    models = [model._replace(step=np.zeros_like(z))]
    for active in others:
        try:
            models.append(solved(local, active))
        except InferenceError:  # without the row there is no minimum
            complete = False
    return SampleSolution(z, local, tuple(models), ambiguous, complete)


def choices_of(
    active: Bool[np.ndarray, " M"], ambiguous: Bool[np.ndarray, " M"]
) -> tuple[list[Bool[np.ndarray, " M"]], bool]:
    """The other sets of active rows that ambiguous ones allow, and whether these are all of them."""
    places = np.flatnonzero(ambiguous)
    complete = places.size <= MOST_AMBIGUOUS
    if complete:
        choices = [np.array(choice, bool) for choice in product((False, True), repeat=places.size)]
    else:
        own = active[places]
        flipped = [own ^ (np.arange(places.size) == i) for i in range(places.size)]
        choices = [np.zeros(places.size, bool), np.ones(places.size, bool), *flipped]
    sets = []
    for choice in choices:
        other = active.copy()
        other[places] = choice
        if not np.array_equal(other, active):
            sets.append(other)
    return sets, complete


def _ambiguous(local: Local, model: ActiveModel, threshold: float) -> Bool[np.ndarray, " M"]:
    """Inequalities whose multiplier, or whose slack, is not `threshold` standard errors above 0."""
    d, count = local.slope.size, model.active.size
    errors = np.sqrt(np.maximum(np.diag(model.covariance(local.noise)), 0))
    of_y, of_r = errors[1 + d : 1 + d + count], errors[1 + d + count :]
    rounding = 1e-9 * (1 + np.linalg.norm(local.rows, axis=1))
    surely = np.where(model.active, model.multipliers > threshold * of_y, -local.values > threshold * of_r + rounding)
    return local.inequality & model.determined & ~surely
