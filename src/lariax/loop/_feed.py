"""From host streams to the compiled loop: rows in the order in which they come, cut into iterations."""

import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from lariax.checkpoint import raw
from lariax.loop._processes import Processes
from lariax.loop._reading import Background, StreamReader, filled, rows_in, whole
from lariax.oracle import sample_structure
from lariax.problem import AbstractSource, Problem, Stream, describe_shape, first_nonfinite
from lariax.utils import warn

FEWEST_ROWS = 32  # for a certificate


class ReadFurtherError(ValueError):
    """Rows are gone that a run would need."""


class Prepared(NamedTuple):
    """A block of rows that have been read."""

    first: int  # the place that it begins with
    complete: int  # places for which there are enough rows, in every process
    rows: dict[int, PyTree]  # by source, on the host
    arrays: tuple[PyTree, ...]  # on the device, one entry a source
    bad: dict[int, Any]  # by source, its first number that is not finite


class Feeder:
    """What the host feeds to the compiled loop, block by block: nothing, unless a source is a `Stream`.

    Streams are read in a thread, which has the next block ready on the device while the loop is at the last one.
    `give_up` is asked from time to time, and ends the wait for rows that do not come; the reading goes on, and the next
    to ask for the block gets it. Until somebody sets it, it is when all waits together have taken `patience` seconds.
    `marks`: of another feeder, where to begin.

    Of a `Stream.local` every process reads its part of each batch. All of them call the same functions in the same
    order, and wait for each other.
    """

    def __init__(
        self,
        sources: tuple[AbstractSource | None, ...],
        patience: float | None = None,
        marks: Mapping[int, Any] | None = None,
    ):
        self._sources, self._waited = sources, 0.0
        self.give_up: Callable[[], bool] = lambda: patience is not None and self._waited >= patience
        self._streams = {i: source for i, source in enumerate(sources) if isinstance(source, Stream)}
        self._readers = {
            i: StreamReader(stream, None if marks is None else marks[i]) for i, stream in self._streams.items()
        }
        self._processes = Processes.of(tuple(self._streams.values()))
        self._reading: Background | None = None
        self._prepared: Prepared | None = None
        self._first = -1
        self._last = -1
        self._block = self.nothing
        self._taken: dict[int, PyTree] = {}  # the rows of the block, on the host
        self._counts: dict[int, int] = {}  # of each place
        self._warned = False
        self._marks: dict[int, dict[str, Any]] = {}
        if self._readers and not self._read(lambda: [reader.fill(1) for reader in self._readers.values()]):
            raise TimeoutError("the Stream gave no row in the time that the run has.")
        if self._processes.any(any(reader.structure is None for reader in self._readers.values())):
            raise ValueError("the Stream ended before its first row. A generator can be read once: make a new one.")
        shapes = [describe_shape(reader.structure) for reader in self._readers.values()]
        if len({*self._processes.everyone(zlib.crc32(repr(shapes).encode()) >> 1)[:, 0].tolist()}) > 1:
            raise ValueError(f"the rows of the Stream are not alike in all processes, here they are {shapes}.")

    def __bool__(self) -> bool:
        return bool(self._readers)

    def structures(self) -> tuple[PyTree | None, ...]:
        """The shape of one sample of each source."""
        return tuple(
            self._readers[i].structure if i in self._readers else sample_structure(source)
            for i, source in enumerate(self._sources)
        )

    @property
    def latest(self) -> tuple[PyTree, ...]:
        """The block that was asked for last."""
        return self._block

    @property
    def nothing(self) -> tuple[PyTree, ...]:
        return (None,) * len(self._sources)

    def _read(self, work: Callable[[], Any]) -> bool:
        """Have something read, or wait for what is being read; False: given up."""
        if self._reading is None:
            self._reading = Background(work)
        began, before = time.perf_counter(), self._waited

        def give_up() -> bool:
            self._waited = before + time.perf_counter() - began
            return self.give_up()

        if not self._reading.wait(give_up, self._processes):
            return False
        reading, self._reading = self._reading, None
        if reading.error is not None:
            raise reading.error
        return True

    def _prepare(self, first: int, length: int, counts: list[int]) -> None:
        """Read a block, look at its rows and put them on the device. Nothing is handed out yet."""
        block: list[Any] = [None] * len(self._sources)
        complete, bad, held = length, {}, {}
        for i, stream in self._streams.items():
            count = self._own(counts[i])
            self._readers[i].fill(length * count)
            held[i] = rows = self._readers[i].copied(length * count)
            complete = min(complete, rows_in(rows) // count)
            bad[i] = None if self._warned else first_nonfinite(rows)
            block[i] = jax.tree.map(lambda a, s=stream, n=count: s.placed(filled(a, length, n)), rows)
        self._prepared = Prepared(first, complete, held, tuple(block), bad)

    def _own(self, count: int) -> int:
        """Of so many rows, those that this process reads."""
        return count // self._processes.size

    def read_ahead(self, length: int, counts: list[int]) -> None:
        """Have the next block ready when it is asked for."""
        if self and self._reading is None:
            self._reading = Background(partial(self._prepare, self._first + length, length, counts))

    def start(self, places: int, length: int, counts: list[int]) -> tuple[PyTree, ...]:
        """Rows for the start of the run, the first places of the first block."""
        if not self:
            return self.nothing
        found = self.block(0, length, counts)
        if found is None:
            raise TimeoutError("the Stream did not give the rows of the start in the time that the run has.")
        block, last = found
        if last < min(places, length - 1):
            raise ValueError(
                f"the Stream ended within the first rows: a start takes {places} times {counts} of them, and an "
                "iteration once as many. Give it more."
            )
        return jax.tree.map(lambda rows: rows[:places], block)

    def block(self, first: int, length: int, counts: list[int]) -> tuple[tuple[PyTree, ...], int] | None:
        """Rows for the places first .. first + length - 1, and the last of these for which there are enough; None:
        given up waiting for them."""
        if first < self._first:
            raise ReadFurtherError(
                "this result's Stream has been read further by a later run, so the run cannot be continued from here. "
                "Continue from the latest result, or start again with a new Stream."
            )
        if first > self._first:
            while self._prepared is None or self._prepared.first != first:
                if not self._read(partial(self._prepare, first, length, counts)):
                    return None
            ready, self._prepared = self._prepared, None
            complete = int(self._processes.everyone(ready.complete).min())
            self._counts = {i: self._own(counts[i]) for i in self._readers}
            self._taken = ready.rows
            for i, reader in self._readers.items():
                reader.drop(length * self._counts[i])
            self._warn_of(ready.bad)
            for reader in self._readers.values():
                reader.warn()
            self._marks = {i: reader.mark(self._taken[i]) for i, reader in self._readers.items()}
            self._block, self._first, self._last = ready.arrays, first, first + complete - 1
        return self._block, self._last

    def _warn_of(self, found: dict[int, Any]) -> None:
        """Say it once when rows are not finite: a method may pass over them in silence."""
        for i, bad in found.items():
            if bad is not None and not self._warned:
                self._warned = True
                row = self._readers[i].taken - rows_in(self._taken[i]) + bad[1][0]
                warn(
                    f"row {row:,} of the Stream holds {bad[2]}{f' in {bad[0]}' if bad[0] else ''}. Some methods pass "
                    "over samples that are not finite, with others the run ends there: look at the source."
                )

    def ahead(self, count: int, give_up: Callable[[], bool] | None = None) -> dict[int, PyTree] | None:
        """The next `count` rows of each stream, or as many as there are, that no block has had yet and a later one will
        have; None: given up waiting for them."""
        waits, self.give_up = self.give_up, give_up or self.give_up
        own = -(-count // self._processes.size)
        try:
            if (self._reading and not self._read(lambda: None)) or not self._read(
                lambda: [reader.fill(own) for reader in self._readers.values()]
            ):
                return None
        finally:
            self.give_up = waits
        return {i: reader.peek(own) for i, reader in self._readers.items()}

    def rows_handed_out(self) -> dict[int, int]:
        """Of each stream, up to the end of the latest block."""
        return {i: reader.taken * self._processes.size for i, reader in self._readers.items()}

    def problem_ahead(self, problem: Problem, draws: int, give_up: Callable[[], bool] | None = None) -> Problem | None:
        """The problem with the next rows of its streams in their place, for a certificate from `draws` draws: rows that
        the run has not had yet, and will have. None: too few are left, or given up waiting for them."""
        if not self:
            return problem
        wanted = draws // sum(source.rows_per_sample for source in problem.sources if source is not None)
        rows = self.ahead(wanted, give_up)
        if rows is None or self._processes.any(min(map(rows_in, rows.values())) < FEWEST_ROWS):
            return None
        return problem.with_sources({i: self._streams[i].with_batches([each]) for i, each in rows.items()})

    # --- the place, for a checkpoint

    def place(self) -> dict[str, Any]:
        """Where the latest block lies, what is in it, and what the sources say of themselves; of several processes,
        each."""
        complete = self._last - self._first + 1
        marks = {i: whole(mark) for i, mark in self._marks.items()}
        own = {"sum": self._sum(complete), "marks": marks}
        common = {"first": self._first, "complete": complete}
        return common | ({"processes": self._processes.gathered(own)} if self._processes.together else own)

    def _sum(self, complete: int) -> int:
        """A checksum of the latest block."""
        total = 0
        for i, rows in self._taken.items():
            count = self._counts[i]
            for leaf in jax.tree.leaves(rows):
                total = zlib.crc32(raw(leaf[: complete * count]), total)
        return total

    def go_to(self, place: Mapping[str, Any], length: int, counts: list[int]) -> None:
        """Read on to the latest block of another feeder, which began where this one did or was told to."""
        first, marks = place["first"], place["marks"]
        known = [i for i in self._readers if "state" in marks.get(i, {})]
        over = {i: first * self._own(counts[i]) for i in self._readers}

        def skip() -> None:
            for i, reader in self._readers.items():
                if i not in known:
                    reader.skip(over[i])

        there = self._read(skip)
        for i, reader in self._readers.items():
            reader.taken = over[i]
        if not there or self.block(first, length, counts) is None:
            raise TimeoutError(
                "the Stream did not give the rows up to the place of the checkpoint in the time that the run has. The "
                "checkpoint is intact: resume when the rows come, or with more seconds=."
            )
        enough = self._last >= first + place["complete"] - 1
        if self._processes.any(not enough or self._sum(place["complete"]) != place["sum"]):
            raise ValueError(
                "the Stream does not give the rows that it gave before. A resumed run reads them again from their "
                "beginning: the same rows, in the same order (a shuffle needs a fixed seed)."
            )
