"""Named requirements on x. A constraint says what must hold; multipliers, slacks and samples live elsewhere."""

from collections.abc import Callable
from typing import ClassVar, Final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from lariax.compilation import on_device
from lariax.problem._sources import AbstractSource
from lariax.utils import Converted


class _Shared:
    """The type of `SHARED`."""

    def __repr__(self) -> str:
        return "SHARED"


SHARED: Final = _Shared()
"""`samples=SHARED`, the default: the constraint sees the very rows that the objective sees."""


class AbstractConstraint(eqx.Module):
    """E[fun(x, sample)] compared with `bound`. `fun` returns a scalar or a vector; None inside `Problem.joint`.

    `samples` is `SHARED` (the problem's own rows), a source of its own, or None: deterministic, `fun(x)`. `heldout`
    belongs to a source of its own: rows of the same kind that are never trained on.

    Internally every constraint is the residual  r(x) = sign (E[fun] - bound),  with r = 0 for an equality and r <= 0
    for an inequality, and its multiplier is  sign  times the multiplier of the residual: L = f + sum y . fun.
    """

    sign: eqx.AbstractClassVar[float]
    inequality: eqx.AbstractClassVar[bool]
    relation: eqx.AbstractClassVar[str]

    fun: eqx.AbstractVar[Callable[..., Array] | None]
    bound: eqx.AbstractVar[Array]
    samples: eqx.AbstractVar[AbstractSource | _Shared | None]
    heldout: eqx.AbstractVar[AbstractSource | None]

    def __check_init__(self) -> None:
        name = type(self).__name__
        if self.fun is not None and not callable(self.fun):
            raise TypeError(
                f"{name} takes a function fun(x, sample) first, found {self.fun!r}. Write {name}(fun, bound); inside "
                f"Problem.joint, where the functions are joined, write {name}(bound=...)."
            )
        if not isinstance(self.samples, AbstractSource | _Shared | None):
            raise TypeError(
                f"samples= of {name} takes a source (Distribution, Dataset, Stratified, Stream) or None for a "
                f"deterministic constraint, found {type(self.samples).__name__}. Leave it out to use the problem's own."
            )
        if self.heldout is not None and not isinstance(self.samples, AbstractSource):
            raise TypeError(
                f"heldout= of {name} goes with samples= of its own, found samples={self.samples!r}. Leave it out: a "
                "constraint on the problem's own rows is held against the problem's heldout=."
            )
        if not isinstance(self.heldout, AbstractSource | None):
            raise TypeError(
                f"heldout= of {name} takes a source (Distribution, Dataset, Stratified, Stream), found "
                f"{type(self.heldout).__name__}."
            )


def _bound(value: ArrayLike) -> Array:
    return on_device(value)


class Equal(AbstractConstraint):
    """E[fun(x, sample)] = bound, by default 0.

    >>> import lariax as lx
    >>> sphere = lx.Equal(lambda x: x @ x, 1.0, samples=None)
    """

    fun: Callable[..., Array] | None = None
    bound: Converted = eqx.field(default=0.0, converter=_bound)
    samples: AbstractSource | _Shared | None = eqx.field(default=SHARED, kw_only=True)
    heldout: AbstractSource | None = eqx.field(default=None, kw_only=True)

    sign: ClassVar[float] = 1.0
    inequality: ClassVar[bool] = False
    relation: ClassVar[str] = "="


class AtMost(AbstractConstraint):
    """E[fun(x, sample)] <= bound, by default 0, entry by entry. Its multiplier is >= 0.

    >>> import lariax as lx
    >>> budget = lx.AtMost(lambda x, cost: cost @ x, 10.0)
    """

    fun: Callable[..., Array] | None = None
    bound: Converted = eqx.field(default=0.0, converter=_bound)
    samples: AbstractSource | _Shared | None = eqx.field(default=SHARED, kw_only=True)
    heldout: AbstractSource | None = eqx.field(default=None, kw_only=True)

    sign: ClassVar[float] = 1.0
    inequality: ClassVar[bool] = True
    relation: ClassVar[str] = "<="


class AtLeast(AbstractConstraint):
    """E[fun(x, sample)] >= bound, by default 0, entry by entry. Its multiplier is <= 0.

    >>> import lariax as lx
    >>> recall = lx.AtLeast(lambda x, row: row @ x, 0.9)
    """

    fun: Callable[..., Array] | None = None
    bound: Converted = eqx.field(default=0.0, converter=_bound)
    samples: AbstractSource | _Shared | None = eqx.field(default=SHARED, kw_only=True)
    heldout: AbstractSource | None = eqx.field(default=None, kw_only=True)

    sign: ClassVar[float] = -1.0
    inequality: ClassVar[bool] = True
    relation: ClassVar[str] = ">="


def Proxy(values: ArrayLike, surrogate: ArrayLike) -> Array:
    """What a constraint returns where its values have no useful gradient: values, with the gradient of others.

    Multipliers and certificates see `values`, x moves along the gradient of `surrogate`: best a function with a slope
    wherever the constraint may be violated, and bounded on the good side.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> missed = lambda x, row: lx.Proxy(row @ x < 0, jax.nn.softplus(-(row @ x)))  # a rate, and a smooth stand-in
    >>> value, slope = jax.value_and_grad(missed)(jnp.array([1.0]), jnp.array([-2.0]))
    >>> print(value, jnp.round(slope, 2))
    1.0 [1.76]
    """
    smooth = jnp.asarray(surrogate)
    hard = jnp.asarray(values, smooth.dtype)
    if hard.shape != smooth.shape:
        raise ValueError(
            f"Proxy takes values and surrogate of one shape, found {hard.shape} and {smooth.shape}. Give one surrogate "
            "for each value."
        )
    return smooth + jax.lax.stop_gradient(hard - smooth)
