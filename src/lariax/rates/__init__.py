"""The rate laboratory: are the rates of the paper's theorems there, and what happens without a part of its methods?

`lx.rates.measure()` runs it, `python -m lariax.rates` from a shell. For each case a family of problems with known
constants and exact expectations; many of them in one vmapped program; for K from 1e3 to 1e6 the expectation of
dist(grad f + J^T y, -N_X) and of ||c|| at the paper's output, a uniformly random iterate.
"""

from lariax.rates._experiments import THEOREM, Experiment, Measured, experiments
from lariax.rates._laboratory import measure
from lariax.rates._pictures import check_can_draw, draw
from lariax.rates._report import Finding, Report, Slope, slope

__all__ = [
    "THEOREM",
    "Experiment",
    "Finding",
    "Measured",
    "Report",
    "Slope",
    "check_can_draw",
    "draw",
    "experiments",
    "measure",
    "slope",
]
