"""Sets that bound each entry of x alone."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree

from lariax.prox._numerics import (
    Allowance,
    allowance,
    as_arrays,
    cast,
    known,
    require_positive,
    spread,
    spread_mismatch,
)
from lariax.sets._base import AbstractSet
from lariax.utils import Converted


class Everything(AbstractSet):
    """All of space: x is free. The normal cone is {0}, so stationarity is the norm of the gradient.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import Everything
    >>> print(Everything().stationarity(jnp.zeros(2), jnp.array([3.0, 4.0])))
    5.0
    """

    separable: ClassVar[bool] = True

    def project(self, x: PyTree) -> PyTree:
        return x

    def contains(self, x: PyTree, tolerance: ArrayLike | None = None) -> Bool[Array, ""]:
        return _all(jax.tree.map(jnp.isfinite, x))

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        return jax.tree.map(jnp.zeros_like, direction)

    def _mismatch(self, x: PyTree) -> str | None:
        return None


class AbstractIntervals(AbstractSet):
    """{x : lower <= x <= upper}, entry by entry, with bounds that may be infinite.

    The normal cone at x holds the vectors that point out of the bounds that x meets: n_i >= 0 where x_i =
    upper_i, n_i <= 0 where x_i = lower_i, n_i = 0 elsewhere. The projection meets a bound exactly, so by
    default an entry counts as on a bound within a few rounding errors of the bound itself: exactly, for a
    bound of zero.
    """

    separable: ClassVar[bool] = True

    @abstractmethod
    def _bounds(self, x: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        """The lower and the upper bounds, with the structure, shapes and precision of x."""

    def project(self, x: PyTree) -> PyTree:
        return jax.tree.map(jnp.clip, x, *self._bounds(x))

    def contains(self, x: PyTree, tolerance: ArrayLike | None = None) -> Bool[Array, ""]:
        allow = allowance(x, tolerance)
        within = jax.tree.map(
            lambda leaf, nearest: jnp.abs(leaf - nearest) <= allow(jnp.abs(nearest)), x, self.project(x)
        )
        return _all(within)

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        allow = allowance(x, tolerance)

        def nearest(leaf: Array, target: Array, lower: Array, upper: Array) -> Array:
            downwards = (_near(leaf, lower, allow) | (leaf < lower)) & (target < 0)
            upwards = (_near(leaf, upper, allow) | (leaf > upper)) & (target > 0)
            return jnp.where(downwards | upwards, target, 0)

        return jax.tree.map(nearest, x, direction, *self._bounds(x))


class Box(AbstractIntervals):
    """{x : lower <= x <= upper}, entry by entry.

    Args:
        lower: one number, or a tree of arrays that broadcasts against x; -inf where there is no bound.
        upper: likewise, at least `lower`; inf where there is no bound.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import Box
    >>> print(Box(0.0, jnp.array([1.0, jnp.inf])).project(jnp.array([3.0, 3.0])))
    [1. 3.]
    """

    lower: PyTree[Array] = eqx.field(converter=as_arrays)
    upper: PyTree[Array] = eqx.field(converter=as_arrays)

    def __check_init__(self) -> None:
        for lower, upper in _pairs(self.lower, self.upper):
            low, high = known(lower), known(upper)
            if low is not None and not np.all(low < np.inf):
                raise ValueError(f"Box was given lower={low}: use numbers below infinity, -inf for no bound.")
            if high is not None and not np.all(high > -np.inf):
                raise ValueError(f"Box was given upper={high}: use numbers above -infinity, inf for no bound.")
            if low is not None and high is not None and not np.all(low <= high):
                raise ValueError(
                    f"Box was given lower={low} and upper={high}, with a lower bound above the upper one: "
                    "the box is empty. Exchange the two, or loosen them."
                )

    def _bounds(self, x: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        return spread(self.lower, x), spread(self.upper, x)

    def _mismatch(self, x: PyTree) -> str | None:
        return spread_mismatch("the lower bound of Box", self.lower, x) or spread_mismatch(
            "the upper bound of Box", self.upper, x
        )


class NonNegative(AbstractIntervals):
    """{x : x >= 0}, entry by entry.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import NonNegative
    >>> print(NonNegative().project(jnp.array([1.0, -2.0])))
    [1. 0.]
    """

    def _bounds(self, x: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        return spread(0.0, x), spread(jnp.inf, x)

    def _mismatch(self, x: PyTree) -> str | None:
        return None


class LInfBall(AbstractIntervals):
    """{x : |x_i| <= radius for all i}.

    Args:
        radius: positive number.

    >>> import jax.numpy as jnp
    >>> from lariax.sets import LInfBall
    >>> print(LInfBall(2.0).project(jnp.array([1.0, -3.0])))
    [ 1. -2.]
    """

    radius: Converted = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        require_positive(self, "radius", self.radius)

    def _bounds(self, x: PyTree) -> tuple[PyTree[Array], PyTree[Array]]:
        return spread(-self.radius, x), spread(self.radius, x)

    def _mismatch(self, x: PyTree) -> str | None:
        return None


def _all(flags: PyTree[Array]) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(flag) for flag in jax.tree.leaves(flags)]))


def _near(leaf: Array, bound: Array, allow: Allowance) -> Array:
    """Where entries are on a bound; never on an infinite one."""
    finite = jnp.isfinite(bound)
    position = jnp.where(finite, bound, 0)
    return finite & (jnp.abs(leaf - position) <= cast(allow(jnp.abs(position)), leaf))


def _pairs(lower: PyTree[Array], upper: PyTree[Array]) -> list[tuple[Array, Array]]:
    """The bounds leaf by leaf, once it is clear that their structures and shapes go together."""
    for first, second in ((lower, upper), (upper, lower)):
        try:
            full = jax.tree.leaves(jax.tree.broadcast(first, second))
        except ValueError:
            continue
        others = jax.tree.leaves(second)
        pairs = list(zip(full, others, strict=True)) if second is upper else list(zip(others, full, strict=True))
        break
    else:
        raise ValueError(
            f"Box was given lower of the structure {jax.tree.structure(lower)} and upper of the structure "
            f"{jax.tree.structure(upper)}: give both the structure of x, or one number."
        )
    for low, high in pairs:
        try:
            np.broadcast_shapes(low.shape, high.shape)
        except ValueError:
            raise ValueError(
                f"Box was given lower of shape {low.shape} and upper of shape {high.shape}: give both the "
                "shape of x, or one number."
            ) from None
    return pairs
