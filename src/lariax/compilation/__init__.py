"""How programs are compiled, and where compiled ones are kept."""

from lariax.compilation._cache import MOST_BYTES, SHORTEST, keep_programs
from lariax.compilation._compiled import SMALL, compiled, on_cpu, on_device, on_host
from lariax.compilation._program import Program

__all__ = ["MOST_BYTES", "SHORTEST", "SMALL", "Program", "compiled", "keep_programs", "on_cpu", "on_device", "on_host"]
