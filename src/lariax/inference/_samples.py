"""Which samples an inference looks at, and what it is about for that."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree

from lariax.certificate._draws import LARGEST_STEP, AbstractFeed, AllRows, Fresh, most_together
from lariax.certificate._samples import DRAWS, _read
from lariax.inference._moments import Sample
from lariax.oracle import bind, sample_structure
from lariax.problem import AbstractSource, Dataset, Problem, Stratified, Stream, as_key

_SUBSET, _DRAW = 1, 2  # streams of random numbers


class Wanted(NamedTuple):
    """How many samples: rows of data (None: all), and of a distribution."""

    rows: int | None
    fresh: int


class Extras(NamedTuple):
    """What is known of how the rows were drawn: see `lx.inference`."""

    clusters: ArrayLike | None = None
    population_size: int | None = None


def sample_of(problem: Problem, point: PyTree, wanted: Wanted, seed: Any, extras: Extras) -> Sample:
    """Rows of data, each once, and samples of distributions."""
    key = as_key(seed)
    problem = problem.without_heldout()
    sources = [_finite(i, source, wanted, key) for i, source in enumerate(problem.sources)]
    problem = problem.with_sources({i: source for i, source in enumerate(sources) if source is not None})
    structures = tuple(sample_structure(source) for source in sources)
    oracle = bind(problem, point, structures, batch_size=1, copies=1, has_slacks=False)
    sizes = [_size(source, wanted) for source in sources]
    count = min(most_together(oracle, point, structures), LARGEST_STEP, max(sizes))
    drawn = [source is not None and not isinstance(source, Dataset) for source in sources]
    steps = max(size // count if fresh else -(-size // count) for size, fresh in zip(sizes, drawn, strict=True))
    sizes = [steps * count if fresh else size for size, fresh in zip(sizes, drawn, strict=True)]
    labels, groups = _clusters(extras.clusters, sources[0])
    left = 1.0 if extras.population_size is None else _left(extras.population_size, sources[0])
    return Sample(
        dataclasses.replace(oracle, batch_size=count),
        tuple(_feed(source) for source in sources),
        jax.random.fold_in(key, _DRAW),
        jnp.asarray(steps, jnp.int32),
        jnp.asarray(sizes, oracle.dtype),
        jnp.asarray([left, *(1.0 for _ in sources[1:])], oracle.dtype),
        labels,
        groups,
    )


def part_of(sample: Sample, most: int, number: int) -> Sample:
    """At most so many of the samples, for what needs no more of them; the next `number`: other ones. Sizes stay."""
    size = sample.oracle.batch_size
    if sample.count or int(sample.steps) * size <= most:
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


def total(sample: Sample) -> int:
    """How many samples there are, over all sources."""
    return int(sum(float(sample.sizes[i]) for i, _ in sample.random))


def _finite(i: int, source: AbstractSource | None, wanted: Wanted, key: Any) -> AbstractSource | None:
    """A source of which every sample can be looked at again."""
    if isinstance(source, Stratified):
        raise ValueError(
            "inference takes rows that are independent draws, and a Stratified source draws groups apart. Give the "
            "rows as an lx.Dataset and write the rate of a group as E[value * member] / E[member]."
        )
    if isinstance(source, Stream):
        if source.repeat:
            raise ValueError(
                "the rows of a Stream with repeat=True come again, and nothing tells how many different ones there "
                "are. Give them as an lx.Dataset, or use repeat=False."
            )
        return _read(source, DRAWS if wanted.rows is None else wanted.rows)
    if isinstance(source, Dataset) and wanted.rows is not None and wanted.rows < len(source):
        some = jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, _SUBSET), i), len(source))[
            : wanted.rows
        ]
        return Dataset(source.fetch(some))
    return source


def _size(source: AbstractSource | None, wanted: Wanted) -> int:
    if source is None:
        return 1
    return len(source) if isinstance(source, Dataset) else wanted.fresh


def _feed(source: AbstractSource | None) -> AbstractFeed | None:
    if source is None:
        return None
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
