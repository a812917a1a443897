"""What is known of a problem without its functions."""

import abc
from collections.abc import Mapping
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lariax.formulas import least_weights
from lariax.oracle._coordinates import Coordinates
from lariax.oracle._layout import Block, Layout
from lariax.prox import AbstractProximable

Numbers = TypeVar("Numbers", Array, np.ndarray)  # on the host nothing has to be compiled


class AbstractStructure(eqx.Module):
    """x as a vector, the simple convex term, and the constraints as rows of one residual vector r, with r = 0 or r <= 0
    and multipliers y of the residuals."""

    coordinates: eqx.AbstractVar[Coordinates]
    layout: eqx.AbstractVar[Layout]
    bounds: eqx.AbstractVar[Float[Array, " m"]]

    @property
    @abc.abstractmethod
    def simple(self) -> AbstractProximable:
        """The one term that is handled by its proximal map: a set, a regulariser, or both together."""

    @property
    def dtype(self) -> jnp.dtype:
        return self.coordinates.dtype

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The named constraints."""
        return self.layout.blocks

    @property
    def rows(self) -> int:
        """m, the number of scalar constraints."""
        return self.layout.size

    @property
    def inequality(self) -> Bool[Array, " m"]:
        """Which rows are r <= 0; the others are r = 0."""
        return jnp.asarray(self.layout.inequality)

    @property
    def signs(self) -> Float[Array, " m"]:
        """r = sign (fun - bound)."""
        return jnp.asarray(self.layout.signs, self.dtype)

    @property
    def has_inequalities(self) -> bool:
        return bool(self.layout.inequality.any())

    @property
    def has_random_constraints(self) -> bool:
        return bool(self.layout.random.any())

    def signed(self, multipliers: Numbers) -> Numbers:
        """No negative multiplier for an inequality: its slack takes up the rest."""
        xp = np if isinstance(multipliers, np.ndarray) else jnp
        return xp.maximum(multipliers, least_weights(xp, self.layout.inequality).astype(multipliers.dtype))

    def user_multipliers(self, multipliers: Numbers) -> Numbers:
        """Multipliers with the user's sign: L = f + sum y . fun. On the wrong side for an inequality they are 0."""
        y = self.signed(multipliers)
        xp = np if isinstance(y, np.ndarray) else jnp
        return xp.where(y == 0, 0, self.layout.signs.astype(y.dtype) * y)  # no negative zeros

    def named_multipliers(self, multipliers: Float[Array, " m"]) -> dict[str, Array]:
        """`user_multipliers` by name and in the shape of the constraint."""
        return self.layout.named(self.user_multipliers(multipliers))

    def rows_named(self, named: Mapping[str, ArrayLike]) -> Float[Array, " m"]:
        """Multipliers by name, with the user's signs, as those of the residuals; 0 where left out."""
        return self.signed(self.signs * self.layout.unnamed(jnp, named, self.dtype))


class Structure(AbstractStructure):
    """The structure alone, for who has functions of another library."""

    coordinates: Coordinates = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)
    bounds: Float[Array, " m"]
    term: AbstractProximable

    @property
    def simple(self) -> AbstractProximable:
        return self.term
