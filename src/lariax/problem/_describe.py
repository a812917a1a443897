"""Words for errors: what was found, in the terms of the person who wrote it."""

import unicodedata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

AT_ONCE = 1 << 22  # numbers that are looked at at once: no copy of large data


def visible(text: str) -> str:
    """A text that somebody chose, without what would steer a terminal or turn the text around it."""
    hidden = ("Cc", "Cs", "Zl", "Zp")
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if c in _DIRECTIONS or unicodedata.category(c) in hidden else c for c in text
    )


def describe_shape(tree: PyTree) -> str:
    """Shape and dtype of every leaf, with its path: `['w'] float32(3, 2), ['b'] float32(2,)`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    words = [f"{jax.tree_util.keystr(path)} {_leaf(leaf)}".strip() for path, leaf in leaves[:8]]
    return ", ".join(words) + (f" and {len(leaves) - 8} more" if len(leaves) > 8 else "") if words else "nothing"


def _leaf(leaf: Any) -> str:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{tuple(leaf.shape)}"
    return type(leaf).__name__


def first_nonfinite(tree: PyTree) -> tuple[str, tuple[int, ...], float] | None:
    """Path, index and value of the first entry that is NaN or infinite; None when all are finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, jax.core.Tracer):
            continue
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
            found = _nonfinite_on_mesh(leaf)
            if found is not None:
                return jax.tree_util.keystr(path), *found
            continue
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16":
            flat = array.reshape(-1)
            for start in range(0, flat.size, AT_ONCE):
                finite = np.isfinite(flat[start : start + AT_ONCE])
                if not finite.all():
                    index = np.unravel_index(start + int(np.argmin(finite)), array.shape)
                    return jax.tree_util.keystr(path), tuple(int(i) for i in index), float(array[index])
    return None


def _nonfinite_on_mesh(array: jax.Array) -> tuple[tuple[int, ...], float] | None:
    """Index and value, found where the array is; of another process's part only that there is one."""
    if not jnp.issubdtype(array.dtype, jnp.floating) or bool(jax.jit(lambda a: jnp.isfinite(a).all())(array)):
        return None
    for shard in array.addressable_shards:
        bad = first_nonfinite(np.asarray(shard.data))
        if bad is not None:
            return tuple((part.start or 0) + i for part, i in zip(shard.index, bad[1], strict=True)), bad[2]
    return (-1,) * array.ndim, float("nan")
