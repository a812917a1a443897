"""From what was found to a certificate, and from the user's multipliers to those of the residuals."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from lariax.certificate._certificate import HOLDS, Certificate, ConstraintReport, Interval, Relative
from lariax.certificate._draws import Plan
from lariax.certificate._interval import Bounds, Level
from lariax.certificate._judge import Findings, Levels, Multipliers
from lariax.certificate._samples import Scope
from lariax.oracle import AbstractStructure, Block, Layout
from lariax.problem import describe_shape


class Ask(NamedTuple):
    confidence: float
    tolerance: float


def given(structure: AbstractStructure, multipliers: Mapping[str, ArrayLike]) -> tuple[Multipliers, tuple[str, ...]]:
    """The user's multipliers as those of the residuals, and what had to be changed."""
    layout = structure.layout
    if not isinstance(multipliers, Mapping) or set(multipliers) != set(layout.names):
        found = sorted(multipliers) if isinstance(multipliers, Mapping) else type(multipliers).__name__
        raise ValueError(
            f"multipliers must be a dictionary with the names {layout.names}, found {found}. Take result.multipliers, "
            "or None."
        )
    for block in layout.blocks:
        if np.shape(multipliers[block.name]) not in ((), block.shape):
            raise ValueError(
                f"the multipliers of {block.name!r} must have shape {block.shape}, found "
                f"{describe_shape(multipliers[block.name])}."
            )
    own = layout.signs * layout.unnamed(np, multipliers, structure.dtype)
    wrong = layout.named(np.where(layout.inequality, np.maximum(-own, 0), 0))
    notes = tuple(
        f"{np.count_nonzero(by)} of the multipliers of {name!r} had a sign that the constraint does not "
        f"allow (by up to {np.max(by):.3g}) and count as 0."
        for name, by in wrong.items()
        if np.any(by > 0)
    )
    return structure.signed(jnp.asarray(own, structure.dtype)), notes


def worded(
    structure: AbstractStructure,
    scope: Scope,
    found: Findings,
    y: Multipliers,
    at: Levels,
    ask: Ask,
    notes: tuple[str, ...],
    fitted: bool,
    spent: int,
    plan: Plan,
) -> Certificate:
    found = jax.tree.map(np.asarray, found)
    units = range(found.lengths.stationarity.estimate.size)
    own, *others = [[_interval(Bounds(*(part[i] for part in each))) for each in found.lengths] for i in units]
    return Certificate(
        **dict(zip(found.lengths._fields, own, strict=True)),
        relative=Relative(*others[0]) if others else None,
        natural_residual=_interval(found.natural_residual),
        objective=_interval(found.objective),
        constraints=_reports(structure, found.residuals, at.values, ask),
        multipliers=structure.layout.named(np.asarray(structure.user_multipliers(y))),
        fitted=fitted,
        population=scope.population,
        exact=scope.exact,
        outside=float(found.outside),
        about=scope.about,
        heldout=None,
        draws=spent,
        confidence=ask.confidence,
        tolerance=ask.tolerance,
        warnings=notes + _heavy(structure.layout, found, plan),
    )


def _interval(bounds: Bounds) -> Interval:
    return Interval(float(bounds.estimate), float(bounds.low), float(bounds.high))


def _reports(structure: AbstractStructure, residuals: Bounds, at: Level, ask: Ask) -> dict[str, ConstraintReport]:
    layout, bounds = structure.layout, np.asarray(structure.bounds)
    value, low, high = residuals[:3]
    error = (high - low) / (2 * np.maximum(at.rows, 1))
    ends = [layout.signs.astype(low.dtype) * end + bounds for end in (low, high)]
    parts = (layout.signs.astype(low.dtype) * value + bounds, np.minimum(*ends), np.maximum(*ends), bounds)
    named = [layout.named(part) for part in parts]

    def report(block: Block) -> ConstraintReport:
        own: list[Any] = [part[block.rows] for part in (value, low, high, error)]
        holds = _holds(own[0], own[1], own[2], own[3], block.inequality, ask.tolerance)
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


def _heavy(layout: Layout, found: Findings, plan: Plan) -> tuple[str, ...]:
    """Where one batch is farther off than normal batches would be."""
    names = [block.name for block in layout.blocks if np.any(found.residuals.heavy[block.rows])]
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
