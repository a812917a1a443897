"""Is it the same problem? A checkpoint holds no code and no data, so it must recognise both."""

import importlib.metadata
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.checkpoint._archive import raw
from lariax.oracle import Oracle
from lariax.problem import AbstractSource, Distribution, describe_shape, is_sharded

LARGEST_PART = 2**20  # numbers of an array that its checksum looks at, evenly spread
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
    total = 0
    for leaf in arrays:
        if is_sharded(leaf):
            total = zlib.crc32(f"{leaf.dtype}{leaf.shape}{int(_sum_on_mesh(leaf))}".encode(), total)
            continue
        array = np.asarray(leaf)
        total = zlib.crc32(f"{array.dtype}{array.shape}".encode(), total)
        total = zlib.crc32(raw(array.reshape(-1)[:: array.size // LARGEST_PART + 1]), total)
    return f"checksum {total:08x}"


def _program(function: Callable[..., Any], *arguments: PyTree) -> str:
    program = jax.make_jaxpr(function)(*arguments)
    text = _ADDRESS.sub("", str(program.jaxpr))
    return f"{zlib.crc32(text.encode()):08x} {_sums(program.consts)}"


@jax.jit
def _sum_on_mesh(array: jax.Array) -> jax.Array:
    """Of the bits of an array where it is, each weighed by its place: the same on any number of devices."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        words = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[array.dtype.itemsize]
        array = jax.lax.bitcast_convert_type(array, words)
    along = (jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) for axis in range(array.ndim))
    places = sum(np.uint32(2 * axis + 1) * place for axis, place in enumerate(along))
    return jnp.sum(array.astype(jnp.uint32) * (2 * places + 1), dtype=jnp.uint32)
