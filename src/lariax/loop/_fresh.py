"""Samples that a run has not seen, for what is said of its end."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from lariax.compilation import compiled, on_device
from lariax.loop._randomness import Randomness
from lariax.methods import Diagnosis
from lariax.oracle import Batch, Oracle, Vector

SAMPLES = 2048
"""Fresh samples behind a verdict, in two halves."""

FEWEST, MOST_VALUES = 32, 2**25
"""No more values of constraints in a half than this, with so many samples at least: millions of rows take few."""


class FreshSamples:
    """x in the run's units, and samples that the run has not seen, drawn when asked for: mostly nobody asks, and what
    is on the host takes no program."""

    def __init__(self, oracle: Oracle, known: Diagnosis, x: Any, key: Key[Array, ""]) -> None:
        vector = oracle.coordinates.ravel_small(x)
        xp: Any = np if isinstance(vector, np.ndarray) else jnp
        scales = xp.ones_like(vector) if known.scales is None else xp.asarray(known.scales)
        self._z, self._run = vector / scales, key
        self._halves: dict[int, Batch] = {}
        self.oracle = replace(oracle, scaling=on_device(scales), has_slacks=False, copies=1, batch_size=_half(oracle))

    @property
    def is_here(self) -> bool:
        """Whether this process has all of x."""
        return isinstance(self._z, np.ndarray) or self._z.is_fully_addressable

    @cached_property
    def away(self) -> float:
        return float(np.linalg.norm(np.asarray(self._z)) if self.is_here else jnp.linalg.norm(self._z))

    @cached_property
    def key(self) -> Key[Array, ""]:
        return Randomness.VERDICTS.of(self._run)

    @cached_property
    def point(self) -> Vector:
        return on_device(self._z)

    @property
    def draws(self) -> int:
        return len(self._halves) * self.oracle.draws_per_iteration

    def half(self, number: int) -> Batch:
        if number not in self._halves:
            self._halves[number] = _samples_at(self.oracle, self.key, on_device(number, np.int32))
        return self._halves[number]


def _half(oracle: Oracle) -> int:
    """Of the fresh samples; no more than there are rows, where they are drawn without replacement."""
    passes = [source for source in oracle.sources if getattr(source, "epochs", False)]
    few = max(FEWEST, 2 ** int(np.log2(max(1, MOST_VALUES / max(1, oracle.rows)))))  # of which meshes have equal parts
    return min([SAMPLES // 2, few, *(leaf.shape[0] for leaf in jax.tree.leaves(passes) if np.ndim(leaf))])


@compiled(once=True)
def _samples_at(oracle: Oracle, key: Key[Array, ""], place: Int[Array, ""]) -> Batch:
    tickets = oracle.draw(key, place[None], (None,) * len(oracle.sources))
    return oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
