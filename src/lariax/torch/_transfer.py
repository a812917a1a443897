"""Numbers on their way from a device to the host."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Transfer:
    """Numbers in double precision; those of a GPU in one transfer, that nothing waits for before they are asked for."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays, self.joined = arrays, None
        if isinstance(arrays[0], Tensor) and arrays[0].device.type != "cpu":
            flat = [each.reshape(-1) for each in arrays]
            self.joined = (flat[0] if len(flat) == 1 else torch.cat(flat)).to("cpu", non_blocking=True)
            self.arrival = torch.cuda.Event()
            self.arrival.record()

    def numbers(self) -> list[Any]:
        if self.joined is None:
            return [_number(each) if isinstance(each, Tensor) else each for each in self.arrays]
        self.arrival.synchronize()
        parts = np.split(self.joined.double().numpy(), np.cumsum([each.numel() for each in self.arrays[:-1]]))
        return [part if each.ndim else part[0] for part, each in zip(parts, self.arrays, strict=True)]


def _number(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.ndim else np.float64(tensor.item())
