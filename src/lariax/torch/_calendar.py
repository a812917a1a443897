"""When the self-tuned optimizer starts and refreshes, and the batches that it will look at then."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lariax.torch._batches import devices_of, on_devices, plain
from lariax.tuned.constants import REFRESH_SAMPLES, START_SAMPLES
from lariax.tuned.rates import next_refresh


@dataclass
class Calendar:
    """Batches for the start and the next refresh, and when these are; iterations are counted from the start."""

    rows: int = 0  # in a batch, over all processes
    start: int = 0  # the call in which the parameters move for the first time
    window: int = 0  # how many batches a refresh looks at
    next_refresh: int = 0  # the iteration
    recent: list[Any] = field(default_factory=list)  # what the start or the next refresh will look at

    def collect(self, calls: int, batch: Any, rows: int) -> None:
        """A batch before the start."""
        if calls == 0:
            self.rows, self.start = rows, -(-START_SAMPLES // rows)
            self.window = 1 << (max(REFRESH_SAMPLES // rows, 1).bit_length() - 1)
        self.recent = [*self.recent[:calls], batch]

    def begin(self) -> None:
        """The start is made."""
        self.next_refresh = int(next_refresh(np, 0, self.start, self.window))
        self.recent = self.recent[len(self.recent) - max(self.window - self.next_refresh, 0) :]

    def keep(self, k: int, batch: Any) -> None:
        """The batch of iteration k, if the next refresh will look at it."""
        if k > self.next_refresh - self.window:
            self.recent.append(batch)

    def turn(self, calls: int) -> None:
        """A refresh is done."""
        self.recent, self.next_refresh = [], int(next_refresh(np, calls - self.start, self.start, self.window))

    def export(self) -> dict[str, Any]:
        """For a `state_dict`."""
        return {
            "recent": [plain(batch) for batch in self.recent],
            "devices": [devices_of(batch) for batch in self.recent],
            "rhythm": [self.rows, self.start, self.window, self.next_refresh],
        }

    @classmethod
    def loaded(cls, saved: dict[str, Any]) -> "Calendar":
        recent = [on_devices(*each) for each in zip(saved["recent"], saved["devices"], strict=True)]
        rows, start, window, following = saved["rhythm"]
        return cls(rows, start, window, following, recent)
