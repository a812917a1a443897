"""An interior path to the nearest point within linear constraints and bounds, for starts that know nothing.

    minimise  ||d - target||^2 / 2   subject to   J d + r = 0,   J d + r <= 0,   low <= d <= high

Each inequality and each bound has a distance to go and a weight, both positive, whose product goes to 0 along the path.
Some twenty steps of Newton's method follow it, whatever the number of rows and however they depend on each other. (A
ridge on the weights takes the place of what contradicts itself.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lariax.methods._gram import gram_solve

STEPS = 50  # the most; some 20 are usual
CENTRE = 0.1  # the products that a step aims at, in units of their mean before it


class PrimalDual(NamedTuple):
    step: Float[Array, " d"]
    weights: Float[Array, " m"]  # y
    slack: Float[Array, " m"]
    below: Float[Array, " d"]  # weights of lower and upper bounds, 0 where there is none
    above: Float[Array, " d"]


class InteriorPath(NamedTuple):
    """The path for one target, with the arguments of `nearest`."""

    matrix: Float[Array, "m d"]
    residuals: Float[Array, " m"]
    target: Float[Array, " d"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]
    ridge: Float[Array, ""]
    inequality: Bool[Array, " m"]

    def margins(self, step: Float[Array, " d"]) -> tuple[Array, Array]:
        """Distances to the bounds; 1 where there is none."""
        lower, upper = self._bounded
        return jnp.where(lower, step - self.low, 1), jnp.where(upper, self.high - step, 1)

    @property
    def _moves(self) -> Bool[Array, " d"]:
        return self.high > self.low

    @property
    def _bounded(self) -> tuple[Bool[Array, " d"], Bool[Array, " d"]]:
        return self._moves & jnp.isfinite(self.low), self._moves & jnp.isfinite(self.high)

    def start(self) -> tuple[PrimalDual, Float[Array, ""]]:
        """A point with everything positive, and the length that everything is compared with."""
        lower, upper = self._bounded
        clipped = jnp.clip(self.target, self.low, self.high)
        violation = self.matrix @ clipped + self.residuals
        violation = jnp.where(self.inequality, jnp.maximum(violation, 0), violation)
        scale = jnp.linalg.norm(violation) + jnp.finfo(clipped.dtype).tiny
        margin = jnp.minimum((self.high - self.low) / 10, scale)
        low, high = jnp.where(lower, self.low + margin, -jnp.inf), jnp.where(upper, self.high - margin, jnp.inf)
        step = jnp.where(self._moves, jnp.clip(self.target, low, high), clipped)
        slack = jnp.maximum(-(self.matrix @ step + self.residuals), scale)
        weights = (jnp.where(some, scale, 0) for some in (self.inequality, lower, upper))
        y, below, above = weights
        return PrimalDual(step, y, jnp.where(self.inequality, slack, 0), below, above), scale

    def product(self, p: PrimalDual) -> Float[Array, ""]:
        """The sum of distances times weights."""
        low, high = self.margins(p.step)
        return jnp.vdot(p.slack, p.weights) + jnp.vdot(low, p.below) + jnp.vdot(high, p.above)

    def ahead(self, p: PrimalDual) -> PrimalDual:
        """Newton's step, as far as everything stays positive."""
        (lower, upper), (low, high) = self._bounded, self.margins(p.step)
        count = jnp.maximum(jnp.sum(self.inequality) + jnp.sum(lower) + jnp.sum(upper), 1)
        aim = CENTRE * self.product(p) / count
        weights = jnp.where(self.inequality, p.weights, 1)
        soft, push = (jnp.where(self.inequality, value / weights, 0) for value in (p.slack, aim))
        inverse = jnp.where(self._moves, 1 / (1 + p.below / low + p.above / high), 0)
        off = p.step - self.target + p.weights @ self.matrix
        off = off - jnp.where(lower, aim / low, 0) + jnp.where(upper, aim / high, 0)
        gap = self.matrix @ (p.step - inverse * off) + self.residuals - self.ridge * p.weights + push
        turn = gram_solve(self.matrix * jnp.sqrt(inverse), self.ridge + soft, gap)
        move = -inverse * (off + turn @ self.matrix)
        new = PrimalDual(
            p.step + move,
            p.weights + turn,
            push - soft * turn,
            jnp.where(lower, (aim - p.below * move) / low, 0),
            jnp.where(upper, (aim + p.above * move) / high, 0),
        )
        then = self.margins(new.step)
        length = jnp.stack(
            [
                _reach(jnp.where(self.inequality, p.weights, 1), jnp.where(self.inequality, new.weights, 1)),
                *(_reach(*pair) for pair in zip((*p[2:], low, high), (*new[2:], *then), strict=True)),
            ]
        ).min()
        return jax.tree.map(lambda a, b: a + length * (b - a), p, new)


def _reach(now: Array, then: Array) -> Float[Array, ""]:
    """How much of a change can be followed before something reaches 0."""
    part = jnp.where(then < 0, now / (now - then), jnp.inf)
    return jnp.minimum(1, 0.995 * jnp.min(part, initial=jnp.inf))


def inner_weights(path: InteriorPath, needed: Bool[Array, ""]) -> Float[Array, " m"]:
    """The weights at the end of the path; those of its start if they are not needed."""
    start, scale = path.start()
    least = (jnp.finfo(scale.dtype).eps ** 0.6 * scale) ** 2

    def goes_on(carry: tuple[PrimalDual, Array, Array]) -> Array:
        p, count, broken = carry
        return needed & (path.product(p) > least) & (count < STEPS) & ~broken

    def advance(carry: tuple[PrimalDual, Array, Array]) -> tuple[PrimalDual, Array, Array]:
        p, count, _ = carry
        new = path.ahead(p)
        sound = jnp.isfinite(jnp.sum(new.step) + path.product(new))
        return jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, p), count + 1, ~sound

    last, _, _ = jax.lax.while_loop(goes_on, advance, (start, jnp.int32(0), jnp.asarray(False)))
    return jnp.where(path.inequality, jnp.maximum(last.weights, 0), last.weights)
