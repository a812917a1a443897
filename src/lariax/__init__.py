"""Constrained optimisation when the objective and the constraints are only seen through samples."""

import importlib
from typing import TYPE_CHECKING, Any

from lariax import prox, risk, sets
from lariax.certificate import Certificate, certify
from lariax.inference import Inference, InferenceError, RandomScaling, inference
from lariax.loop import (
    STATUSES,
    Checkpoint,
    CheckpointError,
    History,
    Result,
    Snapshot,
    bind,
    plot_by,
    resume,
    solve,
)
from lariax.methods import (
    AbstractMethod,
    AbstractScheduledMethod,
    Answer,
    Diagnosis,
    DualPenalty,
    LinearizedALM,
    Needs,
    Optax,
    QuadraticPenalty,
    TangentNormal,
    TrackedLagrangian,
    multiplier_rule,
)
from lariax.problem import (
    AbstractSource,
    AtLeast,
    AtMost,
    Blocks,
    Dataset,
    Distribution,
    Equal,
    Linear,
    Problem,
    Proxy,
    Stratified,
    Stream,
)
from lariax.scipy import minimize
from lariax.tuned.multipliers import Multipliers
from lariax.utils import LariaxWarning

if TYPE_CHECKING:
    from lariax import rates, rivals

__version__ = "0.1.0"

__all__ = [
    "STATUSES",
    "AbstractMethod",
    "AbstractScheduledMethod",
    "AbstractSource",
    "Answer",
    "AtLeast",
    "AtMost",
    "Blocks",
    "Certificate",
    "Checkpoint",
    "CheckpointError",
    "Dataset",
    "Diagnosis",
    "Distribution",
    "DualPenalty",
    "Equal",
    "History",
    "Inference",
    "InferenceError",
    "LariaxWarning",
    "Linear",
    "LinearizedALM",
    "Multipliers",
    "Needs",
    "Optax",
    "Problem",
    "Proxy",
    "QuadraticPenalty",
    "RandomScaling",
    "Result",
    "Snapshot",
    "Stratified",
    "Stream",
    "TangentNormal",
    "TrackedLagrangian",
    "bind",
    "certify",
    "inference",
    "minimize",
    "multiplier_rule",
    "prox",
    "rates",
    "resume",
    "risk",
    "rivals",
    "sets",
    "solve",
]

_ON_DEMAND = ("rates", "rivals")
"""Packages that `import lariax` leaves alone until somebody asks for them."""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return importlib.import_module(f"lariax.{name}")
    raise AttributeError(f"module 'lariax' has no attribute {name!r}")


plot_by(lambda result, against: importlib.import_module("lariax.report").plot(result, against))
