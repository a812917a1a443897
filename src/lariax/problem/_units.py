"""Which variables have a unit of their own."""

from math import prod

import numpy as np

MANY = 4096
"""With more variables than this, all have one unit."""

DIRECTIONS = 16
"""In which the curvature is looked at: all of them, for as few variables."""


def units(shapes: list[tuple[int, ...]], tied: list[np.ndarray]) -> np.ndarray | None:
    """Labels for all entries of x: those with the same label have a common unit. None: all have.

    Variables have units of their own if x consists of numbers and vectors, but for those that a set ties together: they
    have a label >= 0 in `tied`. The entries of matrices are taken to be weights of a model, which have one.
    """
    if sum(map(prod, shapes)) > MANY or any(prod(shape) > max(shape, default=1) for shape in shapes):
        return None
    given = np.concatenate([labels.ravel() for labels in tied])
    own = given.max(initial=-1) + 1 + np.arange(given.size)
    _, labels = np.unique(np.where(given < 0, own, given), return_inverse=True)
    return labels if labels.max(initial=0) > 0 else None


def probes(size: int) -> np.ndarray:
    """Directions whose products with a matrix show the norms of its rows: all axes, or random signs."""
    if size <= DIRECTIONS:
        return np.eye(size)
    return np.random.default_rng(0).choice([-1.0, 1.0], (DIRECTIONS, size)) / DIRECTIONS**0.5
