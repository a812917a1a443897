"""Numbers and names as people read them."""

import math

from lariax.problem import visible

LONGEST = 80  # characters of a name that are shown,
LONGEST_SENTENCE = 300  # and of a title or a setting


def number(value: float) -> str:
    """Four digits; infinity as a sign."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return "not a number" if math.isnan(value) else f"{value:.4g}"


def short(name: str, longest: int = LONGEST) -> str:
    """A name that fits a table."""
    name = visible(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
