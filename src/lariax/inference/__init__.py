"""Error bars for the answer and for the prices of the constraints."""

from lariax.inference._errors import InferenceError
from lariax.inference._infer import infer_run, inference
from lariax.inference._inference import LAWS, Estimate, Inference, Wald
from lariax.inference._scaling import QUANTILES, RandomScaling
from lariax.inference._table import Entry, entries, shown

__all__ = [
    "LAWS",
    "QUANTILES",
    "Entry",
    "Estimate",
    "Inference",
    "InferenceError",
    "RandomScaling",
    "Wald",
    "entries",
    "infer_run",
    "inference",
    "shown",
]
