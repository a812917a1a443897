"""What calls of `Multipliers` have seen, on its way to the core."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.torch._processes import agreed, processes
from lariax.torch._transfer import Transfer
from lariax.tuned.multipliers import Multipliers as Core

Part = tuple[str, tuple[int, ...], float | None]
"""A name, the shape of its values and their variance; None: that is told."""


class Record(NamedTuple):
    """What the core is to know of a call."""

    parts: list[Part]
    numbers: list[Tensor]
    looks: list[str] = []  # noqa: RUF012  # nobody adds to it
    apart: bool = False  # whether those were in parameters, that all processes have, not in tensors of each process
    told: dict[str, Any] | None = None  # by `update`
    spread: bool = False  # whether variances of the loss and of values are told

    @property
    def is_plain(self) -> bool:
        """Whether it has values alone, of no known variance."""
        return not (self.looks or self.told or self.spread)

    def is_like(self, other: "Record") -> bool:
        """Of two plain ones; those of calls as the last one share their parts."""
        return other.parts is self.parts or (other.is_plain and other.parts == self.parts)


class Alike(NamedTuple):
    """What a call is like that has rows of values by name, as many as losses, and nothing else to tell."""

    losses: tuple[torch.Size, torch.dtype, torch.device]
    values: list[torch.Size]
    parts: list[Part]
    until: int  # the next call that looks at gradients, or is the last one
    shares: Tensor  # of each row in a mean


class PendingCalls:
    """Calls that the core does not know of. They are sent together, and from a GPU they arrive at the next call."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.kept: list[Record] = []
        self.under_way: tuple[list[Record], Transfer] | None = None

    @property
    def calls(self) -> int:
        """Until now, whether the core knows of them or not, when nothing is under way."""
        return self.core.calls + len(self.kept)

    def forget(self) -> None:
        self.kept, self.under_way = [], None

    def send(self) -> bool:
        """Whether they have arrived already."""
        records, self.kept = self.kept, []
        numbers = [number for record in records for number in record.numbers]
        if processes() > 1:
            numbers = agreed(numbers, [kind for record in records for kind in _variances(record)])
        joined = torch.cat([number.reshape(-1) for number in numbers]) if numbers else torch.zeros(0)
        self.under_way = records, Transfer(joined)
        if joined.device.type == "cpu":
            self.take_in()
        return self.under_way is None

    def take_in(self) -> None:
        assert self.under_way is not None
        (records, arriving), self.under_way = self.under_way, None
        numbers = np.asarray(arriving.numbers()[0], float).reshape(-1)
        while records:
            first = records[0]
            alike = 1
            if first.is_plain:
                while alike < len(records) and first.is_like(records[alike]):
                    alike += 1
            sizes = [number.numel() for number in first.numbers]
            width = sum(sizes)
            if first.is_plain:
                self._take_in_alike(first, sizes, numbers[: alike * width].reshape(alike, width))
            else:
                self._take_in_one(first, np.split(numbers[:width], np.cumsum(sizes))[:-1])
            records, numbers = records[alike:], numbers[alike * width :]

    def _take_in_alike(self, first: Record, sizes: list[int], numbers: np.ndarray) -> None:
        """Calls with values of the same names and shapes."""
        values, at = {}, 0
        for (name, shape, _), size in zip(first.parts, sizes, strict=True):
            values[name] = numbers[:, at : at + size].reshape(len(numbers), *shape)
            at += size
        self.core.advance_by(len(numbers), values)

    def _take_in_one(self, record: Record, parts: list[np.ndarray]) -> None:
        numbers = iter(parts)
        noise = float(next(numbers)[0]) if record.spread else np.nan
        values: dict[str, Any] = {}
        for name, shape, known in record.parts:
            variance = next(numbers) if known is None else known
            values[name] = (_shaped(next(numbers), shape), _shaped(variance, shape))
        for name in record.looks:
            own = [float(next(numbers)[0]) for _ in range(4)]
            self.core.look(name, (own[0], own[1]), (own[2], own[3]))
        told = record.told or {}
        self.core.advance({**values, **{name: (pair[0], pair[1]) for name, pair in told.items()}}, noise)


def _variances(record: Record) -> list[bool]:
    """Which numbers of a record are variances of means, or squares of gradients in rows: of a batch that is as many
    times larger, both are as many times smaller."""
    kinds = [True] if record.spread else []
    for _, _, known in record.parts:
        kinds += [True, False] if known is None else [False]
    return kinds + [not record.apart] * (4 * len(record.looks))


def _shaped(number: Any, shape: tuple[int, ...]) -> Any:
    """A float where there is one number, else an array."""
    array = np.asarray(number, float)
    return np.broadcast_to(array.reshape(shape if array.size > 1 else ()), shape) if shape else float(array.reshape(()))
