"""x as people have it: a module with functions and settings among its arrays.

Inside, x is its floating point arrays alone; the functions of the problem see the whole.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from lariax.problem._meshes import automatic
from lariax.problem._problem import Problem


class Whole(eqx.Module):
    """A function of the whole of x, for the arrays of it."""

    fun: Callable[..., Any]
    rest: PyTree

    def __call__(self, x: PyTree, *sample: Any) -> Any:
        return self.fun(self.joined(x), *sample)

    def joined(self, x: PyTree) -> PyTree:
        return eqx.combine(eqx.filter(x, _is_entry), self.rest)


def opened(problem: Problem, x: PyTree) -> tuple[Problem, PyTree]:
    """The problem for the arrays of x, and these; both as they are where x is nothing else. What is on a mesh is on one
    with automatic axes."""
    problem, x = automatic(problem), automatic(x)
    if not _has_more(x):
        return problem, x
    arrays, rest = eqx.partition(x, _is_entry)

    def seen(fun: Any) -> Whole:
        return Whole(fun.fun if isinstance(fun, Whole) else fun, rest)

    own = [k for k, c in enumerate(problem._constraints) if "fun" in {f.name for f in fields(c)} and c.fun is not None]

    def functions(p: Problem) -> list[Any]:
        return [p.objective, *(p._constraints[k].fun for k in own)]

    return eqx.tree_at(functions, problem, replace_fn=seen, is_leaf=callable), arrays


def closed(problem: Problem, x: PyTree[Array]) -> PyTree:
    """The whole of x again."""
    return problem.objective.joined(x) if isinstance(problem.objective, Whole) else x


def arrays_of(x: PyTree) -> PyTree[Array]:
    """x without what is no array of numbers."""
    return eqx.filter(x, _is_entry) if _has_more(x) else x


def _is_entry(leaf: Any) -> bool:
    """Of floating point, and an array: a number in a module (a rate of dropout) is a setting."""
    kind = getattr(leaf, "dtype", None)
    return hasattr(leaf, "shape") and kind is not None and jax.numpy.issubdtype(kind, np.floating)


def _has_more(x: PyTree) -> bool:
    """Whether there is something in it that is no number; in a module, something that is not of floating point."""
    others = [leaf for leaf in jax.tree.leaves(x) if not (_is_entry(leaf) or type(leaf) is float)]
    if isinstance(x, eqx.Module) or callable(x):  # as a module of flax.nnx is
        return bool(others)
    return any(not (hasattr(leaf, "dtype") or isinstance(leaf, int | complex)) for leaf in others)
