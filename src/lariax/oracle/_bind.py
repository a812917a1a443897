"""A problem meets a starting point: everything that can be wrong is found here, before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.oracle._coordinates import Coordinates
from lariax.oracle._families import Functions
from lariax.oracle._layout import Layout
from lariax.oracle._oracle import Oracle
from lariax.oracle._sampling import Placement
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
from lariax.utils import warn


def as_point(problem: Problem, x0: PyTree) -> PyTree[Array]:
    """x0 as arrays within the set, in its own precision."""
    x = as_arrays(problem, x0, "x0")
    inside = problem.within.contains(x)
    if isinstance(inside, jax.core.Tracer):
        return problem.within.project(x)
    if bool(inside):
        return x
    warn(f"x0 lies outside within={type(problem.within).__name__}; the run starts from its projection.")
    return problem.within.project(x)


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
    arrays = jax.tree.map(jnp.asarray, x)
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
    layout, may_jump = _layout(problem, x, samples, joint)
    coordinates = Coordinates.of(x)
    bounds = {name: constraint.bound for name, constraint in problem.constraints.items()}
    xp = jnp if any(isinstance(bound, jax.core.Tracer) for bound in bounds.values()) else np  # which is faster
    return Oracle(
        problem=problem,
        coordinates=coordinates,
        layout=layout,
        functions=tuple(_functions(problem, layout, source, x, samples) for source in layout.sources),
        bounds=jnp.asarray(layout.unnamed(xp, bounds, coordinates.dtype)),
        batch_size=batch_size,
        copies=copies,
        has_slacks=has_slacks,
        placement=Placement.of(problem, x),
        may_jump=found.may_jump or may_jump,
    )


def _layout(
    problem: Problem, x: PyTree, samples: tuple[PyTree | None, ...], joint: dict[str, Any]
) -> tuple[Layout, bool]:
    """Where each constraint stands, and which source its samples come from; whether a gradient may jump. Complains if a
    function does not fit."""
    shapes: dict[str, tuple[int, ...]] = {}
    sources: dict[str, int | None] = {}
    own_sources, may_jump = 0, False
    for name, constraint in problem.constraints.items():
        sources[name] = 0
        if isinstance(constraint.samples, AbstractSource):
            own_sources += 1
            sources[name] = own_sources
        elif constraint.samples is None:
            sources[name] = None
        source = sources[name]
        sample = None if source is None else samples[source]
        shapes[name], jumps = _constraint_shape(name, constraint, x, sample, joint)
        may_jump = may_jump or jumps
    return Layout.of(problem.constraints, shapes, sources), may_jump


def _functions(
    problem: Problem, layout: Layout, source: int | None, x: PyTree, samples: tuple[PyTree | None, ...]
) -> Functions:
    """Those of the constraints on a source, as one."""
    blocks, constraints = layout.of_source(source), problem.constraints
    functions = [constraints[block.name].fun for block in blocks]
    return Functions.of(functions, [block.size for block in blocks], x, *(() if source is None else (samples[source],)))


def _traced(what: str, fun: Callable[..., Any], x: PyTree, sample: PyTree, random: bool) -> Traced:
    """What the user's function returns and does; its own error, if it raises one, with the circumstances."""
    try:
        return traced(fun, *((x, sample) if random else (x,)))
    except Exception as error:
        call = f"(x, sample) with sample {describe_shape(sample)}" if random else "(x), as samples=None"
        if (
            random
            and isinstance(error, TypeError | IndexError)
            and "string" in str(error)
            and not isinstance(sample, dict)
        ):
            error.add_note(
                "A sample has no names here. Give the source a dictionary of columns, lx.Dataset({'income': ..., "
                "'age': ...}), or a data frame: then a sample is a dictionary, sample['income']."
            )
        error.add_note(f"Lariax called {what} as {call} and x {describe_shape(x)}.")
        raise


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


def _constraint_shape(
    name: str, constraint: AbstractConstraint, x: PyTree, sample: PyTree, joint: dict[str, Any]
) -> tuple[tuple[int, ...], bool]:
    if constraint.fun is None:
        value, may_jump = joint[name], False
    else:
        value, may_jump = _traced(f"constraint {name!r}", constraint.fun, x, sample, constraint.samples is not None)
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
    return tuple(shape), may_jump
