"""What a method may ask at (x, sample)."""

from lariax.oracle._bind import as_arrays, as_point, bind, sample_structure
from lariax.oracle._coordinates import Coordinates
from lariax.oracle._oracle import (
    Batch,
    Block,
    Look,
    Oracle,
    Parts,
    Rows,
    Vector,
    counting,
    for_each,
    occasionally,
)
from lariax.problem import LariaxWarning

__all__ = [
    "Batch",
    "Block",
    "Coordinates",
    "LariaxWarning",
    "Look",
    "Oracle",
    "Parts",
    "Rows",
    "Vector",
    "as_arrays",
    "as_point",
    "bind",
    "counting",
    "for_each",
    "occasionally",
    "sample_structure",
]
