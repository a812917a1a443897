"""How programs are compiled, and where compiled ones are kept."""

from lariax.compilation._cache import keep_programs
from lariax.compilation._compiled import compiled

__all__ = ["compiled", "keep_programs"]
