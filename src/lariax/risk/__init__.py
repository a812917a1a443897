"""Measures of risk, in the place of a mean: as an objective, or in `AtMost`."""

from lariax.risk._lift import OBJECTIVE as OBJECTIVE
from lariax.risk._lift import Lift as Lift
from lariax.risk._lift import lift_of as lift_of
from lariax.risk._measures import AbstractRisk as AbstractRisk
from lariax.risk._measures import Chance, CVaR, Entropic, MeanDeviation, Quantile, WorstCase
from lariax.risk._measures import ChanceOf as ChanceOf
from lariax.risk._seen import Draws as Draws
from lariax.risk._seen import is_numbered as is_numbered

__all__ = ["CVaR", "Chance", "Entropic", "MeanDeviation", "Quantile", "WorstCase"]
