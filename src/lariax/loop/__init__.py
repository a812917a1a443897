"""The one compiled loop, and what is around it."""

from lariax.checkpoint import Checkpoint, CheckpointError
from lariax.loop._bound import Bound, bind
from lariax.loop._drive import Snapshot
from lariax.loop._history import History
from lariax.loop._result import FAILURES, STATUSES, Result, plot_by
from lariax.loop._resume import origin_of, resume
from lariax.loop._solve import solve
from lariax.loop._table import summary

__all__ = [
    "FAILURES",
    "STATUSES",
    "Bound",
    "Checkpoint",
    "CheckpointError",
    "History",
    "Result",
    "Snapshot",
    "bind",
    "origin_of",
    "plot_by",
    "resume",
    "solve",
    "summary",
]
