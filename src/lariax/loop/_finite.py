"""Whether numbers are finite, and whose fault it is if they are not."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from lariax.methods import AbstractMethod
from lariax.oracle import Batch, Oracle, Vector


def finite_functions(oracle: Oracle, point: Vector, batch: Batch) -> dict[str, Bool[Array, "..."]]:
    """Whether the user's functions are finite on a batch, the constraints row by row."""
    look = oracle.look(point, batch)
    others = range(1, oracle.copies) if oracle.has_random_constraints else ()
    residuals = oracle.join(look.residuals) + sum(oracle.join(oracle.residuals(point, batch, copy)) for copy in others)
    return {"the objective": all_finite(look.objective), "constraints": jnp.isfinite(residuals)}


def nonfinite(oracle: Oracle, finite: dict[str, Bool[Array, "..."]]) -> list[str]:
    """Of `finite_next` or `begin`: what is not finite, in words."""
    finite = jax.device_get(finite)
    rows = oracle.layout.named(finite["constraints"])
    flags = {"the objective": finite["the objective"], **{f"constraint {name!r}": row for name, row in rows.items()}}
    flags |= {what: flag for what, flag in finite.items() if what not in ("the objective", "constraints")}
    return [what for what, flag in flags.items() if not np.all(flag)]


@eqx.filter_jit
def finite_next(
    oracle: Oracle, method: AbstractMethod, loop: Any, place: Int[Array, ""], fed: PyTree
) -> dict[str, Bool[Array, "..."]]:
    """Whether the user's functions are finite at the last sound point, on the samples of the iteration after it, those
    at `place`."""
    tickets = oracle.draw(loop.key, place[None], fed)
    batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
    point = method.answer(oracle, loop.state, loop.iteration.astype(oracle.dtype)).point
    return finite_functions(oracle, point, batch)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]).all()
