"""Samples that the host brings, batch by batch."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key, PyTree

from lariax.problem._meshes import ROWS, all_devices
from lariax.problem._precision import narrowed, warn_of_float32
from lariax.problem._sources import AbstractSource, leading_axis


class _OnHost:
    """Holds what only the host reads. All are equal, so that compiled code, which never looks inside, is shared."""

    def __init__(self, value: Any):
        self.value, self.reads, self.warned = value, 0, False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OnHost)

    def __hash__(self) -> int:
        return hash(_OnHost)


class Stream(AbstractSource):
    """Batches from the host: any iterable of pytrees of arrays whose first axis counts rows (a data loader).

    Rows are taken in the order in which they come, whatever the sizes of the batches, and go to the device a block at a
    time. They are taken to be independent draws. When the iterable ends the run ends with status `source_ended`; with
    `repeat=True` it is iterated again. It is read in a thread of its own, so that a run with `seconds=` ends in time
    when no rows come. Arrays are taken as by `Dataset`; a batch that does not fit ends the run with what it has.

    A run that is resumed from a checkpoint reads over the rows that it has had: give it the same rows from the
    beginning. An iterable with `state_dict` and `load_state_dict` (a stateful data loader) is asked for its place and
    set to it instead.

    Rows are read a block ahead, while the run computes.

    >>> import numpy as np, lariax as lx
    >>> rng = np.random.default_rng(0)
    >>> stream = lx.Stream({"z": rng.normal(size=32)} for _ in range(1000))
    """

    _batches: _OnHost = eqx.field(static=True)
    repeat: bool = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True, repr=False)  # whose devices share its rows

    from_host: ClassVar[bool] = True

    def __init__(self, batches: Iterable[PyTree], repeat: bool = False, *, mesh: Mesh | None = None):
        if not hasattr(batches, "__iter__"):
            raise TypeError(
                f"Stream takes an iterable of batches, found {type(batches).__name__}. "
                "For arrays that are already in memory use lx.Dataset."
            )
        self._batches = _OnHost(batches)
        self.repeat, self.mesh = repeat, mesh

    @classmethod
    def local(cls, batches: Iterable[PyTree], repeat: bool = False) -> "Stream":
        """The rows of all processes, each of which reads its own (`jax.distributed`): every process gives the same part
        of each batch, dealt out among its devices. With one process, its rows over its devices. The run ends when one
        of them has no more rows.

        >>> import numpy as np, lariax as lx
        >>> stream = lx.Stream.local([np.ones((32, 3))], repeat=True)
        """
        return cls(batches, repeat, mesh=all_devices() if jax.device_count() > 1 else None)

    def with_batches(self, batches: Iterable[PyTree]) -> "Stream":
        """Others in the place of its own, once, on the same devices."""
        return Stream(batches, mesh=self.mesh)

    def placed(self, rows: np.ndarray) -> Array:
        """A block of batches, to which nobody else writes, on the device; over a mesh, every process has its part."""
        if self.mesh is None:
            return jax.device_put(rows, may_alias=True)
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec(None, ROWS)), rows)

    def read(self) -> "Batches":
        """The batches, checked one by one as they come."""
        self._batches.reads += 1
        return Batches(self._batches.value, self.repeat)

    def read_on(self, state: Any, seen: int, ended: bool) -> "Batches":
        """The batches after a place that `state` told of, in a pass of which `seen` rows have gone; none, if it had
        `ended` there."""
        if not hasattr(self._batches.value, "load_state_dict"):
            raise ValueError(
                "the iterable of the Stream knew its place before (state_dict), and this one does not take it "
                f"(load_state_dict), found {type(self._batches.value).__name__}. Give the same kind of iterable."
            )
        self._batches.value.load_state_dict(state)
        return Batches(() if ended else self._batches.value, self.repeat, seen)

    def one_pass(self) -> "Stream":
        """The same rows, once."""
        return self.with_batches(self._batches.value)

    def state(self) -> Any:
        """The place as the iterable itself tells it; None: it cannot."""
        iterable = self._batches.value
        return iterable.state_dict() if hasattr(iterable, "load_state_dict") else None

    def warn_of(self, batches: "Batches") -> None:
        """Say it once if rows have lost digits."""
        if batches.lost is not None and not self._batches.warned:
            self._batches.warned = True
            warn_of_float32(batches.lost)

    @property
    def used_up(self) -> bool:
        """Whether it is an iterator (a generator) that somebody has read from: its first rows are gone."""
        return self._batches.reads > 0 and hasattr(self._batches.value, "__next__")

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> PyTree:
        raise NotImplementedError("the rows of a Stream are fed to the compiled loop by the host")


class Batches(Iterator[PyTree]):
    """The batches of an iterable, once or again and again. Unlike a generator it survives an exception on the way."""

    def __init__(self, batches: Iterable[PyTree], repeat: bool, seen: int = 0):
        self._all, self._repeat = batches, repeat
        self.seen, self.ended = seen, False  # rows of this pass; whether there are no more
        self.lost: str | None = None  # the first array that lost digits
        self._iterator = iter(batches)

    def __next__(self) -> PyTree:
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not (self._repeat and self.seen):
                self.ended = True
                raise
            self._iterator, self.seen = iter(self._all), 0
            batch = next(self._iterator)
        batch, lost = narrowed(batch, "a batch of the Stream")
        self.lost = self.lost or lost
        self.seen += leading_axis(batch, "a batch of the Stream")
        return batch
