"""A problem meets a starting point: everything that can be wrong is found here, before anything is compiled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Bool, PyTree

from lariax.compilation import compiled, on_device
from lariax.oracle._coordinates import Coordinates
from lariax.oracle._families import FEWEST, Functions
from lariax.oracle._layout import Layout
from lariax.oracle._oracle import Oracle
from lariax.oracle._packed import Packed
from lariax.oracle._sampling import Placement
from lariax.oracle._shared import MUCH, made_twice
from lariax.oracle._together import most_together
from lariax.oracle._traced import Traced, traced
from lariax.problem import (
    AbstractConstraint,
    AbstractSource,
    Problem,
    describe_shape,
    first_nonfinite,
    narrowed,
    warn_of_float32,
)
from lariax.sets import AbstractSet, Everything
from lariax.utils import warn

MOST_NAMES = 4  # in a hint


def as_point(problem: Problem, x0: PyTree) -> PyTree[Array]:
    """x0 as arrays within the set, in its own precision."""
    x = as_arrays(problem, x0, "x0")
    if isinstance(problem.within, Everything):
        return x
    inside = _is_inside(problem.within, x)
    if isinstance(inside, jax.core.Tracer):
        return problem.within.project(x)
    if bool(inside):
        return x
    warn(f"x0 lies outside within={type(problem.within).__name__}; the run starts from its projection.")
    return problem.within.project(x)


@compiled(once=True)
def _is_inside(within: AbstractSet, x: PyTree[Array]) -> Bool[Array, ""]:
    return within.contains(x)


def as_arrays(problem: Problem, x: PyTree, name: str) -> PyTree[Array]:
    """x as arrays that fit the problem, in its own precision; `name` is what the caller's caller calls it."""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    if not leaves:
        raise ValueError(f"{name} holds no numbers; expected an array or a pytree of arrays.")
    for path, leaf in leaves:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} must be of floating point, found {jnp.result_type(leaf)}. Write "
                f"0.0 for 0, or jax.tree.map(lambda leaf: jnp.asarray(leaf, float), {name})."
            )
    bad = first_nonfinite(x)
    if bad is not None:
        raise ValueError(f"{name}{bad[0]} holds {bad[2]} at index {bad[1]}; every entry must be finite.")
    x, lost = narrowed(x, name)
    if lost is not None:
        warn_of_float32(lost)
    arrays = jax.tree.map(on_device, x)
    complaint = problem.simple.mismatch(arrays)
    if complaint is not None:
        raise ValueError(f"{name} does not fit the problem's {type(problem.simple).__name__}: {complaint}")
    return arrays


def sample_structure(source: AbstractSource | None) -> PyTree | None:
    """The shape of one sample of a source that is drawn on the device."""
    if source is None:
        return None

    def one() -> PyTree:
        tickets = source.draw(jax.random.key(0), jnp.arange(1), 1)
        return jax.tree.map(lambda rows: rows[0], source.fetch(jax.tree.map(lambda ticket: ticket[0], tickets)))

    return jax.eval_shape(one)


def bind(
    problem: Problem,
    x: PyTree[Array],
    samples: tuple[PyTree | None, ...],
    *,
    batch_size: int,
    copies: int,
    has_slacks: bool,
) -> Oracle:
    """The oracle of a problem for points like x; `samples` holds the shape of one sample of each source."""
    found = _traced("the objective", problem.objective, x, samples[0], problem.samples is not None)
    objective = found.output
    joint: dict[str, Any] = {}
    if problem.is_joint:
        objective, joint = _joint_output(problem, objective)
    if not _is_scalar(objective):
        raise ValueError(
            f"the objective must return one number of floating point a sample, found {describe_shape(objective)}. It "
            "is called with a single sample; average or sum inside the function if it looks at several things."
        )
    layout, others = _layout(problem, x, samples, joint)
    programs = dict(zip(problem.constraints, (other.program for other in others), strict=True))
    coordinates = Coordinates.of(x)
    bounds = {name: constraint.bound for name, constraint in problem.constraints.items()}
    xp = jnp if any(isinstance(bound, jax.core.Tracer) for bound in bounds.values()) else np  # which is faster
    oracle = Oracle(
        packed=Packed.of(problem),
        coordinates=coordinates,
        layout=layout,
        functions=tuple(_functions(layout, source, programs) for source in layout.sources),
        bounds=on_device(layout.unnamed(xp, bounds, coordinates.dtype)),
        batch_size=batch_size,
        copies=copies,
        has_slacks=has_slacks,
        placement=Placement.of(problem, x),
        may_jump=found.may_jump or any(other.may_jump for other in others),
        has_maxima=found.has_maxima or any(other.has_maxima for other in others),
        sample_work=found.work + sum(other.work for other in others),
    )
    oracle = replace(oracle, shares=_shares(oracle, x, samples, found, others))
    return replace(oracle, together=most_together(oracle, x, samples))


def _shares(
    oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...], objective: Traced, others: list[Traced]
) -> bool:
    """Whether the objective and the constraints on its samples do so much of the same work that it is to be done
    once."""
    problem, blocks = oracle.problem, oracle.layout.of_source(0)
    own = sum(other.work for other, block in zip(others, oracle.blocks, strict=True) if block in blocks)
    if problem.is_joint or problem.samples is None or len(blocks) >= FEWEST or min(objective.work, own) < MUCH:
        return False
    functions: list[Any] = [problem.objective, *(problem.constraints[block.name].fun for block in blocks)]
    return made_twice(functions, x, samples[0]) >= MUCH


def _layout(
    problem: Problem, x: PyTree, samples: tuple[PyTree | None, ...], joint: dict[str, Any]
) -> tuple[Layout, list[Traced]]:
    """Where each constraint stands, and which source its samples come from; what their functions do. Complains if one
    does not fit."""
    shapes: dict[str, tuple[int, ...]] = {}
    sources: dict[str, int | None] = {}
    found: list[Traced] = []
    own_sources = 0
    for name, constraint in problem.constraints.items():
        sources[name] = 0
        if isinstance(constraint.samples, AbstractSource):
            own_sources += 1
            sources[name] = own_sources
        elif constraint.samples is None:
            sources[name] = None
        source = sources[name]
        sample = None if source is None else samples[source]
        found.append(_constraint(name, constraint, x, sample, joint))
        shapes[name] = tuple(found[-1].output.shape)
    return Layout.of(problem.constraints, shapes, sources), found


def _functions(layout: Layout, source: int | None, programs: dict[str, ClosedJaxpr | None]) -> Functions:
    """Those of the constraints on a source, as one."""
    blocks = layout.of_source(source)
    return Functions.of([programs[block.name] for block in blocks], [block.size for block in blocks])


def _traced(what: str, fun: Callable[..., Any], x: PyTree, sample: PyTree, random: bool) -> Traced:
    """What the user's function returns and does; its own error, if it raises one, with the circumstances."""
    try:
        return traced(fun, *((x, sample) if random else (x,)))
    except Exception as error:
        call = f"(x, sample) with sample {describe_shape(sample)}" if random else "(x), as samples=None"
        for note in _hints(error, x, sample, random):
            error.add_note(note)
        error.add_note(f"Lariax called {what} as {call} and x {describe_shape(x)}.")
        raise


def _hints(error: Exception, x: PyTree, sample: PyTree, random: bool) -> list[str]:
    """What to write instead, for the usual reasons."""
    words = "string" in str(error) and isinstance(error, TypeError | IndexError)
    if random and words and not isinstance(sample, dict):
        return [
            "A sample has no names here. Give the source a dictionary of columns, lx.Dataset({'income': ..., 'age': "
            "...}), or a data frame: then a sample is a dictionary, sample['income']."
        ]
    unknown = isinstance(error, KeyError) and (isinstance(error.args[0], int) or not isinstance(x, dict))
    if random and isinstance(sample, dict) and (unknown or "'dict'" in str(error)):
        shown = ", ".join(repr(name) for name in list(sample)[:MOST_NAMES]) + (
            ", ..." if len(sample) > MOST_NAMES else ""
        )
        return [
            f"A sample is a dictionary of {shown} here. For rows that are vectors give the source one array, "
            "lx.Dataset(frame.to_numpy())."
        ]
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return ["Python's if, and, or, max cannot look at x or a sample. Write jnp.where(condition, a, b) for if."]
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return ["NumPy cannot look at x or a sample. Write jax.numpy's functions, jnp.exp for np.exp."]
    if isinstance(x, list | tuple) and isinstance(error, TypeError) and type(x).__name__ in str(error):
        return [f"x0 is a {type(x).__name__}, and so is x. For a vector write jnp.array([...])."]
    return []


def _is_scalar(value: Any) -> bool:
    return hasattr(value, "shape") and value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)


def _joint_output(problem: Problem, output: Any) -> tuple[Any, dict[str, Any]]:
    if not (isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], dict)):
        raise TypeError(
            "the function of Problem.joint must return (loss, {name: value, ...}), found "
            f"{type(output).__name__}: {describe_shape(output)}."
        )
    missing = [name for name, c in problem.constraints.items() if c.fun is None and name not in output[1]]
    if missing:
        raise ValueError(
            f"the joint function returns no value for the constraints {missing}; it returns {sorted(output[1])}. "
            "Use the same names in both places."
        )
    return output


def _constraint(name: str, constraint: AbstractConstraint, x: PyTree, sample: PyTree, joint: dict[str, Any]) -> Traced:
    found = Traced(None, joint.get(name), may_jump=False, has_maxima=False, work=0)
    if constraint.fun is not None:
        found = _traced(f"constraint {name!r}", constraint.fun, x, sample, constraint.samples is not None)
    value = found.output
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) > 1 or 0 in shape or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"constraint {name!r} must return a number or a vector of floating point, found {describe_shape(value)}. "
            "Use jnp.stack or jnp.ravel to make it one vector."
        )
    try:
        fits = np.broadcast_shapes(constraint.bound.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"constraint {name!r} returns shape {tuple(shape)}, but its bound has shape {constraint.bound.shape}. "
            "Give one bound for all entries, or one for each."
        )
    bad = first_nonfinite(constraint.bound)
    if bad is not None:
        raise ValueError(f"the bound of constraint {name!r} holds {bad[2]}; leave out constraints without a bound.")
    return found
