"""Our own rules as pure state transitions, generic over the array library."""

from lariax.tuned._multipliers import Estimate, Multipliers, Shape, checked
from lariax.tuned._pressure import (
    Pressure,
    Sizes,
    is_at_limit,
    limit_of,
    looked,
    passed,
    pressed,
    relaxed,
    spread,
    unit_of,
    unseen,
)

__all__ = [
    "Estimate",
    "Multipliers",
    "Pressure",
    "Shape",
    "Sizes",
    "checked",
    "is_at_limit",
    "limit_of",
    "looked",
    "passed",
    "pressed",
    "relaxed",
    "spread",
    "unit_of",
    "unseen",
]
