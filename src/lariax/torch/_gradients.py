"""Gradients of single values: flat, in the coordinates of a metric, several at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lariax.torch._passes import Passes
from lariax.torch._space import dense

CHUNK_ENTRIES = 2**22
"""How many numbers of gradients row by row are held at a time."""


class Gradients:
    """Gradients as flat tensors: entry by entry, metric * gradient; the gradient itself where there is no metric."""

    def __init__(self, passes: Passes, metric: Tensor | None) -> None:
        self.passes, self.space, self.metric = passes, passes.space, metric

    def flat(self, gradients: Any) -> Tensor:
        """One tensor a parameter, with a leading axis or without, as one flat tensor or as many as the axis is long."""
        dtype = self.space.dtype
        pairs = list(zip(gradients, self.space.params, strict=True))
        lead = next((g.shape[: g.ndim - p.ndim] for g, p in pairs if g is not None), ())
        full = [
            p.new_zeros(*lead, p.numel(), dtype=dtype) if g is None else dense(g).to(dtype).reshape(*lead, -1)
            for g, p in pairs
        ]
        joined = torch.cat(full, dim=-1)
        return joined if self.metric is None else joined * self.metric

    def of(self, output: Tensor, keep: bool = False) -> Tensor:
        with torch.no_grad():
            return self.flat(self.passes.gradient([output], [torch.ones_like(output)], keep))

    def batched(self, output: Tensor, cotangents: Tensor) -> Any:
        """Gradients for several cotangents at once; one after the other where an operation cannot be vectorised."""
        try:
            return self.passes.gradient([output], [cotangents], keep=True, batched=True)
        except RuntimeError:
            each = [self.passes.gradient([output], [row], keep=True) for row in cotangents]
            return [None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True)]

    def each(self, output: Tensor) -> Iterator[Tensor]:
        """Gradients of the entries of a vector, a chunk of them at a time."""
        identity = torch.eye(output.shape[0], dtype=output.dtype, device=output.device)
        for rows in identity.split(max(1, CHUNK_ENTRIES // self.space.size)):
            yield self.flat(self.batched(output, rows))
