"""What a method may ask at (x, sample)."""

from lariax.oracle._bind import as_arrays, as_point, bind, sample_structure
from lariax.oracle._coordinates import Coordinates
from lariax.oracle._counting import counting, occasionally, uncounted
from lariax.oracle._either import either
from lariax.oracle._layout import Block, Layout
from lariax.oracle._look import Look, Parts, Rows, Vector
from lariax.oracle._oracle import Oracle
from lariax.oracle._repeated import for_each, sum_over
from lariax.oracle._sampling import Batch
from lariax.oracle._structure import AbstractStructure, Structure

__all__ = [
    "AbstractStructure",
    "Batch",
    "Block",
    "Coordinates",
    "Layout",
    "Look",
    "Oracle",
    "Parts",
    "Rows",
    "Structure",
    "Vector",
    "as_arrays",
    "as_point",
    "bind",
    "counting",
    "either",
    "for_each",
    "occasionally",
    "sample_structure",
    "sum_over",
    "uncounted",
]
