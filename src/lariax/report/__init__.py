"""Runs to look at: one HTML file that needs no network, pictures for a notebook, a table for the terminal.

`lariax.report.write([runs.load("runs/fairness-1")], "report.html")` writes the page; `result.plot()` draws the same
pictures with matplotlib.
"""

from lariax.report._comparison import comparison
from lariax.report._page import html, write
from lariax.report._panels import Line, Mark, Panel, panels
from lariax.report._plot import plot
from lariax.report._watch import Watch

__all__ = ["Line", "Mark", "Panel", "Watch", "comparison", "html", "panels", "plot", "write"]
