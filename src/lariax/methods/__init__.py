"""The methods, one file a family."""

from lariax.methods._base import (
    AbstractMethod,
    AbstractScheduledMethod,
    Answer,
    Diagnosis,
    Needs,
    State,
    check_known,
    check_positive,
    exact_stationarity,
    linear_system,
)
from lariax.methods._choice import FittedMethod, choose, fitted, in_precision, oracle_for, prepared
from lariax.methods._dual_penalty import DualPenalty
from lariax.methods._face import linearized
from lariax.methods._linearized_alm import LinearizedALM
from lariax.methods._multiplier_rule import GradientLook, MultiplierRule, multiplier_rule
from lariax.methods._nearest import nearest, unbounded
from lariax.methods._optax import Optax
from lariax.methods._quadratic_penalty import QuadraticPenalty
from lariax.methods._tangent_normal import TangentNormal
from lariax.methods._tracked_lagrangian import TrackedLagrangian

__all__ = [
    "AbstractMethod",
    "AbstractScheduledMethod",
    "Answer",
    "Diagnosis",
    "DualPenalty",
    "FittedMethod",
    "GradientLook",
    "LinearizedALM",
    "MultiplierRule",
    "Needs",
    "Optax",
    "QuadraticPenalty",
    "State",
    "TangentNormal",
    "TrackedLagrangian",
    "check_known",
    "check_positive",
    "choose",
    "exact_stationarity",
    "fitted",
    "in_precision",
    "linear_system",
    "linearized",
    "multiplier_rule",
    "nearest",
    "oracle_for",
    "prepared",
    "unbounded",
]
