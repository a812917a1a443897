"""Fresh samples for a certificate: which rows are looked at, how often, and what their means are."""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key, PyTree

from lariax.certificate._spread import BatchMeans, is_large
from lariax.compilation import Program
from lariax.oracle import Batch, Look, Oracle, Rows, Vector
from lariax.problem import AbstractSource

MOST_BATCHES = 64
FEWEST_BATCHES = 8
BATCH_ENTRIES = 2**20  # numbers in all batch means together, where there are more than the fewest
LARGEST_STEP = 256  # samples in one pass, and an eighth of it for an x that is
LARGE = 2**14


class AbstractFeed(eqx.Module):
    """The samples of one source, step by step."""

    @abc.abstractmethod
    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        """The `count` samples of a step."""

    @abc.abstractmethod
    def weights(self, step: Int[Array, ""], count: int, steps: Float[Array, ""]) -> Float[Array, " count"]:
        """What each counts for in the mean over a batch of `steps` steps."""


class AbstractSample(AbstractFeed):
    """Samples that all count for the same."""

    def weights(self, step: Int[Array, ""], count: int, steps: Float[Array, ""]) -> Float[Array, " count"]:
        return jnp.full(count, 1 / (count * steps))


class Fresh(AbstractSample):
    """Samples drawn anew, independent of each other."""

    source: AbstractSource

    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        tickets = self.source.draw(key, step[None], count)
        return self.source.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))


class WithReplacement(AbstractSample):
    """Rows of a data set, each step independent of the others."""

    source: AbstractSource
    rows: int = eqx.field(static=True)

    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        return self.source.fetch(jax.random.randint(jax.random.fold_in(key, step), (count,), 0, self.rows))


class InOrder(AbstractSample):
    """Given rows, each once: a sample in its own right."""

    source: AbstractSource
    order: Int[Array, " rows"]

    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        return self.source.fetch(jax.lax.dynamic_slice(self.order, (step * count,), (count,)))


class AllRows(AbstractFeed):
    """Every row of a data set, for the mean itself: nothing is random."""

    source: AbstractSource
    rows: int = eqx.field(static=True)

    def take(self, key: Key[Array, ""], step: Int[Array, ""], count: int) -> PyTree:
        return self.source.fetch(jnp.minimum(step * count + jnp.arange(count), self.rows - 1))

    def weights(self, step: Int[Array, ""], count: int, steps: Float[Array, ""]) -> Float[Array, " count"]:
        return jnp.where(step * count + jnp.arange(count) < self.rows, 1 / self.rows, 0)


Feeds = tuple[AbstractFeed | None, ...]


class BatchPlan(eqx.Module):
    """How many samples of each source, cut into batches whose means are kept, and steps that fit in memory.

    Only the sizes of arrays are part of the compiled code: more steps, and so more draws, do not compile again.
    """

    batches: int = eqx.field(static=True)
    count: int = eqx.field(static=True)  # samples of each source in a step
    steps: Int[np.ndarray, ""]  # in a batch
    first: Int[np.ndarray, ""] = eqx.field(
        default_factory=lambda: np.asarray(0, np.int32)
    )  # the number of its first step

    @property
    def samples(self) -> Int[np.ndarray, ""]:
        return self.batches * self.steps * self.count

    def half(self, second: bool, dimension: int) -> "BatchPlan":
        """The first or the second half of the steps, in batches of their own; of all rows, all of them."""
        if self.batches == 1:
            return self
        steps = int(self.batches * self.steps) // 2
        batches = _batches(steps, dimension)
        first = int(self.first) + (steps if second else 0)
        return BatchPlan(batches, self.count, np.asarray(steps // batches, np.int32), np.asarray(first, np.int32))


def _batches(steps: int, dimension: int) -> int:
    """Few where x is large, for memory."""
    return int(np.clip(BATCH_ENTRIES // dimension, FEWEST_BATCHES, max(FEWEST_BATCHES, min(MOST_BATCHES, steps))))


def plan_for(samples: int, dimension: int, together: int) -> BatchPlan:
    """At most `samples`, and nearly as many, in steps so short that little is lost when they are cut into batches."""
    batches = _batches(samples, dimension)
    each = samples // batches
    count = max(size for size in (1, 4, 16, 64, LARGEST_STEP) if size <= max(1, min(together, each // 16)))
    return BatchPlan(batches, count, np.asarray(each // count, np.int32))


def plan_for_all(rows: int, together: int) -> BatchPlan:
    """One batch of everything."""
    count = min(rows, together)
    return BatchPlan(1, count, np.asarray(-(-rows // count), np.int32))


def most_together(oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...]) -> int:
    """How many samples, of these shapes, to look at in one pass.

    Where x is large, what a pass keeps of them on the way forward, to have it on the way back, may take the memory of
    one more copy of x. That is much for a network, whose layers are larger than what they say of a sample, and little
    for a function whose samples are as large as x.
    """
    if oracle.dimension <= LARGE:
        return LARGEST_STEP

    def kept(count: int) -> int:
        def way_back(x: PyTree, batch: Batch) -> PyTree:
            return replace(oracle, batch_size=count).look(oracle.coordinates.ravel(x), batch).pull

        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), Batch(samples))
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(way_back, x, batch)))

    room = max(oracle.dimension, BATCH_ENTRIES) // max(kept(2) - kept(1), 1)
    return int(np.clip(room, 1, LARGEST_STEP // 8))


class PointMeans(NamedTuple):
    """Batch means at a point: of the objective, the residuals, and whatever was pulled back."""

    objective: Float[Array, " k"]
    residuals: Float[Array, "k m"]
    gradient: PyTree  # a BatchMeans over the batches, or the mean over all of them

    @property
    def work(self) -> int:
        """Numbers that a pass over them makes."""
        return sum(leaf.size for leaf in jax.tree.leaves(tuple(self)))


class View(NamedTuple):
    """One step: what the oracle sees, and the share of each sample in the mean of its batch."""

    look: Look
    objective: Float[Array, " n"]
    rows: tuple[Float[Array, "n 1"], ...]

    def pull(self, multipliers: Rows, objective: float = 1.0) -> Vector:
        """This step's part of  grad f + J^T y."""
        rows = tuple(
            jnp.broadcast_to(share * y, r.shape)
            for share, y, r in zip(self.rows, multipliers, self.look.residuals, strict=True)
        )
        return self.look.pull((objective * self.objective, rows))[0]


def batch_of(feeds: Feeds, key: Key[Array, ""], step: Int[Array, ""], count: int) -> Batch:
    return Batch(
        tuple(
            None if feed is None else feed.take(jax.random.fold_in(key, i), step, count) for i, feed in enumerate(feeds)
        )
    )


def shares(
    oracle: Oracle, feeds: Feeds, step: Int[Array, ""], count: int, steps: ArrayLike
) -> tuple[Float[Array, " n"], Rows]:
    """The share of each sample in the batch mean: of the objective, and of the constraints on each source."""
    steps = jnp.asarray(steps, oracle.dtype)
    by_source = [
        jnp.full(1, 1 / steps, oracle.dtype) if feed is None else feed.weights(step, count, steps).astype(oracle.dtype)
        for feed in feeds
    ]
    certain = jnp.full((1, 1), 1 / steps, oracle.dtype)
    rows = tuple(certain if source is None else by_source[source][:, None] for source in oracle.layout.sources)
    return by_source[0], rows


class SampledPoint(eqx.Module):
    """A point, and the samples that are looked at there: the same ones in every pass."""

    oracle: Oracle
    feeds: Feeds
    z: Vector
    key: Key[Array, ""]
    plan: BatchPlan

    @property
    def work(self) -> float:
        """Numbers that one pass over the samples makes, about."""
        return self.oracle.sample_work * float(self.plan.samples)

    def batch(self, step: Int[Array, ""]) -> Batch:
        return batch_of(self.feeds, self.key, step, self.plan.count)

    def shares(self, step: Int[Array, ""], steps: ArrayLike) -> tuple[Float[Array, " n"], Rows]:
        return shares(self.oracle, self.feeds, step, self.plan.count, steps)

    def view(self, step: Int[Array, ""], steps: ArrayLike) -> View:
        """One of `steps` steps of a mean."""
        return View(self.oracle.look(self.z, self.batch(step)), *self.shares(step, steps))


def batch_means(point: SampledPoint, gradient: Callable[[View], PyTree], *, apart: bool) -> PointMeans:
    """One pass over the samples of a plan; `gradient` says what is to be pulled back from each step.

    What is pulled back (a vector) is kept as a `BatchMeans` over the batches, or (`apart=False`) as the mean over all.
    """
    plan = point.plan

    def one_step(step: Int[Array, ""]) -> PointMeans:
        view = point.view(step, plan.steps)
        residuals = point.oracle.sum(view.rows, view.look.residuals)
        return PointMeans(jnp.sum(view.objective * view.look.objective), residuals, gradient(view))

    once = Program(one_step, jnp.int32(0))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), once.output)

    def one_batch(batch: Int[Array, ""], start: PyTree) -> PointMeans:
        def add(step: Int[Array, ""], total: PointMeans) -> PointMeans:
            return jax.tree.map(jnp.add, total, once(batch * plan.steps + step + plan.first))

        return jax.lax.fori_loop(0, plan.steps, add, nothing._replace(gradient=start))

    def kept(spread: BatchMeans, batch: Int[Array, ""]) -> tuple[BatchMeans, PointMeans]:
        seen = one_batch(batch, nothing.gradient)
        return spread.plus(seen.gradient, batch), seen._replace(gradient=None)

    def summed(total: PyTree, batch: Int[Array, ""]) -> tuple[PyTree, PointMeans]:
        seen = one_batch(batch, total)
        return seen.gradient, seen._replace(gradient=None)

    numbers = jnp.arange(plan.batches, dtype=jnp.int32)
    if not apart:
        total, seen = jax.lax.scan(summed, nothing.gradient, numbers)
        return seen._replace(gradient=jax.tree.map(lambda sum_: sum_ / plan.batches, total))
    if is_large(plan.batches, nothing.gradient.size):
        spread, seen = jax.lax.scan(kept, BatchMeans.room(plan.batches, nothing.gradient), numbers)
        return seen._replace(gradient=spread)
    seen = jax.lax.map(lambda batch: one_batch(batch, nothing.gradient), numbers)
    return seen._replace(gradient=BatchMeans.of(seen.gradient))
