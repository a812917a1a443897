"""The samples of an iteration: where they come from, and how many there are."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key, PyTree

from lariax.oracle._layout import Layout
from lariax.oracle._packed import Packed
from lariax.problem import AbstractSource, Axes, Dataset, Distribution, Problem, Stream, mesh_of, splits_of


class Batch(NamedTuple):
    """The samples of one iteration, one entry a source (None where the objective is deterministic)."""

    samples: tuple[PyTree | None, ...]

    @property
    def first(self) -> "Batch":
        """Of several batches, stacked along a leading axis, the first."""
        return self.rows(0)

    def rows(self, rows: slice | int) -> "Batch":
        """Some of its samples, of every source."""
        return jax.tree.map(lambda each: each[rows], self)


@dataclass(frozen=True)
class Placement:
    """Where the samples of an iteration are, on a mesh."""

    mesh: Mesh
    axes: Axes  # among which they are dealt out; none: every device has all of them

    @classmethod
    def of(cls, problem: Problem, x: PyTree[Array]) -> "Placement | None":
        """Along the axes that rows of data are cut along, if there are any; otherwise along those that x is not."""
        mesh = mesh_of((x, problem.sources))
        if mesh is None:
            return None
        cuts = {source.shards.axes for source in problem.sources if isinstance(source, Dataset) and source.shards}
        cuts |= {source.mesh.axis_names for source in problem.sources if isinstance(source, Stream) and source.mesh}
        if cuts:
            return cls(mesh, cuts.pop() if len(cuts) == 1 else ())
        used = {axis for leaf in jax.tree.leaves(x) for axes in splits_of(leaf) for axis in axes}
        return cls(mesh, tuple(axis for axis in mesh.axis_names if axis not in used and mesh.shape[axis] > 1))

    @property
    def count(self) -> int:
        return prod(self.mesh.shape[axis] for axis in self.axes)

    def dealt(self, samples: PyTree, axis: int) -> PyTree:
        """The samples, counted by an axis, each on its device."""

        def place(leaf: Array) -> Array:
            if leaf.shape[axis] % self.count:
                return leaf
            free = PartitionSpec.UNCONSTRAINED
            entries = [self.axes if i == axis else free for i in range(leaf.ndim)]
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, PartitionSpec(*entries)))

        return jax.tree.map(place, samples)

    def whole(self, leaf: Array) -> Array:
        """On every device."""
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, PartitionSpec()))


class AbstractSampling(eqx.Module):
    """A problem with a batch size: what an iteration draws.

    `copies` independent batches of the constraints' samples are drawn an iteration: with 2, the paper's zeta1 and
    zeta2; with 1, unbiased products come from all ordered pairs within the batch.
    """

    packed: eqx.AbstractVar[Packed[Problem]]
    layout: eqx.AbstractVar[Layout]
    batch_size: eqx.AbstractVar[int]
    copies: eqx.AbstractVar[int]
    placement: eqx.AbstractVar[Placement | None]

    @property
    def problem(self) -> Problem:
        return self.packed.tree

    @property
    def strata(self) -> int:
        """How many parts a batch has that were drawn from rows of their own, one after the other. A part needs two
        samples, so that there are others to compare one with."""
        if self.placement is None or not any(map(self._has_own_rows, self.sources)):
            return 1
        count = self.placement.count
        return count if self.batch_size % count == 0 and self.batch_size >= 2 * count else 1

    def is_cut(self, source: AbstractSource | None) -> bool:
        """Whether every device draws from its own rows of this source."""
        return self.strata > 1 and self._has_own_rows(source)

    def _has_own_rows(self, source: AbstractSource | None) -> bool:
        if self.placement is None:
            return False
        if isinstance(source, Stream):
            return source.mesh is not None
        return isinstance(source, Dataset) and source.shards is not None and source.shards.axes == self.placement.axes

    @property
    def sources(self) -> tuple[AbstractSource | None, ...]:
        return self.problem.sources

    def samples_from(self, source: int) -> int:
        """How many samples an iteration takes from a source."""
        return self.batch_size * (self.copies if source in self.layout.sources else 1)

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
        return tuple(self._drawn(i, source, key, iterations, fed[i]) for i, source in enumerate(self.sources))

    def _drawn(
        self, i: int, source: AbstractSource | None, key: Key[Array, ""], iterations: Int[Array, " n"], fed: PyTree
    ) -> PyTree:
        if source is None or source.from_host:
            return fed
        own, count = jax.random.fold_in(key, i), self.samples_from(i)
        if isinstance(source, Dataset) and self.is_cut(source):
            return source.draw_from_shards(own, iterations, count)
        tickets = source.draw(own, iterations, count)
        if self.placement is None or not isinstance(source, Distribution):
            return tickets
        return self.placement.dealt(tickets, axis=1)

    def fetch(self, tickets: tuple[PyTree, ...]) -> Batch:
        """The samples behind the tickets of one iteration."""
        return Batch(tuple(map(self._fetched, self.sources, tickets)))

    def _fetched(self, source: AbstractSource | None, ticket: PyTree) -> PyTree:
        if source is None:
            return None
        if isinstance(source, Dataset) and self.is_cut(source):
            return source.fetch_from_shards(ticket)
        samples = source.fetch(ticket)
        return samples if self.placement is None else self.placement.dealt(samples, axis=0)
