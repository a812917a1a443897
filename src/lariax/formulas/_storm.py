"""The recursive estimate that every method here uses."""

from typing import Any


def storm(fresh: Any, stale: Any, estimate: Any, momentum: Any) -> Any:
    """STORM: follow a moving mean with one sample an iteration.

        g+ = G+(x+, s) + (1 - alpha) (g - G(x, s))

    `fresh` is G+ at the new point and `stale` is G at the old one, *both on the same sample* s, which must be
    independent of `estimate`. G+ and G may differ (a penalty or a multiplier changed in between); then the old
    function goes with the old point. `momentum` is alpha in [0, 1]: 1 forgets the past, 0 only adds differences.

    >>> storm(fresh=3.0, stale=2.0, estimate=5.0, momentum=0.25)
    5.25
    """
    return fresh + (1 - momentum) * (estimate - stale)
