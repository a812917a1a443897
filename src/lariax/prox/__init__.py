"""Convex terms with a cheap proximal map, to add to an objective.

A term is an `AbstractProximable`: it knows its value, its proximal map, and the subgradient nearest to a
direction. Every set of `lariax.sets` is one too (its indicator function), so whatever takes a term takes a
set.
"""

from lariax.prox._base import AbstractProximable
from lariax.prox._grouped import GroupL2
from lariax.prox._indicator import Indicator
from lariax.prox._nuclear import Nuclear
from lariax.prox._restricted import Restricted
from lariax.prox._separable import L1, ElasticNet, Zero

__all__ = ["L1", "AbstractProximable", "ElasticNet", "GroupL2", "Indicator", "Nuclear", "Restricted", "Zero"]
