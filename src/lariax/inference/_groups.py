"""The rows of a `Stratified` source, group by group.

A function of one row of each group that is a sum of functions of single rows,  f = sum over g of f_g(row of g),  has

    E f = sum over g of E f(row of g, the first row of every other group)  -  (G - 1) f(the first rows)

so that N_1 + ... + N_G + 1 samples give its mean over all tuples, and the rows of a group vary on their own: the mean
has the variance  sum over g of  var_g / N_g.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from lariax.certificate import AbstractFeed, batch_of
from lariax.inference._errors import InferenceError
from lariax.oracle import Batch, Oracle, Vector
from lariax.problem import Stratified

TRIED = 16  # tuples on which a function must be the sum that it is taken for


class EachGroup(AbstractFeed):
    """Every row beside the first rows of the other groups, group after group; then the first rows alone."""

    source: Stratified

    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        places = self._places(step, count)
        rows = self.source.order[jnp.minimum(places, self.source.order.size - 1)]
        own = self.groups(step, count)[:, None] == jnp.arange(self.source.sizes.size)
        return self.source.fetch(jnp.where(own, rows[:, None], self.first))

    def weights(self, step: Int[Array, ""], count: int, steps: Float[Array, ""]) -> Float[Array, " count"]:
        sizes = self.source.sizes
        places, group = self._places(step, count), self.groups(step, count)
        own = 1 / sizes[jnp.minimum(group, sizes.size - 1)].astype(steps.dtype)
        return jnp.where(group < sizes.size, own, jnp.where(places == self.source.order.size, 1 - sizes.size, 0))

    def groups(self, step: Int[Array, ""], count: int) -> Int[Array, " count"]:
        """Whose row each sample is about; beyond the last group: none's."""
        ends = self.source.starts + self.source.sizes
        return jnp.sum(self._places(step, count)[:, None] >= ends, axis=1)

    @property
    def first(self) -> Int[Array, " groups"]:
        return self.source.order[self.source.starts]

    def _places(self, step: Int[Array, ""], count: int) -> Int[Array, " count"]:
        return step * count + jnp.arange(count)


def some_of_each(source: Stratified, rows: int, key: Key[Array, ""]) -> Stratified:
    """At most so many rows of each group, without replacement."""
    if rows >= int(jnp.max(source.sizes)):
        return source
    member = np.repeat(np.arange(len(source.groups)), np.asarray(source.sizes))
    order = np.asarray(source.order)
    shuffled = np.asarray(jax.random.permutation(key, order.size))
    chosen = np.concatenate([shuffled[member[shuffled] == g][:rows] for g in range(len(source.groups))])
    return Stratified(jax.tree.map(lambda array: array[order[chosen]], source.arrays), by=member[chosen])


def check_sums(oracle: Oracle, feeds: tuple[AbstractFeed | None, ...], point: Vector, key: Key[Array, ""]) -> None:
    """Refuse functions of a `Stratified` source that are not sums over the groups."""
    if not any(isinstance(feed, EachGroup) for feed in feeds):
        return
    oracle = replace(oracle, batch_size=TRIED)
    batch = batch_of(feeds, key, jnp.int32(0), TRIED)
    for i, feed in enumerate(feeds):
        if not isinstance(feed, EachGroup):
            continue
        drawn = feed.source.draw(jax.random.fold_in(key, i), jnp.zeros(1, jnp.int32), TRIED)[0]
        first = jnp.broadcast_to(feed.first, drawn.shape)
        eye = jnp.eye(feed.first.size, dtype=bool)
        tickets = [drawn, first, *(jnp.where(own, drawn, first) for own in eye)]
        found = [_values(oracle, point, batch, i, feed.source.fetch(ticket)) for ticket in tickets]
        together, start, *alone = found
        apart = [each - start for each in alone]
        off = np.abs(together - start - sum(apart))
        least = np.sqrt(np.finfo(oracle.dtype).eps) * (np.abs(together) + np.abs(start) + sum(map(np.abs, apart)))
        if np.any(off > least):
            raise InferenceError(
                "a function of a Stratified source mixes the rows of different groups (a product, a comparison of "
                "pairs), and then its error is not a sum over the groups. Write it as a sum of functions of single "
                "rows, such as sample['loss'][0] - sample['loss'][1]."
            )


def _values(oracle: Oracle, point: Vector, batch: Batch, source: int, samples: Any) -> np.ndarray:
    """What the functions of one source say of these samples of it."""
    swapped = Batch(tuple(samples if i == source else other for i, other in enumerate(batch.samples)))
    look = oracle.look(point, swapped)
    parts = [r for own, r in zip(oracle.layout.sources, look.residuals, strict=True) if own == source]
    if source == 0:
        parts.append(look.objective[:, None])
    return np.concatenate([np.asarray(part, float) for part in parts], axis=1)
