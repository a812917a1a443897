"""From host streams to the compiled loop: rows in the order in which they come, cut into iterations."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.oracle import sample_structure
from lariax.problem import AbstractSource, Stream, describe_shape


class StreamReader:
    """Reads rows of a `Stream` on demand, whatever the sizes of its batches. Rows read are kept until handed out, so an
    interrupt on the way loses none."""

    def __init__(self, stream: Stream):
        self._batches = stream.read()
        self._pieces: list[PyTree] = []
        self.structure: PyTree = None
        if not self._read():
            raise ValueError("the Stream ended before its first row. A generator can be read once: make a new one.")

    def _read(self) -> bool:
        """One more batch; False if there is none."""
        batch = next(self._batches, None)
        if batch is None:
            return False
        batch = jax.tree.map(np.asarray, batch)
        found = jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), batch)
        if self.structure is None:
            self.structure = found
        if found != self.structure:
            raise ValueError(
                f"a batch of the Stream has rows of {describe_shape(found)}, the first had "
                f"{describe_shape(self.structure)}. Every row must have the same shape and type."
            )
        self._pieces.append(batch)
        return True

    def take(self, count: int) -> PyTree:
        """The next `count` rows, or as many as there are."""
        while sum(map(_rows, self._pieces)) < count and self._read():
            pass
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), *self._pieces)
        self._pieces = [jax.tree.map(lambda array: array[count:], rows)]
        return jax.tree.map(lambda array: array[:count], rows)


def _rows(arrays: PyTree) -> int:
    return int(jax.tree.leaves(arrays)[0].shape[0])


class Feeder:
    """What the host feeds to the compiled loop, block by block: nothing, unless a source is a `Stream`."""

    def __init__(self, sources: tuple[AbstractSource | None, ...]):
        self._sources = sources
        self._readers = {i: StreamReader(s) for i, s in enumerate(sources) if isinstance(s, Stream)}
        self._first = -1
        self._last = -1
        self._block = self.nothing

    def __bool__(self) -> bool:
        return bool(self._readers)

    def structures(self) -> tuple[PyTree | None, ...]:
        """The shape of one sample of each source."""
        return tuple(
            self._readers[i].structure if i in self._readers else sample_structure(source)
            for i, source in enumerate(self._sources)
        )

    @property
    def nothing(self) -> tuple[PyTree, ...]:
        return (None,) * len(self._sources)

    def start(self, places: int, length: int, counts: list[int]) -> tuple[PyTree, ...]:
        """Rows for the start of the run, the first places of the first block."""
        if not self:
            return self.nothing
        block, last = self.block(0, length, counts)
        if last < places - 1:
            raise ValueError(f"the Stream ended within the first rows: a start takes {places} times {counts} of them.")
        return jax.tree.map(lambda rows: rows[:places], block)

    def block(self, first: int, length: int, counts: list[int]) -> tuple[tuple[PyTree, ...], int]:
        """Rows for the places first .. first + length - 1, and the last of these for which there are enough."""
        if first < self._first:
            raise ValueError(
                "this result's Stream has been read further by a later run, so the run cannot be continued from here. "
                "Continue from the latest result, or start again with a new Stream."
            )
        if first > self._first:
            block: list[Any] = [None] * len(self._sources)
            complete = length
            for i, reader in self._readers.items():
                rows = reader.take(length * counts[i])
                complete = min(complete, _rows(rows) // counts[i])
                block[i] = jax.tree.map(
                    lambda a, count=counts[i]: np.resize(a, (length, count, *a.shape[1:])),  # beyond `complete`: filler
                    rows,
                )
            self._block, self._first, self._last = tuple(block), first, first + complete - 1
        return self._block, self._last
