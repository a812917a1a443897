"""The only judge of a point: intervals for stationarity, feasibility, complementarity, and the stopping test."""

from lariax.certificate._certificate import COLOURS, HOLDS, Certificate, ConstraintReport, Interval, Relative
from lariax.certificate._certifier import AbstractCertifier, Judged
from lariax.certificate._certify import certify, certify_run, judged_risks
from lariax.certificate._draws import (
    LARGEST_STEP,
    AbstractFeed,
    AllRows,
    BatchPlan,
    Feeds,
    Fresh,
    PointMeans,
    View,
    batch_of,
    most_together,
    shares,
)
from lariax.certificate._estimates import estimates_from_means, fit_from_means
from lariax.certificate._multipliers import Fit, forms_jacobian
from lariax.certificate._report import Evidence, Scope
from lariax.certificate._samples import DRAWS, draws_for_run, next_rows
from lariax.certificate._sequential import SequentialTest
from lariax.certificate._tolerance import RelativeTolerance, Tolerance, check_tolerance

__all__ = [
    "COLOURS",
    "DRAWS",
    "HOLDS",
    "LARGEST_STEP",
    "AbstractCertifier",
    "AbstractFeed",
    "AllRows",
    "BatchPlan",
    "Certificate",
    "ConstraintReport",
    "Evidence",
    "Feeds",
    "Fit",
    "Fresh",
    "Interval",
    "Judged",
    "PointMeans",
    "Relative",
    "RelativeTolerance",
    "Scope",
    "SequentialTest",
    "Tolerance",
    "View",
    "batch_of",
    "certify",
    "certify_run",
    "check_tolerance",
    "draws_for_run",
    "estimates_from_means",
    "fit_from_means",
    "forms_jacobian",
    "judged_risks",
    "most_together",
    "next_rows",
    "shares",
]
