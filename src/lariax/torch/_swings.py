"""Does a run get anywhere? Multipliers that swing, as those of a `Proxy` whose values do not follow its surrogate, and
constraints that stay violated are to be told of.

They are looked at now and then, evenly over the run: where the record is full, every second look is dropped, and the
next ones are twice as far apart.
"""

from typing import NamedTuple

import numpy as np

from lariax.oracle import Block, Layout
from lariax.tuned.rule import RuleState
from lariax.tuned.shape import diagonal, violation
from lariax.utils import warn

LOOKS = 16
"""So many looks, the last half of a run or more, are judged,"""

SWINGS_FROM, STAYS_FROM = 8, 32
"""once they are so many calls apart: a start may swing, and violated constraints take their time."""

TURNS = 4
"""So many turns among them are a swing,"""

WIDE, STEEP = 0.5, 0.25
"""if from one turn to the next it is more than WIDE times the largest, and STEEP times the objective's gradient."""

ERRORS, UNMOVED, GROWN = 2.5, 0.6, 1.5
"""A violation stays if its mean over the looks is so many standard errors of one (half as many, where its multiplier
has grown GROWN times all the same), and if in the last quarter of them it is more than UNMOVED times what it was in the
first."""

ADVICE = "Train with Adam and lt.Multipliers, which is made for that, or take a surrogate that is nearer to the values."


class WatchedRows(NamedTuple):
    """What was seen of the constraints in one call, row by row."""

    multipliers: np.ndarray
    pulls: np.ndarray  # what they add to the gradient, in units of the objective's
    left: np.ndarray  # violations,
    error: np.ndarray  # and the variance of their errors


class SwingWatch:
    """Keeps what was seen now and then, and says once what is wrong."""

    def __init__(self) -> None:
        self.apart, self.last = 1, 0
        self.seen: list[WatchedRows] = []
        self.has_warned = False

    def look(self, call: int, s: RuleState, layout: Layout) -> None:
        if self.has_warned or call <= self.last or call % self.apart:
            return
        self.last = call
        if len(self.seen) == 2 * LOOKS:
            self.apart, self.seen = 2 * self.apart, self.seen[1::2]
        steep = np.sqrt(diagonal(np, s.shape.gram) / (s.max_gradient + np.finfo(float).tiny))
        left = violation(np, layout.inequality, s.multipliers, s.constraints)
        self.seen.append(WatchedRows(s.multipliers, s.multipliers * steep, left, s.constraint_filter.error))
        if len(self.seen) < 3 * LOOKS // 2:
            return
        for block in layout.blocks:
            if wrong := self._judged(block):
                self.has_warned = True
                warn(f"constraint {block.name!r} {wrong}")
                return

    def _judged(self, block: Block) -> str:
        """What is wrong with a constraint, if something is."""
        parts = zip(*self.seen[-LOOKS:], strict=True)
        multipliers, pulls, left, error = (np.stack(each, axis=1)[block.rows] for each in parts)
        for row, values in enumerate(block.sign * multipliers):
            if self.apart >= SWINGS_FROM and turns(pulls[row]) >= TURNS:
                return (
                    f"swings: its multiplier goes between {values.min():.2g} and {values.max():.2g} and does not "
                    f"settle, as where the values of a Proxy do not follow its surrogate. {ADVICE}"
                )
            if self.apart >= STAYS_FROM and stays(left[row], error[row], multipliers[row]):
                return (
                    f"stays violated, by {abs(np.mean(left[row])):.2g} over the last half of the calls. If its values "
                    f"are those of a Proxy, they may not follow its surrogate: {ADVICE[0].lower()}{ADVICE[1:]} "
                    "Otherwise ask whether all constraints can hold at once."
                )
        return ""


def turns(pulls: np.ndarray) -> int:
    """How often it goes the other way, by much: from the farthest that it has been since it last did."""
    wide = max(WIDE * float(np.max(np.abs(pulls))), STEEP)
    count, way, low, high = 0, 0, pulls[0], pulls[0]
    for pull in pulls[1:]:
        low, high = min(low, pull), max(high, pull)
        up, down = way <= 0 and pull - low > wide, way >= 0 and high - pull > wide
        if up or down:
            count, way, low, high = count + 1, 1 if up else -1, pull, pull
    return count


def stays(left: np.ndarray, error: np.ndarray, multipliers: np.ndarray) -> bool:
    """Whether a violation neither ends nor falls."""
    quarters, (first, *_, last) = (np.array([np.mean(q) for q in np.array_split(v, 4)]) for v in (left, multipliers))
    sure = abs(np.mean(left)) / np.sqrt(np.mean(error))
    grows = last / first > GROWN if first else last != 0
    enough = ERRORS / 2 if grows and np.all(quarters * quarters[0] > 0) else ERRORS
    return bool(sure > enough and quarters[-1] / quarters[0] > UNMOVED)
