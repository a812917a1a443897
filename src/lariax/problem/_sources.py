"""Where samples come from.

A source hands out samples in two moves, so that the compiled loop can draw for hundreds of iterations at once without
ever holding that many rows of data:

    tickets = source.draw(key, iterations, count)     # cheap to keep: row numbers, or the samples themselves
    samples = source.fetch(ticket)                    # the samples of one iteration, with a leading axis

Samples depend on the key and on the iteration number alone, never on how iterations are grouped into blocks.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int, Key, PyTree

from lariax.compilation import on_device
from lariax.problem._columns import as_columns, fetched
from lariax.problem._describe import describe_shape, first_nonfinite
from lariax.problem._meshes import RowShards, automatic, joined_rows
from lariax.problem._precision import narrowed, warn_of_float32
from lariax.problem._shuffle import MOST_ROWS, shuffled
from lariax.utils import takes


class AbstractSource(eqx.Module):
    """Something that can be sampled.

    >>> import jax.numpy as jnp, lariax as lx
    >>> source = lx.Dataset(jnp.arange(6.0).reshape(3, 2))  # a source of your own: docs/own-method.md
    >>> isinstance(source, lx.AbstractSource), source.rows_per_sample
    (True, 1)
    """

    from_host: ClassVar[bool] = False
    """Whether the host brings the samples while the compiled loop runs."""

    @abc.abstractmethod
    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> PyTree:
        """Tickets for `count` samples in each of the iterations."""

    def fetch(self, ticket: PyTree) -> PyTree:
        """The samples of one iteration, stacked along a leading axis: the ticket itself, unless it only names them."""
        return ticket

    @property
    def rows_per_sample(self) -> int:
        """How many draws one sample counts for."""
        return 1

    @property
    def population_size(self) -> int | None:
        """N when the samples of one iteration are drawn from N rows *without* replacement, else None."""
        return None


class Distribution(AbstractSource):
    """Samples from a distribution: `sampler(key)` returns one sample, any pytree of arrays.

    Arguments:
        sampler: of a random key; of a key and x, with `log_density`.
        weight: for samples of another distribution q than the p that is meant (importance sampling, for rare events):
            `weight(sample)` is the likelihood ratio p / q, by which objective and constraints on these samples are
            multiplied, and that measures of risk take into account.
        log_density: for samples whose law depends on x and that have no gradient (a choice between actions):
            `log_density(x, sample)`, up to what does not depend on x. Gradients come from the score function, with the
            value at a second sample as baseline, and are unbiased. Samples that are a function of x and of noise are
            better made in the objective, z = g(x, noise): that has far less noise.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> noise = lx.Distribution(lambda key: jax.random.normal(key, (50,)))
    >>> rare = lx.Distribution(lambda key: 4 + jax.random.normal(key), weight=lambda z: jnp.exp(8 - 4 * z))
    >>> choice = lx.Distribution(
    ...     lambda key, x: jax.random.bernoulli(key, jax.nn.sigmoid(x)).astype(float),
    ...     log_density=lambda x, action: jax.nn.log_sigmoid(jnp.where(action > 0, x, -x)),
    ... )
    """

    sampler: Callable[..., PyTree]
    weight: Callable[[PyTree], Array] | None = None
    log_density: Callable[[PyTree, PyTree], Array] | None = None

    def __check_init__(self) -> None:
        if not callable(self.sampler):
            raise TypeError(
                f"Distribution takes a function of a JAX random key, found {type(self.sampler).__name__}. "
                "Write lx.Distribution(lambda key: jax.random.normal(key, (3,))); for rows of data use lx.Dataset."
            )
        for name in ("weight", "log_density"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, found {type(getattr(self, name)).__name__}.")
        if self.log_density is not None:
            self._check_score()
        elif not takes(self.sampler, 1):
            raise TypeError(
                "Distribution takes a function of a random key alone, found one that needs more arguments: a sample "
                "cannot depend on x where it is drawn. Draw what does not, lx.Distribution(lambda key: noise), and "
                "make the sample from it in the objective and the constraints, z = g(x, noise). Where that has no "
                "gradient (a choice between actions), give log_density= beside it, log p(x, sample)."
            )

    def _check_score(self) -> None:
        if self.weight is not None:
            raise TypeError("Distribution takes weight= or log_density=, found both.")
        if not takes(self.sampler, 2):
            raise TypeError(
                "with log_density= the sampler is a function of a random key and x, found one that does not take two "
                "arguments. Write lx.Distribution(lambda key, x: ..., log_density=lambda x, sample: ...)."
            )

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> PyTree:
        if self.weight is not None or self.log_density is not None:
            raise NotImplementedError(
                "a Distribution with weight= or log_density= is for lx.solve and lx.certify. Elsewhere multiply by the "
                "weight in the functions themselves, and make samples from noise, z = g(x, noise)."
            )

        def one_iteration(k: Array) -> PyTree:
            return jax.vmap(self.sampler)(jax.random.split(jax.random.fold_in(key, k), count))

        return jax.vmap(one_iteration)(iterations)


class Dataset(AbstractSource):
    """Rows of a pytree of arrays that share their first axis; one sample is one row of each array.

    NumPy's arrays are of 64 bits unless told otherwise, JAX's only when its 64-bit mode is on. While it is off, float64
    is taken in float32, with a warning, and integers that do not fit into 32 bits are refused.

    A data frame (pandas, polars) or an Arrow table counts as a dictionary of its columns, so that a sample is a
    dictionary of numbers; words become codes, and a warning says which. A row of a sparse matrix of SciPy arrives as a
    dense vector, and only what is not 0 is kept. A memory-mapped array of a type that JAX has stays on disk (on a CPU).

    Rows are drawn with replacement. With `epochs=True` they come in reshuffled passes, at about the same cost: the
    rows of one iteration are distinct, and every row is seen once in a pass (but for a remainder too small for an
    iteration). The order is pseudo-random, and computed row by row: it takes no memory. The rows still to come in a
    pass depend on those that have gone, and an estimate that remembers rows (a tracked constraint) is biased by the
    order of 1 / rows: draw with replacement from small data.

    Arrays whose rows are sharded over a mesh stay where they are, and every device takes its part of a batch from its
    own rows, if the batch has two for each of them at least (docs/scale.md).

    >>> import jax.numpy as jnp, lariax as lx
    >>> rows = lx.Dataset({"features": jnp.ones((100, 3)), "label": jnp.ones(100)})
    >>> len(rows)
    100
    >>> import pandas as pd
    >>> people = lx.Dataset(pd.DataFrame({"age": [31, 44], "income": [10.5, 8.0]}, dtype="float32"))
    >>> earned = lx.AtLeast(lambda x, row: x * row["income"] / row["age"], 0.1, samples=people)
    """

    arrays: PyTree[Array]
    epochs: bool = eqx.field(static=True)
    shards: RowShards | None = eqx.field(static=True, repr=False)  # how its rows are cut, on a mesh

    def __init__(self, arrays: PyTree, epochs: bool = False):
        self.arrays = _device_rows(arrays, "Dataset")
        self.epochs = epochs
        self.shards = RowShards.of(self.arrays)

    @classmethod
    def local(cls, arrays: PyTree, epochs: bool = False) -> "Dataset":
        """The rows of all processes, each of which gives its own (`jax.distributed`); all have as many, and as many for
        each of their devices. They stay where they are. With one process, its rows over its devices.

        >>> import jax.numpy as jnp, lariax as lx
        >>> len(lx.Dataset.local({"income": jnp.ones(8)}))
        8
        """
        return cls(joined_rows(_device_rows(arrays, "Dataset.local")), epochs)

    def __len__(self) -> int:
        return int(jax.tree.leaves(self.arrays)[0].shape[0])

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> PyTree:
        return _row_numbers(key, iterations, count, len(self), self.epochs)

    def fetch(self, ticket: PyTree) -> PyTree:
        return fetched(self.arrays, ticket)

    def draw_from_shards(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> Int[Array, "n count"]:
        """As `draw`, with as many samples from each shard, those of one shard after those of the other."""
        assert self.shards is not None
        shards = self.shards.count
        rows = len(self) // shards

        def from_one(shard: Array) -> Array:
            own = jax.random.fold_in(key, shard)
            return shard * rows + _row_numbers(own, iterations, count // shards, rows, self.epochs)

        return jnp.moveaxis(jax.vmap(from_one)(jnp.arange(shards)), 0, 1).reshape(len(iterations), count)

    def fetch_from_shards(self, ticket: Int[Array, " count"]) -> PyTree:
        """The samples of such a ticket: every device reads its own rows, and keeps them."""
        assert self.shards is not None
        axes, specs, rows = self.shards.axes, list(self.shards.specs), len(self) // self.shards.count
        leaves, structure = jax.tree.flatten(self.arrays)

        def own(leaves: list[Array], ticket: Array) -> list[Array]:
            return [leaf[ticket - jax.lax.axis_index(axes) * rows] for leaf in leaves]

        found = jax.shard_map(own, mesh=self.shards.mesh, in_specs=(specs, PartitionSpec(axes)), out_specs=specs)
        return jax.tree.unflatten(structure, found(leaves, ticket))

    @property
    def population_size(self) -> int | None:
        return len(self) if self.epochs else None


def _row_numbers(
    key: Key[Array, ""], iterations: Int[Array, " n"], count: int, rows: int, epochs: bool
) -> Int[Array, "n count"]:
    """`count` of so many rows in each of the iterations, with replacement or in reshuffled passes."""
    if not epochs:
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(iterations)
        return jax.vmap(lambda k: jax.random.randint(k, (count,), 0, rows))(keys)
    if count > rows:
        raise ValueError(
            f"one iteration takes {count} rows without replacement, found a Dataset of {rows} rows. "
            "Lower batch_size, or use epochs=False to draw with replacement."
        )
    per_epoch = rows // count
    places = (iterations % per_epoch)[:, None] * count + jnp.arange(count)
    return shuffled(key, iterations // per_epoch, places, rows)


class Stratified(AbstractSource):
    """Rows drawn group by group, for constraints that are conditional on a group.

    One sample holds one row of *each* group, stacked along a leading axis in the order of `groups` (the sorted distinct
    values of `by`), every row drawn uniformly within its group with replacement. A gap between group means is then an
    ordinary expectation, and a rare group is seen as often as a common one:

    >>> import jax.numpy as jnp, lariax as lx
    >>> rows = lx.Stratified({"income": jnp.arange(6.0)}, by=["m", "f", "m", "m", "m", "f"])
    >>> rows.groups
    ('f', 'm')
    >>> gap = lx.Equal(lambda x, sample: x * (sample["income"][0] - sample["income"][1]), samples=rows)

    A sample counts as many draws as it has rows. Arrays are taken as by `Dataset`. `order` has the numbers of the rows
    group by group; `starts` and `sizes` say where in it a group begins and how many rows it has.
    """

    arrays: PyTree[Array]
    groups: tuple[Any, ...] = eqx.field(static=True)
    order: Int[Array, " rows"]
    starts: Int[Array, " groups"]
    sizes: Int[Array, " groups"]

    def __init__(self, arrays: PyTree, by: Any):
        self.arrays = _device_rows(arrays, "Stratified")
        labels = np.asarray(by)
        rows = jax.tree.leaves(self.arrays)[0].shape[0]
        if labels.shape != (rows,):
            raise ValueError(
                f"`by` needs one group label a row, shape ({rows},), found shape {labels.shape}. "
                "For groups by several columns, join them into one label first."
            )
        names, member = np.unique(labels, return_inverse=True)
        size = np.bincount(member)
        self.groups = tuple(names.tolist())
        self.order = jnp.asarray(np.argsort(member, kind="stable"), jnp.int32)
        self.starts = jnp.asarray(np.cumsum(size) - size, jnp.int32)
        self.sizes = jnp.asarray(size, jnp.int32)

    def draw(self, key: Key[Array, ""], iterations: Int[Array, " n"], count: int) -> PyTree:
        def one_iteration(k: Array) -> Array:
            shape = (count, len(self.groups))
            return self.starts + jax.random.randint(jax.random.fold_in(key, k), shape, 0, self.sizes)

        return self.order[jax.vmap(one_iteration)(iterations)]

    def fetch(self, ticket: PyTree) -> PyTree:
        return fetched(self.arrays, ticket)

    @property
    def rows_per_sample(self) -> int:
        return len(self.groups)


def as_key(seed: Any) -> Key[Array, ""]:
    """A random key from an integer, or from a key of either kind."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if getattr(seed, "dtype", None) == jnp.uint32 and seed.shape == (2,):
        return jax.random.wrap_key_data(seed)
    try:
        return jax.random.key(seed)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"seed must be an integer below 2^63, or a JAX random key, found {seed!r}.") from error


def leading_axis(arrays: PyTree, owner: str) -> int:
    """The number of rows that all arrays share."""
    found = {path: np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    lengths = {shape[0] if shape else 0 for shape in found.values()}
    if len(lengths) != 1 or 0 in lengths:
        shapes = ", ".join(f"{jax.tree_util.keystr(path) or 'array'} {shape}" for path, shape in found.items())
        raise ValueError(
            f"{owner} needs arrays that share a first axis of at least one row, found {shapes or 'no arrays'}."
        )
    return int(lengths.pop())


def _on_device(array: Any) -> Array:
    """On a CPU, a file that nobody can write to through this array is not copied."""
    if isinstance(array, np.memmap) and not array.flags.writeable:
        return jax.device_put(array, may_alias=True)
    return on_device(array)


def _device_rows(arrays: PyTree, owner: str) -> PyTree[Array]:
    arrays = as_columns(arrays, owner)
    rows = leading_axis(arrays, owner)
    if rows > MOST_ROWS:
        raise ValueError(f"{owner} takes up to 2^31 - 1 rows, found {rows:,}. Use lx.Stream, or a part of them.")
    bad = first_nonfinite(arrays)
    if bad is not None:
        path, index, value = bad
        raise ValueError(
            f"{owner} holds {value} in {path or 'its array'} at row {index[0]} (index {index}); every number must be "
            "finite. Drop or impute those rows first."
        )
    arrays, lost = narrowed(arrays, owner)
    try:
        found = automatic(jax.tree.map(_on_device, arrays))
    except TypeError as error:
        raise TypeError(f"{owner} takes arrays of numbers, found {describe_shape(arrays)}: {error}") from error
    if lost is not None:
        warn_of_float32(lost)
    return found
