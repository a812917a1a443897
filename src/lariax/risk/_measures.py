"""Measures of risk as the least mean over auxiliary numbers, which run beside x.

    CVaR            E[t + max(loss - t, 0) / (1 - level)]           least over t, which is then the value at risk
    MeanDeviation   E[loss + weight (s + (loss - t)^2 / s) / 2]     t the mean, s > 0 the standard deviation
    Entropic        E[t + (exp(a (loss - t)) - 1) / a]              t the value, log E[exp(a loss)] / a

In an objective, and in an upper bound, "least over t" needs no minimisation of its own: x and t are sought together.
The others are constraints: a quantile is at most b if P(loss > b) is at most 1 - level; the worst case is the least t
above all means.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lariax.problem import AtMost, Proxy
from lariax.risk._seen import PLAIN, Seen
from lariax.utils import is_number

WIDTH, NARROWING, SETTLING = 0.2, 0.3, 100
"""Of an event's mean size at the start: over so much the step from 0 to 1 is rounded, for its gradient alone, times
(1 + k / SETTLING)^-NARROWING in iteration k. What is rounded over a width b is off by b^2, and the gradient's noise
grows like 1 / b."""

FAR_SHARE = 0.2
"""Of the gradient, at the start, is that of a step that is rounded over five times as much and never flat: a run that
has gone far from where an event begins finds back. It falls like 1 / (1 + k / SETTLING)."""

Values = Float[Array, "n *shape"]


class Lowered(NamedTuple):
    """A risk as a mean over x and auxiliary numbers."""

    fun: Callable[..., Array]  # (x, auxiliary numbers, sample, seen=PLAIN)
    bound: Any = None  # in the place of the one given
    below: "Lowered | None" = None  # another mean, to be at most its bound


class AbstractRisk(eqx.Module):
    """A measure of the risk of `fun(x, sample)`, in the place of its mean."""

    fun: eqx.AbstractVar[Callable[..., Array]]
    narrows: ClassVar[bool] = False  # its gradient depends on how far a run is

    def __check_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(
                f"{type(self).__name__} takes a function fun(x, sample) first, found {type(self.fun).__name__}. Write "
                f"lx.risk.{type(self).__name__}(lambda x, sample: ..., ...)."
            )

    def __call__(self, x: PyTree, sample: PyTree) -> Array:
        raise TypeError(
            f"lx.risk.{type(self).__name__} is no mean of a function. Give it to lx.Problem as the objective, or to "
            "lx.AtMost(risk, bound)."
        )

    @abc.abstractmethod
    def start(self, values: Values) -> dict[str, Array]:
        """Auxiliary numbers, from values of `fun` on some samples."""

    @abc.abstractmethod
    def as_objective(self) -> Lowered:
        """To be minimised."""

    @abc.abstractmethod
    def as_constraint(self, bound: Array) -> Lowered:
        """To be at most `bound`, or what is said instead."""

    def told(self, numbers: dict[str, Array]) -> dict[str, Array]:
        """Of the auxiliary numbers, what users want to know."""
        return numbers


def _check(name: str, option: str, value: Any, low: float, high: float) -> None:
    if is_number(value) and not low < value < high:
        raise ValueError(f"{option} of {name} must be between {low:g} and {high:g}, found {value}.")


class CVaR(AbstractRisk):
    """Conditional value at risk: the mean of fun in the worst share 1 - level of all cases.

    The result tells the value at risk, the quantile where the tail begins. A vector is taken entry by entry.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lx.risk.CVaR(lambda x, z: jnp.abs(x - z), level=0.9),
    ...     samples=lx.Distribution(lambda key: 1.0 + jax.random.normal(key)),
    ... )
    >>> result = lx.solve(problem, jnp.asarray(0.0), iterations=4000, batch_size=16)
    >>> round(float(result.x), 1), abs(float(result.risk["objective"]["value at risk"]) - 1.645) < 0.1
    (1.0, True)
    """

    fun: Callable[..., Array]
    level: float

    def __check_init__(self) -> None:
        _check("CVaR", "level", self.level, 0, 1)

    def start(self, values: Values) -> dict[str, Array]:
        return {"value at risk": jnp.quantile(values, self.level, axis=0)}

    def as_objective(self) -> Lowered:
        def tail(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            at = numbers["value at risk"]
            return at + seen.weight * jnp.maximum(self.fun(x, sample) - at, 0) / (1 - self.level)

        return Lowered(tail)

    def as_constraint(self, bound: Array) -> Lowered:
        return self.as_objective()._replace(bound=bound)


class MeanDeviation(AbstractRisk):
    """Mean plus `weight` standard deviations of fun; a vector is taken entry by entry.

    >>> import lariax as lx
    >>> steady = lx.AtMost(lx.risk.MeanDeviation(lambda x, z: x * z, weight=2.0), 1.0)
    """

    fun: Callable[..., Array]
    weight: float = 1.0

    def __check_init__(self) -> None:
        _check("MeanDeviation", "weight", self.weight, 0, float("inf"))

    def start(self, values: Values) -> dict[str, Array]:
        spread = jnp.std(values, axis=0)
        return {"mean": jnp.mean(values, axis=0), "log deviation": jnp.log(jnp.where(spread > 0, spread, 1))}

    def as_objective(self) -> Lowered:
        def deviating(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            loss, spread = self.fun(x, sample), jnp.exp(numbers["log deviation"])
            square = seen.weight * (loss - numbers["mean"]) ** 2
            return seen.weight * loss + self.weight * (spread + square / spread) / 2

        return Lowered(deviating)

    def as_constraint(self, bound: Array) -> Lowered:
        return self.as_objective()._replace(bound=bound)

    def told(self, numbers: dict[str, Array]) -> dict[str, Array]:
        return {"mean": numbers["mean"], "deviation": jnp.exp(numbers["log deviation"])}


class Entropic(AbstractRisk):
    """log E[exp(aversion * fun)] / aversion: between the mean (aversion near 0) and the maximum.

    >>> import lariax as lx
    >>> careful = lx.AtMost(lx.risk.Entropic(lambda x, z: x * z, aversion=0.5), 1.0)
    """

    fun: Callable[..., Array]
    aversion: float = 1.0

    def __check_init__(self) -> None:
        _check("Entropic", "aversion", self.aversion, 0, float("inf"))

    def start(self, values: Values) -> dict[str, Array]:
        scaled = self.aversion * values
        return {"risk": (jax.nn.logsumexp(scaled, axis=0) - jnp.log(values.shape[0])) / self.aversion}

    def as_objective(self) -> Lowered:
        def excess(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            at = numbers["risk"]
            return at + seen.weight * jnp.expm1(self.aversion * (self.fun(x, sample) - at)) / self.aversion

        return Lowered(excess)

    def as_constraint(self, bound: Array) -> Lowered:
        return self.as_objective()._replace(bound=bound)


class WorstCase(AbstractRisk):
    """The largest mean among the entries of fun: one for each group, or for each of several distributions.

    For another distribution than that of the samples, multiply by its likelihood ratio: `fun = lambda x, s: loss(x, s)
    * ratios(s)`.

    >>> import jax.numpy as jnp, lariax as lx
    >>> both = lx.AtMost(lx.risk.WorstCase(lambda x, z: jnp.stack([x * z, -x])), 1.0)
    """

    fun: Callable[..., Array]

    def start(self, values: Values) -> dict[str, Array]:
        return {"worst": jnp.max(jnp.mean(jnp.reshape(values, (values.shape[0], -1)), axis=0))}

    def as_objective(self) -> Lowered:
        def above(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            return seen.weight * self.fun(x, sample) - numbers["worst"]

        return Lowered(lambda x, numbers, sample, seen=None: numbers["worst"], below=Lowered(above, jnp.zeros(())))

    def as_constraint(self, bound: Array) -> Lowered:
        return Lowered(lambda x, numbers, sample, seen=PLAIN: seen.weight * self.fun(x, sample), bound)


class ChanceOf(AbstractRisk):
    """P(an entry of fun is above 0)."""

    fun: Callable[..., Array]

    narrows: ClassVar[bool] = True

    def start(self, values: Values) -> dict[str, Array]:
        size = jnp.mean(jnp.abs(_largest(values)), axis=0)
        return {"width": WIDTH * jnp.where(size > 0, size, 1)}

    def as_objective(self) -> Lowered:
        def happens(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            return _happens(_largest(self.fun(x, sample)[None])[0], numbers["width"], seen)

        return Lowered(happens)

    def as_constraint(self, bound: Array) -> Lowered:
        return self.as_objective()._replace(bound=bound)


def Chance(fun: Callable[..., Array], probability: ArrayLike | None = None, **options: Any) -> Any:
    """P(fun(x, sample) > 0) is at most `probability`: a constraint. A vector is joint: no entry may be above 0.

    Without a probability it is the chance itself, to be minimised. Values and certificates are those of the event; only
    the direction of a step is that of a rounded one, over a fifth of the size that the event's function has at the
    start and less and less as the run goes on.

    Arguments:
        fun: above 0 where the event happens.
        probability: at most that of the event.
        options: samples= and heldout=, as for `lx.AtMost`.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: x,
    ...     samples=lx.Distribution(jax.random.normal),
    ...     constraints={"short": lx.risk.Chance(lambda x, z: z - x, 0.1)},
    ... )
    >>> result = lx.solve(problem, jnp.asarray(0.0), iterations=4000, batch_size=32)
    >>> round(float(result.x), 1)
    1.3
    """
    chance = ChanceOf(fun)
    if probability is None:
        return chance
    _check("Chance", "probability", probability, 0, 1)
    return AtMost(chance, jnp.asarray(probability), **options)


class Quantile(AbstractRisk):
    """The value at risk: fun is above it in the share 1 - level of all cases. Entry by entry.

    >>> import lariax as lx
    >>> rarely = lx.AtMost(lx.risk.Quantile(lambda x, z: x * z, level=0.95), 1.0)
    """

    fun: Callable[..., Array]
    level: float

    narrows: ClassVar[bool] = True

    def __check_init__(self) -> None:
        _check("Quantile", "level", self.level, 0, 1)

    def start(self, values: Values) -> dict[str, Array]:
        size = jnp.mean(jnp.abs(values - jnp.mean(values, axis=0)), axis=0)
        return {"quantile": jnp.quantile(values, self.level, axis=0), "width": WIDTH * jnp.where(size > 0, size, 1)}

    def as_objective(self) -> Lowered:
        def above(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            return _happens(self.fun(x, sample) - numbers["quantile"], numbers["width"], seen)

        share = jnp.asarray(1 - self.level)
        return Lowered(lambda x, numbers, sample, seen=None: jnp.sum(numbers["quantile"]), below=Lowered(above, share))

    def as_constraint(self, bound: Array) -> Lowered:
        def above(x: PyTree, numbers: PyTree, sample: PyTree, seen: Seen = PLAIN) -> Array:
            return _happens(self.fun(x, sample) - bound, numbers["width"], seen)

        return Lowered(above, jnp.asarray(1 - self.level))


def _largest(values: Values) -> Float[Array, " n"]:
    """Of each sample's entries, by its place: the gradient of jnp.max asks which entries equal the maximum, and is no
    number where a compiler computes them once more for that, differently rounded."""
    rows = jnp.reshape(values, (values.shape[0], -1))
    places = jnp.argmax(rows, axis=1, keepdims=True)
    return jnp.take_along_axis(rows, places, axis=1)[:, 0]


def _happens(event: Array, width: Array, seen: Seen) -> Array:
    """1 where the event is above 0, with the gradient of a rounded step; times the sample's weight."""
    width, k = jax.lax.stop_gradient(width), jnp.asarray(seen.iteration, event.dtype)
    share, narrow = FAR_SHARE / (1 + k / SETTLING), width * (1 + k / SETTLING) ** -NARROWING
    near, far = jax.nn.sigmoid(event / narrow), 0.5 + jnp.arctan(WIDTH * event / width) / jnp.pi
    return Proxy(seen.weight * (event > 0), seen.weight * ((1 - share) * near + share * far))
