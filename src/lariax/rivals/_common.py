"""What several rivals share."""

from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from lariax.methods import AbstractMethod, check_positive
from lariax.oracle import Oracle, Vector


def check_all_positive(method: AbstractMethod, *names: str, or_zero: tuple[str, ...] = ()) -> None:
    """Refuse hyperparameters that are not positive and finite, in the constructor."""
    for name in names:
        check_positive(name, getattr(method, name))
    for name in or_zero:
        check_positive(name, getattr(method, name), or_zero=True)


def check_deterministic(method: AbstractMethod, oracle: Oracle) -> None:
    """Refuse random constraints, or none."""
    random = [block.name for block in oracle.blocks if block.source is not None]
    if random or not oracle.blocks:
        raise ValueError(
            f"{type(method).__name__} is for problems with deterministic constraints (samples=None), found "
            f"{'random ones: ' + ', '.join(map(repr, random)) if random else 'no constraint at all'}. Use a method of "
            'case III, such as lx.QuadraticPenalty or lx.rivals.StochasticIALM, or method="auto".'
        )


class AbstractConstraintMethod(AbstractMethod):
    """A method that is nothing without constraints."""

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> Self:
        if not oracle.blocks:
            raise ValueError(f"{type(self).__name__} needs a problem with constraints, found none.")
        return self


def decayed(size: Any, k: Float[Array, ""], power: Any) -> Array:
    """size (k + 1)^-power"""
    return size * (k + 1) ** -power


class Averaged(NamedTuple):
    """A weighted mean of points, later ones counting more: the j-th has weight j."""

    point: Vector
    weight: Float[Array, ""]

    @classmethod
    def start(cls, point: Vector) -> "Averaged":
        """The mean of nothing, which reads as `point`."""
        return cls(point, jnp.zeros((), point.dtype))

    def add(self, point: Vector, weight: Any) -> "Averaged":
        total = self.weight + weight
        share = jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), 0)
        return Averaged(self.point + share * (point - self.point), total)


class InnerLoop(NamedTuple):
    """The place of an iteration in a double loop: an inner loop ends after a number of iterations fixed beforehand."""

    round: Int[Array, ""]  # how many inner loops are complete
    place: Int[Array, ""]  # how many iterations of this one are

    @classmethod
    def start(cls) -> "InnerLoop":
        return cls(jnp.int32(0), jnp.int32(0))

    def next(self, length: Any) -> tuple["InnerLoop", Bool[Array, ""]]:
        """The place after one more iteration, and whether that one was the last of its inner loop."""
        ended = self.place + 1 >= length
        return InnerLoop(self.round + ended, jnp.where(ended, 0, self.place + 1)), ended

    def step_size(self, first: Any, proximity: Any, dtype: Any) -> Array:
        """1 / (1 / first + mu j / 2), for what (mu/2) ||x - z||^2 makes strongly convex."""
        return 1 / (1 / first + 0.5 * proximity * self.place.astype(dtype))
