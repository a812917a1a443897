"""From a problem and a method, or none, to what the loop runs: who `auto` is, and how a method is fitted."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.methods._base import AbstractMethod
from lariax.methods._tangent_normal import TangentNormal
from lariax.methods._tracked_lagrangian import TrackedLagrangian
from lariax.oracle import Oracle, bind
from lariax.problem import Problem

SHARED = TrackedLagrangian()
"""Whom the oracle is made for before `auto` has chosen: both of its methods need the same one."""


class FittedMethod(NamedTuple):
    oracle: Oracle
    method: AbstractMethod  # prepared for the problem, hyperparameters in the precision of x
    choice: str  # what was decided for the user, in words


def fitted(
    problem: Problem,
    x: PyTree[Array],
    samples: tuple[PyTree | None, ...],
    method: Any,
    batch_size: int,
    iterations: int | None = None,
) -> FittedMethod:
    """A method on a problem; `samples` holds the shape of one sample of each source, `iterations` the budget if that is
    what limits the run."""
    if not isinstance(method, AbstractMethod | str) or (isinstance(method, str) and method != "auto"):
        optax = " Wrap an optimizer of optax: lx.Optax(optimizer)." if hasattr(method, "update") else ""
        found = type(method).__name__ if optax else repr(method)
        raise TypeError(f'method must be "auto" or a method such as lx.TrackedLagrangian(), found {found}.{optax}')
    given = SHARED if isinstance(method, str) else method
    oracle = oracle_for(given, problem, x, samples, batch_size)
    chosen, choice = choose(oracle) if isinstance(method, str) else (given, "")
    if oracle.batch_size != batch_size and oracle.draws_per_iteration:
        remark = f"Batches are of {oracle.batch_size} samples, the fewest that {type(chosen).__name__} takes."
        choice = f"{choice} {remark}".lstrip()
    return FittedMethod(oracle, prepared(chosen, oracle, x, iterations), choice)


def oracle_for(
    method: AbstractMethod, problem: Problem, x: PyTree[Array], samples: tuple[PyTree | None, ...], batch_size: int
) -> Oracle:
    """What the method asks."""
    needs = method.needs
    size = max(int(batch_size), needs.smallest_batch)
    return bind(problem, x, samples, batch_size=size, copies=needs.copies, has_slacks=needs.slacks)


def prepared(method: AbstractMethod, oracle: Oracle, x: PyTree[Array], iterations: int | None) -> AbstractMethod:
    """The method for the oracle's problem, in the precision of x."""
    return in_precision(method.prepare(oracle, x, iterations), oracle.dtype)


def in_precision(method: AbstractMethod, dtype: Any) -> AbstractMethod:
    """Hyperparameters as arrays: they are traced, so other values do not compile again."""

    def convert(leaf: Any) -> Any:
        numeric = isinstance(leaf, float | int | np.ndarray | np.generic | jax.Array) and not isinstance(leaf, bool)
        return jnp.asarray(leaf, dtype) if numeric else leaf

    return jax.tree.map(convert, method)


def choose(oracle: Oracle) -> tuple[AbstractMethod, str]:
    """What method="auto" takes, and why."""
    problem, misfit = oracle.problem, TangentNormal.unfit(oracle.problem)
    if not problem.constraints and problem.samples is not None:
        why = "there are no constraints, and its momentum tunes itself"
    elif misfit is not None:
        why = f"{misfit}, and it is unbiased without a step size or penalty to choose"
    elif TangentNormal.has_many_rows(oracle):
        why = f"{oracle.rows:,} constraint rows on {oracle.dimension:,} entries of x are many for TangentNormal"
    else:
        what = "all constraints are deterministic, and it keeps to them" if problem.constraints else "nothing is random"
        return TangentNormal(), f'method="auto" took TangentNormal: {what}.'
    return TrackedLagrangian(), f'method="auto" took TrackedLagrangian: {why}.'
