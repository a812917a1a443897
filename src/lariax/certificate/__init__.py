"""The only judge of a point: intervals for stationarity, feasibility, complementarity, and the stopping test."""

from lariax.certificate._certificate import HOLDS, Certificate, ConstraintReport, Interval
from lariax.certificate._certify import DRAWS, certify
from lariax.certificate._elsewhere import Court
from lariax.certificate._sequential import SequentialTest
from lariax.certificate._table import COLOURS

__all__ = [
    "COLOURS",
    "DRAWS",
    "HOLDS",
    "Certificate",
    "ConstraintReport",
    "Court",
    "Interval",
    "SequentialTest",
    "certify",
]
