"""What a method may ask at (x, sample): values, gradients, J^T w, and their unbiased products.

A method sees one flat vector: the coordinates of x, followed by one slack for each row of an inequality when the method
wants inequalities as equalities,  r(x) + s = 0 with s >= 0.  Constraints are the rows of one residual vector r.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.compilation import on_cpu
from lariax.formulas import leave_one_out, repelled, same_stratum
from lariax.oracle._coordinates import Coordinates
from lariax.oracle._counting import count, uncounted
from lariax.oracle._families import Functions
from lariax.oracle._layout import Layout
from lariax.oracle._look import Look, Parts, Rows, Vector
from lariax.oracle._packed import Packed
from lariax.oracle._sampling import AbstractSampling, Batch, Placement
from lariax.oracle._shards import SMALL
from lariax.oracle._shared import each_once
from lariax.oracle._structure import AbstractStructure
from lariax.oracle._together import each_of
from lariax.problem import Problem
from lariax.prox import AbstractProximable, Zero
from lariax.sets import Everything

LARGE = 2**22
"""Entries of a vector from which on methods and the loop see to it that it is not copied without need."""


def takes_time(entries: int) -> bool:
    """On a GPU, where the user's functions are as fast as memory; a CPU is busy with them for far longer."""
    return entries >= LARGE and not on_cpu()


class Oracle(AbstractStructure, AbstractSampling):
    """The problem as a method sees it, for a given batch size."""

    packed: Packed[Problem]
    coordinates: Coordinates = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)
    functions: tuple[Functions, ...]  # of the constraints, one entry a source
    bounds: Float[Array, " m"]
    batch_size: int = eqx.field(static=True)
    copies: int = eqx.field(static=True)
    has_slacks: bool = eqx.field(static=True)
    placement: Placement | None = eqx.field(static=True)
    may_jump: bool = eqx.field(static=True, default=False)  # gradients of single samples, as at a kink
    has_maxima: bool = eqx.field(static=True, default=False)  # their gradients ask which entries are the largest
    together: int | None = eqx.field(static=True, default=None)  # samples in one pass; None: all
    shares: bool = eqx.field(static=True, default=False)  # objective and constraints do much of the same work
    sample_work: float = eqx.field(static=True, default=math.inf)  # numbers that the functions make of one, about
    scaling: Vector | None = None  # x = scaling * z: the method moves in coordinates of its own (without slacks)

    # --- the shape of things

    @property
    def simple(self) -> AbstractProximable:
        return self.problem.simple

    @property
    def dimension(self) -> int:
        """Of the vector that the method moves: x and the slacks."""
        return self.coordinates.extended_size(self._slack_entries.size)

    @property
    def is_large(self) -> bool:
        """Whether copies of the vector, and passes over it, take time beside what else an iteration does."""
        return self.coordinates.shards is None and takes_time(self.dimension)

    @property
    def slacks(self) -> int:
        """How many entries of the vector are behind those of x."""
        return int(self._slack_entries.size)

    @property
    def _slack_entries(self) -> np.ndarray:
        """The entries of the residual vector that have a slack."""
        return np.flatnonzero(self.layout.inequality & self.has_slacks)

    # --- looking

    def look(self, z: Vector, batch: Batch) -> Look:
        """Objective and residuals on the (first copy of the) batch, with their gradients at hand."""
        samples = self._copy(batch, 0)
        count(self._calls())

        def evaluate(point: Vector) -> tuple[Float[Array, " n"], Rows]:
            objective, joint = (self._made_once if self.shares else self._objective)(point, samples)
            return objective, self._residuals(point, samples, joint)

        (objective, residuals), pull = jax.vjp(evaluate, z)
        return Look(objective, residuals, pull)

    def look_at_parts(self, z: Vector, batch: Batch, parts: int) -> tuple[Look, ...]:
        """`look`, on the batch as one part or on its two halves, of which the first is larger if it is odd."""
        count(self._calls())
        with uncounted():
            return tuple(self._part(rows).look(z, self._rows(batch, rows)) for rows in self._cut(parts))

    def rows_of(self, looks: tuple[Look, ...]) -> Float[Array, "n m"]:
        """The residuals of a look at parts, one row a sample."""
        sizes = [self._part(rows).batch_size for rows in self._cut(len(looks))]
        parts = [self._matrix(look.residuals, size) for look, size in zip(looks, sizes, strict=True)]
        apart = [part.reshape(self.strata, len(part) // self.strata, self.rows) for part in parts]
        return jnp.concatenate(apart, axis=1).reshape(self.batch_size, self.rows)

    def residual_rows(self, z: Vector, batch: Batch) -> Float[Array, "n m"]:
        """The residuals by a forward pass alone, one row a sample."""
        return self._matrix(self.residuals(z, batch), self.batch_size)

    def gradient_of(self, looks: tuple[Look, ...], weights: Float[Array, "n m"]) -> Parts:
        """The mean of grad f + J_i^T w_i over each part, from one row of weights a sample (or one for all)."""
        spread = jnp.broadcast_to(weights, (self.batch_size, self.rows))

        def gradient(look: Look, rows: Float[Array, "part m"]) -> Vector:
            parts = zip(self.layout.sources, self.split(rows), strict=True)
            return look.gradient(
                tuple(jnp.mean(w, axis=0, keepdims=True) if source is None else w for source, w in parts)
            )

        return self._shared(
            gradient(look, self._rows(spread, rows)) for look, rows in zip(looks, self._cut(len(looks)), strict=True)
        )

    def jacobian(self, z: Vector, batch: Batch) -> Float[Array, "m d"]:
        """The mean Jacobian of the residuals, by one backward pass a row."""
        count(self.rows * self._calls(objective=self._needs_joint))
        with uncounted():
            _, pull = jax.vjp(lambda point: self.join(self.residuals(point, batch)), z)
        return jax.vmap(lambda row: pull(row)[0])(jnp.eye(self.rows, dtype=self.dtype))

    def singles(self, batches: Batch) -> tuple["Oracle", Batch]:
        """Stacked batches sample by sample: an oracle for batches of one, and those batches, stacked."""
        one = replace(self, batch_size=1, placement=None)
        return one, jax.tree.map(lambda rows: rows.reshape(-1, 1, *rows.shape[2:]), batches)

    def residuals(self, z: Vector, batch: Batch, copy: int = 0) -> Rows:
        """Residuals alone: a forward pass."""
        samples = self._copy(batch, copy)
        count(self._calls(objective=self._needs_joint))
        joint = self._objective(z, samples)[1] if self._needs_joint else {}
        return self._residuals(z, samples, joint)

    def objective_gradient(self, z: Vector, batch: Batch) -> Vector:
        """The mean gradient of the objective alone."""
        samples = self._copy(batch, 0)
        count(self._calls(constraints=False))
        return jax.grad(lambda point: jnp.mean(self._objective(point, samples)[0]))(z)

    def halved_objective_gradient(self, z: Vector, batch: Batch) -> Parts:
        """`objective_gradient`, on either half of the batch."""
        count(self._calls(constraints=False))
        with uncounted():
            return self._shared(
                self._part(rows).objective_gradient(z, self._rows(batch, rows)) for rows in self._cut(2)
            )

    def exact_residuals(self, z: Vector) -> tuple[Float[Array, " m"], Callable[[Float[Array, " m"]], Vector]]:
        """Residuals of constraints that are all deterministic, and w -> J^T w."""
        count(self._calls(objective=False))
        values, pull = jax.vjp(lambda point: self.join(self._residuals(point, (), {})), z)
        return values, lambda weights: pull(weights)[0]

    def objective(self, z: Vector, batch: Batch) -> Float[Array, ""]:
        """The mean objective on the batch, for the record."""
        return jnp.mean(self._objective(z, self._copy(batch, 0))[0])

    def penalty_gradient(
        self, z: Vector, penalty: ArrayLike, batch: Batch, multipliers: Float[Array, " m"] | None = None
    ) -> tuple[Vector, Float[Array, " m"]]:
        """An unbiased gradient of  f + y . r + (rho / 2) ||r||^2,  and the residuals that went into it.

            grad f + sum_i grad r_i(x, zeta1) ( y_i + rho r_i(x, zeta2) )

        with zeta1, zeta2 independent: the two copies of the batch, or all ordered pairs of its rows.
        """
        look = self.look(z, batch)
        has_copy = self.copies == 2 and self.has_random_constraints
        seen = self.residuals(z, batch, copy=1) if has_copy else look.residuals

        def partner(source: int | None, own: Array, other: Array) -> Array:
            if source is None:
                return own
            if has_copy:
                others = jnp.broadcast_to(jnp.mean(other, axis=0), own.shape)
                return self._without_replacement(source, others, own, other)
            return self._without_replacement(source, leave_one_out(own, self.strata), own, None)

        partners = map(partner, self.layout.sources, look.residuals, seen)
        y = self.split(jnp.zeros(self.rows, self.dtype) if multipliers is None else multipliers)
        return look.gradient(tuple(a + penalty * b for a, b in zip(y, partners, strict=True))), self.join(seen)

    def _without_replacement(self, source: int | None, partners: Array, own: Array, other: Array | None) -> Array:
        """Partners, corrected where rows are drawn from N without replacement; they come from the same batch, or from
        the `other`."""
        rows = None if source is None else self.sources[source]
        if rows is None or rows.population_size is None:
            return partners
        near = None
        if self.is_cut(rows):
            near = same_stratum(own if other is None else other, self.strata, without_own=other is None)
        return repelled(partners, own, rows.population_size, near)

    # --- the simple convex term, and what goes in and out

    def prox(self, z: Vector, step_size: ArrayLike) -> Vector:
        """The proximal map of h and the projection on X, with slacks kept non-negative."""
        if isinstance(self.simple, Everything | Zero):  # x is not taken apart and put together again
            slacks = self._slack_entries.size
            return self._point(self._parts(z)[0], jnp.maximum(self._parts(z)[1], 0)) if slacks else z
        steps: PyTree = step_size
        if self.scaling is not None:  # a step of 1 in z is one of scaling^2 in x, entry by entry
            steps = self.coordinates.unravel(jnp.asarray(step_size) * self.scaling**2, cast=False)
        x = self.coordinates.unravel(self._user(z), cast=False)  # a leaf of low precision keeps its long tail
        simple = self.simple.prox(x, steps)
        return self._point(self._scaled(self.coordinates.ravel(simple)), jnp.maximum(self._parts(z)[1], 0))

    @property
    def is_free(self) -> bool:
        """Whether a proximal step is a gradient step."""
        return isinstance(self.simple, Everything | Zero) and not self._slack_entries.size

    def partners(self, own: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """For each sample the mean of the others, independent of it and without bias."""
        others = leave_one_out(own, self.strata)
        parts = zip(self.layout.sources, self.split(others), self.split(own), strict=True)
        return self._joined([self._without_replacement(*part, None) for part in parts], own.shape[:1])

    def stationarity(self, z: Vector, gradient: Vector) -> Float[Array, ""]:
        """How far a function with this gradient, together with the simple term, is from being stationary at z."""
        return self.simple.stationarity(self.x_of(z), self._slope(gradient))

    def violation(self, residuals: Float[Array, " m"], z: Vector) -> Float[Array, ""]:
        """The length of the residuals, of those of inequalities where they are positive."""
        own = residuals - self._slack_rows(z)
        return jnp.linalg.norm(jnp.where(self.inequality, jnp.maximum(own, 0), own))

    def start(self, x: PyTree[Array], batch: Batch) -> Vector:
        """x as a vector, slacks as small as the first batch lets them be."""
        vector = self._scaled(self.coordinates.ravel(x))
        if not self._slack_entries.size:
            return vector
        without = self._point(vector, jnp.zeros(self._slack_entries.size, self.dtype))
        residuals = self.join(self.residuals(without, batch))
        return self._point(vector, jnp.maximum(-residuals[self._slack_entries], 0))

    def taken_up(self, z: Vector, residuals: Float[Array, " m"]) -> Float[Array, " m"]:
        """Residuals on the batch that the slacks were chosen on: 0, whatever rounding says, where there is a slack."""
        return jnp.where(self._slack_rows(z) > 0, 0, residuals)

    def x_of(self, z: Vector) -> PyTree[Array]:
        """The user's x."""
        return self.coordinates.unravel(self._user(z))

    def settled(self, state: PyTree) -> PyTree:
        """A state between two calls of the compiled loop: on a mesh, vectors like z are cut as x is, small things are
        on every device."""
        placement, shards = self.placement, self.coordinates.shards
        if placement is None:
            return state

        def settle(leaf: Array) -> Array:
            if shards is not None and leaf.shape[-1:] == (self.dimension,):
                return shards.placed(leaf)
            return placement.whole(leaf) if leaf.size <= SMALL else leaf

        return jax.tree.map(settle, state)

    def values(self, residuals: Float[Array, " m"], z: Vector) -> Float[Array, " m"]:
        """Residuals (slacks included) as estimates of E[fun], in the user's own units."""
        return self.signs * (residuals - self._slack_rows(z)) + self.bounds

    def join(self, rows: Rows) -> Float[Array, " m"]:
        """Batch means as one residual vector."""
        return self._joined([jnp.mean(r, axis=0) for r in rows], ())

    def sum(self, shares: Rows, rows: Rows) -> Float[Array, " m"]:
        """Residuals, summed over the samples with the share of each."""
        return self._joined([jnp.sum(share * r, axis=0) for share, r in zip(shares, rows, strict=True)], ())

    def variances(self, rows: Rows) -> Float[Array, " m"]:
        """Of the batch means; 0 for what is deterministic, or seen on one sample."""
        parts = (jnp.var(r, axis=0, ddof=1) / r.shape[0] if r.shape[0] > 1 else jnp.zeros_like(r[0]) for r in rows)
        return self._joined(list(parts), ())

    def split(self, vector: Float[Array, "*n m"]) -> Rows:
        """Weights for each source of samples: one row for all of them, or one for each."""
        return self.layout.split(jnp.atleast_2d(vector))

    # --- inside

    def _user(self, z: Vector) -> Vector:
        """From the method's coordinates to the user's, without the slacks."""
        vector = self._parts(z)[0]
        return vector if self.scaling is None else self.scaling * vector

    def _scaled(self, vector: Vector) -> Vector:
        """From the user's coordinates to the method's."""
        return vector if self.scaling is None else vector / self.scaling

    def _slope(self, gradient: Vector) -> PyTree[Array]:
        """A gradient in z as one in the user's x."""
        return self.coordinates.unravel(self._scaled(self._parts(gradient)[0]))

    def _parts(self, z: Vector) -> tuple[Vector, Float[Array, " s"]]:
        return self.coordinates.parts(z, self._slack_entries.size)

    def _point(self, x: Vector, slacks: Float[Array, " s"]) -> Vector:
        return self.coordinates.extended(x, slacks) if self._slack_entries.size else x

    def _slack_rows(self, z: Vector) -> Float[Array, " m"]:
        """The slack of each row of the residual vector, 0 for equalities."""
        return jnp.zeros(self.rows, self.dtype).at[self._slack_entries].set(self._parts(z)[1])

    def _joined(self, parts: Sequence[Array], lead: tuple[int, ...]) -> Float[Array, "*n m"]:
        """The parts of the sources as one array."""
        if len(parts) < 2:
            return parts[0] if parts else jnp.zeros((*lead, 0), self.dtype)
        return jnp.concatenate(parts, axis=-1)[..., self.layout.order]

    def _matrix(self, rows: Rows, samples: int) -> Float[Array, "n m"]:
        """One row a sample."""
        return self._joined([jnp.broadcast_to(r, (samples, r.shape[1])) for r in rows], (samples,))

    def _cut(self, parts: int) -> list[slice]:
        """The rows of the parts of a batch."""
        strata = self.strata
        edges = [strata * -(-(self.batch_size // strata) * i // parts) for i in range(parts + 1)]
        return [slice(*edge) for edge in pairwise(edges)]

    def _rows(self, batch: PyTree, rows: slice) -> PyTree:
        """Some samples of a batch: as many of each stratum."""
        strata = self.strata
        if strata == 1:
            return jax.tree.map(lambda each: each[rows], batch)
        first, count = rows.start // strata, (rows.stop - rows.start) // strata

        def some(all_: Array) -> Array:
            apart = all_.reshape(strata, len(all_) // strata, *all_.shape[1:])
            return apart[:, first : first + count].reshape(strata * count, *all_.shape[1:])

        return jax.tree.map(some, batch)

    def _part(self, rows: slice) -> "Oracle":
        """For a part of the batch."""
        return replace(self, batch_size=rows.stop - rows.start)

    def _shared(self, means: Iterable[Vector]) -> Parts:
        means = tuple(means)
        sizes = (self._part(rows).batch_size for rows in self._cut(len(means)))
        return Parts(means, tuple(size / self.batch_size for size in sizes))

    def _copy(self, batch: Batch, copy: int) -> tuple[PyTree | None, ...]:
        """One of the independent batches within a batch."""
        b = self.batch_size
        return self._rows(batch.samples, slice(copy * b, (copy + 1) * b))

    @property
    def _needs_joint(self) -> bool:
        """Whether constraint values come out of the objective's function."""
        return any(constraint.fun is None for constraint in self.problem.constraints.values())

    def _objective(self, z: Vector, samples: tuple[PyTree | None, ...]) -> tuple[Float[Array, " n"], dict[str, Array]]:
        """The user's objective, sample by sample, and what a joint function says of the constraints."""
        x, joint = self.x_of(z), {}
        if self.problem.samples is None:
            objective = jnp.reshape(self.problem.objective(x), (1,))
        else:
            objective = self._each(lambda sample: self.problem.objective(x, sample), samples[0])
        if self.problem.is_joint:
            objective, joint = objective
        return objective.astype(self.dtype), joint

    def _made_once(self, z: Vector, samples: tuple[PyTree | None, ...]) -> tuple[Float[Array, " n"], dict[str, Array]]:
        """As `_objective`, with the constraints on the same samples, whose functions do some of the same work."""
        x, names = self.x_of(z), [block.name for block in self.layout.of_source(0)]
        functions: list[Any] = [self.problem.objective, *(self.problem.constraints[name].fun for name in names)]
        run = each_once(functions, x, jax.tree.map(lambda rows: rows[0], samples[0]))
        objective, *values = self._each(lambda sample: run(x, sample), samples[0])
        return objective.astype(self.dtype), dict(zip(names, values, strict=True))

    def _residuals(self, z: Vector, samples: tuple[PyTree | None, ...], joint: dict[str, Array]) -> Rows:
        """The user's constraints as residuals, sample by sample."""
        x, slacks = self.x_of(z), self._slack_rows(z)
        parts = zip(
            self.layout.sources,
            self.functions,
            *map(self.layout.split, (self.bounds, self.signs, slacks)),
            strict=True,
        )
        return tuple(
            signs * (self._values(source, functions, x, samples, joint) - bounds) + slack
            for source, functions, bounds, signs, slack in parts
        )

    def _values(
        self,
        source: int | None,
        functions: Functions,
        x: PyTree,
        samples: tuple[PyTree | None, ...],
        joint: dict[str, Array],
    ) -> Float[Array, "n part"]:
        """The user's constraints on one source, all of them sample by sample."""
        constraints = self.problem.constraints
        each: list[tuple[str, Any]] = [
            (block.name, constraints[block.name].fun) for block in self.layout.of_source(source)
        ]

        def at(sample: tuple[PyTree, ...], joint: dict[str, Array]) -> Float[Array, " part"]:
            def single(number: int) -> Array:
                name, fun = each[number]
                return joint[name] if name in joint else fun(x, *sample)

            return functions(single, self.dtype, x, *sample)

        if source is None:
            return at((), {})[None]
        return self._each(lambda pair: at(*pair), ((samples[source],), joint if source == 0 else {}))

    def _each(self, function: Callable[[PyTree], PyTree], samples: PyTree) -> PyTree:
        return each_of(function, samples, self.together, self.placement)

    def evaluations_of(self, samples: int) -> int:
        """What one look at as many samples of every source counts for."""
        return replace(self, batch_size=samples)._calls()

    def _calls(self, objective: bool = True, constraints: bool = True) -> int:
        """How often a pass calls the user's functions: once a sample and function."""
        own = zip(self.blocks, self.problem.constraints.values(), strict=True)
        sources = [block.source for block, constraint in own if constraint.fun is not None] if constraints else []
        sources += [None if self.problem.samples is None else 0] if objective else []
        return sum(1 if source is None else self.batch_size for source in sources)
