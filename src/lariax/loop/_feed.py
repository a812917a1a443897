"""From host streams to the compiled loop: rows in the order in which they come, cut into iterations."""

import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.checkpoint import raw
from lariax.oracle import sample_structure
from lariax.problem import AbstractSource, Problem, Stream, describe_shape, first_nonfinite
from lariax.utils import warn

FEWEST_ROWS = 32  # for a certificate
POLL_SECONDS = 0.05  # between two looks at whether to wait any longer


class ReadFurtherError(ValueError):
    """Rows are gone that a run would need."""


class StreamReader:
    """Reads rows of a `Stream` on demand, whatever the sizes of its batches. Rows read are kept until handed out, so an
    interrupt on the way loses none. `mark`: begin where another reader was."""

    def __init__(self, stream: Stream, mark: Mapping[str, Any] | None = None):
        self._stream = stream
        self._pieces: list[PyTree] = []
        self.structure: PyTree = None
        self.taken = 0  # rows handed out
        if mark is not None and "state" in mark:
            self._batches = stream.read_on(mark["state"], mark["seen"], mark["ended"])
            self._keep(mark["rows"])
        else:
            self._batches = stream.read()

    def _keep(self, batch: PyTree) -> None:
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

    def fill(self, count: int) -> int:
        """Read until `count` rows are there, or all that there are; how many there are."""
        while (held := sum(map(_rows, self._pieces))) < count:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._keep(batch)
        return held

    def take(self, count: int) -> PyTree:
        """The next `count` rows, or as many as were read."""
        taken = self.peek(count)
        self._pieces = [jax.tree.map(lambda array: array[count:], rows) for rows in self._pieces]
        self.taken += _rows(taken)
        return taken

    def peek(self, count: int) -> PyTree:
        """The same, and they stay where they are. Rows are copied only where they come in several pieces."""
        pieces = [piece for piece in self._pieces if _rows(piece)] or self._pieces[:1]
        self._pieces = pieces if len(pieces) == 1 else [jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)]
        return jax.tree.map(lambda array: array[:count], self._pieces[0])

    def warn(self) -> None:
        """Say it once if rows have lost digits."""
        self._stream.warn_of(self._batches)

    def skip(self, count: int) -> None:
        """Read over rows."""
        while count:
            held = self.fill(1)
            if not held:
                raise ValueError(
                    f"the Stream ended {count} rows before the place of the checkpoint. A resumed run reads the same "
                    "rows from their beginning."
                )
            self.take(min(held, count))
            count -= min(held, count)

    def mark(self, taken: PyTree) -> dict[str, Any]:
        """What it takes to read on after rows `taken`, and these once more; nothing, if reading over will do."""
        state = self._stream.state()
        if state is None:
            return {}
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), taken, *self._pieces)
        return {"state": state, "seen": self._batches.seen, "ended": self._batches.ended, "rows": rows}


def _rows(arrays: PyTree) -> int:
    return int(jax.tree.leaves(arrays)[0].shape[0])


def _filled(rows: np.ndarray, length: int, count: int) -> np.ndarray:
    """As so many batches; where rows are missing, some of them again."""
    shape = (length, count, *rows.shape[1:])
    return rows.reshape(shape) if len(rows) == length * count else np.resize(rows, shape)


class _Background:
    """Something that may take for ever, done in a thread; one can stop waiting for it, and wait again later."""

    def __init__(self, work: Callable[[], Any]):
        self._work = work
        self._double = jax.dtypes.canonicalize_dtype(float).itemsize == 8  # a thread does not inherit jax.enable_x64
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)  # a source that hangs does not hold up the exit
        self._thread.start()

    def _run(self) -> None:
        try:
            with jax.enable_x64(self._double):
                self._work()
        except BaseException as error:
            self.error = error

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """Whether it is done."""
        while self._thread.is_alive():
            self._thread.join(POLL_SECONDS)
            if self._thread.is_alive() and give_up():
                return False
        return True


class Feeder:
    """What the host feeds to the compiled loop, block by block: nothing, unless a source is a `Stream`.

    Streams are read in a thread. `give_up` is asked from time to time, and ends the wait for rows that do not come; the
    reading goes on, and the next to ask for the block gets it. Until somebody sets it, it is when all waits together
    have taken `patience` seconds. `marks`: of another feeder, where to begin.
    """

    def __init__(
        self,
        sources: tuple[AbstractSource | None, ...],
        patience: float | None = None,
        marks: Mapping[int, Any] | None = None,
    ):
        self._sources, self._waited = sources, 0.0
        self.give_up: Callable[[], bool] = lambda: patience is not None and self._waited >= patience
        self._readers = {
            i: StreamReader(source, None if marks is None else marks[i])
            for i, source in enumerate(sources)
            if isinstance(source, Stream)
        }
        self._reading: _Background | None = None
        self._first = -1
        self._last = -1
        self._block = self.nothing
        self._warned = False
        self._marks: dict[int, dict[str, Any]] = {}
        if self._readers and not self._read(lambda reader, i: reader.fill(1)):
            raise TimeoutError("the Stream gave no row in the time that the run has.")
        if any(reader.structure is None for reader in self._readers.values()):
            raise ValueError("the Stream ended before its first row. A generator can be read once: make a new one.")

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

    def _read(self, work: Callable[[StreamReader, int], Any]) -> bool:
        """Let every reader do something, or wait for what they are at; False: given up."""
        if self._reading is None:
            self._reading = _Background(lambda: [work(reader, i) for i, reader in self._readers.items()])
        began, before = time.perf_counter(), self._waited

        def give_up() -> bool:
            self._waited = before + time.perf_counter() - began
            return self.give_up()

        if not self._reading.wait(give_up):
            return False
        reading, self._reading = self._reading, None
        if reading.error is not None:
            raise reading.error
        return True

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
            if not self._read(lambda reader, i: reader.fill(length * counts[i])):
                return None
            taken = {i: reader.take(length * counts[i]) for i, reader in self._readers.items()}
            self._warn_of(taken)
            for reader in self._readers.values():
                reader.warn()
            self._marks = {i: reader.mark(taken[i]) for i, reader in self._readers.items()}
            complete = min(length, *(_rows(rows) // counts[i] for i, rows in taken.items()))
            block: list[Any] = [None] * len(self._sources)
            for i, rows in taken.items():
                block[i] = jax.tree.map(lambda a, count=counts[i]: _filled(a, length, count), rows)
            self._block, self._first, self._last = tuple(block), first, first + complete - 1
        return self._block, self._last

    def _warn_of(self, taken: dict[int, PyTree]) -> None:
        """Say it once when rows are not finite: a method may pass over them in silence."""
        for i, rows in taken.items():
            bad = None if self._warned else first_nonfinite(rows)
            if bad is not None:
                self._warned = True
                row = self._readers[i].taken - _rows(rows) + bad[1][0]
                warn(
                    f"row {row:,} of the Stream holds {bad[2]}{f' in {bad[0]}' if bad[0] else ''}. Some methods pass "
                    "over samples that are not finite, with others the run ends there: look at the source."
                )

    def ahead(self, count: int, give_up: Callable[[], bool] | None = None) -> dict[int, PyTree] | None:
        """The next `count` rows of each stream, or as many as there are, that no block has had yet and a later one will
        have; None: given up waiting for them."""
        waits, self.give_up = self.give_up, give_up or self.give_up
        try:
            if (self._reading and not self._read(lambda *_: None)) or not self._read(lambda r, _: r.fill(count)):
                return None
        finally:
            self.give_up = waits
        return {i: reader.peek(count) for i, reader in self._readers.items()}

    def rows_handed_out(self) -> dict[int, int]:
        """Of each stream, up to the end of the latest block."""
        return {i: reader.taken for i, reader in self._readers.items()}

    def problem_ahead(self, problem: Problem, draws: int, give_up: Callable[[], bool] | None = None) -> Problem | None:
        """The problem with the next rows of its streams in their place, for a certificate from `draws` draws: rows that
        the run has not had yet, and will have. None: too few are left, or given up waiting for them."""
        if not self:
            return problem
        wanted = draws // sum(source.rows_per_sample for source in problem.sources if source is not None)
        rows = self.ahead(wanted, give_up)
        if rows is None or min(map(_rows, rows.values())) < FEWEST_ROWS:
            return None
        return problem.with_sources({i: Stream([each]) for i, each in rows.items()})

    # --- the place, for a checkpoint

    def place(self) -> dict[str, Any]:
        """Where the latest block lies, what is in it, and what the sources say of themselves."""
        complete = self._last - self._first + 1
        return {"first": self._first, "complete": complete, "sum": self._sum(complete), "marks": dict(self._marks)}

    def _sum(self, complete: int) -> int:
        """A checksum of the latest block."""
        total = 0
        for leaf in jax.tree.leaves(self._block):
            total = zlib.crc32(raw(leaf[:complete]), total)
        return total

    def go_to(self, place: Mapping[str, Any], length: int, counts: list[int]) -> None:
        """Read on to the latest block of another feeder, which began where this one did or was told to."""
        first, marks = place["first"], place["marks"]
        known = [i for i in self._readers if "state" in marks.get(i, {})]
        there = self._read(lambda reader, i: None if i in known else reader.skip(first * counts[i]))
        for i, reader in self._readers.items():
            reader.taken = first * counts[i]
        if not there or self.block(first, length, counts) is None:
            raise TimeoutError(
                "the Stream did not give the rows up to the place of the checkpoint in the time that the run has. The "
                "checkpoint is intact: resume when the rows come, or with more seconds=."
            )
        enough = self._last >= first + place["complete"] - 1
        if not enough or self._sum(place["complete"]) != place["sum"]:
            raise ValueError(
                "the Stream does not give the rows that it gave before. A resumed run reads them again from their "
                "beginning: the same rows, in the same order (a shuffle needs a fixed seed)."
            )
