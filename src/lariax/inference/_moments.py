"""One pass over the samples: the means that a solution is a root of, their derivatives, and their covariance."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from lariax.certificate import AbstractFeed, Feeds, View, batch_of, shares
from lariax.compilation import compiled
from lariax.inference._groups import EachGroup
from lariax.oracle import Batch, Oracle, Rows, Vector

Multipliers = Float[Array, " m"]


class KeptSample(eqx.Module):
    """Samples that can be looked at again and again: the same ones every time.

    Attributes:
        sizes: how many independent rows there are of each source.
        fractions: which part of the variance is left when rows come from a finite population: 1 - n / N.
        clusters: for each row of the objective's data the number of its cluster; None: rows are independent.
        count: how many clusters.
    """

    oracle: Oracle
    feeds: Feeds
    key: Key[Array, ""]
    steps: Int[Array, ""]
    sizes: Float[Array, " sources"]
    fractions: Float[Array, " sources"]
    clusters: Int[Array, " rows"] | None = None
    count: int = eqx.field(static=True, default=0)

    @property
    def random(self) -> list[tuple[int, AbstractFeed]]:
        return [(i, feed) for i, feed in enumerate(self.feeds) if feed is not None]

    @property
    def by_groups(self) -> bool:
        """Whether rows depend on each other, or come group by group: no part of them stands for all."""
        return self.count > 0 or any(isinstance(feed, EachGroup) for feed in self.feeds)

    def batch(self, step: Int[Array, ""]) -> Batch:
        return batch_of(self.feeds, self.key, step, self.oracle.batch_size)

    def weights(self, feed: AbstractFeed, step: Int[Array, ""]) -> Float[Array, " n"]:
        """The share of each sample of a step in the mean over all."""
        steps = self.steps.astype(self.oracle.dtype)
        return feed.weights(step, self.oracle.batch_size, steps).astype(self.oracle.dtype)

    def view(self, point: Vector, batch: Batch, step: Int[Array, ""]) -> View:
        look = self.oracle.look(point, batch)
        return View(look, *shares(self.oracle, self.feeds, step, self.oracle.batch_size, self.steps))

    def counts(self, source: int) -> Float[Array, " groups"]:
        """How many independent rows a mean is over, for each group where they are drawn by group."""
        feed = self.feeds[source]
        if isinstance(feed, EachGroup):
            return feed.source.sizes.astype(self.oracle.dtype)
        return self.sizes[source][None]

    def groups(self, feed: AbstractFeed, step: Int[Array, ""]) -> Int[Array, " n"]:
        """Of the samples of a step."""
        if isinstance(feed, EachGroup):
            return feed.groups(step, self.oracle.batch_size)
        return jnp.zeros(self.oracle.batch_size, jnp.int32)

    def own(self, source: int, weights: Rows) -> tuple[float, Rows]:
        """Weights of the objective and of the rows, without those that other sources answer for."""
        objective = 1.0 if source == 0 else 0.0
        parts = zip(self.oracle.layout.sources, weights, strict=True)
        return objective, tuple(w if own == source else jnp.zeros_like(w) for own, w in parts)


class Means(NamedTuple):
    """At a point: E f, the gradient of the Lagrangian, E r."""

    objective: Float[Array, ""]
    gradient: Vector
    residuals: Multipliers


class Moments(NamedTuple):
    """The means, their derivatives in x, and the covariance of (E f, gradient, E r) as means over the samples.

    `skew` is the third cumulant of the mean of f + y . r, which the noise moves the objective at the solution by.
    """

    means: Means
    slope: Vector
    hessian: Float[Array, "d d"]
    jacobian: Float[Array, "m d"]
    noise: Float[Array, "p p"]
    skew: Float[Array, ""]


class _Scatter(NamedTuple):
    """Weight, mean and weighted squares about the mean of what has been seen."""

    weight: Float[Array, ""]
    mean: Float[Array, " p"]
    squares: Float[Array, "p p"]
    load: Float[Array, " p"]  # of the number whose
    cubes: Float[Array, ""]  # are summed

    def plus(self, rows: Float[Array, "n p"], weights: Float[Array, " n"]) -> "_Scatter":
        """With some more rows: pairwise, so that means far from 0 cost no digits."""
        new = jnp.sum(weights)
        mean = weights @ rows / jnp.where(new > 0, new, 1)
        apart = rows - mean
        total = self.weight + new
        share = jnp.where(total > 0, new / jnp.where(total > 0, total, 1), 0)
        step = mean - self.mean
        own = (weights * apart.T) @ apart
        squares = self.squares + own + self.weight * share * jnp.outer(step, step)
        s, a, b = self.load @ step, self.load @ self.squares @ self.load, self.load @ own @ self.load
        cubes = self.cubes + weights @ (apart @ self.load) ** 3 + s**3 * self.weight * share * (1 - 2 * share)
        cubes += 3 * s * ((1 - share) * b - share * a)
        return _Scatter(total, self.mean + share * step, squares, self.load, cubes)


@compiled(briefly=True)
def means(sample: KeptSample, z: Vector, y: Multipliers) -> Means:
    """The means alone."""

    def add(step: Int[Array, ""], total: Means) -> Means:
        return jax.tree.map(jnp.add, total, _means_of_step(sample, z, y, sample.batch(step), step))

    return jax.lax.fori_loop(0, sample.steps, add, _nothing(sample))


def _nothing(sample: KeptSample) -> Means:
    d, m, dtype = sample.oracle.dimension, sample.oracle.rows, sample.oracle.dtype
    return Means(jnp.zeros((), dtype), jnp.zeros(d, dtype), jnp.zeros(m, dtype))


def _means_of_step(sample: KeptSample, z: Vector, y: Multipliers, batch: Batch, step: Int[Array, ""]) -> Means:
    view = sample.view(z, batch, step)
    residuals = sample.oracle.sum(view.rows, view.look.residuals)
    return Means(jnp.sum(view.objective * view.look.objective), view.pull(sample.oracle.split(y)), residuals)


@compiled(briefly=True)
def moments(sample: KeptSample, z: Vector, y: Multipliers) -> Moments:
    """All of it, by one Hessian-vector product for each entry of x and one gradient for each sample."""
    size = 1 + sample.oracle.dimension + sample.oracle.rows

    def add(step: Int[Array, ""], total: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        batch = sample.batch(step)

        def seen(point: Vector) -> tuple[Means, Means]:
            found = _means_of_step(sample, point, y, batch, step)
            return found, found

        derivatives, values = jax.jacfwd(seen, has_aux=True)(z)
        sums, bends, *scatters = total
        rows = _rows(sample, z, y, batch)
        scatters = [_added(sample, i, s, rows[i], step) for i, s in zip(rows, scatters, strict=True)]
        return jax.tree.map(jnp.add, sums, values), jax.tree.map(jnp.add, bends, derivatives), *scatters

    start = _nothing(sample)
    bends = jax.tree.map(lambda part: jnp.zeros((*part.shape, z.size), part.dtype), start)
    load = jnp.concatenate([jnp.ones(1, z.dtype), jnp.zeros_like(z), y])
    scatters = [_start(sample, i, load) for i, _ in sample.random]
    found, bends, *scatters = jax.lax.fori_loop(0, sample.steps, add, (start, bends, *scatters))
    noise = jnp.zeros((size, size), z.dtype)
    skew = jnp.zeros((), z.dtype)
    for (i, _), scatter in zip(sample.random, scatters, strict=True):
        noise += sample.fractions[i] * _of_the_mean(sample, i, scatter)
        skew += jnp.sum(scatter.cubes / sample.counts(i) ** 2) if isinstance(scatter, _Scatter) else 0
    return Moments(found, bends.objective, bends.gradient, bends.residuals, noise, skew)


def _rows(sample: KeptSample, z: Vector, y: Multipliers, batch: Batch) -> dict[int, Float[Array, "n p"]]:
    """(f, gradient of the Lagrangian, r) sample by sample, as far as each source answers for them."""
    single = replace(sample.oracle, batch_size=1)

    def row(samples: tuple[PyTree | None, ...]) -> dict[int, Float[Array, " p"]]:
        look = single.look(z, Batch(jax.tree.map(lambda leaf: leaf[None], samples)))
        weights = tuple(jnp.broadcast_to(w, r.shape) for w, r in zip(single.split(y), look.residuals, strict=True))
        found = {}
        for i, _ in sample.random:
            objective, own = sample.own(i, weights)
            gradient = look.pull((jnp.full_like(look.objective, objective), own))[0]
            residuals = sample.own(i, look.residuals)[1]
            found[i] = jnp.concatenate([objective * look.objective, gradient, single.join(residuals)])
        return found

    return jax.vmap(row)(batch.samples) if sample.random else {}


# --- the covariance of means


def _start(sample: KeptSample, source: int, load: Float[Array, " p"]) -> _Scatter | Float[Array, "clusters p"]:
    none = jnp.zeros((), load.dtype)
    if source == 0 and sample.clusters is not None:
        return jnp.zeros((sample.count, 1 + load.size), load.dtype)
    nothing = _Scatter(none, jnp.zeros_like(load), jnp.zeros((load.size, load.size), load.dtype), load, none)
    if not isinstance(sample.feeds[source], EachGroup):
        return nothing
    groups = sample.counts(source).size
    return jax.tree.map(lambda part: jnp.broadcast_to(part, (groups, *part.shape)), nothing)


def _added(sample: KeptSample, source: int, scatter: PyTree, rows: Float[Array, "n p"], step: Int[Array, ""]) -> PyTree:
    feed = sample.feeds[source]
    assert feed is not None
    weights = sample.weights(feed, step)
    if isinstance(feed, EachGroup):
        members = feed.groups(step, weights.size) == jnp.arange(feed.source.sizes.size)[:, None]
        return jax.vmap(lambda each, own: each.plus(rows, jnp.where(own, weights, 0)))(scatter, members)
    if isinstance(scatter, _Scatter):
        return scatter.plus(rows, weights)
    assert sample.clusters is not None
    places = step * weights.size + jnp.arange(weights.size)
    labels = sample.clusters[jnp.minimum(places, sample.clusters.size - 1)]
    return scatter.at[labels].add(weights[:, None] * jnp.concatenate([jnp.ones_like(weights)[:, None], rows], axis=1))


def _of_the_mean(sample: KeptSample, source: int, scatter: PyTree) -> Float[Array, "p p"]:
    if isinstance(scatter, _Scatter):
        squares = jnp.atleast_1d(scatter.squares).reshape(-1, scatter.mean.shape[-1], scatter.mean.shape[-1])
        return jnp.sum(squares / sample.counts(source)[:, None, None], axis=0)
    share, sums = scatter[:, :1], scatter[:, 1:]
    apart = sums - share * jnp.sum(sums, axis=0)
    return apart.T @ apart * (sample.count / (sample.count - 1))


# --- without a matrix


@compiled(briefly=True)
def product(
    sample: KeptSample, z: Vector, y: Multipliers, dz: Vector, dy: Multipliers, start: tuple[Vector, Multipliers]
) -> tuple[Vector, Multipliers]:
    """The derivative of (gradient of the Lagrangian, E r) along (dz, dy), added to `start`: one Hessian-vector product
    a sample."""

    def add(step: Int[Array, ""], total: tuple[Vector, Multipliers]) -> tuple[Vector, Multipliers]:
        batch = sample.batch(step)

        def seen(point: Vector, weights: Multipliers) -> tuple[Vector, Multipliers]:
            found = _means_of_step(sample, point, weights, batch, step)
            return found.gradient, found.residuals

        of_z, of_y = jax.jvp(seen, (z, y), (dz, dy))[1]
        return total[0] + of_z, total[1] + of_y

    return jax.lax.fori_loop(0, sample.steps, add, tuple(start))


class Load(NamedTuple):
    """What a number takes of the means (E f, gradient of the Lagrangian, E r)."""

    objective: Float[Array, ""]
    gradient: Vector
    residuals: Multipliers


@compiled(briefly=True)
def covariance(sample: KeptSample, z: Vector, y: Multipliers, loads: Load) -> Float[Array, "q q"]:
    """Of several numbers, each a linear function of the means: forward differentiation along each, no gradient is kept.

    `loads` are stacked along a leading axis.
    """
    count = loads.objective.shape[0]

    def add(step: Int[Array, ""], scatters: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        batch = sample.batch(step)
        rows = dict(zip((i for i, _ in sample.random), _loaded(sample, z, y, batch, loads), strict=True))
        return tuple(_added(sample, i, s, rows[i], step) for i, s in zip(rows, scatters, strict=True))

    scatters = tuple(_start(sample, i, jnp.zeros(count, z.dtype)) for i, _ in sample.random)
    found = jax.lax.fori_loop(0, sample.steps, add, scatters)
    total = jnp.zeros((count, count), z.dtype)
    for (i, _), scatter in zip(sample.random, found, strict=True):
        total += sample.fractions[i] * _of_the_mean(sample, i, scatter)
    return total


def _loaded(sample: KeptSample, z: Vector, y: Multipliers, batch: Batch, loads: Load) -> Iterator[Float[Array, "n q"]]:
    """The loads on each sample, as far as each source answers for them."""
    oracle = sample.oracle

    def values(point: Vector) -> tuple[Float[Array, " n"], Rows]:
        look = oracle.look(point, batch)
        return look.objective, look.residuals

    def along(load: Load) -> tuple[tuple[Array, Rows], tuple[Array, Rows]]:
        return jax.jvp(values, (z,), (load.gradient,))

    (objective, residuals), (slope, slopes) = jax.lax.map(along, loads)
    for i, _ in sample.random:
        share, weights = sample.own(i, oracle.split(y))
        total = share * (slope + loads.objective[:, None] * objective) if share else jnp.zeros((), oracle.dtype)
        own = oracle.layout.split(loads.residuals[:, None])
        for source, *part in zip(oracle.layout.sources, weights, slopes, own, residuals, strict=True):
            if source == i:
                weight, tangent, load, value = part
                total = total + jnp.sum(weight * tangent + load * value, axis=-1)
        yield total.T


@compiled(briefly=True)
def weighted(sample: KeptSample, z: Vector, y: Multipliers, load: Load) -> tuple[Vector, Multipliers]:
    """The covariance of one load with all of (gradient of the Lagrangian, E r), as means over the samples."""
    one = jax.tree.map(lambda part: part[None], load)

    def loaded(step: Int[Array, ""]) -> dict[int, Float[Array, " n"]]:
        rows = _loaded(sample, z, y, sample.batch(step), one)
        return {i: row[:, 0] for (i, _), row in zip(sample.random, rows, strict=True)}

    def of_step(step: Int[Array, ""], centre: dict[int, Array]) -> tuple[Vector, Multipliers]:
        look = sample.oracle.look(z, sample.batch(step))
        seen = loaded(step)
        shares = {}
        for i, feed in sample.random:
            group, counts = sample.groups(feed, step), sample.counts(i)
            weight = jnp.where(group < counts.size, sample.weights(feed, step) / counts.at[group].get(mode="clip"), 0)
            shares[i] = sample.fractions[i] * weight * (seen[i] - centre[i].at[group].get(mode="clip"))
        objective = shares[0] if 0 in shares else jnp.zeros_like(look.objective)
        rows, values = [], []
        parts = zip(sample.oracle.layout.sources, sample.oracle.split(y), look.residuals, strict=True)
        for source, weight, residual in parts:
            share = jnp.zeros(residual.shape[0], z.dtype) if source is None else shares[source]
            rows.append(share[:, None] * weight)
            values.append(share[:, None])
        return look.pull((objective, tuple(rows)))[0], sample.oracle.sum(tuple(values), look.residuals)

    def add_mean(step: Int[Array, ""], total: dict[int, Array]) -> dict[int, Array]:
        seen = loaded(step)
        return {
            i: total[i].at[sample.groups(feed, step)].add(sample.weights(feed, step) * seen[i], mode="drop")
            for i, feed in sample.random
        }

    nothing = {i: jnp.zeros_like(sample.counts(i)) for i, _ in sample.random}
    centre = jax.lax.fori_loop(0, sample.steps, add_mean, nothing)
    start = _nothing(sample)
    return jax.lax.fori_loop(
        0,
        sample.steps,
        lambda step, total: jax.tree.map(jnp.add, total, of_step(step, centre)),
        (start.gradient, start.residuals),
    )
