"""Measures of risk, in the place of a mean: as an objective, or in `AtMost`."""

from lariax.risk._lift import Lift as Lift
from lariax.risk._lift import lift_of as lift_of
from lariax.risk._measures import AbstractRisk as AbstractRisk
from lariax.risk._measures import Chance, CVaR, Entropic, MeanDeviation, Quantile, WorstCase

__all__ = ["CVaR", "Chance", "Entropic", "MeanDeviation", "Quantile", "WorstCase"]
