"""Numbers on their way into JAX: what would be corrupted is refused, what loses digits is said."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.utils import warn

X64 = 'jax.config.update("jax_enable_x64", True)'


def warn_of_float32(name: str) -> None:
    """What `narrowed` found to lose digits."""
    warn(
        f"{name} is float64, but JAX's 64-bit mode is off: it is taken in float32. For float64, say {X64} first; to "
        "silence this, pass it as float32."
    )


def narrowed(tree: PyTree, name: str) -> tuple[PyTree, str | None]:
    """The same in types that JAX has (without its 64-bit mode these are of 32 bits), and the name of the first array
    that lost digits. Numbers that do not fit are refused: JAX would cut off their upper half, or make them infinite."""
    lost: list[str] = []

    def narrow(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer):
            return leaf
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        kind = jax.dtypes.canonicalize_dtype(array.dtype)
        if kind == array.dtype:
            return leaf
        where, array = f"{name}{jax.tree_util.keystr(path)}", np.asarray(array)
        found = _narrowed(array, kind, where)
        if type(leaf) in (bool, int, float, complex):  # of no type in particular
            return leaf
        if not np.issubdtype(kind, np.integer):
            lost.append(where)
        return found

    found = jax.tree_util.tree_map_with_path(narrow, tree)
    return found, lost[0] if lost else None


def _narrowed(array: np.ndarray, kind: np.dtype, where: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    if np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)
        bad = (array < limits.min) | (array > limits.max)
        advice = "subtract its smallest value, or number its values by np.unique(column, return_inverse=True)[1]"
    else:
        bad = np.isfinite(array) & ~np.isfinite(found)
        advice = "give it in another unit"
    if bad.any():
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), array.shape))
        raise ValueError(
            f"{where} holds {array[index]} at index {index}, which does not fit into {kind}: JAX's 64-bit mode is off. "
            f"Say {X64} first, or {advice}."
        )
    return found
