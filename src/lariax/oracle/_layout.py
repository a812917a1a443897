"""Which entry of the residual vector belongs to which constraint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Block:
    """One named constraint within the residual vector: r = sign (value - bound), with r = 0 or r <= 0."""

    name: str
    shape: tuple[int, ...]  # of one value
    start: int
    sign: float
    relation: str  # of the value to its bound: "=", "<=" or ">="
    source: int | None  # which of the sources its samples come from; None: deterministic

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def inequality(self) -> bool:
        return self.relation != "="

    @property
    def random(self) -> bool:
        return self.source is not None


@dataclass(frozen=True)
class Layout:
    """The constraints in the order in which the user named them, as blocks of one vector with m entries.

    Vectors are of any array library, with m as the last axis. Compiled code works on whole vectors, or on the parts of
    a vector that have their samples from one source: names are for the host.
    """

    blocks: tuple[Block, ...]

    @classmethod
    def of(
        cls,
        constraints: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        sources: Mapping[str, int | None],
    ) -> "Layout":
        """From constraints (of the core or of torch: their `sign` and `relation`), the shape of one value of each, and
        the number of the source of its samples, by name."""
        blocks, start = [], 0
        for name, constraint in constraints.items():
            block = Block(name, shapes[name], start, float(constraint.sign), constraint.relation, sources[name])
            blocks.append(block)
            start += block.size
        return cls(tuple(blocks))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # kept, since compiled functions ask for it at every call
        return hash(self.blocks)

    # --- what is known of each entry

    @property
    def names(self) -> list[str]:
        return [block.name for block in self.blocks]

    @cached_property
    def size(self) -> int:
        """m, the number of scalar constraints."""
        return sum(block.size for block in self.blocks)

    @cached_property
    def owners(self) -> np.ndarray:
        """The number of the block that an entry belongs to."""
        return np.repeat(np.arange(len(self.blocks)), [block.size for block in self.blocks])

    @cached_property
    def signs(self) -> np.ndarray:
        return self.entrywise([block.sign for block in self.blocks], float)

    @cached_property
    def inequality(self) -> np.ndarray:
        """Which entries are r <= 0; the others are r = 0."""
        return self.entrywise([block.inequality for block in self.blocks], bool)

    @cached_property
    def random(self) -> np.ndarray:
        """Which entries are seen through samples."""
        return self.entrywise([block.random for block in self.blocks], bool)

    def entrywise(self, values: Sequence[Any], dtype: Any) -> np.ndarray:
        """One value a block as one an entry."""
        return np.asarray(values, dtype)[self.owners]

    # --- by source

    @cached_property
    def sources(self) -> tuple[int | None, ...]:
        """Those of the blocks, each once."""
        return tuple(dict.fromkeys(block.source for block in self.blocks))

    def of_source(self, source: int | None) -> list[Block]:
        return [block for block in self.blocks if block.source == source]

    @cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The entries of each source."""
        numbers = {source: number for number, source in enumerate(self.sources)}
        owner = self.entrywise([numbers[block.source] for block in self.blocks], int)
        return tuple(np.flatnonzero(owner == number) for number in range(len(self.sources)))

    def split(self, vector: Any) -> tuple[Any, ...]:
        """The parts of a vector, one a source."""
        if len(self.columns) == 1:
            return (vector,)
        return tuple(vector[..., _as_slice(columns)] for columns in self.columns)

    @cached_property
    def order(self) -> np.ndarray | slice:
        """Where the entries stand in the parts, one part after the other."""
        return _as_slice(np.argsort(np.concatenate(self.columns)))

    # --- by name

    def named(self, vector: Any) -> dict[str, Any]:
        """The entries of each constraint, in its shape."""
        lead = vector.shape[:-1]
        return {block.name: vector[..., block.rows].reshape((*lead, *block.shape)) for block in self.blocks}

    def unnamed(self, xp: Any, values: Mapping[str, Any], dtype: Any) -> Any:
        """Values by name, of the shape of their constraint or one for all its entries, as a vector of an array library;
        0 where left out."""
        if not any(name in values for name in self.names):
            return xp.zeros(self.size, dtype)
        parts = [
            xp.broadcast_to(xp.asarray(values.get(block.name, 0.0), dtype), block.shape).reshape(-1)
            for block in self.blocks
        ]
        return xp.concatenate(parts)


def _as_slice(columns: np.ndarray) -> Any:
    """Indices as a slice where they are one after the other, which every array library takes without a copy."""
    if columns.size and np.array_equal(columns, np.arange(columns[0], columns[0] + columns.size)):
        return slice(int(columns[0]), int(columns[0]) + columns.size)
    return columns
