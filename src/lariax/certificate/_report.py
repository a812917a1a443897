"""From what was found to a certificate, and from the user's multipliers to those of the residuals."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from lariax.certificate._certificate import HOLDS, Certificate, ConstraintReport, Interval, Relative
from lariax.certificate._draws import Plan
from lariax.certificate._interval import Bounds, Level
from lariax.certificate._judge import Findings, Levels, Multipliers
from lariax.certificate._samples import Case
from lariax.oracle import Block, Oracle
from lariax.problem import describe_shape


class Ask(NamedTuple):
    confidence: float
    tolerance: float


def given(oracle: Oracle, multipliers: Mapping[str, ArrayLike]) -> tuple[Multipliers, tuple[str, ...]]:
    """The user's multipliers as those of the residuals, and what had to be changed."""
    names = [block.name for block in oracle.blocks]
    if not isinstance(multipliers, Mapping) or set(multipliers) != set(names):
        found = sorted(multipliers) if isinstance(multipliers, Mapping) else type(multipliers).__name__
        raise ValueError(
            f"multipliers must be a dictionary with the names {names}, found {found}. Take result.multipliers, or None."
        )
    parts, notes = [jnp.zeros(0, oracle.dtype)], []
    for block in oracle.blocks:
        given = jnp.asarray(multipliers[block.name], oracle.dtype)
        if given.shape not in ((), block.shape):
            raise ValueError(
                f"the multipliers of {block.name!r} must have shape {block.shape}, found {describe_shape(given)}."
            )
        own = oracle.problem.constraints[block.name].sign * jnp.broadcast_to(given, block.shape).ravel()
        if block.inequality and bool(jnp.any(own < 0)):
            notes.append(
                f"{int(jnp.sum(own < 0))} of the multipliers of {block.name!r} had a sign that the constraint does not "
                f"allow (by up to {float(-jnp.min(own)):.3g}) and count as 0."
            )
            own = jnp.maximum(own, 0)
        parts.append(own)
    return jnp.concatenate(parts), tuple(notes)


def worded(
    case: Case,
    found: Findings,
    y: Multipliers,
    at: Levels,
    ask: Ask,
    notes: tuple[str, ...],
    fitted: bool,
    spent: int,
    plan: Plan,
) -> Certificate:
    oracle, found = case.oracle, jax.tree.map(np.asarray, found)
    units = range(found.lengths.stationarity.estimate.size)
    own, *others = [[_interval(Bounds(*(part[i] for part in each))) for each in found.lengths] for i in units]
    return Certificate(
        **dict(zip(found.lengths._fields, own, strict=True)),
        relative=Relative(*others[0]) if others else None,
        natural_residual=_interval(found.natural_residual),
        objective=_interval(found.objective),
        constraints={block.name: _report(oracle, block, found.residuals, at.values, ask) for block in oracle.blocks},
        multipliers={name: np.asarray(value) for name, value in oracle.named_multipliers(y).items()},
        fitted=fitted,
        population=case.population,
        exact=case.exact,
        outside=float(found.outside),
        about=case.about,
        heldout=None,
        draws=spent,
        confidence=ask.confidence,
        tolerance=ask.tolerance,
        warnings=notes + _heavy(oracle, found, plan),
    )


def _interval(bounds: Bounds) -> Interval:
    return Interval(float(bounds.estimate), float(bounds.low), float(bounds.high))


def _report(oracle: Oracle, block: Block, residuals: Bounds, at: Level, ask: Ask) -> ConstraintReport:
    constraint = oracle.problem.constraints[block.name]
    value, low, high = (np.asarray(part)[block.rows] for part in residuals[:3])
    error = (high - low) / (2 * np.maximum(at.rows[block.rows], 1))
    holds = _holds(value, low, high, error, block.inequality, ask.tolerance)
    bound = np.broadcast_to(np.asarray(constraint.bound), block.shape)
    ends = [constraint.sign * part.reshape(block.shape) + bound for part in (low, high)]
    return ConstraintReport(
        value=constraint.sign * value.reshape(block.shape) + bound,
        low=np.minimum(*ends),
        high=np.maximum(*ends),
        relation=constraint.relation,
        bound=bound,
        holds=holds,
    )


def _holds(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, error: np.ndarray, inequality: bool, tolerance: float
) -> str:
    if inequality:
        surely, violated, probably = high <= tolerance, low > tolerance, value <= tolerance
    else:
        surely = np.maximum(-low, high) <= tolerance
        violated = np.maximum(low, -high) > tolerance
        probably = np.abs(value) <= error + tolerance
    worst: Bool[np.ndarray, " rows"] = np.select([violated, surely, probably], [3, 0, 1], 2)
    return HOLDS[int(np.max(np.where(np.isfinite(value), worst, 3)))]


def _heavy(oracle: Oracle, found: Findings, plan: Plan) -> tuple[str, ...]:
    """Where one batch is farther off than normal batches would be."""
    names = [block.name for block in oracle.blocks if np.any(found.residuals.heavy[block.rows])]
    suspects = [
        *(["stationarity"] if found.lengths.stationarity.heavy[0] else []),
        *(["complementarity"] if found.lengths.complementarity.heavy[0] else []),
        *(["feasibility"] if found.lengths.feasibility.heavy[0] and not names else []),
        *(f"constraint {name!r}" for name in names),
    ]
    if not suspects:
        return ()
    return (
        f"heavy tails: one of {plan.batches} batches of {int(plan.steps) * plan.count:,} samples lies farther off than "
        f"normal noise would let it (for {', '.join(suspects)}). Rare large values may not have been seen, and the "
        "interval may be too short. Draw more, or bound what a single sample can contribute.",
    )
