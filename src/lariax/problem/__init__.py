"""What is to be solved."""

from lariax.problem._constraints import SHARED, AbstractConstraint, AtLeast, AtMost, Equal
from lariax.problem._describe import describe_shape, first_nonfinite
from lariax.problem._problem import Problem
from lariax.problem._sources import AbstractSource, Dataset, Distribution, Stratified, Stream, leading_axis

__all__ = [
    "SHARED",
    "AbstractConstraint",
    "AbstractSource",
    "AtLeast",
    "AtMost",
    "Dataset",
    "Distribution",
    "Equal",
    "Problem",
    "Stratified",
    "Stream",
    "describe_shape",
    "first_nonfinite",
    "leading_axis",
]
