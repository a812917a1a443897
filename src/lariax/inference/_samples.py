"""Which samples an inference looks at, and what it is about for that."""

import dataclasses
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from lariax.certificate import DRAWS, LARGEST_STEP, AbstractFeed, AllRows, Fresh, most_together, next_rows
from lariax.inference._groups import EachGroup, check_sums, some_of_each
from lariax.inference._moments import KeptSample
from lariax.oracle import bind, sample_structure
from lariax.problem import AbstractSource, Dataset, Problem, Stratified, Stream, as_key

MOST_NUMBERS = 2**20  # in the gradients of the samples that are looked at together
COMPARED = 64  # rows of two sources, to see whether they are the same
_SUBSET, _DRAW = 1, 2  # streams of random numbers


class Wanted(NamedTuple):
    """How many samples: rows of data (None: all), and of a distribution."""

    rows: int | None
    fresh: int


class Extras(NamedTuple):
    """What is known of how the rows were drawn: see `lx.inference`."""

    clusters: ArrayLike | None = None
    population_size: int | None = None


def sample_of(problem: Problem, point: PyTree, wanted: Wanted, seed: Any, extras: Extras) -> KeptSample:
    """Rows of data, each once, and samples of distributions."""
    key = as_key(seed)
    problem = problem.without_heldout()
    sources = [_finite(i, source, wanted, key) for i, source in enumerate(problem.sources)]
    problem = problem.with_sources({i: source for i, source in enumerate(sources) if source is not None})
    structures = tuple(sample_structure(source) for source in sources)
    oracle = bind(problem, point, structures, batch_size=1, copies=1, has_slacks=False)
    feeds = tuple(_feed(source) for source in sources)
    sizes = [_size(source, wanted) for source in sources]
    together = min(most_together(oracle, point, structures), max(1, MOST_NUMBERS // oracle.dimension))
    count = min(together, LARGEST_STEP, max(sizes))
    looks = [size + isinstance(feed, EachGroup) for size, feed in zip(sizes, feeds, strict=True)]
    drawn = [isinstance(feed, Fresh) for feed in feeds]
    steps = max(size // count if fresh else -(-size // count) for size, fresh in zip(looks, drawn, strict=True))
    sizes = [steps * count if fresh else size for size, fresh in zip(sizes, drawn, strict=True)]
    check_sums(oracle, feeds, oracle.coordinates.ravel(point), key)
    labels, groups = _clusters(extras.clusters, sources[0])
    left = 1.0 if extras.population_size is None else _left(extras.population_size, sources[0])
    return KeptSample(
        dataclasses.replace(oracle, batch_size=count),
        feeds,
        jax.random.fold_in(key, _DRAW),
        jnp.asarray(steps, jnp.int32),
        jnp.asarray(sizes, oracle.dtype),
        jnp.asarray([left, *(1.0 for _ in sources[1:])], oracle.dtype),
        labels,
        groups,
    )


def part_of(sample: KeptSample, most: int, number: int) -> KeptSample:
    """At most so many of the samples, for what needs no more of them; the next `number`: other ones. Sizes stay."""
    size = sample.oracle.batch_size
    if sample.by_groups or int(sample.steps) * size <= most:
        return sample
    key = jax.random.fold_in(sample.key, number)
    steps = max(1, most // size)

    def part(feed: AbstractFeed | None) -> AbstractFeed | None:
        if not isinstance(feed, AllRows):
            return feed
        order = jax.random.permutation(sample.key, feed.rows)
        chosen = jnp.roll(order, -number * steps * size)[: steps * size]
        assert isinstance(feed.source, Dataset)
        rows = Dataset(feed.source.fetch(chosen))
        return AllRows(rows, len(rows))

    feeds = tuple(part(feed) for feed in sample.feeds)
    return dataclasses.replace(sample, feeds=feeds, key=key, steps=jnp.asarray(steps, jnp.int32))


def same_rows(problem: Problem) -> bool:
    """Whether two sources hold the same rows: their errors are not independent."""
    held = [jax.tree.leaves(s.arrays) for s in problem.sources if isinstance(s, Dataset | Stratified)]
    return any(_alike(a, b) for one, other in combinations(held, 2) for a in one for b in other)


def _alike(one: jax.Array, other: jax.Array) -> bool:
    if one.shape != other.shape:
        return False
    first, second = np.asarray(one[:COMPARED]), np.asarray(other[:COMPARED])
    return bool(np.any(first != first[:1]) and np.array_equal(first, second))


def total(sample: KeptSample) -> int:
    """How many samples there are, over all sources."""
    return int(sum(float(sample.sizes[i]) for i, _ in sample.random))


def _finite(i: int, source: AbstractSource | None, wanted: Wanted, key: Any) -> AbstractSource | None:
    """A source of which every sample can be looked at again."""
    if isinstance(source, Stream):
        once = source.one_pass() if source.repeat else source
        return next_rows(once, DRAWS if wanted.rows is None else wanted.rows)
    if wanted.rows is None:
        return source
    own = jax.random.fold_in(jax.random.fold_in(key, _SUBSET), i)
    if isinstance(source, Stratified):
        return some_of_each(source, wanted.rows, own)
    if isinstance(source, Dataset) and wanted.rows < len(source):
        return Dataset(source.fetch(jax.random.permutation(own, len(source))[: wanted.rows]))
    return source


def _size(source: AbstractSource | None, wanted: Wanted) -> int:
    if source is None:
        return 1
    if isinstance(source, Stratified):
        return source.order.size
    return len(source) if isinstance(source, Dataset) else wanted.fresh


def _feed(source: AbstractSource | None) -> AbstractFeed | None:
    if source is None:
        return None
    if isinstance(source, Stratified):
        return EachGroup(source)
    return AllRows(source, len(source)) if isinstance(source, Dataset) else Fresh(source)


def _clusters(clusters: ArrayLike | None, source: AbstractSource | None) -> tuple[Any, int]:
    if clusters is None:
        return None, 0
    labels = np.asarray(clusters)
    rows = len(source) if isinstance(source, Dataset) else None
    if labels.shape != (rows,):
        raise ValueError(
            f"clusters= takes one label for each row of the problem's Dataset, "
            f"{'which it does not have' if rows is None else f'shape ({rows},)'}, found shape {labels.shape}. All rows "
            "are needed: leave draws= out."
        )
    names, member = np.unique(labels, return_inverse=True)
    if names.size < 2:
        raise ValueError("clusters= needs at least two different labels, found one: nothing tells how clusters vary.")
    return jnp.asarray(member, jnp.int32), int(names.size)


def _left(population: int, source: AbstractSource | None) -> float:
    rows = len(source) if isinstance(source, Dataset) else None
    if rows is None or population < rows:
        raise ValueError(
            f"population_size= is the number of rows that the problem's Dataset was drawn from without replacement, "
            f"found {population} and {'no Dataset' if rows is None else f'a Dataset of {rows} rows'}."
        )
    return 1 - rows / population
