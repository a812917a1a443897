"""A problem with risks as one with means: auxiliary numbers run beside x, which users do not see."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from lariax.problem import AbstractConstraint, AbstractSource, AtMost, Distribution, Problem
from lariax.prox import Zero
from lariax.risk._measures import AbstractRisk, Lowered
from lariax.risk._seen import Draws, Seen, is_special, mean_function, run_source
from lariax.sets import Everything, Product

OBJECTIVE = "objective"
"""The name of the objective's risk among those of the constraints."""

START_SAMPLES, START_SEED = 1024, 0
"""From which auxiliary numbers start."""

FEW = 30
"""A mean over samples that count like fewer is hardly known."""


@dataclass(frozen=True, eq=False)
class Lift:
    """What was asked, and what is solved: for {"x": x, "risk": numbers by name}."""

    given: Problem
    problem: Problem
    risks: dict[str, AbstractRisk]

    def point(self, x: PyTree, draws: int = START_SAMPLES) -> dict[str, PyTree]:
        """x with numbers that fit it, from some samples."""
        x = jax.tree.map(jnp.asarray, x)
        numbers = {name: risk.start(self.values(name, x, draws)) for name, risk in self.risks.items()}
        return {"x": x, "risk": numbers} if numbers else {"x": x}

    def told(self, point: dict[str, PyTree]) -> dict[str, dict[str, Array]]:
        """What users want to know of the numbers."""
        return {name: risk.told(point["risk"][name]) for name, risk in self.risks.items()}

    def shown(self, callback: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """A callback that sees x without the numbers."""
        return callback and (lambda now: callback(now._replace(x=now.x["x"])))

    def source_of(self, name: str, on: str = "samples") -> AbstractSource:
        """Of a risk's samples."""
        given, source = self.given, self.given.samples if on == "samples" else self.given.heldout
        if name in given.constraints:
            own = given.constraints[name]
            if isinstance(own.samples, AbstractSource):
                source = own.samples if on == "samples" or own.heldout is None else own.heldout
        if source is None or source.from_host:
            raise NotImplementedError(
                f"the risk {name!r} wants samples that can be drawn at will, found {type(source).__name__}. Use "
                "lx.Dataset or lx.Distribution."
            )
        return source

    def doubts(self, x: PyTree) -> list[str]:
        """Means over samples whose weights vary so much that most of them count for nothing."""
        means: dict[str, Any] = {} if OBJECTIVE in self.risks else {"the objective": self.given.samples}
        for name, constraint in self.given.constraints.items():
            if name not in self.risks and constraint.samples is not None:
                own = constraint.samples
                means[f"constraint {name!r}"] = own if isinstance(own, AbstractSource) else self.given.samples
        told = []
        for source, what in {id(source): (source, what) for what, source in reversed(means.items())}.values():
            if not isinstance(source, Distribution) or source.weight is None:
                continue
            _, weights = Draws(source).values(lambda *_: jnp.zeros(()), x, jax.random.key(START_SEED), START_SAMPLES)
            count = float(jnp.sum(weights) ** 2 / jnp.sum(weights**2))
            if count < FEW:
                told.append(
                    f"The weights of the samples of {what} vary so much that {START_SAMPLES:,} count like {count:.0f}: "
                    "its mean is hardly known, and x may be far off. Give weighted samples to what is rare alone, by "
                    "samples= of its constraint."
                )
        return told

    def values(self, name: str, x: PyTree, draws: int) -> Array:
        """Of a risk's function, on some samples; where these have weights, drawn by them."""
        key = jax.random.key(START_SEED)
        found, weights = Draws(self.source_of(name)).values(self.risks[name].fun, x, key, draws)
        shares = jnp.cumsum(weights) / jnp.sum(weights)
        return found[jnp.searchsorted(shares, (jnp.arange(draws) + 0.5) / draws)]


LOWERED: dict[int, Problem] = {}
"""Problems with means in the place of risks, by the `id` of a problem that is still around."""


def lift_of(problem: Problem) -> Lift | None:
    """None: all is means already."""
    risks: dict[str, AbstractRisk] = {}
    if isinstance(problem.objective, AbstractRisk):
        risks[OBJECTIVE] = problem.objective
    for name, constraint in problem.constraints.items():
        if isinstance(constraint.fun, AbstractRisk):
            risks[_checked(name, constraint, risks)] = constraint.fun
    if not risks and not any(map(is_special, problem.sources)):
        return None
    if problem.is_joint:
        raise TypeError(
            "Problem.joint takes means alone, over samples without weight= and log_density=. State a risk, or what is "
            "weighted, with a function of its own, in lx.Problem."
        )
    if id(problem) not in LOWERED:  # once: other function objects would be compiled again
        LOWERED[id(problem)] = _lowered(problem, risks)
        weakref.finalize(problem, LOWERED.pop, id(problem), None)
    return Lift(problem, LOWERED[id(problem)], risks)


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


def _lowered(problem: Problem, risks: dict[str, AbstractRisk]) -> Problem:
    numbers = any(risk.narrows for risk in risks.values())  # samples tell the iteration that they are drawn in
    constraints: dict[str, Any] = {}
    objective: Callable[..., Any] = problem.objective
    if isinstance(objective, AbstractRisk):
        lowered = objective.as_objective()
        objective = _mean(OBJECTIVE, lowered, problem.samples)
        if lowered.below is not None:
            constraints[OBJECTIVE] = AtMost(_mean(OBJECTIVE, lowered.below, problem.samples), lowered.below.bound)
    else:
        objective = _of_x(objective, problem.samples)
    for name, constraint in problem.constraints.items():
        constraints[name] = _constraint(name, constraint, problem.samples, numbers)
    return Problem(
        objective,
        samples=run_source(problem.samples, numbers),
        constraints=constraints,
        within=Product({"x": problem.within, "risk": Everything()} if risks else {"x": problem.within}),
        regularizer=_regularizer(problem),
        heldout=run_source(problem.heldout, numbers),
    )


def _constraint(name: str, constraint: AbstractConstraint, shared: Any, numbers: bool) -> AbstractConstraint:
    own = isinstance(constraint.samples, AbstractSource)
    source = constraint.samples if own or constraint.samples is None else shared
    options: dict[str, Any] = {
        "samples": run_source(constraint.samples, numbers),
        "heldout": run_source(constraint.heldout, numbers),
    }
    if isinstance(constraint.fun, AbstractRisk):
        lowered = constraint.fun.as_constraint(constraint.bound)
        return AtMost(_mean(name, lowered, source), lowered.bound, **options)
    if constraint.fun is None:
        raise NotImplementedError(f"{type(constraint).__name__} {name!r} beside a risk: state it as lx.Equal of x.")
    return replace(constraint, fun=_of_x(constraint.fun, source), **options)


def _regularizer(problem: Problem) -> Any:
    if isinstance(problem.regularizer, Zero):
        return None
    raise NotImplementedError(
        "a risk with regularizer= is not supported. Add the term to the objective, or bound it by a constraint."
    )


def _mean(name: str, lowered: Lowered, source: Any) -> Callable[[PyTree, PyTree], Array]:
    def of(point: PyTree, sample: PyTree, seen: Seen) -> Array:
        return lowered.fun(point["x"], point["risk"][name], sample, seen)

    return mean_function(of, source)


def _of_x(fun: Callable[..., Any], source: Any) -> Callable[..., Any]:
    if source is None:
        return lambda point: fun(point["x"])
    return mean_function(lambda point, sample, seen: seen.weight * fun(point["x"], sample), source)
