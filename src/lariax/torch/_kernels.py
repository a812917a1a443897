"""The update of vectors like the parameters: in one pass over memory where that can be had, else as it is written."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from lariax.torch._update import Tensors, Update, advance, follow, sent, sum_of_squares

__all__ = ["Tensors", "Update", "advance", "follow", "own_kernels", "sent", "sum_of_squares", "update_on"]


def update_on(device: torch.device) -> Callable[..., Tensors]:
    """`advance`, as one pass over memory where that can be had."""
    own = own_kernels(device)
    return advance if own is None else own.advance


def own_kernels(device: torch.device) -> Any:
    """The module with them; None where Triton is not, and no compiler then either."""
    if device.type == "cuda":
        with suppress(ImportError):
            from lariax.torch import _triton

            return _triton
    return None
