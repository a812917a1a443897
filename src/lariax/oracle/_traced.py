"""What a function of the user does, seen without running it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import PyTree

JUMPING = {
    *("max", "min", "abs", "sign", "floor", "ceil", "round", "clamp", "rem", "select_n", "cond", "sort", "top_k"),
    *("argmax", "argmin", "reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max", "reduce_window_min"),
    *("custom_vjp_call", "custom_vjp_call_jaxpr", "pure_callback"),
}
"""Operations whose gradients may jump, or cannot be looked at."""

MAXIMA = {"reduce_max", "reduce_min", "reduce_window_max", "reduce_window_min"}
"""Operations whose gradients ask which entries equal the largest, or the least."""

SMOOTH = {"logaddexp"}
"""Functions that are smooth, though made of such."""


class Traced(NamedTuple):
    program: ClosedJaxpr | None
    output: PyTree  # its shape
    may_jump: bool  # whether its gradient may jump
    has_maxima: bool  # whether its gradient asks which entries are the largest
    work: float  # how many numbers it makes, about


def traced(fun: Callable[..., Any], x: PyTree, *sample: PyTree) -> Traced:
    """fun(x), or fun(x, sample)."""
    program, output = jax.make_jaxpr(fun, return_shape=True)(x, *sample)
    entries = len(jax.tree.leaves(x))
    of_x = [place < entries for place in range(len(program.in_avals))]
    may_jump, has_maxima = (_does(program.jaxpr, of_x, what) for what in (_is_jump, _is_maximum))
    return Traced(program, output, may_jump, has_maxima, work_of(program.jaxpr.eqns))


def work_of(equations: Sequence[JaxprEqn]) -> float:
    """Numbers made on the way, those that a product of matrices adds up included; infinite, if it cannot be told."""
    work = 0.0
    for equation in equations:
        made: list[Any] = [variable.aval for variable in equation.outvars]
        own = float(sum(each.size for each in made if hasattr(each, "size")))
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            own *= math.prod(left.shape[axis] for axis in contracted)
        times = math.inf if equation.primitive.name == "while" else equation.params.get("length", 1)
        inner = sum(work_of(each.eqns) for each in _within(equation.params))
        work += own + (times * inner if inner else 0)
    return work


def _does(jaxpr: Jaxpr, of_x: list[bool], what: Callable[[JaxprEqn], bool]) -> bool:
    """Whether it does such a thing to x. `of_x`: which inputs depend on it; what is done to a sample alone does not
    matter."""
    moving = {variable for variable, moves in zip(jaxpr.invars, of_x, strict=True) if moves}
    for equation in jaxpr.eqns:
        moves = [not isinstance(each, Literal) and each in moving for each in equation.invars]
        if not any(moves):
            continue
        moving.update(equation.outvars)
        if equation.primitive.name == "custom_jvp_call" and _name(equation) in SMOOTH:
            continue
        if what(equation):
            return True
        for inner in _within(equation.params):
            same = len(inner.invars) == len(moves) and equation.primitive.name not in ("scan", "while")
            if _does(inner, moves if same else [True] * len(inner.invars), what):
                return True
    return False


def _is_jump(equation: JaxprEqn) -> bool:
    """Whether it makes real numbers by jumps: an index may jump. A comparison does, once it counts as 0 or 1."""
    if not any(jnp.issubdtype(jnp.result_type(variable.aval), jnp.inexact) for variable in equation.outvars):
        return False
    if equation.primitive.name == "convert_element_type":
        return not jnp.issubdtype(jnp.result_type(equation.invars[0].aval), jnp.inexact)
    return equation.primitive.name in JUMPING


def _is_maximum(equation: JaxprEqn) -> bool:
    return equation.primitive.name in MAXIMA


def _name(equation: JaxprEqn) -> str:
    return equation.params["call_jaxpr"].jaxpr.debug_info.func_name


def _within(params: dict[str, Any]) -> list[Jaxpr]:
    """The programs that an operation calls."""
    found = []
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr):
                found.append(each.jaxpr)
            elif isinstance(each, Jaxpr):
                found.append(each)
    return found
