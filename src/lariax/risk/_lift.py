"""A problem with risks as one with means: auxiliary numbers run beside x, which users do not see."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from lariax.problem import AbstractConstraint, AbstractSource, AtLeast, AtMost, Equal, Problem
from lariax.prox import Zero
from lariax.risk._measures import AbstractRisk, Lowered
from lariax.sets import Everything, Product

OBJECTIVE = "objective"
"""The name of the objective's risk among those of the constraints."""

START_SAMPLES, START_SEED = 1024, 0
"""From which auxiliary numbers start."""


class Lift(NamedTuple):
    """What was asked, and what is solved: for {"x": x, "risk": numbers by name}."""

    given: Problem
    problem: Problem
    risks: dict[str, AbstractRisk]

    def point(self, x: PyTree, draws: int = START_SAMPLES) -> dict[str, PyTree]:
        """x with numbers that fit it, from some samples."""
        x = jax.tree.map(jnp.asarray, x)
        return {
            "x": x,
            "risk": {name: risk.start(self._values(name, risk, x, draws)) for name, risk in self.risks.items()},
        }

    def told(self, point: dict[str, PyTree]) -> dict[str, dict[str, Array]]:
        """What users want to know of the numbers."""
        return {name: risk.told(point["risk"][name]) for name, risk in self.risks.items()}

    def _values(self, name: str, risk: AbstractRisk, x: PyTree, draws: int) -> Array:
        source = self.given.samples
        if name in self.given.constraints:
            own = self.given.constraints[name].samples
            source = own if isinstance(own, AbstractSource) else source
        if source is None or source.from_host:
            raise NotImplementedError(
                f"the risk {name!r} wants samples that can be drawn at will, found {type(source).__name__}. Use "
                "lx.Dataset or lx.Distribution."
            )
        tickets = source.draw(jax.random.key(START_SEED), jnp.arange(1), draws)
        rows = source.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
        return jax.lax.stop_gradient(jax.vmap(risk.fun, (None, 0))(x, rows))


def lift_of(problem: Problem) -> Lift | None:
    """None: all is means already."""
    risks: dict[str, AbstractRisk] = {}
    if isinstance(problem.objective, AbstractRisk):
        risks[OBJECTIVE] = problem.objective
    for name, constraint in problem.constraints.items():
        if isinstance(constraint.fun, AbstractRisk):
            risks[_checked(name, constraint, risks)] = constraint.fun
    if not risks:
        return None
    if problem.is_joint:
        raise TypeError("Problem.joint takes means alone. State a risk with a function of its own, in lx.Problem.")
    return Lift(problem, _lowered(problem), risks)


def _checked(name: str, constraint: AbstractConstraint, risks: dict[str, AbstractRisk]) -> str:
    kind = type(constraint.fun).__name__
    if not isinstance(constraint, AtMost):
        raise TypeError(
            f"constraint {name!r} is {type(constraint).__name__} of a risk; a risk can be bounded from above alone. "
            f"Write lx.AtMost(lx.risk.{kind}(...), bound), of minus the function if it is a gain."
        )
    if name in risks:
        raise ValueError(f"a constraint named {name!r} stands beside an objective that is a risk. Choose another name.")
    return name


def _lowered(problem: Problem) -> Problem:
    constraints: dict[str, Any] = {}
    objective: Callable[..., Any] = problem.objective
    if isinstance(objective, AbstractRisk):
        lowered = objective.as_objective()
        objective = _mean(OBJECTIVE, lowered)
        if lowered.below is not None:
            constraints[OBJECTIVE] = AtMost(_mean(OBJECTIVE, lowered.below), lowered.below.bound)
    else:
        objective = _of_x(objective, problem.samples is None)
    for name, constraint in problem.constraints.items():
        constraints[name] = _constraint(name, constraint)
    return Problem(
        objective,
        samples=problem.samples,
        constraints=constraints,
        within=Product({"x": problem.within, "risk": Everything()}),
        regularizer=_regularizer(problem),
        heldout=problem.heldout,
    )


def _constraint(name: str, constraint: AbstractConstraint) -> AbstractConstraint:
    options: dict[str, Any] = {"samples": constraint.samples, "heldout": constraint.heldout}
    if isinstance(constraint.fun, AbstractRisk):
        lowered = constraint.fun.as_constraint(constraint.bound)
        return AtMost(_mean(name, lowered), lowered.bound, **options)
    assert constraint.fun is not None
    kind = (AtMost if constraint.sign > 0 else AtLeast) if constraint.inequality else Equal
    return kind(_of_x(constraint.fun, constraint.samples is None), constraint.bound, **options)


def _regularizer(problem: Problem) -> Any:
    if isinstance(problem.regularizer, Zero):
        return None
    raise NotImplementedError(
        "a risk with regularizer= is not supported. Add the term to the objective, or bound it by a constraint."
    )


def _mean(name: str, lowered: Lowered) -> Callable[[PyTree, PyTree], Array]:
    return lambda point, sample: lowered.fun(point["x"], point["risk"][name], sample)


def _of_x(fun: Callable[..., Any], is_exact: bool) -> Callable[..., Any]:
    return (lambda point: fun(point["x"])) if is_exact else (lambda point, sample: fun(point["x"], sample))
