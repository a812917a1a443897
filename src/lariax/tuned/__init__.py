"""Our own rules as pure state transitions, generic over the array library."""

from lariax.tuned._multipliers import Estimate, Multipliers, Shape, checked
from lariax.tuned._pressure import (
    FAR_LIMIT,
    LIMIT,
    Pressure,
    Sizes,
    is_at_limit,
    looked,
    passed,
    pressed,
    relaxed,
    unit_of,
    unseen,
)

__all__ = [
    "FAR_LIMIT",
    "LIMIT",
    "Estimate",
    "Multipliers",
    "Pressure",
    "Shape",
    "Sizes",
    "checked",
    "is_at_limit",
    "looked",
    "passed",
    "pressed",
    "relaxed",
    "unit_of",
    "unseen",
]
