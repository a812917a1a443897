"""What a problem of the suite consists of."""

from collections.abc import Callable
from dataclasses import dataclass

from jax import Array

import lariax as lx

Sampler = Callable[[Array, tuple[int, ...]], Array]


@dataclass(frozen=True)
class Case:
    """A problem, a start, and what is known of it.

    `constraints` lists the expectations of all rows, in the order of the problem's constraints and with the sign that
    makes inequalities read r <= 0. A set is told as bounds and, for a simplex, one more equality.
    """

    name: str
    problem: lx.Problem
    x0: Array
    objective: Callable[[Array], Array]  # F
    constraints: Callable[[Array], Array]  # C
    inequality: tuple[bool, ...]
    guess: Array  # near the solution that we mean
    bounds: tuple[float, float] | None = None
    total: float | None = None  # the set also wants sum x = total
    dependent: tuple[int, ...] = ()  # rows that follow from the others
    mirrored: bool = False  # -x solves it too
    infeasible: bool = False
