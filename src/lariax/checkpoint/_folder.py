"""Checkpoints on disk: when they are written, how, and which are kept."""

import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lariax.checkpoint._archive import CheckpointError, DamagedError
from lariax.problem import Problem
from lariax.utils import is_number, warn, write_atomically

try:
    import fcntl
except ImportError:  # not on Windows: there, nothing keeps two processes from working in one folder
    fcntl = None  # type: ignore[assignment]

Pieces = Iterable[Any]  # of bytes

_NAME = re.compile(r"checkpoint-(\d{8})\.lariax")
_PARTIAL = re.compile(r"\.checkpoint-\d{8}\.lariax\.partial")
_problems: "weakref.WeakValueDictionary[Path, Problem]" = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run is saved; a bare folder means the defaults.

    Arguments:
        folder: made if it is not there. It must not hold a run already.
        every: seconds between two checkpoints. One is also written at the start and at the end. The answer does not
            depend on it.
        keep: how many are kept, the newest ones.
        origin: anything that JSON can hold: a note for whoever builds the problem again before resuming
            (`lariax.loop.origin_of(folder)` reads it). The run itself does not look at it.

    >>> import lariax as lx
    >>> lx.Checkpoint("runs/a", every=60.0).keep
    2
    """

    folder: str | os.PathLike[str]
    every: float = 10.0
    keep: int = 2
    origin: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"checkpoint= takes a folder or an lx.Checkpoint, found {type(self.folder).__name__}.")
        if not (is_number(self.every) and self.every >= 0):
            raise ValueError(f"every= is a number of seconds, at least 0, found {self.every!r}.")
        if not (is_number(self.keep, int) and self.keep >= 1):
            raise ValueError(f"keep= is a number of checkpoints, at least 1, found {self.keep!r}.")


class Folder:
    """A folder of checkpoints, numbered in the order of writing. No file that is there is ever changed.

    At any moment the folder holds whole checkpoints only.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._lock: int | None = None
        self._sound: list[Path] = []  # written or read here, so known to be whole

    def __repr__(self) -> str:
        return repr(str(self.path))

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"the folder {self} cannot be made: {error}. Choose another for checkpoint=."
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in the folder, and rid of what a process that was killed left unfinished."""
        if fcntl is None:
            yield
            return
        lock = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(
                    f"another run is at work in the folder {self}. Wait for it, or stop it."
                ) from error
            except OSError:
                pass  # a file system without locks
            for part in self.path.iterdir():
                if _PARTIAL.fullmatch(part.name):
                    part.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def numbered(self) -> list[tuple[int, Path]]:
        """The checkpoints, oldest first."""
        if not self.path.is_dir():
            return []
        names = ((_NAME.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted((int(match[1]), path) for match, path in names if match)

    def newest(self, parse: Callable[[bytes], Any]) -> Any:
        """The newest one that is whole; a warning if others had to be passed over."""
        damaged = []
        for _, path in reversed(self.numbered()):
            try:
                found = parse(path.read_bytes())
            except (OSError, DamagedError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from error
            if damaged:
                warn(
                    f"passed over what is no whole checkpoint in {self}: {'; '.join(damaged)}. The run goes on from "
                    f"{path.name}."
                )
            self._sound = [path]
            return found
        if damaged:
            raise CheckpointError(f"no checkpoint in {self} is whole. {'; '.join(damaged)}. Nothing was changed.")
        raise CheckpointError(
            f"there is no checkpoint in {self}. A run that is to be resumed is started with "
            f"lx.solve(..., checkpoint={self})."
        )

    def write(self, pieces: Pieces, keep: int) -> None:
        """One more checkpoint; then all but the newest `keep` of this run go."""
        number = max((number for number, _ in self.numbered()), default=0) + 1
        path = self.path / f"checkpoint-{number:08d}.lariax"
        write_atomically(path, lambda file: file.writelines(pieces))
        self._sound.append(path)
        while len(self._sound) > keep:
            self._sound.pop(0).unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(checkpoint: Checkpoint | None) -> Iterator[Folder | None]:
    """For a run that begins: one without a run in it."""
    if checkpoint is None:
        yield None
        return
    folder = Folder(checkpoint.folder)
    folder.make()
    with folder.locked():
        if folder.numbered():
            raise CheckpointError(
                f"the folder {folder} holds a run already, and it is not overwritten. Go on with it: "
                f"lx.resume({folder}, problem); or choose another folder for a new run."
            )
        yield folder


class Keeper:
    """Writes the checkpoints of one run, in a thread, one at a time. A disk that fails does not end the run: that is
    said, and tried again. `pack` makes the file, in that thread too."""

    def __init__(self, folder: Folder, every: float, keep: int, pack: Callable[..., Pieces]):
        self.folder = folder
        self._every, self._keep, self._pack = every, keep, pack
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._warned = False
        self.error: Exception | None = None  # of the latest attempt

    @property
    def due(self) -> bool:
        at_work = self._thread is not None and self._thread.is_alive()
        return not at_work and time.monotonic() - self._began >= self._every

    def begin(self, *what: Any) -> None:
        """Write the first one, and complain if that cannot be done."""
        try:
            self.folder.write(self._pack(*what), self._keep)
        except OSError as error:
            raise CheckpointError(
                f"the folder {self.folder} cannot be written to: {error}. Make room, or choose another for checkpoint=."
            ) from error
        self._began = time.monotonic()

    def save(self, *what: Any, wait: bool = False) -> None:
        """Begin to write; `wait`: and finish."""
        self._join()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._write, args=what)
        self._thread.start()
        if wait:
            self._join()

    def _write(self, *what: Any) -> None:
        try:
            self.folder.write(self._pack(*what), self._keep)
            self.error = None
        except Exception as error:
            self.error = error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.error is not None and not self._warned:
            self._warned = True
            warn(
                f"a checkpoint could not be written to {self.folder}: {self.error}. The run goes on and tries again; "
                "the checkpoint before is intact."
            )


def remember(folder: Folder, problem: Problem) -> None:
    """For `resume` in the same process, as long as somebody holds the problem."""
    _problems[folder.path.resolve()] = problem


def remembered(folder: Folder) -> Problem | None:
    return _problems.get(folder.path.resolve())
