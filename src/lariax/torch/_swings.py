"""Do multipliers settle? Those of a `Proxy` whose values do not follow its surrogate swing, and that is to be said.

They are looked at now and then, further and further apart, with the refreshes.
"""

import numpy as np

from lariax.utils import warn

LOOKS = 12
"""So many looks are kept: their calls span a factor of about ten,"""

TURNS = 3
"""and so many turns among them are a swing,"""

WIDE = 0.5
"""if from one turn to the next it is more than this part of the largest."""


class Watch:
    """Keeps the last multipliers, and says once if one of them swings."""

    def __init__(self) -> None:
        self.seen: list[dict[str, np.ndarray]] = []
        self.has_warned = False

    def look(self, multipliers: dict[str, np.ndarray]) -> None:
        self.seen = [*self.seen[1 - LOOKS :], multipliers]
        if self.has_warned or len(self.seen) < LOOKS:
            return
        for name in multipliers:
            for values in np.stack([each[name] for each in self.seen], axis=1):
                if turns(values) >= TURNS and not self.has_warned:
                    self.has_warned = True
                    warn(
                        f"the multiplier of {name!r} swings between {values.min():.2g} and {values.max():.2g} and does "
                        "not settle, as where the values of a Proxy do not follow its surrogate. Train with Adam and "
                        "lt.Multipliers, which is made for that, or take a surrogate that is nearer to the values."
                    )


def turns(values: np.ndarray) -> int:
    """How often it goes the other way, by much."""
    count, last, way = 0, values[0], 0.0
    for value in values[1:]:
        if abs(value - last) > WIDE * np.max(np.abs(values)):
            count += np.sign(value - last) != way
            last, way = value, np.sign(value - last)
        elif way * (value - last) > 0:
            last = value
    return count
