"""Several processes, each with its part of a batch: how many there are, and numbers on which they agree."""

import torch
import torch.distributed as distributed
from torch import Tensor


def processes() -> int:
    return distributed.get_world_size() if _several() else 1


def rank() -> int:
    """Which of them this is."""
    return distributed.get_rank() if _several() else 0


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def agreed(numbers: list[Tensor], variances: list[bool]) -> list[Tensor]:
    """Means over all processes, each with its part of the batch; the variance of a mean falls with their number."""
    joined = torch.cat([each.double().reshape(-1) for each in numbers])
    count = processes()
    distributed.all_reduce(joined)
    split = (joined / count).split([each.numel() for each in numbers])
    return [
        part.reshape(each.shape) / (count if is_variance else 1)
        for part, each, is_variance in zip(split, numbers, variances, strict=True)
    ]
