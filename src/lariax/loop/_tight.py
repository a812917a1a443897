"""Small loops as one native function.

On the CPU, XLA runs a compiled program operation by operation, and each costs about a tenth of a microsecond to start.
A step on a few variables is a hundred operations of a few nanoseconds. XLA can compile a whole computation into a
single native function instead, where starting an operation costs nothing; by itself it does so only for the very
smallest loops, for others if an attribute of the call asks for it. That function runs on one thread and knows only
elementary operations, so it is asked for where both are fine.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import PyTree

SMALL = 2**15
"""Bytes of state and of one iteration's samples, up to which starting operations is what an iteration costs."""

# fmt: off
ELEMENTARY = frozenset([
    "abs", "acos", "acosh", "add", "add_any", "and", "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh",
    "broadcast_in_dim", "cbrt", "ceil", "clamp", "concatenate", "cond", "convert_element_type", "copy", "cos", "cosh",
    "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "custom_jvp_call", "custom_vjp_call", "digamma", "div",
    "dot_general", "dynamic_slice", "dynamic_update_slice", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expand_dims", "expm1", "floor", "gather", "ge", "gt", "imag", "integer_pow", "iota", "is_finite", "jit", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pad",
    "pjit", "platform_index", "pow", "random_bits", "random_fold_in", "random_split", "random_unwrap", "random_wrap",
    "real", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "rem", "reshape",
    "rev", "round", "rsqrt", "scan", "scatter", "scatter-add", "select_n", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "slice", "sqrt", "square", "squeeze", "stack", "stop_gradient",
    "sub", "tan", "tanh", "threefry2x32", "transpose", "unstack", "while", "xor",
])
# fmt: on
"""What the single function was seen to compute."""


def fits(step: ClosedJaxpr, example: PyTree) -> bool:
    """Whether a step is elementary, its arguments are small, and the CPU is where it runs."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(example))
    return jax.default_backend() == "cpu" and size <= SMALL and _elementary(step.jaxpr)


def _elementary(jaxpr: Jaxpr) -> bool:
    return all(
        equation.primitive.name in ELEMENTARY
        and not _is_matrix_product(equation)
        and all(_elementary(inner) for inner in _inner(equation.params))
        for equation in jaxpr.eqns
    )


def _is_matrix_product(equation: JaxprEqn) -> bool:
    """Products of two matrices go to a library of their own, which the single function cannot call."""
    if equation.primitive.name != "dot_general":
        return False
    sides = zip(equation.invars, *equation.params["dimension_numbers"], strict=True)
    return all(
        variable.aval.size > prod(variable.aval.shape[i] for i in (*contracted, *batch))
        for variable, contracted, batch in sides
    )


def _inner(parameters: dict[str, Any]) -> list[Jaxpr]:
    found = [leaf for leaf in jax.tree.leaves(list(parameters.values()), is_leaf=_is_jaxpr) if _is_jaxpr(leaf)]
    return [leaf.jaxpr if isinstance(leaf, ClosedJaxpr) else leaf for leaf in found]


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, Jaxpr | ClosedJaxpr)


def as_one_function(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The loop, compiled into a single native function; `refused` says what it sounds like if XLA will not do it."""

    def call(*arguments: PyTree) -> PyTree:
        return set_xla_metadata(jax.jit(loop)(*arguments), inlineable="false", xla_cpu_small_call="true")

    return call


def refused(error: Exception) -> bool:
    """Whether an error says that XLA could not make a single function after all."""
    return any(sign in str(error) for sign in ("UNIMPLEMENTED", "Failed to materialize symbols"))
