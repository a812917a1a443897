"""What a run sees of a sample: its weight, how far the run is, and the sample itself where x decides on it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from lariax.problem import AbstractSource, Dataset, Distribution, fetched

LATE = 10**6
"""The iteration that counts where there is none, as in a certificate."""


class Seen(NamedTuple):
    """Beside a sample: its likelihood ratio, and the iteration in which it is looked at."""

    weight: Any = 1.0
    iteration: Any = LATE


PLAIN = Seen()


class Numbered(NamedTuple):
    """A sample of a run, with the number of its iteration."""

    sample: PyTree
    iteration: Int[Array, ""]


class NumberedDraws(Distribution):
    """Samples that know the iteration they are drawn in."""

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> Numbered:
        tickets = super().draw(key, iterations, count)
        return Numbered(tickets, jnp.broadcast_to(iterations[:, None], (iterations.size, count)))


class NumberedRows(Dataset):
    """Rows that know the iteration they are drawn in; rows asked for by their numbers alone are late ones."""

    def __init__(self, rows: Dataset):
        self.arrays, self.epochs, self.shards = rows.arrays, rows.epochs, None

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> Numbered:
        tickets = super().draw(key, iterations, count)
        return Numbered(tickets, jnp.broadcast_to(iterations[:, None], (iterations.size, count)))

    def fetch(self, ticket: PyTree) -> Numbered:
        late = ticket if isinstance(ticket, Numbered) else Numbered(ticket, jnp.full(ticket.shape, LATE, jnp.int32))
        return Numbered(fetched(self.arrays, late.sample), late.iteration)


def is_special(source: Any) -> bool:
    """Whether a function of its samples alone is not what is meant."""
    return isinstance(source, Distribution) and (source.weight is not None or source.log_density is not None)


def is_numbered(source: Any) -> bool:
    """Whether it is made for events, whose values jump."""
    return isinstance(source, NumberedDraws | NumberedRows)


def run_source(source: Any, numbers: bool) -> Any:
    """What a run draws from, in the place of a source: keys where samples depend on x, and numbered if wanted."""
    if isinstance(source, Distribution):
        draw = _two_keys if source.log_density is not None else source.sampler
        return NumberedDraws(draw) if numbers else Distribution(draw)
    whole = type(source) is Dataset and source.shards is None  # rows that are cut over a mesh are not numbered
    return NumberedRows(source) if numbers and whole else source


def _two_keys(key: Key[Array, ""]) -> Array:
    return jax.random.key_data(jax.random.split(key))


def mean_function(fun: Callable[..., Array], source: AbstractSource | None) -> Callable[..., Array]:
    """fun(point, sample, seen) as a function of a point and of what the run draws from the source.

    Where the law of samples depends on x, the value is the mean over two samples s, s' and the gradient

        grad f(x, s) / 2 + (f(x, s) - f(x, s')) grad log p(x, s) / 2    + the same with s and s' exchanged:

    each is the other's baseline, of which it is independent, so that the mean is the gradient of E f.
    """
    plain = source if isinstance(source, Distribution) else None

    def of(point: PyTree, drawn: PyTree) -> Array:
        sample, iteration = drawn if isinstance(drawn, Numbered) else (drawn, LATE)
        if plain is None or plain.log_density is None:
            weight = 1.0 if plain is None or plain.weight is None else plain.weight(sample)
            return fun(point, sample, Seen(weight, iteration))
        pair = [
            jax.lax.stop_gradient(plain.sampler(jax.random.wrap_key_data(data), point["x"]))
            for data in (sample[0], sample[1])
        ]
        values = [fun(point, each, Seen(1.0, iteration)) for each in pair]
        scores = [plain.log_density(point["x"], each) for each in pair]
        less = jax.lax.stop_gradient(values[0] - values[1])
        return (values[0] + values[1] + less * (_unmoved(scores[0]) - _unmoved(scores[1]))) / 2

    return of


def _unmoved(value: Array) -> Array:
    """0, with the gradient of a value."""
    return value - jax.lax.stop_gradient(value)


class Draws(eqx.Module):
    """Values of a function on samples of a source, with their weights: for statistics outside of a run."""

    source: AbstractSource

    def values(self, fun: Callable[..., Array], x: PyTree, key: Key[Array, ""], draws: int) -> tuple[Array, Array]:
        """Independent ones."""
        source = run_source(self.source, False)
        if isinstance(source, Dataset) and source.epochs:  # rows of one pass are not independent, and may be too few
            source = Dataset(source.arrays)
        tickets = source.draw(key, jnp.arange(1), draws)
        return self.of_rows(fun, x, source.fetch(jax.tree.map(lambda ticket: ticket[0], tickets)))

    def of_rows(self, fun: Callable[..., Array], x: PyTree, rows: PyTree) -> tuple[Array, Array]:
        given = self.source if isinstance(self.source, Distribution) else None

        def one(row: PyTree) -> tuple[Array, Array]:
            sample = row
            if given is not None and given.log_density is not None:
                sample = given.sampler(jax.random.wrap_key_data(row[0]), x)
            weight = given.weight(sample) if given is not None and given.weight is not None else 1.0
            value = fun(x, sample)
            return value, jnp.asarray(weight, jnp.result_type(value))

        return jax.lax.stop_gradient(jax.vmap(one)(rows))
