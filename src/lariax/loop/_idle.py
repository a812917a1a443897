"""Multipliers that are at work on constraints with room to spare: a run that began far away may still have them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from lariax.compilation import compiled
from lariax.loop._fresh import FreshSamples
from lariax.oracle import Batch, Oracle, Vector

SURE = 4.0
"""Standard errors that a row is inside of its bound, for its multiplier to be idle."""

PULL = 0.1
"""It matters if idle multipliers pull with more than this part of the objective's gradient."""


def idle(fresh: FreshSamples, weights: Array) -> list[str]:
    """The inequalities with samples that surely hold with room to spare, and yet move x by their multipliers."""
    oracle = fresh.oracle
    rows, matters = _idle_rows(oracle, fresh.point, weights, fresh.half(0), fresh.half(1))
    if not bool(matters):
        return []
    return [block.name for block in oracle.blocks if np.any(np.asarray(rows)[block.rows])]


@compiled(once=True)
def _idle_rows(
    oracle: Oracle, z: Vector, weights: Array, first: Batch, second: Batch
) -> tuple[Bool[Array, " m"], Bool[Array, ""]]:
    """Which rows, and whether their pull matters. Of exact rows rounding alone may leave a little room."""
    values = jnp.concatenate([oracle.residual_rows(z, half) for half in (first, second)])
    mean, error = jnp.mean(values, axis=0), jnp.std(values, axis=0) / jnp.sqrt(values.shape[0])
    rows = oracle.inequality & (weights > 0) & (error > 0) & (mean + SURE * error < 0)
    looks = [oracle.look_at_parts(z, half, 1) for half in (first, second)]
    slope, with_pull = (
        sum(oracle.gradient_of(look, w).mean for look in looks) / 2
        for w in (jnp.zeros_like(weights), jnp.where(rows, weights, 0))
    )
    return rows, jnp.linalg.norm(with_pull - slope) > PULL * jnp.linalg.norm(slope)
