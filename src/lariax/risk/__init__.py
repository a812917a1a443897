"""Measures of risk, in the place of a mean: as an objective, or in `AtMost`."""

from lariax.risk._lift import Lift, lift_of
from lariax.risk._measures import AbstractRisk, Chance, CVaR, Entropic, MeanDeviation, Quantile, WorstCase

__all__ = [
    "AbstractRisk",
    "CVaR",
    "Chance",
    "Entropic",
    "Lift",
    "MeanDeviation",
    "Quantile",
    "WorstCase",
    "lift_of",
]
