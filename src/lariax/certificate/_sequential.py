"""When to stop: looking again and again without paying for it in errors."""

import math
from dataclasses import dataclass

from lariax.certificate._certificate import Certificate
from lariax.certificate._tolerance import Tolerance, accepts, check_tolerance
from lariax.utils import check_confidence


@dataclass(frozen=True)
class SequentialTest:
    """Stop at the first look whose certificate is within the tolerance, and be wrong with probability 1 - confidence.

    Look j = 1, 2, ... is made on fresh draws at the confidence 1 - alpha_j, with

        alpha_j = (1 - confidence) * 6 / (pi^2 j^2),        sum over j of alpha_j = 1 - confidence

    so that by the union bound all looks are right together, however many there are, whenever they are made and whatever
    was seen before. A point is wrongly accepted only if an upper end lies below a truth above the tolerance.

    Arguments:
        tolerance: what the upper ends of stationarity, feasibility and complementarity must not exceed.
        confidence: that none of the looks is wrong.

    >>> from lariax.certificate import SequentialTest
    >>> test = SequentialTest(tolerance=0.01, confidence=0.95)
    >>> [round(1 - test.confidence_at(look), 4) for look in (1, 2, 3)]
    [0.0304, 0.0076, 0.0034]
    """

    tolerance: Tolerance
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
        check_confidence(self.confidence)

    def confidence_at(self, look: int) -> float:
        """Of the certificate of look 1, 2, ..."""
        if look < 1:
            raise ValueError(f"looks are numbered from 1, found {look!r}.")
        return 1 - (1 - self.confidence) * 6 / (math.pi * look) ** 2

    def accepts(self, certificate: Certificate) -> bool:
        return accepts(certificate, self.tolerance)
