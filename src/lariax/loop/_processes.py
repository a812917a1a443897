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

from lariax.problem import Stream, mesh_of


@dataclass(frozen=True)
class Company:
    """The processes of a run; alone, nothing is agreed on."""

    together: bool = False  # whether there are several

    @classmethod
    def of(cls, arrays: PyTree) -> "Company":
        """Those whose devices are on the mesh that arrays are on."""
        if jax.process_count() == 1:
            return cls()
        mesh = mesh_of(arrays)
        together = mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1
        streams = jax.tree.leaves(arrays, is_leaf=lambda node: isinstance(node, Stream))
        if together and any(isinstance(leaf, Stream) for leaf in streams):
            raise ValueError(
                "the rows of a Stream cannot be put together from several processes. Give each process its rows by "
                "lx.Dataset.local(arrays), or make samples by lx.Distribution."
            )
        return cls(together)

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

    def on_host(self, leaf: Array) -> Any:
        """An array for a file: one that no process has the whole of is gathered."""
        if not self.together or not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return multihost_utils.process_allgather(leaf, tiled=True)
