"""The state of a run for a file, and back: on a mesh, vectors like x are in an order of their own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from lariax.loop._compiled import begin
from lariax.loop._processes import Processes
from lariax.loop._programs import LoopState
from lariax.loop._state import Setup
from lariax.oracle import Oracle


def like_loop(setup: Setup, oracle: Oracle, x: PyTree, key: Any) -> LoopState:
    """The shapes of a run's state."""
    fed = tuple(
        jax.tree.map(lambda row, n=count: np.zeros((setup.blocks.start, n, *row.shape), row.dtype), sample)
        if source is not None and source.from_host
        else None
        for source, sample, count in zip(oracle.sources, setup.feeder.structures(), oracle.sample_counts, strict=True)
    )
    pick = setup.output == "random"
    found: LoopState = eqx.filter_eval_shape(begin, oracle, setup.method, x, key, fed, setup.blocks, pick)[0]
    return found


def like_x(oracle: Oracle) -> PyTree:
    coordinates = oracle.coordinates
    leaves = map(jax.ShapeDtypeStruct, coordinates.shapes, coordinates.dtypes)
    return jax.tree.unflatten(coordinates.structure, leaves)


def as_plain(setup: Setup, loop: LoopState, processes: Processes) -> LoopState:
    """For a file: whole arrays, in the order that they have on one device."""
    whole: LoopState = jax.tree.map(processes.on_host, loop)
    return _reordered(setup, whole, setup.oracle.coordinates.to_plain)


def from_plain(setup: Setup, loop: LoopState) -> LoopState:
    """Of a file: vectors like x where x is."""
    shards = setup.oracle.coordinates.shards
    if shards is None:
        return loop
    ordered = _reordered(setup, loop, setup.oracle.coordinates.from_plain)
    settled: LoopState = eqx.filter_jit(lambda oracle, state: oracle.settled(state))(setup.oracle, ordered)
    return settled


def _reordered(setup: Setup, loop: LoopState, order: Callable[[np.ndarray, int], np.ndarray]) -> LoopState:
    oracle = setup.oracle
    if oracle.coordinates.shards is None:
        return loop
    more = oracle.slacks

    def reorder(leaf: Any, is_vector: bool) -> Any:
        if not is_vector:
            return leaf
        array = np.asarray(leaf)
        rows = [order(row, more) for row in array.reshape(-1, array.shape[-1])]
        return np.stack(rows).reshape(*array.shape[:-1], -1)

    return jax.tree.map(reorder, loop, _vectors(setup, loop))


def _vectors(setup: Setup, loop: LoopState) -> PyTree:
    """Which arrays of a state are vectors like x: those that become longer when x does."""
    oracle, x = setup.oracle, like_x(setup.oracle)
    assert oracle.coordinates.shards is not None
    longer = replace(oracle.coordinates, shards=replace(oracle.coordinates.shards, extra=1))
    key = jax.eval_shape(lambda: jax.random.key(0)) if loop.key is None else loop.key
    shapes = (like_loop(setup, each, x, key) for each in (oracle, replace(oracle, coordinates=longer)))
    return jax.tree.map(lambda a, b: a.shape != b.shape, *shapes)
