"""A function of each of several batches: one after the other, or on an accelerator many at once."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lariax.compilation import Program, on_cpu
from lariax.oracle._counting import uncounted
from lariax.oracle._sampling import Batch

AT_ONCE = 2**16
"""Entries of what comes out, up to which batches are looked at together: there a command takes as long for many as for
one. A CPU takes them one after the other, which needs no memory and is as fast."""


def for_each(function: Callable[[Batch], PyTree], batches: Batch) -> PyTree:
    """The function of each of several stacked batches, stacked; twice the same if nothing in them is random."""
    if not jax.tree.leaves(batches):
        return jax.tree.map(lambda value: jnp.stack([value, value]), function(batches))
    many = _at_once(function, batches)
    return jax.lax.map(function, batches, batch_size=None if many == 1 else many)


def sum_over(function: Callable[[Batch], PyTree], batches: Batch) -> PyTree:
    """The sum of a function of each of several stacked batches; its value, if nothing in them is random."""
    if not jax.tree.leaves(batches):
        return function(batches)
    many = _at_once(function, batches)
    once = Program(function, batches.first)
    every = once if many == 1 else lambda some: jax.tree.map(lambda v: v.sum(0), jax.vmap(once)(some))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), once.output)
    parts = batches if many == 1 else jax.tree.map(lambda v: v.reshape(-1, many, *v.shape[1:]), batches)
    return jax.lax.scan(lambda sums, some: (jax.tree.map(jnp.add, sums, every(some)), None), nothing, parts)[0]


def _at_once(function: Callable[[Batch], PyTree], batches: Batch) -> int:
    """How many batches: a divisor of their number."""
    count = jax.tree.leaves(batches)[0].shape[0]
    if on_cpu():
        return 1
    with uncounted():
        like = jax.eval_shape(function, batches.first)
    most = AT_ONCE // max(1, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like)))
    return max((part for part in range(1, count + 1) if count % part == 0 and part <= most), default=1)
