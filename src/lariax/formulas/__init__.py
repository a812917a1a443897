"""The update rules as plain arithmetic, one function a line of a paper.

Nothing here knows about JAX: the functions take anything that adds and multiplies (JAX arrays, torch tensors, NumPy
arrays, floats), so that every front end computes the same numbers from the same formula. Where more than arithmetic is
needed, the first argument `xp` is the array library to take it from (`jax.numpy`, `numpy`).
"""

from lariax.formulas._schedules import (
    DETERMINISTIC_CONSTRAINTS,
    STOCHASTIC_CONSTRAINTS,
    Exponents,
    LinearizedConstants,
    PenaltySchedule,
    dual_penalty_lipschitz,
    penalty_lipschitz,
)
from lariax.formulas._storm import dual_length, least_weights, leave_one_out, repelled, same_stratum, storm

__all__ = [
    "DETERMINISTIC_CONSTRAINTS",
    "STOCHASTIC_CONSTRAINTS",
    "Exponents",
    "LinearizedConstants",
    "PenaltySchedule",
    "dual_length",
    "dual_penalty_lipschitz",
    "least_weights",
    "leave_one_out",
    "penalty_lipschitz",
    "repelled",
    "same_stratum",
    "storm",
]
