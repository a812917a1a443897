"""Which method stands in which case, and its grid: twelve settings for everybody, four step sizes times three others.

Steps and penalties are in units of the problem: L the curvature of the Lagrangian, J the norm of the constraints'
Jacobian, both at the solution, which no method would know. With a penalty rho = r L / J^2 the step is a fraction of 1 /
(L + rho J^2).
"""

from collections.abc import Callable
from typing import NamedTuple

import lariax as lx
from lariax import rivals
from lariax.methods import AbstractMethod

FALLING = (0.1, 0.3, 1.0, 3.0)
"""Fractions, for steps that fall with the iterations,"""

CONSTANT = (0.0003, 0.003, 0.03, 0.3)
"""and for steps that do not."""

DEFAULT = 'method="auto"'
"""What `lx.solve` does when nothing is said."""


class Scales(NamedTuple):
    curvature: float  # L
    slope: float  # J


class Entry(NamedTuple):
    """A method: how it is made of a fraction and a second number, and its grid."""

    cases: tuple[str, ...]
    make: Callable[[Scales, float, float], AbstractMethod]
    fractions: tuple[float, ...]
    second: tuple[float, ...]
    meaning: str  # of the second number
    first: str = "step"  # the meaning of the first

    @property
    def grid(self) -> list[tuple[float, float]]:
        return [(fraction, second) for fraction in self.fractions for second in self.second]


def _penalty(scales: Scales, ratio: float) -> float:
    return ratio * scales.curvature / scales.slope**2


def _step(scales: Scales, fraction: float, ratio: float = 0.0) -> float:
    """fraction / (L + rho J^2) with rho = ratio L / J^2."""
    return fraction / (scales.curvature * (1 + ratio))


def _both(scales: Scales, fraction: float, ratio: float) -> dict[str, float]:
    return {"step_size": _step(scales, fraction, ratio), "penalty": _penalty(scales, ratio)}


RATIOS, SMALL_RATIOS = (1.0, 10.0, 100.0), (0.1, 1.0, 10.0)
ANY = ("I", "II", "III")

ENTRIES: dict[str, Entry] = {
    "LinearizedALM": Entry(
        ("I",),
        lambda s, f, r: lx.LinearizedALM(lipschitz=s.curvature, **_both(s, f, r)),
        FALLING,
        SMALL_RATIOS,
        "penalty",
    ),
    "ProxPDA": Entry(("I",), lambda s, f, r: rivals.ProxPDA(**_both(s, f, r)), CONSTANT, SMALL_RATIOS, "penalty"),
    "SpiderADMM": Entry(
        ("I",),
        lambda s, f, r: rivals.SpiderADMM(**_both(s, f, r), refresh_batches=64, epoch=64),
        CONSTANT,
        SMALL_RATIOS,
        "penalty",
    ),
    "GradientTracking": Entry(
        ("I",),
        lambda s, f, a: rivals.GradientTracking(step_size=_step(s, f), momentum=a),
        FALLING,
        (0.01, 0.1, 1.0),
        "momentum",
    ),
    "SmoothedPrimalDual": Entry(("I",), lambda s, f, r: _smoothed(s, f, r, False), FALLING, SMALL_RATIOS, "penalty"),
    "SmoothedPrimalDual, STORM": Entry(
        ("I",), lambda s, f, r: _smoothed(s, f, r, True), FALLING, SMALL_RATIOS, "penalty"
    ),
    "QuadraticPenalty": Entry(
        ("II", "III"), lambda s, f, r: lx.QuadraticPenalty(**_both(s, f, r)), FALLING, RATIOS, "penalty"
    ),
    "DualPenalty": Entry(
        ("III",), lambda s, f, r: lx.DualPenalty(**_both(s, f, r), dual_step=0.1), FALLING, RATIOS, "penalty"
    ),
    "MomentumALM": Entry(("II",), lambda s, f, r: _momentum(s, f, r, 0), CONSTANT, RATIOS, "penalty"),
    "MomentumALM, feasible first": Entry(("II",), lambda s, f, r: _momentum(s, f, r, 100), CONSTANT, RATIOS, "penalty"),
    "RecursiveMomentumPenalty": Entry(
        ("II",), lambda s, f, r: rivals.RecursiveMomentumPenalty(**_both(s, f, r)), FALLING, RATIOS, "penalty"
    ),
    "StochasticSQP": Entry(
        ("II",),
        lambda s, p, t: rivals.StochasticSQP("steps", decay=p, merit=t),
        (0.25, 0.5, 0.75, 1.0),
        (0.1, 1.0, 10.0),
        "merit parameter",
        first="decay",
    ),
    "StochasticIALM": Entry(
        ("III",),
        lambda s, f, r: rivals.StochasticIALM(
            step_size=_step(s, f, r) * _penalty(s, r), penalty=_penalty(s, r), dual_bound=10.0, inner_iterations=500.0
        ),
        FALLING,
        RATIOS,
        "penalty",
    ),
    "ConstraintExtrapolation": Entry(
        ("III",),
        lambda s, f, r: rivals.ConstraintExtrapolation(
            _step(s, f), _penalty(s, r), proximity=0.1 * s.curvature, inner_iterations=500
        ),
        (0.01, 0.03, 0.1, 0.3),
        (0.001, 0.01, 0.1),
        "dual step",
    ),
    "RegularizedSubgradient": Entry(
        ("III",),
        lambda s, f, t: rivals.RegularizedSubgradient(
            _step(s, f), t, proximity=0.1 * s.curvature, inner_iterations=500
        ),
        FALLING,
        (0.001, 0.01, 0.1),
        "tolerance",
    ),
    "SwitchingSubgradient": Entry(
        ("III",), lambda s, f, t: rivals.SwitchingSubgradient(_step(s, f), t), FALLING, (0.001, 0.01, 0.1), "tolerance"
    ),
    "HingePenalty": Entry(
        ("III",), lambda s, f, p: rivals.HingePenalty(_step(s, f), p), FALLING, (0.3, 3.0, 30.0), "penalty"
    ),
    "SpiderPenalty": Entry(
        ("III",), lambda s, f, p: rivals.SpiderPenalty(_step(s, f), p), FALLING, (0.3, 3.0, 30.0), "penalty"
    ),
    "PenaltySGD": Entry(ANY, lambda s, f, r: rivals.PenaltySGD(**_both(s, f, r)), FALLING, RATIOS, "penalty"),
    "PrimalDualSGD": Entry(
        ANY,
        lambda s, f, r: rivals.PrimalDualSGD(_step(s, f), _penalty(s, r)),
        FALLING,
        (0.01, 0.1, 1.0),
        "dual step",
    ),
    "SameBatchALM": Entry(
        ANY,
        lambda s, f, r: rivals.SameBatchALM(**_both(s, f, r), dual_step=0.3 * _penalty(s, r)),
        FALLING,
        SMALL_RATIOS,
        "penalty",
    ),
}


def _smoothed(scales: Scales, fraction: float, ratio: float, reduced: bool) -> AbstractMethod:
    penalty = _penalty(scales, ratio)
    return rivals.SmoothedPrimalDual(
        step_size=_step(scales, fraction, 1 + ratio),
        penalty=penalty,
        dual_step=penalty,
        attraction=scales.curvature,
        variance_reduced=reduced,
    )


def _momentum(scales: Scales, fraction: float, ratio: float, steps: int) -> AbstractMethod:
    return rivals.MomentumALM(
        **_both(scales, fraction, ratio),
        dual_step=0.1 * _penalty(scales, ratio),
        momentum=0.02,
        feasibility_steps=steps,
    )
