"""From estimates to a certificate."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from lariax.certificate._certificate import HOLDS, Certificate, ConstraintReport, Interval, Relative
from lariax.certificate._draws import BatchPlan
from lariax.certificate._estimates import Estimates, Levels, Multipliers
from lariax.certificate._interval import Intervals, Level
from lariax.oracle import AbstractStructure, Block, Layout


class Scope(NamedTuple):
    """What a certificate is about."""

    population: bool  # the distribution behind the samples, not the rows of a data set
    exact: bool  # every row was used
    about: str  # the same in words


class Evidence(NamedTuple):
    """What samples show of a point with given multipliers, and which samples."""

    estimates: Estimates
    levels: Levels
    plan: BatchPlan
    draws: int


def as_certificate(
    structure: AbstractStructure,
    scope: Scope,
    evidence: Evidence,
    y: Multipliers,
    *,
    fitted: bool,
    confidence: float,
    tolerance: float,
    notes: tuple[str, ...],
) -> Certificate:
    found = jax.tree.map(np.asarray, evidence.estimates)
    units = range(found.measures.stationarity.estimate.size)
    own, *others = [
        Relative(*(_interval(Intervals(*(part[i] for part in each))) for each in found.measures)) for i in units
    ]
    return Certificate(
        stationarity=own.stationarity,
        feasibility=own.feasibility,
        complementarity=own.complementarity,
        relative=others[0] if others else None,
        natural_residual=_interval(found.natural_residual),
        objective=_interval(found.objective),
        constraints=_reports(structure, found.residuals, evidence.levels.values, tolerance),
        multipliers=structure.layout.named(structure.user_multipliers(np.asarray(y))),
        fitted=fitted,
        population=scope.population,
        exact=scope.exact,
        about=scope.about,
        outside=float(found.outside),
        heldout=None,
        draws=evidence.draws,
        confidence=confidence,
        tolerance=tolerance,
        warnings=notes + _heavy(structure.layout, found, evidence.plan),
    )


def _interval(bounds: Intervals) -> Interval:
    return Interval(float(bounds.estimate), float(bounds.low), float(bounds.high))


def _reports(
    structure: AbstractStructure, residuals: Intervals, at: Level, tolerance: float
) -> dict[str, ConstraintReport]:
    layout, bounds = structure.layout, np.asarray(structure.bounds)
    value, low, high = residuals[:3]
    error = (high - low) / (2 * np.maximum(at.rows, 1))
    ends = [layout.signs.astype(low.dtype) * end + bounds for end in (low, high)]
    parts = (layout.signs.astype(low.dtype) * value + bounds, np.minimum(*ends), np.maximum(*ends), bounds)
    named = [layout.named(part) for part in parts]

    def report(block: Block) -> ConstraintReport:
        own: list[Any] = [part[block.rows] for part in (value, low, high, error)]
        holds = _holds(own[0], own[1], own[2], own[3], block.inequality, tolerance)
        estimate, lower, upper, bound = (part[block.name] for part in named)
        return ConstraintReport(estimate, lower, upper, block.relation, bound, holds)

    return {block.name: report(block) for block in layout.blocks}


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


def holds_of(value: np.ndarray, low: np.ndarray, high: np.ndarray, tolerance: float) -> str:
    """Of an inequality's excess over its bound."""
    return _holds(np.ravel(value), np.ravel(low), np.ravel(high), np.zeros(value.size), True, tolerance)


def _heavy(layout: Layout, found: Estimates, plan: BatchPlan) -> tuple[str, ...]:
    """Where one batch is farther off than normal batches would be."""
    names = [block.name for block in layout.blocks if np.any(found.residuals.heavy[block.rows])]
    suspects = [
        *(["stationarity"] if found.measures.stationarity.heavy[0] else []),
        *(["complementarity"] if found.measures.complementarity.heavy[0] else []),
        *(["feasibility"] if found.measures.feasibility.heavy[0] and not names else []),
        *(f"constraint {name!r}" for name in names),
    ]
    if not suspects:
        return ()
    return (
        f"heavy tails: one of {plan.batches} batches of {int(plan.steps) * plan.count:,} samples lies farther off than "
        f"normal noise would let it (for {', '.join(suspects)}). Rare large values may not have been seen, and the "
        "interval may be too short. Draw more, or bound what a single sample can contribute.",
    )
