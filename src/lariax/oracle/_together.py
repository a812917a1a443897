"""How many samples of a batch are looked at in one pass: all of them, unless memory is too short for that."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array, PyTree

from lariax.oracle._sampling import Batch, Placement

LOOK_SHARE = 0.25
"""The share of a device's memory that a look at a batch may take for what it keeps on the way forward, to have it on
the way back. Methods look at two points at a time, and vectors like x need memory too."""


def device_memory() -> float:
    """Bytes of a device; of a CPU, of the machine."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def most_together(oracle: Any, x: PyTree, samples: tuple[PyTree | None, ...]) -> int | None:
    """How many samples, of these shapes, fit into one pass; None: all of a batch."""
    devices = oracle.placement.count if oracle.placement else 1
    room = LOOK_SHARE * device_memory() * devices
    if oracle.sample_work * oracle.batch_size * oracle.dtype.itemsize <= room or oracle.batch_size % devices:
        return None

    def kept(count: int) -> int:
        def way_back(x: PyTree, batch: Batch) -> PyTree:
            few = replace(oracle, batch_size=count, placement=None, has_slacks=False)
            return few.look(oracle.coordinates.ravel(x), batch).pull

        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), Batch(samples))
        leaves = jax.tree.leaves(jax.eval_shape(way_back, x, batch))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    most = int(room // max(kept(2) - kept(1), 1))
    return None if most >= oracle.batch_size else max(most // devices, 1) * devices


def each_of(
    function: Callable[[PyTree], PyTree], samples: PyTree, together: int | None, placement: Placement | None
) -> PyTree:
    """A function sample by sample, of so many at a time. What is not kept is made once more on the way back."""
    count = jax.tree.leaves(samples)[0].shape[0]
    devices = placement.count if placement else 1
    if together is None or count <= together or count % devices:
        return jax.vmap(function)(samples)

    def by_device(leaf: Array) -> Array:
        """A sample of each device at a time, so that all have something to do."""
        return leaf.reshape(devices, count // devices, *leaf.shape[1:]).swapaxes(0, 1)

    found = jax.lax.map(
        jax.checkpoint(jax.vmap(function)), jax.tree.map(by_device, samples), batch_size=together // devices
    )
    return jax.tree.map(lambda leaf: leaf.swapaxes(0, 1).reshape(count, *leaf.shape[2:]), found)
