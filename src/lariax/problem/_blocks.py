"""Rows that do not fit into memory: read from disk block by block, in a random order, ahead of who needs them."""

import importlib
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.utils import check_count, did_you_mean, needed_by

READERS = 4  # threads that read the blocks of a window: one waits for the disk while another puts rows in their places

TABLES = {".parquet": "scan_parquet", ".arrow": "scan_ipc", ".feather": "scan_ipc"}
"""Kinds of files with columns, and the function of polars that opens them."""


class _Piece(Protocol):
    """Rows that lie one after the other in a file."""

    rows: int

    def read(self, first: int, last: int) -> PyTree:
        """Some of them as arrays."""


class _Arrays:
    """Arrays with a common first axis, of files or in memory."""

    def __init__(self, arrays: PyTree):
        whole = jax.tree.map(lambda leaf: leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf), arrays)
        lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(whole)}
        if len(lengths) != 1 or lengths & {(), (0,)}:
            raise ValueError(f"Blocks takes arrays that share a first axis of at least one row, found {lengths}.")
        ((self.rows,),) = lengths
        self._arrays = jax.tree.map(lambda leaf: _File.of(leaf) or leaf, whole)

    def read(self, first: int, last: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[first:last], self._arrays)


class _File:
    """An array in a file that is read, not mapped: pages of a mapped one come one by one, and count as our memory."""

    def __init__(self, path: Any, offset: int, array: np.ndarray):
        self._path, self._offset, self._shape, self._dtype = path, offset, array.shape[1:], array.dtype
        self._bytes = array.strides[0]

    @classmethod
    def of(cls, array: np.ndarray) -> "_File | None":
        """Where the rows of a mapped array are; None: it is not mapped, or not row after row."""
        owner: Any = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        path, offset = getattr(array, "filename", None), getattr(array, "offset", 0)
        if path is None or not isinstance(owner, mmap.mmap) or not array.flags.c_contiguous or array.flags.writeable:
            return None
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY  # of the map, which a view keeps
        return cls(path, begin + array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data, array)

    def __getitem__(self, rows: slice) -> np.ndarray:
        found = np.empty((rows.stop - rows.start, *self._shape), self._dtype)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._offset + rows.start * self._bytes)
            view, done = found.reshape(-1).view(np.uint8).data, 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise OSError(f"{self._path} has become shorter: row {rows.stop - 1} is missing.")
                done += count
        return found


class _Table:
    """A file with columns."""

    def __init__(self, path: Path, columns: Sequence[str] | None):
        with needed_by(f"a {path.suffix} file"):
            polars: Any = importlib.import_module("polars")
        frame = getattr(polars, TABLES[path.suffix])(path)
        known = frame.collect_schema().names()
        for name in columns or ():
            if name not in known:
                raise ValueError(f"{path} has no column {name!r}. {did_you_mean(name, known)}It has {known}.")
        self._frame = frame.select(list(columns or known))
        self.rows = int(frame.select(polars.len()).collect().item())

    def read(self, first: int, last: int) -> PyTree:
        frame = self._frame.slice(first, last - first).collect()
        return {name: frame[name].to_numpy() for name in frame.columns}


class Blocks:
    """Rows on disk in a random order, of which a window is in memory: `lx.Stream(lx.Blocks(data), repeat=True)`.

    A pass goes through blocks of consecutive rows in a random order, and mixes the rows of `window` blocks at a time;
    the next window is read by a thread meanwhile. Every row comes once in a pass, and at any place with the same
    probability. What a run sees depends on the seed alone, and one that is resumed goes on at the same row.

    Rows of one batch are from `window` blocks, not from all. Where rows of a block are alike (a sorted file), means of
    batches are as right, but spread more, and products of two rows of a batch (which constraints that are random bring
    along) are biased by the covariance of rows of a block, over `window`: take small blocks and many, or shuffle once.

    Arguments:
        data: arrays, as `np.load(path, mmap_mode="r")` gives them, or a pytree of such; or a path: a .npy file, a
            .parquet, .arrow or .feather file (read by polars; a batch is a dictionary of its columns), or a folder
            whose files, all of one kind, hold some of the rows each, in the order of their names.
        rows: of a block.
        window: blocks in memory at a time; while the next ones are read, twice as many.
        batch: rows handed over at a time.
        columns: of a table, those to read; by default all.
        seed: of the order.

    >>> import numpy as np, lariax as lx
    >>> rows = np.arange(12.0).reshape(6, 2)  # np.load("rows.npy", mmap_mode="r")
    >>> blocks = lx.Blocks(rows, rows=2, window=2)
    >>> sorted(np.concatenate(list(blocks))[:, 0].tolist())
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """

    def __init__(
        self,
        data: Any,
        *,
        rows: int = 1024,
        window: int = 64,
        batch: int = 4096,
        columns: Sequence[str] | None = None,
        seed: int = 0,
    ):
        for name, value in (("rows", rows), ("window", window), ("batch", batch)):
            check_count(name, value)
        self._pieces = _pieces(data, columns)
        self._blocks = [
            (number, first, min(first + rows, piece.rows))
            for number, piece in enumerate(self._pieces)
            for first in range(0, piece.rows, rows)
        ]
        self._window, self._batch, self._seed = window, batch, seed
        self._epoch, self._place, self._begun = 0, 0, False  # the pass, and the batches of it that were handed over

    def __len__(self) -> int:
        """Of a pass, in rows."""
        return sum(piece.rows for piece in self._pieces)

    def __iter__(self) -> Iterator[PyTree]:
        """One pass: the next, or what is left of the one that a state tells of."""
        if self._begun:
            self._epoch, self._place = self._epoch + 1, 0
        self._begun = True
        return self._passed(self._epoch, self._place)

    def _passed(self, epoch: int, skipped: int) -> Iterator[PyTree]:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._blocks))
        windows = [order[first : first + self._window] for first in range(0, len(order), self._window)]
        counts = [-(-self._rows_of(window) // self._batch) for window in windows]
        number = 0
        while number < len(windows) and skipped >= counts[number]:
            number, skipped = number + 1, skipped - counts[number]
        reader, readers = ThreadPoolExecutor(1, "lariax-window"), ThreadPoolExecutor(READERS, "lariax-blocks")

        def start(number: int) -> Future[PyTree] | None:
            if number == len(windows):
                return None
            return reader.submit(self._read, readers, windows[number], epoch, number)

        try:
            coming = start(number)
            while coming is not None:
                rows = coming.result()
                number += 1
                coming = start(number)
                for place in range(skipped, counts[number - 1]):
                    batch = slice(place * self._batch, (place + 1) * self._batch)
                    self._place += 1
                    yield jax.tree.map(lambda leaf, batch=batch: leaf[batch], rows)
                skipped = 0
        finally:  # nobody waits for a window that nobody wants; at the exit of the process nobody could
            reader.shutdown(wait=False)
            readers.shutdown(wait=False)

    def _rows_of(self, window: np.ndarray) -> int:
        return sum(self._blocks[block][2] - self._blocks[block][1] for block in window)

    def _read(self, readers: Executor, window: np.ndarray, epoch: int, number: int) -> PyTree:
        """The rows of a window, mixed: every row is put where it belongs as it comes."""
        places = np.random.default_rng([self._seed, epoch, number]).permutation(self._rows_of(window))
        ends = list(accumulate((self._rows_of(window[i : i + 1]) for i in range(len(window))), initial=0))
        mixed, first_one = None, Lock()

        def put(i: int) -> None:
            nonlocal mixed
            piece, first, last = self._blocks[window[i]]
            found = self._pieces[piece].read(first, last)
            with first_one:  # says what a row looks like
                if mixed is None:
                    mixed = jax.tree.map(lambda leaf: np.empty((len(places), *leaf.shape[1:]), leaf.dtype), found)
            there = places[ends[i] : ends[i + 1]]
            jax.tree.map(lambda leaf, rows: leaf.__setitem__(there, rows), mixed, found)

        for _ in readers.map(put, range(len(window))):
            pass
        return mixed

    # --- the place, for a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"epoch": self._epoch, "place": self._place, "order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go there. The files and the arguments must be the same."""
        if list(state["order"]) != self._order:
            raise ValueError(
                f"the order of the rows was made by [rows, blocks, window, batch, seed] = {list(state['order'])}, and "
                f"here it is {self._order}. Give the same files and arguments."
            )
        self._epoch, self._place, self._begun = int(state["epoch"]), int(state["place"]), False

    @property
    def _order(self) -> list[int]:
        """What the order of the rows depends on."""
        return [len(self), len(self._blocks), self._window, self._batch, self._seed]


def _pieces(data: Any, columns: Sequence[str] | None) -> list[_Piece]:
    if not isinstance(data, str | os.PathLike):
        return [_Arrays(data)]
    path = Path(data)
    if not path.is_dir():
        return [_opened(path, columns)]
    files = sorted(file for file in path.iterdir() if file.suffix in (".npy", *TABLES))
    if not files or len({file.suffix for file in files}) > 1:
        kinds = ", ".join((".npy", *TABLES))
        raise ValueError(f"{path} must hold files of one kind ({kinds}), found {[file.name for file in files[:4]]}.")
    return [_opened(file, columns) for file in files]


def _opened(path: Path, columns: Sequence[str] | None) -> _Piece:
    if path.suffix in TABLES:
        return _Table(path, columns)
    return _Arrays(np.load(path, mmap_mode="r", allow_pickle=False))
