"""Closed convex sets with a cheap projection, to keep x in.

A set is an `AbstractSet`: it knows its projection, whether it contains a point, and the nearest vector of its
normal cone. Sets about a vector see a pytree as all its entries in a row; sets about a matrix need x to be
one matrix; `Product` gives each part of x its own set.
"""

from lariax.sets._base import AbstractSet
from lariax.sets._intervals import Box, Everything, LInfBall, NonNegative
from lariax.sets._matrices import NuclearBall, PSDCone, SpectralBall
from lariax.sets._product import Product
from lariax.sets._vectors import Affine, HalfSpace, L1Ball, L2Ball, SecondOrderCone, Simplex

__all__ = [
    "AbstractSet",
    "Affine",
    "Box",
    "Everything",
    "HalfSpace",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "NonNegative",
    "NuclearBall",
    "PSDCone",
    "Product",
    "SecondOrderCone",
    "Simplex",
    "SpectralBall",
]
