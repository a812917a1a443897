"""Constraint functions that differ in numbers alone, evaluated as one.

Names made in a loop, such as `lambda x, row, i=i: row[i] * x[i] - limit[i]`, are one program with other numbers in it.
Compiled one by one, a thousand of them take a thousand times as long; as one program over stacked numbers, no longer
than a vector.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jaxtyping import Array, PyTree

FEWEST = 16  # functions of a family; fewer are compiled one by one, which runs faster
MOST_NUMBERS = 2**24  # of their own in a family: data that functions close over are not copied


@dataclass(frozen=True)
class SharedProgram:
    """A function of leaves of (x, sample) as JAX traced it. Equal to others that differ in numbers alone."""

    key: Hashable
    traced: ClosedJaxpr = field(compare=False)

    def __call__(self, numbers: Sequence[Array], leaves: Sequence[Array]) -> Array:
        """The value; `numbers` are those of `_numbers_of`, in its order."""
        given = iter(numbers)
        jaxpr = self.traced.jaxpr
        values: dict[Var, Any] = dict(zip(jaxpr.constvars, (next(given) for _ in jaxpr.constvars), strict=True))
        values |= dict(zip(jaxpr.invars, leaves, strict=True))
        for equation in jaxpr.eqns:
            if _has_rule(equation):
                values |= zip(equation.outvars, self._alone(equation, values), strict=True)
                continue
            inputs = [next(given) if isinstance(each, Literal) else values[each] for each in equation.invars]
            if _is_slice(equation):
                found = [_sliced(inputs[0], next(given), equation.outvars[0].aval.shape)]
            else:
                found = equation.primitive.bind(*inputs, **equation.params)
                found = found if equation.primitive.multiple_results else [found]
            values |= dict(zip(equation.outvars, found, strict=True))
        last = jaxpr.outvars[0]
        return next(given) if isinstance(last, Literal) else values[last]

    def _alone(self, equation: JaxprEqn, values: dict[Var, Any]) -> list[Array]:
        """What an equation gives that keeps its derivative and its literals."""
        inputs = list(dict.fromkeys(each for each in equation.invars if not isinstance(each, Literal)))
        program = self.traced.jaxpr.replace(constvars=[], invars=inputs, outvars=equation.outvars, eqns=[equation])
        return jaxpr_as_fun(ClosedJaxpr(program, ()))(*(values[each] for each in inputs))


class Family(eqx.Module):
    """Functions with one program, and the numbers in it: where they differ, stacked; arrays that all of them share; and
    small ones that all of them share, which are part of the compiled code."""

    program: SharedProgram = eqx.field(static=True)
    count: int = eqx.field(static=True)
    stacked: dict[int, Array]
    shared: dict[int, Array]
    fixed: tuple[tuple[int, str, tuple[int, ...], bytes], ...] = eqx.field(static=True)  # number, dtype, shape, values

    @classmethod
    def of(cls, program: SharedProgram, members: Sequence[Sequence[Any]]) -> "Family":
        """From the numbers of each function."""
        stacked, shared, fixed = {}, {}, []
        for i, (first, *others) in enumerate(zip(*members, strict=True)):
            if isinstance(first, np.ndarray) and all(np.array_equal(first, other) for other in others):
                fixed.append((i, first.dtype.name, first.shape, first.tobytes()))
            elif all(first is other for other in others):
                shared[i] = first
            else:
                stack = np.stack if isinstance(first, np.ndarray) else jnp.stack
                stacked[i] = jnp.asarray(stack([first, *others]))
        return cls(program, len(members), stacked, shared, tuple(fixed))

    def __call__(self, x: PyTree, *sample: PyTree) -> Array:
        """The values of all functions, stacked."""
        leaves = jax.tree.leaves((x, *sample))
        fixed = {i: np.frombuffer(values, np.dtype(kind)).reshape(shape) for i, kind, shape, values in self.fixed}

        def one(own: dict[int, Array]) -> Array:
            numbers: dict[int, Any] = own | self.shared | fixed
            return self.program([numbers[i] for i in range(len(numbers))], leaves)

        return jax.vmap(one, axis_size=self.count)(self.stacked)


class Functions(eqx.Module):
    """The functions of several constraints as one: their values, one after the other."""

    families: tuple[Family, ...]
    single: tuple[int, ...] = eqx.field(static=True)  # the functions in no family
    order: tuple[int, ...] | None = eqx.field(static=True)  # of the entries; None: as they come

    @classmethod
    def of(cls, functions: Sequence[ClosedJaxpr | None], sizes: Sequence[int]) -> "Functions":
        """Families among functions of (x, sample), as JAX traced them; None: a value that comes from elsewhere."""
        members: dict[Hashable, list[int]] = {}
        traced: dict[int, tuple[SharedProgram, list[Any]]] = {}
        if sum(function is not None for function in functions) >= FEWEST:
            for i, function in enumerate(functions):
                if function is not None:
                    traced[i] = _program_of(function)
                    members.setdefault(traced[i][0], []).append(i)
        groups = [
            group
            for group in members.values()
            if len(group) >= FEWEST and _own_numbers([traced[i][1] for i in group]) <= MOST_NUMBERS
        ]
        families = tuple(Family.of(traced[group[0]][0], [traced[i][1] for i in group]) for group in groups)
        together = {i for group in groups for i in group}
        single = tuple(i for i in range(len(functions)) if i not in together)
        starts = np.cumsum([0, *sizes])
        entries = [np.arange(starts[i], starts[i + 1]) for i in (*(i for group in groups for i in group), *single)]
        order = np.argsort(np.concatenate(entries)) if entries else np.arange(0)
        in_order = np.array_equal(order, np.arange(order.size))
        return cls(families, single, None if in_order else tuple(map(int, order)))

    def __call__(self, singles: Callable[[int], Array], dtype: Any, x: PyTree, *sample: PyTree) -> Array:
        """All values as a vector; `singles` gives that of a function in no family."""
        values = [*(family(x, *sample) for family in self.families), *map(singles, self.single)]
        vector = jnp.concatenate([jnp.ravel(value).astype(dtype) for value in values])
        return vector if self.order is None else vector[np.asarray(self.order)]


def _program_of(traced: ClosedJaxpr) -> tuple[SharedProgram, list[Any]]:
    """The program of a function, and the numbers in it."""
    places = {var: i for i, var in enumerate((*traced.jaxpr.constvars, *traced.jaxpr.invars))}
    key: list[Hashable] = [tuple(_kind(var.aval) for var in (*traced.jaxpr.constvars, *traced.jaxpr.invars))]
    for equation in traced.jaxpr.eqns:
        inputs = tuple(_kind(v.aval) if isinstance(v, Literal) else places[v] for v in equation.invars)
        key.append((equation.primitive, inputs, _parameters(equation), tuple(_kind(v.aval) for v in equation.outvars)))
        places |= {var: len(places) + i for i, var in enumerate(equation.outvars)}
    last = traced.jaxpr.outvars[0]
    key.append(_kind(last.aval) if isinstance(last, Literal) else places[last])
    if traced.effects or not _is_hashable(tuple(key)):
        key = [object()]  # like no other
    return SharedProgram(tuple(key), traced), _numbers_of(traced)


def _parameters(equation: JaxprEqn) -> Hashable:
    if _is_slice(equation):
        return "slice"
    if _has_rule(equation):
        return _rule(equation)
    if "call_jaxpr" in equation.params:  # whose parameters are not enough
        return object()
    return tuple(sorted(equation.params.items()))


def _has_rule(equation: JaxprEqn) -> bool:
    """Whether it is a function with a derivative of its own, such as `jnp.logaddexp`."""
    return equation.primitive.name == "custom_jvp_call"


def _rule(equation: JaxprEqn) -> Hashable:
    """The function, its derivative and its literals. JAX traces them anew each time: they are the same if they are
    written the same, with all numbers in them."""
    params = equation.params
    try:
        derivative, numbers, zeros = params["jvp_jaxpr_fun"].call_wrapped(*(False for _ in equation.invars))
    except (AttributeError, KeyError, TypeError, ValueError):  # of a JAX that keeps it elsewhere
        return object()
    if params["call_jaxpr"].consts or numbers:
        return object()
    own = [(i, _number(each).tobytes()) for i, each in enumerate(equation.invars) if isinstance(each, Literal)]
    return str(params["call_jaxpr"]), str(derivative), tuple(zeros), params["symbolic_zeros"], tuple(own)


def _numbers_of(traced: ClosedJaxpr) -> list[Any]:
    """Constants, then literals and starts of slices in the order of the equations."""
    numbers: list[Any] = list(traced.consts)
    for equation in traced.jaxpr.eqns:
        if _has_rule(equation):
            continue
        numbers += [_number(each) for each in equation.invars if isinstance(each, Literal)]
        if _is_slice(equation):
            numbers.append(np.asarray(equation.params["start_indices"], np.int32))
    last = traced.jaxpr.outvars[0]
    return [*numbers, _number(last)] if isinstance(last, Literal) else numbers


def _own_numbers(members: Sequence[Sequence[Any]]) -> int:
    """How many would be stacked."""
    return sum(len(members) * np.size(first) for first, other, *_ in zip(*members, strict=True) if first is not other)


def _number(literal: Any) -> np.ndarray:
    return np.asarray(literal.val, literal.aval.dtype)


def _is_slice(equation: JaxprEqn) -> bool:
    return equation.primitive is jax.lax.slice_p and equation.params["strides"] is None


def _sliced(array: Array, starts: Any, shape: tuple[int, ...]) -> Array:
    if isinstance(starts, np.ndarray):  # the same in all functions
        return jax.lax.slice(array, starts.tolist(), (starts + np.asarray(shape)).tolist())
    return jax.lax.dynamic_slice(array, list(starts), shape)


def _kind(aval: Any) -> Hashable:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


def _is_hashable(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
