"""The same problems in other units: variables, rows and objective multiplied by random powers of ten."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx
from benchmarks.suite.case import Case


class Units(NamedTuple):
    """What a problem's variables, each constraint's rows and its objective are multiplied by."""

    x: Array
    rows: dict[str, float]
    objective: float

    @classmethod
    def drawn(cls, case: Case, seed: int, of_x: float = 3.0, of_rows: float = 6.0) -> "Units":
        """Powers of ten, uniform in their exponents. A simplex has one unit for all."""
        rng = np.random.default_rng((seed, 17))
        exponents = rng.uniform(-of_x, of_x, case.x0.size if case.total is None else 1)
        names = sorted(case.problem.constraints)
        rows = dict(zip(names, 10 ** rng.uniform(-of_rows, of_rows, len(names)), strict=True))
        return cls(
            jnp.asarray(10.0**exponents) * jnp.ones(case.x0.size), rows, float(10 ** rng.uniform(-of_rows, of_rows))
        )


def in_units(case: Case, units: Units) -> Case:
    """The problem for a solver that is told nothing of it; `case` itself still says what is true."""

    def of(function: Callable[..., Array], factor: float) -> Callable[..., Array]:
        return lambda x, *sample: factor * function(x / units.x, *sample)

    def rescaled(name: str, constraint: Any) -> Any:
        factor = units.rows[name]
        if isinstance(constraint, lx.Linear):
            shape = constraint.shape
            return lx.Linear(of(constraint.fun, factor), factor * constraint.bound, shape=shape)
        return type(constraint)(of(constraint.fun, factor), factor * constraint.bound, samples=constraint.samples)

    problem, within = case.problem, case.problem.within
    if isinstance(within, lx.sets.Box):
        within = lx.sets.Box(within.lower * units.x, within.upper * units.x)
    elif isinstance(within, lx.sets.Simplex):
        within = lx.sets.Simplex(units.x[0])
    elif not isinstance(within, lx.sets.Everything):
        raise TypeError(f"{type(within).__name__} is not known in other units.")
    return replace(
        case,
        problem=lx.Problem(
            of(problem.objective, units.objective),
            samples=problem.samples,
            constraints={name: rescaled(name, each) for name, each in problem.constraints.items()},
            within=within,
        ),
        x0=case.x0 * units.x,
    )
