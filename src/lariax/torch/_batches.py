"""Batches of rows: any structure of tensors that are equally long."""

from collections import UserDict
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten


def rows_of(batch: Any, default: Any = "raise") -> Any:
    """How many rows a batch has: the length of its tensors."""
    if isinstance(batch, UserDict):
        batch = batch.data
    plain = type(batch) in (list, tuple) and all(isinstance(leaf, Tensor) for leaf in batch)
    lengths = {
        leaf.shape[0] for leaf in (batch if plain else tree_leaves(batch)) if isinstance(leaf, Tensor) and leaf.ndim
    }
    if len(lengths) == 1:
        return lengths.pop()
    if default == "raise":
        raise ValueError(
            f"a batch must hold tensors with one row for each sample, found lengths {sorted(lengths)}: it cannot be "
            "cut. Give a list of two or more such batches, or one structure of tensors of equal length."
        )
    return default


def rows_from(batch: Any, start: int, stop: int) -> Any:
    """Some rows of a batch: of its tensors, and of arrays and lists that are as long."""
    if isinstance(batch, UserDict):
        part = copy(batch)
        part.data = rows_from(batch.data, start, stop)
        return part
    if type(batch) in (list, tuple) and all(isinstance(leaf, Tensor) and leaf.ndim for leaf in batch):
        return type(batch)([leaf[start:stop] for leaf in batch])
    count = rows_of(batch)

    def has_rows(leaf: Any) -> bool:
        if isinstance(leaf, Tensor):
            return leaf.ndim > 0
        if isinstance(leaf, np.ndarray):
            return leaf.ndim > 0 and len(leaf) == count
        return (
            isinstance(leaf, list) and len(leaf) == count and not any(isinstance(x, Tensor) for x in tree_leaves(leaf))
        )

    return tree_map(lambda leaf: leaf[start:stop] if has_rows(leaf) else leaf, batch, is_leaf=has_rows)


def joined(batches: list[Any]) -> Any:
    """Several batches as one; None where they hold anything but tensors whose rows fit together."""
    each, structures = zip(*map(tree_flatten, batches), strict=True)
    kinds = {tuple((leaf.shape[1:], leaf.dtype) if _has_rows(leaf) else None for leaf in leaves) for leaves in each}
    if len(set(map(str, structures))) > 1 or len(kinds) > 1 or None in kinds.pop():
        return None
    return tree_unflatten([torch.cat(leaves) for leaves in zip(*each, strict=True)], structures[0])


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def plain(batch: Any) -> Any:
    """A batch to be saved: no graphs, no views of a larger tensor."""
    return tree_map_only(Tensor, lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad), batch)


def devices_of(batch: Any) -> list[str]:
    return [str(leaf.device) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


def on_devices(batch: Any, devices: list[str]) -> Any:
    """A saved batch, where it came from."""
    each = iter(devices)
    return tree_map_only(Tensor, lambda leaf: leaf.to(next(each)), batch)
