"""What a function of the user does, seen without running it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import PyTree

JUMPING = {
    *("max", "min", "abs", "sign", "floor", "ceil", "round", "clamp", "rem", "select_n", "cond", "sort", "top_k"),
    *("argmax", "argmin", "reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max", "reduce_window_min"),
    *("custom_vjp_call", "custom_vjp_call_jaxpr", "pure_callback"),
}
"""Operations whose gradients may jump, or cannot be looked at."""

SMOOTH = {"logaddexp"}
"""Functions that are smooth, though made of such."""


class Traced(NamedTuple):
    output: PyTree  # its shape
    may_jump: bool  # whether its gradient may jump


def traced(fun: Callable[..., Any], *arguments: PyTree) -> Traced:
    program, output = jax.make_jaxpr(fun, return_shape=True)(*arguments)
    return Traced(output, _may_jump(program.jaxpr))


def _may_jump(jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "custom_jvp_call" and equation.params["call_jaxpr"].jaxpr.debug_info.func_name in SMOOTH:
            continue
        if (name in JUMPING and _is_real(equation)) or any(map(_may_jump, _within(equation.params))):
            return True
    return False


def _is_real(equation: JaxprEqn) -> bool:
    """Whether it makes real numbers: an index may jump."""
    return any(jnp.issubdtype(jnp.result_type(variable.aval), jnp.inexact) for variable in equation.outvars)


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
