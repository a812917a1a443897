"""Mean and variance of gradients, gathered piece by piece and over processes."""

import numpy as np
import torch
from torch import Tensor

from lariax.torch._kernels import sum_of_squares
from lariax.torch._passes import Passes


class VectorMoments:
    """Mean and spread of vectors, each the mean of `weight` independent ones."""

    def __init__(self, like: Tensor) -> None:
        self.parts, self.weight = 0, 0.0
        self.mean, self.squares = torch.zeros_like(like), torch.zeros_like(like)

    def add(self, vectors: Tensor, weight: float = 1.0) -> None:
        """`vectors` has a leading axis."""
        center = vectors.mean(dim=0)
        own = torch.sum((vectors - center) ** 2, dim=0) * weight
        self._merge(vectors.shape[0], weight * vectors.shape[0], center, own)

    def _merge(self, parts: int, weight: float, mean: Tensor, squares: Tensor) -> None:
        if parts == 0:
            return
        total = self.weight + weight
        apart = mean - self.mean
        self.squares = self.squares + squares + apart**2 * (self.weight * weight / total)
        self.mean = self.mean + apart * (weight / total)
        self.parts, self.weight = self.parts + parts, total

    def joined(self, other: "VectorMoments") -> "VectorMoments":
        self._merge(other.parts, other.weight, other.mean, other.squares)
        return self

    def over(self, passes: Passes) -> "VectorMoments":
        """Of all processes together."""
        if passes.processes > 1:
            numbers = torch.tensor([self.parts, self.weight], dtype=torch.float64)
            everyone = passes.gather(numbers[None].to(self.mean.device)).cpu().tolist()
            vectors = passes.gather(torch.stack([self.mean, self.squares])[None])
            together = VectorMoments(self.mean)
            for (parts, weight), (mean, squares) in zip(everyone, vectors, strict=True):
                together._merge(int(parts), weight, mean, squares)
            return together
        return self

    @property
    def variances(self) -> Tensor:
        """Of a single one, entry by entry."""
        return self.squares / max(self.parts - 1, 1)

    @property
    def variance(self) -> float:
        """In all entries together."""
        return float(torch.sum(self.variances))

    @property
    def square(self) -> np.float64:
        """||mean||^2."""
        return np.float64(sum_of_squares([self.mean]))
