"""The one compiled loop, and what is around it."""

from lariax.loop._archive import CheckpointError
from lariax.loop._checkpoint import Checkpoint
from lariax.loop._drive import Snapshot
from lariax.loop._minimize import minimize
from lariax.loop._own import Bound, bind
from lariax.loop._result import FAILURES, STATUSES, History, Result
from lariax.loop._resume import origin_of, resume
from lariax.loop._solve import solve

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
    "minimize",
    "origin_of",
    "resume",
    "solve",
]
