"""Error bars for the answer and for the prices of the constraints."""

from lariax.inference._errors import InferenceError
from lariax.inference._infer import infer_run, inference
from lariax.inference._inference import LAWS, Estimate, Inference, Wald
from lariax.inference._scaling import QUANTILES, RandomScaling
from lariax.inference._table import TableLine, entries, shown

__all__ = [
    "LAWS",
    "QUANTILES",
    "Estimate",
    "Inference",
    "InferenceError",
    "RandomScaling",
    "TableLine",
    "Wald",
    "entries",
    "infer_run",
    "inference",
    "shown",
]
