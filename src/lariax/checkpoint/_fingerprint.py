"""Is it the same problem? A checkpoint holds no code and no data, so it must recognise both."""

import importlib.metadata
import re
import zlib
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.checkpoint._archive import raw
from lariax.oracle import Oracle
from lariax.problem import AbstractSource, Distribution, automatic, describe_shape, is_sharded

LARGEST_PART = 2**20  # numbers of an array that its checksum looks at, evenly spread
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def parts_of(oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...]) -> dict[str, str]:
    """What the problem consists of, in words: kinds, shapes, and checksums of its data. Rows of a `Stream` are checked
    where they are read."""
    problem = oracle.problem
    parts = {"x": describe_shape(x), "samples=": _source(problem.samples, samples[0])}
    for block, constraint in zip(oracle.blocks, problem.constraints.values(), strict=True):
        own = isinstance(constraint.samples, AbstractSource)
        rows = "" if not own or block.source is None else f", {_source(constraint.samples, samples[block.source])}"
        sums = _sums([leaf for leaf in jax.tree.leaves(constraint) if _is_array(leaf)])
        parts[f"constraint {block.name!r}"] = f"{type(constraint).__name__} of shape {block.shape}, {sums}{rows}"
    simple = problem.simple
    return parts | {"within= or regularizer=": f"{type(simple).__name__} {_sums(jax.tree.leaves(simple))}"}


def functions_of(oracle: Oracle, x: PyTree, samples: tuple[PyTree | None, ...]) -> dict[str, str]:
    """Checksums of what the user's functions compute, as far as JAX sees it."""
    problem = oracle.problem
    found = {"the objective": _program(problem.objective, x, *(() if problem.samples is None else (samples[0],)))}
    for block, constraint in zip(oracle.blocks, problem.constraints.values(), strict=True):
        if constraint.fun is not None:
            rows = () if block.source is None else (samples[block.source],)
            found[f"constraint {block.name!r}"] = _program(constraint.fun, x, *rows)
    for i, source in enumerate(problem.sources):
        if isinstance(source, Distribution):
            found[f"the sampler of source {i}"] = _program(source.sampler, jax.random.key(0))
    return found


def environment(oracle: Oracle) -> dict[str, str]:
    """What the bits of a run depend on, beside the problem."""
    device, placement = jax.devices()[0], oracle.placement
    mesh = {} if placement is None else {"devices": str(placement.mesh.size)}
    return mesh | {
        "lariax": importlib.metadata.version("lariax"),
        "jax": jax.__version__,
        "device": f"{device.platform} {device.device_kind}",
        "x64": "on" if jax.config.read("jax_enable_x64") else "off",
    }


def differences(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """What has changed, in words."""
    return [
        f"{part} was {then.get(part, 'not there')} and is {now.get(part, 'not there')}"
        for part in [*then, *(part for part in now if part not in then)]
        if then.get(part) != now.get(part)
    ]


def _source(source: Any, sample: PyTree | None) -> str:
    if source is None:
        return "nothing random"
    arrays = [leaf for leaf in jax.tree.leaves(source) if _is_array(leaf)]
    order = "" if source.population_size is None else " in epochs"
    return f"{type(source).__name__} of {describe_shape(sample)}{order}{', ' + _sums(arrays) if arrays else ''}"


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _sums(arrays: list[Any]) -> str:
    """Of arrays, wherever they are: on a mesh, of any number of devices, it is what it is on one."""
    total = 0
    for leaf in arrays:
        on_mesh = is_sharded(leaf)
        array = automatic(leaf) if on_mesh else np.asarray(leaf)
        step = array.size // LARGEST_PART + 1
        if on_mesh:
            found = str(int(_sum_on_mesh(array, step))).encode()
        elif any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
            found = str(_sum_on_host(array.reshape(-1)[::step], step)).encode()
        else:
            found = raw(array.reshape(-1)[::step])
        total = zlib.crc32(found, zlib.crc32(f"{array.dtype}{array.shape}".encode(), total))
    return f"checksum {total:08x}"


def _program(function: Callable[..., Any], *arguments: PyTree) -> str:
    program = jax.make_jaxpr(function)(*arguments)
    text = _ADDRESS.sub("", str(program.jaxpr))
    return f"{zlib.crc32(text.encode()):08x} {_sums(program.consts)}"


def _sum_on_host(numbers: np.ndarray, step: int) -> int:
    """Of the bits of numbers, one in `step` of an array, each weighed by its place."""
    places, words = np.arange(len(numbers), dtype=np.uint32) * np.uint32(step), numbers[:, None]
    if jnp.issubdtype(numbers.dtype, jnp.floating):
        words = np.ascontiguousarray(words).view(_WORDS[numbers.dtype.itemsize])
    return int(np.sum(words.astype(np.uint32) * _weights(places, words.shape[1]), dtype=np.uint32))


@partial(jax.jit, static_argnums=1)
def _sum_on_mesh(array: jax.Array, step: int) -> jax.Array:
    """The same of all numbers of an array, where they are."""
    places, rest = jnp.zeros(array.shape, jnp.uint32), jnp.zeros(array.shape, jnp.uint32)
    for axis in range(array.ndim):
        along, stride = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis), prod(array.shape[axis + 1 :])
        places += along * np.uint32(stride % 2**32)
        rest += along % np.uint32(step) * np.uint32(stride % step) % np.uint32(step)
    is_seen = rest % np.uint32(step) == 0  # of the place, which may be more than 32 bits hold
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = jax.lax.bitcast_convert_type(array, _WORDS[array.dtype.itemsize])
    words = array.astype(jnp.uint32).reshape(*places.shape, -1)
    terms = jnp.where(is_seen[..., None], words * _weights(places, words.shape[-1]), jnp.uint32(0))
    return jnp.sum(terms, dtype=jnp.uint32)


def _weights(places: Any, words: int) -> Any:
    """Odd numbers, for each word of a number at a place."""
    each = places[..., None] * np.uint32(2) + np.arange(words, dtype=np.uint32)
    return each * np.uint32(2654435761) | np.uint32(1)
