"""How large the terms are that cancel at a solution: what the measures of a certificate are relative to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lariax.certificate._draws import SampledPoint
from lariax.compilation import compiled
from lariax.oracle import AbstractStructure, Vector

FEWEST_PROBES = 16  # steps of samples that are looked at, each at x and beside it: an eighth of all,
MOST_SAMPLES = 1024  # and no more than make up so many samples


class Magnitudes(NamedTuple):
    """Of each entry of the gradient of the Lagrangian, of each row of the constraints, of each entry of x."""

    entries: Vector
    rows: Float[Array, " m"]
    lengths: Vector

    @property
    def exchanged(self) -> Float[Array, ""]:
        """What the terms of the Lagrangian change by when x changes by its own size."""
        return jnp.sqrt(jnp.sum((self.lengths * self.entries) ** 2))


class _Probed(NamedTuple):
    slope: Vector
    pull: Vector
    bend: Vector
    values: Float[Array, " m"]
    change: Float[Array, " m"]


@compiled()
def sizes_at(point: SampledPoint, y: Float[Array, " m"], least: Array) -> Magnitudes:
    """With l the lengths of the entries of x, or the least ones where these are longer, and random signs s,

        entries   |grad f| + |J^T y| + root mean square of H (s l),       H the Hessian of the Lagrangian
        rows      |bound| + |fun| + root mean square of J (s l)

    entry by entry: the terms that cancel at a solution, and what they change by when each entry of x changes by its own
    size. In other units for x, f or a row they are the same in those units.
    """
    oracle, z, plan = point.oracle, point.z, point.plan
    step = jnp.asarray(jnp.finfo(oracle.dtype).eps ** (1 / 3), oracle.dtype)  # a difference: functions need no jvp
    weights, lengths = oracle.split(y), jnp.maximum(jnp.abs(z), least)

    steps = jnp.asarray(plan.batches * plan.steps)
    probes = jnp.clip(steps // 8, FEWEST_PROBES, max(FEWEST_PROBES, MOST_SAMPLES // plan.count))

    def probe(number: Int[Array, ""], total: _Probed) -> _Probed:
        at = number * steps // probes + plan.first
        batch = point.batch(at)
        signs = jax.random.rademacher(jax.random.fold_in(point.key, number), z.shape, oracle.dtype)
        here, there = oracle.look(z, batch), oracle.look(z + step * signs * lengths, batch)
        slope, pull = here.gradient(), here.gradient(weights, objective=0.0)
        values = oracle.join(here.residuals)
        seen = _Probed(
            slope,
            pull,
            ((there.gradient(weights) - slope - pull) / step) ** 2,
            values,
            ((oracle.join(there.residuals) - values) / step) ** 2,
        )
        sound = jax.tree.map(lambda part: jnp.where(jnp.isfinite(part), part, 0), seen)  # beside x, not all is defined
        return jax.tree.map(lambda sum_, part: sum_ + part / probes.astype(oracle.dtype), total, sound)

    none, nothing = jnp.zeros_like(z), jnp.zeros(oracle.rows, oracle.dtype)
    found = jax.lax.fori_loop(0, probes, probe, _Probed(none, none, none, nothing, nothing))
    return Magnitudes(
        jnp.abs(found.slope) + jnp.abs(found.pull) + jnp.sqrt(found.bend),
        row_sizes(oracle, found.values) + jnp.sqrt(found.change),
        lengths,
    )


def row_sizes(structure: AbstractStructure, residuals: Float[Array, " m"]) -> Float[Array, " m"]:
    """|bound| + |fun|, from residuals."""
    bounds = structure.bounds
    return jnp.abs(bounds) + jnp.abs(structure.signs * residuals + bounds)
