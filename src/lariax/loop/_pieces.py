"""A step on vectors that are kept in pieces, one for each leaf of x.

A method sees one vector. The user's functions see leaves: every look at a vector in memory copies it into leaves, and
the gradients back. So where x is large, a step that was traced on vectors is carried out on their pieces: what works
entry by entry does so piece by piece, sums are sums of the pieces' sums, and to take a vector apart or to put it
together costs nothing. An operation without a rule here gets the whole vector.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, PyTree

Sizes = tuple[int, ...]


class Pieces(NamedTuple):
    """A vector, cut."""

    parts: tuple[Array, ...]

    @property
    def sizes(self) -> Sizes:
        return tuple(part.size for part in self.parts)

    @property
    def whole(self) -> Array:
        return jnp.concatenate(self.parts)


Value = Array | Pieces


def is_cut(value: Any) -> bool:
    return isinstance(value, Pieces)


def _whole(value: Value) -> Array:
    return value.whole if isinstance(value, Pieces) else value


@dataclass(frozen=True)
class Cutter:
    """Knows how long the pieces of a vector are: those of x, or of x with slacks behind it, by its length."""

    sizes: dict[int, Sizes]

    @classmethod
    def of(cls, leaves: Sizes, slacks: int) -> "Cutter | None":
        """None: the vector is of one piece."""
        whole = (*leaves, slacks) if slacks else leaves
        return cls({sum(leaves): leaves, sum(whole): whole}) if len(whole) > 1 else None

    def cut(self, value: Value) -> Value:
        """A vector as its pieces; all else as it is."""
        if isinstance(value, Pieces) or jnp.ndim(value) != 1 or value.size not in self.sizes:
            return value
        return Pieces(tuple(jax.lax.split(value, self.sizes[value.size])))

    def cut_all(self, tree: PyTree) -> PyTree:
        return jax.tree.map(self.cut, tree)

    def whole(self, tree: PyTree) -> PyTree:
        return jax.tree.map(_whole, tree, is_leaf=is_cut)

    def run(self, program: ClosedJaxpr, values: Sequence[Value]) -> list[Value]:
        """The program on such values, with vectors cut where they come out of it."""
        found: dict[Any, Value] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        found.update(zip(program.jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Value:
            return atom.val if isinstance(atom, Literal) else found[atom]

        for equation in program.jaxpr.eqns:
            found.update(zip(equation.outvars, self._outputs(equation, list(map(read, equation.invars))), strict=True))
        return [self.cut(read(atom)) for atom in program.jaxpr.outvars]

    def _outputs(self, equation: Any, values: list[Value]) -> Sequence[Value]:
        name = equation.primitive.name
        outputs: Sequence[Value] | None = None
        if name in MAKING or any(map(is_cut, values)):
            rule = RULES.get(name, _entry_by_entry if name in ENTRY_BY_ENTRY.split() else _none)
            outputs = rule(self, equation, values)
        return _bound(equation, list(map(_whole, values))) if outputs is None else outputs


def _bound(equation: Any, values: list[Array]) -> list[Array]:
    """The operation itself."""
    params = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # as jax's version has it
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*functions, *values, **params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


# --- rules: what comes out of an operation on pieces; None: it has to have the whole vector

Rule = Callable[[Cutter, Any, list[Value]], Sequence[Value] | None]

ENTRY_BY_ENTRY = """
    abs add add_any and ceil clamp convert_element_type copy div eq exp expm1 floor ge gt integer_pow is_finite le log
    log1p logistic lt max min mul ne neg not or pow round rsqrt select_n sign sqrt square sub tanh
"""


def _none(cutter: Cutter, equation: Any, values: list[Value]) -> None:
    return None


def _entry_by_entry(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    """Single numbers go with every piece."""
    each = [value if isinstance(value, Pieces) or not jnp.ndim(value) else cutter.cut(value) for value in values]
    sizes = {value.sizes for value in each if isinstance(value, Pieces)}
    if len(sizes) != 1 or any(jnp.ndim(value) for value in each if not isinstance(value, Pieces)):
        return None
    count = len(*sizes)
    rows = zip(*(value.parts if isinstance(value, Pieces) else (value,) * count for value in each), strict=True)
    return [Pieces(tuple(_bound(equation, list(row))[0] for row in rows))]


def _summed(combine: Callable[[Any, Any], Any], cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value]:
    (value,) = values
    assert isinstance(value, Pieces)
    return [reduce(combine, (_bound(equation, [part])[0] for part in value.parts))]


def _summed_together(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    """Several vectors of one length, by one pass over all of them (`jax.lax.reduce`)."""
    vectors, starts = values[: len(values) // 2], list(map(_whole, values[len(values) // 2 :]))
    cut = [value for value in map(cutter.cut, vectors) if isinstance(value, Pieces)]
    if len(cut) < len(vectors) or len({value.sizes for value in cut}) > 1:
        return None
    rows = zip(*(value.parts for value in cut), strict=True)
    sums = zip(*(_bound(equation, [*row, *starts]) for row in rows), strict=True)
    return _bound(equation, [*map(jnp.stack, sums), *starts])


def _product(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    """Of two vectors."""
    a, b = map(cutter.cut, values)
    if not (isinstance(a, Pieces) and isinstance(b, Pieces) and a.sizes == b.sizes) or equation.outvars[0].aval.ndim:
        return None
    return [reduce(operator.add, (_bound(equation, list(pair))[0] for pair in zip(a.parts, b.parts, strict=True)))]


def _between(value: Pieces, start: int, stop: int) -> Value | None:
    """Some entries, if no piece has to be cut for them."""
    edges = [0, *accumulate(value.sizes)]
    if start == stop:
        return value.parts[0][:0]
    if start not in edges or stop not in edges:
        return None
    parts = value.parts[edges.index(start) : edges.index(stop)]
    return parts[0] if len(parts) == 1 else Pieces(parts)


def _all(values: list[Value | None]) -> Sequence[Value] | None:
    return None if any(value is None for value in values) else values  # type: ignore[return-value]


def _split(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    (value,) = values
    assert isinstance(value, Pieces)
    return _all([_between(value, *ends) for ends in pairwise([0, *accumulate(equation.params["sizes"])])])


def _slice(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    (value,), (start,), (stop,) = values, equation.params["start_indices"], equation.params["limit_indices"]
    assert isinstance(value, Pieces)
    return None if equation.params["strides"] not in (None, (1,)) else _all([_between(value, start, stop)])


def _put_together(cutter: Cutter, equation: Any, parts: Sequence[Value]) -> Sequence[Value] | None:
    """These, if they are as long as the pieces of the whole."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, Pieces) else (part,))]
    size = equation.outvars[0].aval.size
    fits = equation.outvars[0].aval.ndim == 1 and cutter.sizes.get(size) == tuple(one.size for one in flat)
    return [Pieces(tuple(flat))] if fits else None


def _concatenate(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    return _put_together(cutter, equation, values)


def _pad(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    (value, fill), ((before, after, inside), *_) = values, equation.params["padding_config"]
    sizes = cutter.sizes.get(equation.outvars[0].aval.size, ())
    edges = [0, *accumulate(sizes)]
    stop = before + (sum(value.sizes) if isinstance(value, Pieces) else value.size)
    if inside or before not in edges or stop not in edges or after != sum(sizes) - stop:
        return None
    first, last = edges.index(before), edges.index(stop)
    filled = [jnp.full(size, _whole(fill)) for size in sizes]
    return _put_together(cutter, equation, [*filled[:first], value, *filled[last:]])


def _broadcast(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value] | None:
    """A number as a vector."""
    aval, value = equation.outvars[0].aval, values[0]
    if isinstance(value, Pieces) or jnp.size(value) != 1 or aval.ndim != 1 or aval.size not in cutter.sizes:
        return None
    return [Pieces(tuple(jnp.broadcast_to(value, (size,)) for size in cutter.sizes[aval.size]))]


def _inlined(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value]:
    return cutter.run(equation.params["jaxpr"], values)


def _chosen(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value]:
    index, *operands = values
    branches = [partial(_branch, cutter, branch) for branch in equation.params["branches"]]
    return jax.lax.switch(index, branches, *operands)


def _branch(cutter: Cutter, program: ClosedJaxpr, *values: Value) -> list[Value]:
    return cutter.run(program, values)


def _repeated(cutter: Cutter, equation: Any, values: list[Value]) -> Sequence[Value]:
    """A loop."""
    params = equation.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    each = [cutter.cut(value) for value in values]
    going, body = each[:first], each[first:second]
    return jax.lax.while_loop(
        lambda carry: cutter.run(params["cond_jaxpr"], [*going, *carry])[0],
        lambda carry: cutter.run(params["body_jaxpr"], [*body, *carry]),
        each[second:],
    )


MAKING = frozenset({"broadcast_in_dim", "concatenate", "pad"})
"""Operations that may make a vector of what is none."""

RULES: dict[str, Rule] = {
    "reduce": _summed_together,
    "reduce_sum": partial(_summed, operator.add),
    "reduce_max": partial(_summed, jnp.maximum),
    "reduce_min": partial(_summed, jnp.minimum),
    "reduce_and": partial(_summed, operator.and_),
    "reduce_or": partial(_summed, operator.or_),
    "dot_general": _product,
    "split": _split,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "broadcast_in_dim": _broadcast,
    "jit": _inlined,
    "cond": _chosen,
    "while": _repeated,
}
