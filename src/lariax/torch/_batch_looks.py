"""A few batches at the current parameters: their rows one by one, or in parts where a model is large."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.torch._batches import rows_of
from lariax.torch._constraints import ClosureValues
from lariax.torch._gradients import Gradients
from lariax.torch._moments import VectorMoments
from lariax.torch._passes import Closure, Passes

Column = Callable[[ClosureValues, int], Tensor]
"""(what was seen of a piece, a number) -> values row by row, or their mean."""

ROW_ENTRIES = 2**21
"""Rows of a batch times constraints times parameters up to which gradients are taken row by row."""


class BatchLooks:
    """Values and gradients of a few batches at the current parameters; buffers and random numbers stay as they are.

    `scales`, if there are any, give the coordinates that gradients are meant in: entry by entry, scale * gradient.
    """

    def __init__(self, passes: Passes, closure: Closure, batches: list[Any], scales: np.ndarray | None) -> None:
        self.passes, self.closure, self.batches = passes, closure, batches
        self.space, self.constraints = passes.space, passes.constraints
        self.origin = torch.zeros(self.space.size, dtype=self.space.dtype, device=self.space.params[0].device)
        self.scales = scales
        self.metric = None if scales is None else torch.as_tensor(scales).to(self.origin)
        self.gradients = Gradients(passes, self.metric)

    def together(self) -> ClosureValues | None:
        """All batches in one forward pass, where that can be had."""
        cheap = self.cheap(self.batches[0], len(self.batches))
        return self.passes.together(self.closure, self.batches) if cheap else None

    def moments(self, column: Column, count: int, by_row: bool, groups: int) -> list[VectorMoments]:
        """Of the gradients of `count` columns, from sample to sample, or else from group to group of each batch."""
        rows, parts = ([VectorMoments(self.origin) for _ in range(count)] for _ in range(2))
        with self.passes.undisturbed(), torch.enable_grad():
            look = self.together()
            if look is not None:
                for i, target in enumerate(rows):
                    self._add(target, look, column(look, i), by_row)
            for batch in self.batches if look is None else []:
                if by_row and self.cheap(batch, count):
                    for piece in self.passes.whole(batch):
                        seen = self.passes.call(self.closure, piece)
                        for i, target in enumerate(rows):
                            for chunk in self.gradients.each(column(seen, i)):
                                target.add(chunk)
                else:
                    for weight, means in self.parts(batch, groups, count, lambda seen, i: column(seen, i).mean()):
                        for target, mean in zip(parts, means, strict=True):
                            target.add(mean[None], weight)
        return [own.over(self.passes).joined(common) for own, common in zip(rows, parts, strict=True)]

    def _add(self, target: VectorMoments, look: ClosureValues, values: Tensor, by_row: bool) -> None:
        """Gradients of values row by row or of their mean, from the one look at all batches."""
        if by_row:
            times = 1 if len(values) == look.size else len(self.batches)  # without samples there is one a batch
            for chunk in self.gradients.each(values):
                target.add(chunk.repeat(times, 1))
        else:
            target.add(self.gradients.of(values.mean(), keep=True)[None], look.size)

    def jacobian(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gradient of each row of the residuals, from sample to sample."""
        places = [(i, block, j) for i, block in enumerate(self.constraints.blocks) for j in range(block.size)]

        def column(seen: ClosureValues, row: int) -> Tensor:
            i, block, j = places[row]
            values = seen.slopes[i].reshape(seen.size if block.random else 1, block.size)
            return values[:, j] * block.sign

        moments = self.moments(column, len(places), True, 2)
        mean = np.stack([each.mean.double().cpu().numpy() for each in moments])
        return mean, np.array([each.variance for each in moments]), np.array([each.weight for each in moments])

    def parts(self, batch: Any, groups: int, count: int, mean_of: Column) -> Iterator[tuple[float, list[Tensor]]]:
        """Of the whole batch in so many parts: how many rows each has, and gradients of `count` means over them."""
        cut = self.passes.cut(batch, groups)
        sums = [[self.origin] * count for _ in cut.shares]
        for piece in cut.pieces:
            rows, own = cut.shares[piece.group] * cut.total, sums[piece.group]
            for i, (seen, keep) in enumerate(self.passes.copies(self.closure, piece, count)):
                own[i] = own[i] + self.gradients.of(mean_of(seen, i), keep) * (seen.size / rows)
        for share, own in zip(cut.shares, sums, strict=True):
            yield share * cut.total, self.passes.total(own)

    def rows_in(self, batch: Any) -> int:
        """Of the whole batch."""
        return self.passes.processes * sum(int(rows_of(part)) for part in self.passes.batches(batch))

    def cheap(self, batch: Any, columns: int) -> bool:
        entries = self.rows_in(batch) * max(columns, 1) * self.space.size
        return not self.passes.single_use and entries <= ROW_ENTRIES

    def point(self) -> Tensor:
        return torch.cat([part.reshape(-1) for part in self.space.point()])

    def values(self, point: Tensor) -> list[Tensor]:
        """Of the parameters, at a flat point."""
        views = point.split([p.numel() for p in self.space.params])
        return [v.view_as(p).to(p.dtype) for v, p in zip(views, self.space.params, strict=True)]

    def square_of_x(self) -> float:
        """x.x, in these units."""
        x = self.point()
        return float(torch.sum((x if self.metric is None else x / self.metric) ** 2))
