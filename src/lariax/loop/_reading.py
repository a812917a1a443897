"""Rows of a host stream, on demand and ahead of who needs them."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.loop._processes import Processes
from lariax.problem import Stream, describe_shape

ALIGNMENT = 64  # bytes
POLL_SECONDS = 0.05  # between two looks at whether to wait any longer


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
        while (held := sum(map(rows_in, self._pieces))) < count:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._keep(batch)
        return held

    def drop(self, count: int) -> None:
        """Go past the next `count` rows, or as many as were read."""
        rest: list[PyTree] = []
        self.taken += min(count, sum(map(rows_in, self._pieces)))
        for piece in self._pieces:
            rest.append(jax.tree.map(lambda array, first=count: array[first:], piece))
            count -= min(count, rows_in(piece))
        self._pieces = [piece for piece in rest if rows_in(piece)] or rest[-1:]

    def copied(self, count: int) -> PyTree:
        """The next `count` rows, or as many as were read, in memory of their own, which a CPU takes as it is."""

        def copy(*parts: np.ndarray) -> np.ndarray:
            rows = min(count, sum(map(len, parts)))
            found = _aligned((rows, *parts[0].shape[1:]), parts[0].dtype)
            done = 0
            for part in parts:
                found[done : done + len(part)] = part[: rows - done]
                done += len(part[: rows - done])
            return found

        return jax.tree.map(copy, *self._pieces)

    def peek(self, count: int) -> PyTree:
        """The same where they are: copied only if they come in several pieces."""
        pieces = [piece for piece in self._pieces if rows_in(piece)] or self._pieces[:1]
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
            self.drop(min(held, count))
            count -= min(held, count)

    def mark(self, taken: PyTree) -> dict[str, Any]:
        """What it takes to read on after rows `taken`, and these once more; nothing, if reading over will do."""
        state = self._stream.state()
        if state is None:
            return {}
        return {
            "state": state,
            "seen": self._batches.seen,
            "ended": self._batches.ended,
            "rows": (taken, *self._pieces),
        }


def whole(mark: Mapping[str, Any]) -> dict[str, Any]:
    """A mark with its rows in one piece, for a file."""
    return {**mark, "rows": jax.tree.map(lambda *parts: np.concatenate(parts), *mark["rows"])} if mark else {}


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Room at an address that XLA asks for, so that it need not copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].view(dtype).reshape(shape)


def rows_in(arrays: PyTree) -> int:
    return int(jax.tree.leaves(arrays)[0].shape[0])


def filled(rows: np.ndarray, length: int, count: int) -> np.ndarray:
    """As so many batches; where rows are missing, some of them again."""
    shape = (length, count, *rows.shape[1:])
    return rows.reshape(shape) if len(rows) == length * count else np.resize(rows, shape)


class Background:
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

    def wait(self, give_up: Callable[[], bool], processes: Processes) -> bool:
        """Whether it is done, in every process. They look at each other in turn, so that all go on or none does."""
        while True:
            self._thread.join(POLL_SECONDS)
            busy = self._thread.is_alive()
            state = processes.everyone(busy, busy and give_up(), self.error is not None)
            if state[:, 1].any() or not state[:, 0].any():
                break
        done = not state[:, 0].any()
        if done and self.error is None and state[:, 2].any():
            raise RuntimeError(f"the Stream of process {int(np.argmax(state[:, 2]))} failed, see there")
        return bool(done)
