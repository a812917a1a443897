"""The only judge of a point: intervals for stationarity, feasibility, complementarity, and the stopping test."""

from lariax.certificate._certificate import COLOURS, HOLDS, SAYS, Certificate, ConstraintReport, Interval, Relative
from lariax.certificate._certify import Judged, certify, certify_run
from lariax.certificate._elsewhere import Court
from lariax.certificate._samples import DRAWS, draws_for_run
from lariax.certificate._sequential import SequentialTest
from lariax.certificate._tolerance import RelativeTolerance, Tolerance

__all__ = [
    "COLOURS",
    "DRAWS",
    "HOLDS",
    "SAYS",
    "Certificate",
    "ConstraintReport",
    "Court",
    "Interval",
    "Judged",
    "Relative",
    "RelativeTolerance",
    "SequentialTest",
    "Tolerance",
    "certify",
    "certify_run",
    "draws_for_run",
]
