"""States as torch's tools expect them: vectors by parameter, and all numbers as one text in the first group.

`torch.distributed.checkpoint` keeps entries of parameters and groups alone, and loads those entries that a new
optimizer has. A text is there always, whatever it holds.
"""

import io
from base64 import b64decode, b64encode
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

TEXT = "lariax"  # the entry of the first group


def packed(numbers: dict[str, Any]) -> str:
    """Numbers, texts and tensors as a text."""
    file = io.BytesIO()
    torch.save(numbers, file)
    return b64encode(file.getvalue()).decode()


def unpacked(text: str) -> dict[str, Any]:
    """From `packed`; nothing is executed."""
    try:
        return torch.load(io.BytesIO(b64decode(text)), weights_only=True)
    except Exception as reason:
        raise ValueError(
            "the state holds batches that are more than tensors, numbers and texts in lists, tuples and dictionaries, "
            f"and is not read for safety ({str(reason).splitlines()[0]}). Give the optimizer plain batches."
        ) from reason


def numbers_of(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a saved state; of another optimizer, none."""
    if "lariax" in state_dict:
        raise ValueError(
            "the state is of an earlier version of Lariax, which alone can load it. Go on there, or make a new "
            "optimizer for the parameters as they are."
        )
    groups = state_dict.get("param_groups") or [{}]
    return unpacked(groups[0][TEXT]) if TEXT in groups[0] else {}


def vectors_of(state_dict: dict[str, Any], names: list[str]) -> dict[str, list[Tensor]]:
    """By name, one tensor for each parameter in the order of the groups, which may call them by number or by name."""
    keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    entries = [state_dict["state"].get(key, {}) for key in keys]
    return {name: [entry[name] for entry in entries] for name in names}


def bound(closure: Any, batch: Any, missing: Any) -> tuple[Any, Any]:
    """Closure and batch, where a wrapper lets one argument through: functools.partial(closure, batch), whose last
    argument is the batch, in a partial of the wrapper perhaps."""
    if batch is missing:
        while isinstance(closure, partial) and closure.args and isinstance(closure.args[-1], partial):
            closure = closure.args[-1]
        if isinstance(closure, partial) and closure.args:
            *others, batch = closure.args
            return partial(closure.func, *others, **closure.keywords), batch
    return closure, batch
