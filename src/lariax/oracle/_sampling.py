"""The samples of an iteration: where they come from, and how many there are."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Int, Key, PyTree

from lariax.oracle._layout import Layout
from lariax.problem import AbstractSource, Problem


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


class AbstractSampling(eqx.Module):
    """A problem with a batch size: what an iteration draws.

    `copies` independent batches of the constraints' samples are drawn an iteration: with 2, the paper's zeta1 and
    zeta2; with 1, unbiased products come from all ordered pairs within the batch.
    """

    problem: eqx.AbstractVar[Problem]
    layout: eqx.AbstractVar[Layout]
    batch_size: eqx.AbstractVar[int]
    copies: eqx.AbstractVar[int]

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
