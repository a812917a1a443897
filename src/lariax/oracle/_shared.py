"""Work that the objective and constraints have in common, though they are functions of their own."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import PyTree

from lariax.oracle._traced import work_of

MUCH = 2**16
"""Numbers of a sample that are made twice, from which on they are made once. The compiler sees that in values, not in
gradients: it would go back through the same layers for each of the functions."""

PRINTED = 100  # entries of an array that its text shows whole


def made_twice(functions: Sequence[Callable[..., Any]], *args: PyTree) -> float:
    """How many numbers such functions of the same arguments make more than once, about."""
    return _without_repeats(_together(functions, args)[0])[1]


def each_once(functions: Sequence[Callable[..., Any]], *args: PyTree) -> Callable[..., list[Any]]:
    """The values of all functions; what they share is made once. `args`: arguments like those that it will get."""
    program, structure = _together(functions, args)
    run = jaxpr_as_fun(_without_repeats(program)[0])
    return lambda *given: jax.tree.unflatten(structure, run(*jax.tree.leaves(given)))


def _together(functions: Sequence[Callable[..., Any]], args: tuple[PyTree, ...]) -> tuple[ClosedJaxpr, Any]:
    program, output = jax.make_jaxpr(lambda *given: [function(*given) for function in functions], return_shape=True)(
        *args
    )
    return program, jax.tree.structure(output)


def _without_repeats(program: ClosedJaxpr) -> tuple[ClosedJaxpr, float]:
    """The program without what it has done already, and how much that is."""
    jaxpr = program.jaxpr
    same: dict[Any, Any] = {}
    seen: dict[Any, Any] = {}
    kept, repeated = [], []

    def first(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else same.get(atom, atom)

    for equation in jaxpr.eqns:
        changed = equation.replace(invars=list(map(first, equation.invars)))
        name = _name(changed)
        if name is not None and name in seen:
            same.update(zip(equation.outvars, seen[name], strict=True))
            repeated.append(equation)
            continue
        seen[name] = changed.outvars
        kept.append(changed)
    new = jaxpr.replace(eqns=kept, outvars=list(map(first, jaxpr.outvars)), debug_info=jaxpr.debug_info)
    return program.replace(jaxpr=new), work_of(repeated)


def _name(equation: JaxprEqn) -> Any:
    """What it does to which variables, as text; None: nobody else does it."""
    if equation.effects or any(_is_opaque(leaf) for leaf in jax.tree.leaves(equation.params)):
        return None
    inputs = tuple(
        (str(atom.val), str(atom.aval)) if isinstance(atom, Literal) else id(atom) for atom in equation.invars
    )
    params, rule = equation.params, ""
    if equation.primitive.name.startswith("custom_"):  # the rule of its derivative counts, and has a name of its own
        params = {key: value for key, value in params.items() if isinstance(value, ClosedJaxpr)}
        rule = _derivative(equation)
    return equation.primitive.name, inputs, str(sorted(params.items(), key=lambda item: item[0])), rule


def _is_opaque(leaf: Any) -> bool:
    """Whether its text does not tell all."""
    if isinstance(leaf, ClosedJaxpr):
        return bool(leaf.consts)
    return isinstance(leaf, np.ndarray | jax.Array) and leaf.size > PRINTED


def _derivative(equation: JaxprEqn) -> str:
    """Of an operation with a rule of its own, the way back."""

    def run(*values: Any) -> Any:
        found = equation.primitive.get_bind_params(equation.params)
        functions, params = found if isinstance(found, tuple) else ((), found)  # as jax's version has it
        return equation.primitive.bind(*functions, *values, **params)

    def way_back(values: list[Any]) -> Any:
        outputs, pull = jax.vjp(run, *values)
        return pull(outputs)

    inputs: list[Any] = [atom.aval for atom in equation.invars]
    return str(jax.make_jaxpr(way_back)([jax.ShapeDtypeStruct(each.shape, each.dtype) for each in inputs]))
