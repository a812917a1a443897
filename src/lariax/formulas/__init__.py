"""The update rules as plain arithmetic, one function a line of a paper.

Nothing here knows about JAX: the functions take anything that adds and multiplies (JAX arrays, torch tensors, NumPy
arrays, floats), so that every front end computes the same numbers from the same formula.
"""

from lariax.formulas._filter import Filter, gain, lagged, updated
from lariax.formulas._schedules import (
    DETERMINISTIC_CONSTRAINTS,
    STOCHASTIC_CONSTRAINTS,
    Exponents,
    LinearizedConstants,
    PenaltySchedule,
    dual_penalty_lipschitz,
    penalty_lipschitz,
)
from lariax.formulas._storm import storm

__all__ = [
    "DETERMINISTIC_CONSTRAINTS",
    "STOCHASTIC_CONSTRAINTS",
    "Exponents",
    "Filter",
    "LinearizedConstants",
    "PenaltySchedule",
    "dual_penalty_lipschitz",
    "gain",
    "lagged",
    "penalty_lipschitz",
    "storm",
    "updated",
]
