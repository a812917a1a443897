"""Constrained optimisation when the objective and the constraints are only seen through samples."""

from lariax import prox, sets
from lariax.certificate import Certificate, certify
from lariax.loop import STATUSES, History, Result, Snapshot, solve
from lariax.methods import DualPenalty, LinearizedALM, QuadraticPenalty, TrackedLagrangian
from lariax.oracle import LariaxWarning
from lariax.problem import AtLeast, AtMost, Dataset, Distribution, Equal, Linear, Problem, Stratified, Stream

__version__ = "0.1.0"

__all__ = [
    "STATUSES",
    "AtLeast",
    "AtMost",
    "Certificate",
    "Dataset",
    "Distribution",
    "DualPenalty",
    "Equal",
    "History",
    "LariaxWarning",
    "Linear",
    "LinearizedALM",
    "Problem",
    "QuadraticPenalty",
    "Result",
    "Snapshot",
    "Stratified",
    "Stream",
    "TrackedLagrangian",
    "certify",
    "prox",
    "sets",
    "solve",
]
