"""What a method may ask at (x, sample): values, gradients, J^T w, and their unbiased products.

A method sees one flat vector: the coordinates of x, followed by one slack for each row of an inequality when the method
wants inequalities as equalities,  r(x) + s = 0 with s >= 0.  Constraints are the rows of one residual vector r.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PyTree

from lariax.formulas import least_weights, leave_one_out, repelled
from lariax.oracle._coordinates import Coordinates
from lariax.problem import AbstractSource, Problem
from lariax.prox import Zero
from lariax.sets import Everything

Vector = Float[Array, " d"]
Rows = tuple[Float[Array, "n m"], ...]
"""Residuals sample by sample, one array a constraint; a deterministic constraint has one row."""


@dataclass(frozen=True)
class Block:
    """One named constraint within the residual vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    inequality: bool
    source: int | None  # which of the oracle's sources its samples come from; None: deterministic

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.size)


class Batch(NamedTuple):
    """The samples of one iteration, one entry a source (None where the objective is deterministic)."""

    samples: tuple[PyTree | None, ...]

    @property
    def first(self) -> "Batch":
        """Of several batches, stacked along a leading axis, the first."""
        return jax.tree.map(lambda rows: rows[0], self)


class Look(NamedTuple):
    """One forward pass at a point: objective and residuals sample by sample, and the way back."""

    objective: Float[Array, " n"]
    residuals: Rows
    pull: Callable[[tuple[Float[Array, " n"], Rows]], tuple[Vector]]

    def gradient(self, weights: Rows | None = None, objective: ArrayLike = 1.0) -> Vector:
        """mean of w_0 grad f + sum over rows of J_i^T w_i / n: one backward pass, the Jacobian is never formed.

        `weights` has one row for all samples, or one for each; `objective` is w_0.
        """
        n = self.objective.shape[0]
        if weights is None:
            weights = tuple(jnp.zeros_like(r) for r in self.residuals)
        spread = tuple(jnp.broadcast_to(w, r.shape) / r.shape[0] for w, r in zip(weights, self.residuals, strict=True))
        return self.pull((jnp.full_like(self.objective, objective / n), spread))[0]


class Parts(NamedTuple):
    """The mean of a vector over a batch, as its means over one or two parts of it: two show its noise."""

    means: tuple[Vector, ...]
    shares: tuple[float, ...]  # of the parts in the batch

    @property
    def mean(self) -> Vector:
        if len(self.means) == 1:
            return self.means[0]
        return self.shares[0] * self.means[0] + self.shares[1] * self.means[1]

    @property
    def noise(self) -> Float[Array, ""]:
        """The variance of the mean, summed over the entries."""
        (first, second), (share, rest) = self.means, self.shares
        return share * rest * jnp.sum((first - second) ** 2)

    def __sub__(self, other: "Parts") -> "Parts":
        return Parts(tuple(a - b for a, b in zip(self.means, other.means, strict=True)), self.shares)


class Oracle(eqx.Module):
    """The problem as a method sees it, for a given batch size.

    `copies` independent batches of the constraints' samples are drawn an iteration: with 2, the paper's zeta1 and
    zeta2; with 1, unbiased products come from all ordered pairs within the batch.
    """

    problem: Problem
    coordinates: Coordinates = eqx.field(static=True)
    blocks: tuple[Block, ...] = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    copies: int = eqx.field(static=True)
    has_slacks: bool = eqx.field(static=True)
    scaling: Vector | None = None  # x = scaling * z: the method moves in coordinates of its own (without slacks)

    # --- the shape of things

    @property
    def dtype(self) -> jnp.dtype:
        return self.coordinates.dtype

    @property
    def dimension(self) -> int:
        """Of the vector that the method moves: x and the slacks."""
        return self.coordinates.size + sum(block.size for block in self._slack_blocks)

    @property
    def rows(self) -> int:
        """m, the number of scalar constraints."""
        return sum(block.size for block in self.blocks)

    @property
    def inequality(self) -> Bool[Array, " m"]:
        """Which rows are r <= 0; the others are r = 0."""
        return jnp.asarray([block.inequality for block in self.blocks for _ in range(block.size)], bool)

    @property
    def has_inequalities(self) -> bool:
        return any(block.inequality for block in self.blocks)

    @property
    def has_random_constraints(self) -> bool:
        return any(block.source is not None for block in self.blocks)

    @property
    def _slack_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block.inequality and self.has_slacks]

    # --- samples

    @property
    def sources(self) -> tuple[AbstractSource | None, ...]:
        return self.problem.sources

    def samples_from(self, source: int) -> int:
        """How many samples an iteration takes from a source."""
        shared = any(block.source == source for block in self.blocks)
        return self.batch_size * (self.copies if shared else 1)

    @property
    def sample_counts(self) -> list[int]:
        return [self.samples_from(i) for i in range(len(self.sources))]

    @property
    def draws_per_iteration(self) -> int:
        return sum(
            source.rows_per_sample * self.samples_from(i) for i, source in enumerate(self.sources) if source is not None
        )

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], fed: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Tickets for a block of iterations. What the host feeds (`fed`, by source) is passed through."""
        return tuple(
            fed[i]
            if source is None or source.from_host
            else source.draw(jax.random.fold_in(key, i), iterations, self.samples_from(i))
            for i, source in enumerate(self.sources)
        )

    def fetch(self, tickets: tuple[PyTree, ...]) -> Batch:
        """The samples behind the tickets of one iteration."""
        return Batch(
            tuple(
                None if source is None else source.fetch(ticket)
                for source, ticket in zip(self.sources, tickets, strict=True)
            )
        )

    # --- looking

    def look(self, z: Vector, batch: Batch) -> Look:
        """Objective and residuals on the (first copy of the) batch, with their gradients at hand."""
        samples = self._copy(batch, 0)
        _count(self._calls(objective=True))

        def evaluate(point: Vector) -> tuple[Float[Array, " n"], Rows]:
            objective, joint = self._objective(point, samples)
            return objective, self._residuals(point, samples, joint)

        (objective, residuals), pull = jax.vjp(evaluate, z)
        return Look(objective, residuals, pull)

    def look_at_parts(self, z: Vector, batch: Batch, parts: int) -> tuple[Look, ...]:
        """`look`, on the batch as one part or on its two halves, of which the first is larger if it is odd."""
        _count(self._calls(objective=True))
        with _uncounted():
            return tuple(self._part(rows).look(z, _rows(batch, rows)) for rows in self._cut(parts))

    def rows_of(self, looks: tuple[Look, ...]) -> Float[Array, "n m"]:
        """The residuals of a look at parts, one row a sample."""
        sizes = [self._part(rows).batch_size for rows in self._cut(len(looks))]
        rows = [
            jnp.concatenate([jnp.broadcast_to(r, (n, r.shape[1])) for r, n in zip(parts, sizes, strict=True)])
            for parts in zip(*(look.residuals for look in looks), strict=True)
        ]
        return jnp.concatenate(rows, axis=1) if rows else jnp.zeros((self.batch_size, 0), self.dtype)

    def residual_rows(self, z: Vector, batch: Batch) -> Float[Array, "n m"]:
        """The residuals by a forward pass alone, one row a sample."""
        rows = [jnp.broadcast_to(r, (self.batch_size, r.shape[1])) for r in self.residuals(z, batch)]
        return jnp.concatenate(rows, axis=1) if rows else jnp.zeros((self.batch_size, 0), self.dtype)

    def gradient_of(self, looks: tuple[Look, ...], weights: Float[Array, "n m"]) -> Parts:
        """The mean of grad f + J_i^T w_i over each part, from one row of weights a sample (or one for all)."""
        spread = jnp.broadcast_to(weights, (self.batch_size, self.rows))

        def gradient(look: Look, rows: Float[Array, "part m"]) -> Vector:
            parts = ((block, rows[:, block.rows]) for block in self.blocks)
            return look.gradient(
                tuple(jnp.mean(w, axis=0, keepdims=True) if block.source is None else w for block, w in parts)
            )

        return self._shared(
            gradient(look, spread[rows]) for look, rows in zip(looks, self._cut(len(looks)), strict=True)
        )

    def jacobian(self, z: Vector, batch: Batch) -> Float[Array, "m d"]:
        """The mean Jacobian of the residuals, by one backward pass a row."""
        _count(self.rows * self._calls(objective=self._needs_joint))
        with _uncounted():
            _, pull = jax.vjp(lambda point: self.join(self.residuals(point, batch)), z)
        return jax.vmap(lambda row: pull(row)[0])(jnp.eye(self.rows, dtype=self.dtype))

    def singles(self, batches: Batch) -> tuple["Oracle", Batch]:
        """Stacked batches sample by sample: an oracle for batches of one, and those batches, stacked."""
        one = replace(self, batch_size=1)
        return one, jax.tree.map(lambda rows: rows.reshape(-1, 1, *rows.shape[2:]), batches)

    def residuals(self, z: Vector, batch: Batch, copy: int = 0) -> Rows:
        """Residuals alone: a forward pass."""
        samples = self._copy(batch, copy)
        _count(self._calls(objective=self._needs_joint))
        joint = self._objective(z, samples)[1] if self._needs_joint else {}
        return self._residuals(z, samples, joint)

    def objective_gradient(self, z: Vector, batch: Batch) -> Vector:
        """The mean gradient of the objective alone."""
        samples = self._copy(batch, 0)
        _count(self.batch_size if self.problem.samples is not None else 1)
        return jax.grad(lambda point: jnp.mean(self._objective(point, samples)[0]))(z)

    def halved_objective_gradient(self, z: Vector, batch: Batch) -> Parts:
        """`objective_gradient`, on either half of the batch."""
        _count(self.batch_size if self.problem.samples is not None else 1)
        with _uncounted():
            return self._shared(self._part(rows).objective_gradient(z, _rows(batch, rows)) for rows in self._cut(2))

    def exact_residuals(self, z: Vector) -> tuple[Float[Array, " m"], Callable[[Float[Array, " m"]], Vector]]:
        """Residuals of constraints that are all deterministic, and w -> J^T w."""
        _count(len(self.blocks))
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
        if self.copies == 2 and self.has_random_constraints:
            seen = self.residuals(z, batch, copy=1)
            partners = tuple(
                own if block.source is None else jnp.broadcast_to(jnp.mean(other, axis=0), own.shape)
                for block, own, other in zip(self.blocks, look.residuals, seen, strict=True)
            )
        else:
            seen = look.residuals
            partners = tuple(
                own if block.source is None else leave_one_out(own)
                for block, own in zip(self.blocks, look.residuals, strict=True)
            )
        values = self.join(seen)
        partners = self._without_replacement(partners, look.residuals)
        y = self.split(jnp.zeros(self.rows, self.dtype) if multipliers is None else multipliers)
        return look.gradient(tuple(a + penalty * b for a, b in zip(y, partners, strict=True))), values

    def _without_replacement(self, partners: Rows, own: Rows) -> Rows:
        """Partners, corrected where rows are drawn from N without replacement."""

        def corrected(block: Block, partner: Array, value: Array) -> Array:
            source = None if block.source is None else self.sources[block.source]
            if source is None or source.population is None:
                return partner
            return repelled(partner, value, source.population)

        return tuple(corrected(*each) for each in zip(self.blocks, partners, own, strict=True))

    # --- the simple convex term, and what goes in and out

    def prox(self, z: Vector, step_size: ArrayLike) -> Vector:
        """The proximal map of h and the projection on X, with slacks kept non-negative."""
        steps: PyTree = step_size
        if self.scaling is not None:  # a step of 1 in z is one of scaling^2 in x, entry by entry
            steps = self.coordinates.unravel(jnp.asarray(step_size) * self.scaling**2, cast=False)
        x = self.coordinates.unravel(self._user(z), cast=False)  # a leaf of low precision keeps its long tail
        simple = self.problem.simple.prox(x, steps)
        return self._point(self._scaled(self.coordinates.ravel(simple)), jnp.maximum(self._parts(z)[1], 0))

    @property
    def is_free(self) -> bool:
        """Whether a proximal step is a gradient step."""
        return isinstance(self.problem.simple, Everything | Zero) and not self._slack_blocks

    def repelled(self, partners: Float[Array, "n m"], own: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """`partners`, corrected for rows that were drawn without replacement, for one row a sample."""
        split = [(partners[:, block.rows], own[:, block.rows]) for block in self.blocks]
        return (
            jnp.concatenate(self._without_replacement(tuple(a for a, _ in split), tuple(b for _, b in split)), axis=1)
            if split
            else partners
        )

    def descent_within(self, z: Vector, gradient: Vector) -> Float[Array, ""]:
        """How fast a function with this gradient can be lowered from z without leaving the set."""
        return self.problem.within.stationarity(self.x_of(z), self._slope(gradient))

    def stationarity(self, z: Vector, gradient: Vector) -> Float[Array, ""]:
        """How far a function with this gradient, together with the simple term, is from being stationary at z."""
        return self.problem.simple.stationarity(self.x_of(z), self._slope(gradient))

    def violation(self, residuals: Float[Array, " m"], z: Vector) -> Float[Array, ""]:
        """The length of the residuals, of those of inequalities where they are positive."""
        own = residuals - self._slack_rows(z)
        return jnp.linalg.norm(jnp.where(self.inequality, jnp.maximum(own, 0), own))

    def start(self, x: PyTree[Array], batch: Batch) -> Vector:
        """x as a vector, slacks as small as the first batch lets them be."""
        vector = self._scaled(self.coordinates.ravel(x))
        if not self._slack_blocks:
            return vector
        residuals = self.join(
            self.residuals(jnp.zeros(self.dimension, self.dtype).at[: vector.size].set(vector), batch)
        )
        slacks = jnp.concatenate([-residuals[block.rows] for block in self._slack_blocks])
        return self._point(vector, jnp.maximum(slacks, 0))

    def taken_up(self, z: Vector, residuals: Float[Array, " m"]) -> Float[Array, " m"]:
        """Residuals on the batch that the slacks were chosen on: 0, whatever rounding says, where there is a slack."""
        return jnp.where(self._slack_rows(z) > 0, 0, residuals)

    def x_of(self, z: Vector) -> PyTree[Array]:
        """The user's x."""
        return self.coordinates.unravel(self._user(z))

    def named_values(self, residuals: Float[Array, " m"], z: Vector) -> dict[str, Array]:
        """Residuals (slacks included) as estimates of E[fun], in the user's own units and shapes."""
        slacks = self._slack_rows(z)
        values = {}
        for block in self.blocks:
            constraint = self.problem.constraints[block.name]
            value = constraint.sign * (residuals - slacks)[block.rows].reshape(block.shape)
            values[block.name] = value + constraint.bound.astype(self.dtype)
        return values

    def named_multipliers(self, multipliers: Float[Array, " m"]) -> dict[str, Array]:
        """Multipliers with the user's sign: L = f + sum y . fun. On the wrong side for an inequality they are 0."""
        multipliers = self.signed(multipliers)
        signs = {name: constraint.sign for name, constraint in self.problem.constraints.items()}
        named = {block.name: multipliers[block.rows].reshape(block.shape) for block in self.blocks}
        return {name: jnp.where(y == 0, 0, signs[name] * y) for name, y in named.items()}  # no negative zeros

    def rows_named(self, named: Mapping[str, ArrayLike]) -> Float[Array, " m"]:
        """Multipliers by name, with the user's signs, as those of the residuals; 0 where left out."""
        parts = [
            self.problem.constraints[block.name].sign
            * jnp.broadcast_to(jnp.asarray(named.get(block.name, 0.0), self.dtype), block.shape).reshape(-1)
            for block in self.blocks
        ]
        return self.signed(jnp.concatenate(parts)) if parts else jnp.zeros(0, self.dtype)

    def signed(self, multipliers: Float[Array, "*n m"]) -> Float[Array, "*n m"]:
        """No negative multiplier for an inequality: its slack takes up the rest."""
        return jnp.maximum(multipliers, least_weights(jnp, self.inequality))

    def join(self, rows: Rows) -> Float[Array, " m"]:
        """Batch means as one residual vector."""
        means = [jnp.mean(r, axis=0) for r in rows]
        return jnp.concatenate(means) if means else jnp.zeros(0, self.dtype)

    def split(self, vector: Float[Array, " m"]) -> Rows:
        """One row of weights for each constraint."""
        return tuple(vector[None, block.rows] for block in self.blocks)

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
        return z[: self.coordinates.size], z[self.coordinates.size :]

    def _point(self, x: Vector, slacks: Float[Array, " s"]) -> Vector:
        return jnp.concatenate([x, slacks]) if self._slack_blocks else x

    def _slack_rows(self, z: Vector) -> Float[Array, " m"]:
        """The slack of each row of the residual vector, 0 for equalities."""
        slacks = jnp.zeros(self.rows, self.dtype)
        start = self.coordinates.size
        for block in self._slack_blocks:
            slacks = slacks.at[block.rows].set(z[start : start + block.size])
            start += block.size
        return slacks

    def _cut(self, parts: int) -> list[slice]:
        """The rows of the parts of a batch."""
        edges = [-(-self.batch_size * i // parts) for i in range(parts + 1)]
        return [slice(*edge) for edge in pairwise(edges)]

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
        return tuple(
            jax.tree.map(lambda rows: rows[copy * b : (copy + 1) * b], samples) if samples is not None else None
            for samples in batch.samples
        )

    @property
    def _needs_joint(self) -> bool:
        """Whether constraint values come out of the objective's function."""
        return any(self.problem.constraints[block.name].fun is None for block in self.blocks)

    def _objective(self, z: Vector, samples: tuple[PyTree | None, ...]) -> tuple[Float[Array, " n"], dict[str, Array]]:
        """The user's objective, sample by sample, and what a joint function says of the constraints."""
        x, joint = self.x_of(z), {}
        if self.problem.samples is None:
            objective = jnp.reshape(self.problem.objective(x), (1,))
        else:
            objective = jax.vmap(self.problem.objective, (None, 0))(x, samples[0])
        if self.problem.is_joint:
            objective, joint = objective
        return objective.astype(self.dtype), joint

    def _residuals(self, z: Vector, samples: tuple[PyTree | None, ...], joint: dict[str, Array]) -> Rows:
        """The user's constraints as residuals, sample by sample."""
        x, slacks = self.x_of(z), self._slack_rows(z)
        residuals = []
        for block in self.blocks:
            constraint = self.problem.constraints[block.name]
            if constraint.fun is None:
                value = joint[block.name]
            elif block.source is None:
                value = constraint.fun(x)
            else:
                value = jax.vmap(constraint.fun, (None, 0))(x, samples[block.source])
            value = jnp.reshape(value, (-1, block.size)).astype(self.dtype)
            bound = jnp.broadcast_to(constraint.bound.astype(self.dtype), block.shape).ravel()
            residuals.append(constraint.sign * (value - bound) + slacks[block.rows])
        return tuple(residuals)

    def evaluations_of(self, samples: int) -> int:
        """What one look at as many samples of every source counts for."""
        return replace(self, batch_size=samples)._calls(objective=True)

    def _calls(self, objective: bool) -> int:
        """How often a pass calls the user's functions: once a sample and function."""
        random, own = (
            self.batch_size,
            [b for b in self.blocks if self.problem.constraints[b.name].fun is not None],
        )
        constraints = sum(1 if block.source is None else random for block in own)
        return constraints + objective * (1 if self.problem.samples is None else random)


def _rows(batch: Batch, rows: slice) -> Batch:
    return jax.tree.map(lambda each: each[rows], batch)


def for_each(function: Callable[[Batch], PyTree], batches: Batch) -> PyTree:
    """The function of each of several stacked batches, stacked; twice the same if nothing in them is random."""
    if not jax.tree.leaves(batches):
        return jax.tree.map(lambda value: jnp.stack([value, value]), function(batches))
    return jax.lax.map(function, batches)


_tally: ContextVar[list[float] | None] = ContextVar("evaluations", default=None)
_share: ContextVar[float] = ContextVar("share", default=1.0)


def _count(evaluations: int) -> None:
    tally = _tally.get()
    if tally is not None:
        tally.append(evaluations * _share.get())


@contextmanager
def occasionally(share: float) -> Iterator[None]:
    """What is asked for here is computed in this share of the iterations, and counts for as much."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


@contextmanager
def _uncounted() -> Iterator[None]:
    token = _tally.set(None)
    try:
        yield
    finally:
        _tally.reset(token)


@contextmanager
def counting() -> Iterator[list[float]]:
    """Evaluations asked for while tracing, so that the count is of the code that runs: `sum(tally)`."""
    tally: list[float] = []
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)
