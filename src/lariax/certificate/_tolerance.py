"""How good is good enough: in the units of the problem, or in none."""

from dataclasses import dataclass

import numpy as np

from lariax.certificate._certificate import Certificate
from lariax.utils import is_number


@dataclass(frozen=True, eq=False)
class RelativeTolerance:
    """Every part of a certificate must be small in units of its own, whatever the units of x, f and the constraints.

    Arguments:
        value: what the upper ends of the relative measures must not exceed, that of stationarity in every entry of x.
        lengths: how large the entries of x are at least, such as those of x0. Of an entry that is 0 at the solution
            nothing else tells how far from it is far.
    """

    value: float
    lengths: np.ndarray

    def worst(self, certificate: Certificate, end: str) -> float:
        """The largest of the ends, "low" or "high", of the relative measures."""
        relative = certificate.relative
        if relative is None:
            return float("inf")
        entries = max(self.lengths.size, 1)  # of which any one may have all of the mean square
        ends = [getattr(part, end) for part in (relative.stationarity, relative.feasibility, relative.complementarity)]
        return max(ends[0] * entries**0.5, *ends[1:])


Tolerance = float | RelativeTolerance


def check_tolerance(tolerance: Tolerance | None) -> None:
    value = tolerance.value if isinstance(tolerance, RelativeTolerance) else tolerance
    if value is not None and not (is_number(value) and value > 0):
        raise ValueError(f"tolerance must be positive, found {value!r}.")


def accepts(certificate: Certificate, tolerance: Tolerance) -> bool:
    """Whether the point is surely within the tolerance."""
    if isinstance(tolerance, RelativeTolerance):
        return tolerance.worst(certificate, "high") <= tolerance.value
    return certificate.within(tolerance)


def refutes(certificate: Certificate, tolerance: Tolerance) -> bool:
    """Whether the multipliers are surely not within the tolerance; or cannot be judged at all."""
    value = tolerance.value if isinstance(tolerance, RelativeTolerance) else tolerance
    return not _by_multipliers(certificate, tolerance, "low") <= value


def better(one: Certificate, other: Certificate, tolerance: Tolerance) -> Certificate:
    """Of two, for different multipliers, the one that is not refuted; else the first, unless the other's upper ends are
    less than half as high."""
    if refutes(one, tolerance) != refutes(other, tolerance):
        return other if refutes(one, tolerance) else one
    first, second = (_by_multipliers(certificate, tolerance, "high") for certificate in (one, other))
    return one if first <= 2 * second else other


def _by_multipliers(certificate: Certificate, tolerance: Tolerance, end: str) -> float:
    """The larger of the ends of the two measures that depend on multipliers."""
    if isinstance(tolerance, RelativeTolerance):
        return tolerance.worst(certificate, end)
    return max(getattr(part, end) for part in (certificate.stationarity, certificate.complementarity))
