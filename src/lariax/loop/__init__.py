"""The one compiled loop, and what is around it."""

from lariax.loop._drive import Snapshot
from lariax.loop._result import STATUSES, History, Result
from lariax.loop._solve import solve

__all__ = ["STATUSES", "History", "Result", "Snapshot", "solve"]
