"""Which samples a certificate looks at, and what it is about for that."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from lariax.certificate._draws import (
    FEWEST_BATCHES,
    AbstractFeed,
    AllRows,
    BatchPlan,
    Feeds,
    Fresh,
    InOrder,
    WithReplacement,
    most_together,
    plan_for,
    plan_for_all,
)
from lariax.certificate._report import Scope
from lariax.oracle import Oracle, bind, sample_structure
from lariax.problem import AbstractSource, Dataset, Problem, Stratified, Stream, cut_alike

DRAWS = 10_000  # unless said otherwise
SHARE_OF_RUN = 4  # a quarter of the draws of a run go into its certificate, as into each look at it on the way
PASSES, SHUFFLE, RISKS = 1, 2, 3  # the streams of random numbers of a certificate


class Samples(NamedTuple):
    """The samples for a certificate, and the oracle that looks at them."""

    oracle: Oracle
    feeds: Feeds
    plan: BatchPlan
    scope: Scope

    def half(self, second: bool) -> BatchPlan:
        """Samples to fit multipliers on, and others to judge them on; of all rows, all for both."""
        return self.plan.half(second, self.oracle.dimension)

    @property
    def has_halves(self) -> bool:
        return self.scope.exact or int(self.plan.batches * self.plan.steps) >= 2 * FEWEST_BATCHES

    def draws(self, plan: BatchPlan) -> int:
        if self.scope.exact:
            return sum(feed.rows for feed in self.feeds if isinstance(feed, AllRows))
        rows = sum(source.rows_per_sample for source in self.oracle.sources if source is not None)
        return int(rows * plan.samples)


def samples_for(
    problem: Problem, point: PyTree, draws: int | None, key: Key[Array, ""], on: str = "samples", fits: bool = False
) -> Samples:
    """`fits`: whether half of the samples will be for multipliers."""
    fresh = _held_out(problem) if on == "heldout" else set()
    problem = (problem.on_heldout() if on == "heldout" else problem).without_heldout()  # with or without: one program
    sources = problem.sources
    if on == "samples" and all_rows(sources, draws):
        return _exactly(problem, point)
    wanted = _samples_wanted(sources, draws, fresh)
    read = {i: next_rows(source, wanted) for i, source in enumerate(sources) if isinstance(source, Stream)}
    sources = tuple(read.get(i, source) for i, source in enumerate(sources))
    once = dict(read)  # whose rows are a sample of their own, each to be used once
    once.update({i: source for i, source in enumerate(sources) if i in fresh and isinstance(source, Dataset)})
    wanted = min([wanted, *map(len, once.values())])
    least = FEWEST_BATCHES * (2 if fits else 1)
    if wanted < least:
        raise ValueError(
            f"there are {wanted} samples for the certificate, and it needs at least {least}"
            f"{' (half of them to fit the multipliers)' if fits else ''}. Raise draws, or give more rows."
        )
    shuffle = jax.random.fold_in(key, SHUFFLE)
    orders = {
        i: jnp.arange(len(rows)) if i in read and rows.shards is None else jax.random.permutation(shuffle, len(rows))
        for i, rows in once.items()
    }
    population, about = _what_about(problem, sources, set(once), fresh, on)
    oracle, together = bound(problem, point, sources)
    plan = plan_for(wanted, oracle.dimension, together)
    feeds = tuple(_feed(source, orders.get(i)) for i, source in enumerate(sources))
    return Samples(dataclasses.replace(oracle, batch_size=plan.count), feeds, plan, Scope(population, False, about))


def all_rows(sources: tuple[AbstractSource | None, ...], draws: int | None) -> bool:
    """Whether so many draws are enough to look at every row there is."""
    random = [source for source in sources if source is not None]
    rows = [len(source) for source in random if isinstance(source, Dataset)]
    return len(rows) == len(random) and (draws is None or sum(rows) <= draws)


def draws_for_run(problem: Problem, drawn: int) -> int:
    """For the certificate of a run that has drawn so many samples: enough for all rows, if there are no more than that.

    Rows of a stream that are to come are held in memory, so their number does not grow with the run.
    """
    if all_rows(problem.sources, max(DRAWS, drawn)):
        return max(DRAWS, drawn)
    if any(isinstance(source, Stream) for source in problem.sources):
        return DRAWS
    return max(DRAWS, drawn // SHARE_OF_RUN)


def bound(problem: Problem, point: PyTree, sources: tuple[AbstractSource | None, ...]) -> tuple[Oracle, int]:
    """The oracle, for one sample at a time, and how many it may be."""
    structures = tuple(sample_structure(source) for source in sources)
    oracle = bind(problem, point, structures, batch_size=1, copies=1, has_slacks=False)
    return oracle, most_together(oracle, point, structures)


def not_held_out(problem: Problem) -> tuple[str, ...]:
    """A word on what a certificate on held-out rows cannot show."""
    constraints = problem.constraints.items()
    own = [name for name, c in constraints if isinstance(c.samples, Dataset | Stratified) and c.heldout is None]
    if not own:
        return ()
    names = ", ".join(map(repr, own))
    return (f"rows of their own and no heldout= have {names}: they are judged on the rows that they were trained on.",)


def _what_about(
    problem: Problem, sources: tuple[AbstractSource | None, ...], once: set[int], fresh: set[int], on: str
) -> tuple[bool, str]:
    repeated = {i for i, source in enumerate(problem.sources) if isinstance(source, Stream) and source.repeat}
    about_rows = {
        i: i in repeated or (isinstance(s, Dataset | Stratified) and i not in once)
        for i, s in enumerate(sources)
        if s is not None
    }
    population = not (any(about_rows[i] for i in fresh) if fresh else all(about_rows.values()))
    if on == "heldout":
        about = "on held-out rows, about the distribution behind them" if population else "about the held-out rows"
    elif population:
        about = "about the distribution"
    elif repeated:
        about = "about the rows that the Stream repeats, by a sample of them"
    else:
        about = f"about the {_rows([s for s in sources if s is not None])} rows of the data, by a sample of them"
    return population, about


def _held_out(problem: Problem) -> set[int]:
    """Which of its sources have held-out rows."""
    own = (c.heldout for c in problem.constraints.values() if isinstance(c.samples, AbstractSource))
    return {i for i, rows in enumerate((problem.heldout, *own)) if rows is not None}


def _rows(sources: Any) -> str:
    counts = [jax.tree.leaves(s.arrays)[0].shape[0] for s in sources if isinstance(s, Dataset | Stratified)]
    return " + ".join(f"{count:,}" for count in counts)


def _samples_wanted(sources: tuple[AbstractSource | None, ...], draws: int | None, fresh: set[int]) -> int:
    if draws is not None:
        return draws // max(sum(source.rows_per_sample for source in sources if source is not None), 1)
    held = [len(source) for i in fresh if isinstance(source := sources[i], Dataset)]
    if held:
        return min(held)
    kinds = sorted({type(source).__name__ for source in sources if source is not None})
    raise ValueError(f"draws=None uses all rows, which needs a Dataset, found {', '.join(kinds)}. Say draws=10_000.")


def next_rows(stream: Stream, rows: int) -> Dataset:
    """The next rows of a stream."""

    def batches() -> Iterator[PyTree]:
        have = 0
        for batch in read:
            yield jax.tree.map(np.asarray, batch)
            have += len(jax.tree.leaves(batch)[0])
            if have >= rows:
                return

    read = stream.read()
    pieces = list(batches())
    stream.warn_of(read)
    if not pieces:
        raise ValueError("the Stream has no rows left for a certificate. Give it more, or a held-out source.")
    found = jax.tree.map(lambda *parts: np.concatenate(parts)[:rows], *pieces)
    return Dataset(found) if stream.mesh is None else Dataset.local(cut_alike(found))


def _exactly(problem: Problem, point: PyTree) -> Samples:
    sources = problem.sources
    rows = [len(source) for source in sources if isinstance(source, Dataset)]
    oracle, together = bound(problem, point, sources)
    plan = plan_for_all(max(rows, default=1), together)
    feeds = tuple(AllRows(source, len(source)) if isinstance(source, Dataset) else None for source in sources)
    about = f"about all {_rows(sources)} rows of the data" if rows else "about the problem, nothing is random"
    oracle = dataclasses.replace(oracle, batch_size=plan.count)
    return Samples(oracle, feeds, plan, Scope(population=False, exact=True, about=about))


def _feed(source: AbstractSource | None, order: Array | None) -> AbstractFeed | None:
    if source is None:
        return None
    if order is not None:
        return InOrder(source, order)
    return WithReplacement(source, len(source)) if isinstance(source, Dataset) else Fresh(source)
