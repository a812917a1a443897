"""Vectors like the parameters."""

from typing import Any

import torch
from torch import Tensor

Vector = list[Tensor]
"""Something like the parameters: one flat tensor, or one for each of them (`Space`)."""


class Space:
    """The parameters as a vector. On the CPU it is one flat tensor, on a GPU one tensor a parameter."""

    def __init__(self, params: list[Tensor], dtype: torch.dtype) -> None:
        self.params, self.dtype = params, dtype
        self.flat = params[0].device.type == "cpu"
        self.size = sum(p.numel() for p in params)
        self._viewed: tuple[Tensor | None, list[Tensor]] = (None, [])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_viewed": (None, [])}  # a copy has memory of its own

    def pack(self, gradients: Any) -> Vector:
        """A vector from one tensor a parameter; None counts as zero. It may share memory with them: read it only."""
        full = [
            g if g is not None and g.dtype is self.dtype and not g.is_sparse else self._converted(g, p)
            for p, g in zip(self.params, gradients, strict=True)
        ]
        return [torch._utils._flatten_dense_tensors(full)] if self.flat else full

    def _converted(self, gradient: Tensor | None, like: Tensor) -> Tensor:
        if gradient is None:
            return torch.zeros_like(like, dtype=self.dtype)
        return dense(gradient).to(self.dtype)

    def zeros(self) -> Vector:
        if self.flat:
            return [torch.zeros(self.size, dtype=self.dtype)]
        return [torch.zeros_like(p, dtype=self.dtype) for p in self.params]

    def split(self, flat: Tensor) -> Vector:
        """A vector from one flat tensor."""
        like = self.zeros()
        parts = flat.split([part.numel() for part in like])
        return [part.reshape(shape.shape).to(shape) for part, shape in zip(parts, like, strict=True)]

    def views(self, vector: Vector) -> list[Tensor]:
        """One tensor a parameter."""
        if not self.flat:
            return vector
        if vector[0] is not self._viewed[0]:  # the estimate is looked at in every call
            self._viewed = vector[0], list(torch._utils._unflatten_dense_tensors(vector[0], self.params))
        return self._viewed[1]

    def point(self) -> Vector:
        """The parameters themselves, to be read."""
        return self.pack([p.detach() for p in self.params])


def precision_of(params: list[Tensor]) -> torch.dtype:
    """What vectors like the parameters are kept in."""
    return torch.float64 if all(p.dtype == torch.float64 for p in params) else torch.float32


def dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def minus(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


def weighted(vectors: list[Vector], shares: list[float]) -> Vector:
    if shares == [1.0]:
        return vectors[0]
    total = [x * shares[0] for x in vectors[0]]
    for vector, share in zip(vectors[1:], shares[1:], strict=True):
        torch._foreach_add_(total, vector, alpha=share)
    return total
