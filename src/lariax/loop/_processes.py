"""Several processes that take one run along together: each calls the same compiled programs, in the same order.

What depends on a clock, on a signal or on the user is therefore agreed on: the first process decides how far the next
call goes and when to save, and any of them can stop the run.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, PyTree

from lariax.checkpoint import Classes, packed, unpacked
from lariax.problem import Stream, mesh_of


@dataclass(frozen=True)
class Processes:
    """The processes of a run; alone, nothing is agreed on."""

    together: bool = False  # whether there are several

    @classmethod
    def of(cls, arrays: PyTree) -> "Processes":
        """Those whose devices are on the mesh that arrays are on."""
        if jax.process_count() == 1:
            return cls()
        mesh = mesh_of(arrays)
        together = mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1
        leaves = jax.tree.leaves(arrays, is_leaf=lambda node: isinstance(node, Stream))
        if together and any(isinstance(leaf, Stream) and leaf.mesh is None for leaf in leaves):
            raise ValueError(
                "a Stream gives the rows of one process, and there are several. Say lx.Stream.local(batches), where "
                "each process gives its own."
            )
        return cls(together)

    @property
    def size(self) -> int:
        return jax.process_count() if self.together else 1

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes checkpoints and shows progress."""
        return not self.together or jax.process_index() == 0

    def agreed(self, number: int) -> int:
        """That of the first process."""
        return int(multihost_utils.broadcast_one_to_all(np.int32(number))) if self.together else number

    def any(self, flag: bool) -> bool:
        """Whether one of them says so."""
        return bool(np.any(multihost_utils.process_allgather(np.int32(flag)))) if self.together else flag

    def everyone(self, *numbers: int) -> np.ndarray:
        """What each says, a row a process."""
        own = np.array(numbers, np.int32)
        return np.asarray(multihost_utils.process_allgather(own)) if self.together else own[None]

    def gathered(self, value: Any) -> list[Any]:
        """Plain values and arrays of each."""
        own = np.frombuffer(b"".join(map(bytes, packed(value, Classes({})))), np.uint8)
        lengths = self.everyone(own.size)[:, 0]
        padded = np.zeros(lengths.max(), np.uint8)
        padded[: own.size] = own
        rows = np.asarray(multihost_utils.process_allgather(padded))
        return [unpacked(row[:length].tobytes(), Classes({})) for row, length in zip(rows, lengths, strict=True)]

    def on_host(self, leaf: Array) -> Any:
        """An array for a file: one that no process has the whole of is gathered."""
        if not self.together or not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return multihost_utils.process_allgather(leaf, tiled=True)
