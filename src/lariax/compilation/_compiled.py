"""Programs that are compiled soon."""

import math
import re
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

F = TypeVar("F", bound=Callable[..., Any])

SOON = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""On a CPU, half the time of compiling. With 50 or 10,000 variables an iteration takes as long as with XLA's usual
options; with a network of 8,320 parameters 1.4 times as long."""

SOONER = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""For what runs once, or has little to do; not where functions take the largest of entries (`has_maxima`). The gradient
of jnp.max asks which entries equal the maximum. XLA may compute these twice, and unless it optimises, not to the same
bits: a product and a sum are rounded as one here, and not there. Then none is equal, and the gradient is 0, or NaN."""

FORGOTTEN: set[str] = set()
"""Options that XLA no longer has, as it said when it was asked to compile."""

SMALL = 1024
"""Up to so many variables an answer is sooner had by compiling soon."""


LITTLE = 2**21
"""Numbers to make, up to which code that was hardly optimised is sooner done than made better."""


class _Programs:
    """A function compiled in several ways: with options, as usual, and as a part of another program."""

    def __init__(self, function: Callable[..., Any], donate: str):
        self._function, self._donate = function, donate

    @cached_property
    def usual(self) -> Any:
        filter_jit: Any = eqx.filter_jit
        return filter_jit(self._function, donate=self._donate)

    @cached_property
    def soon(self) -> Any:
        return self._with(SOON)

    @cached_property
    def sooner(self) -> Any:
        return self._with(SOONER)

    def _with(self, options: dict[str, Any]) -> Any:
        filter_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit
        known = {name: value for name, value in options.items() if name not in FORGOTTEN}
        return filter_jit(self._function, donate=self._donate, compiler_options=known if on_cpu() else None)

    def call(self, way: str, *args: Any, **kwargs: Any) -> Any:
        """Compiled in one of the ways, without options that this version of XLA refuses."""
        try:
            return getattr(self, way)(*args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            found = re.search("No such compile option: '(.*?)'", str(error))
            if not found:
                raise
            FORGOTTEN.add(found[1])
            del self.__dict__[way]
        return self.call(way, *args, **kwargs)


def compiled(*, once: bool = False, briefly: bool = False, overwrite: bool = False) -> Callable[[F], F]:
    """`eqx.filter_jit` that compiles soon what runs `once` or `briefly`, has little to do (the first argument says so
    by its `work`) or works on few variables, those of the first argument or of its `oracle`. Which it is depends on the
    problem and the number of samples alone, so the same seed gives the same bits. `overwrite`: results take the place
    of the arguments after the first, which are gone then."""

    def decorate(function: F) -> F:
        programs = _Programs(function, "all-except-first" if overwrite else "none")

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                return programs.call("usual", *args, **kwargs)
            oracle = getattr(args[0], "oracle", args[0])
            if (once or getattr(args[0], "work", math.inf) <= LITTLE) and not getattr(oracle, "has_maxima", False):
                return programs.call("sooner", *args, **kwargs)
            small = briefly or oracle.dimension <= SMALL
            return programs.call("soon" if small else "usual", *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def on_cpu() -> bool:
    """Whether programs run on a CPU, where a command costs a tenth of a microsecond, not several."""
    return jax.default_backend() == "cpu"


def on_device(value: Any, dtype: Any = None) -> Array:
    """`jnp.asarray`, which compiles a program for every new shape, without one where the value comes from the host."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return jax.device_put(np.asarray(value, dtype), may_alias=False)
    return jnp.asarray(value, dtype)


def on_host(value: Array) -> Any:
    """`np.asarray`, unless other processes have parts of the array: then it stays where it is."""
    return np.asarray(value) if value.is_fully_addressable or value.is_fully_replicated else value
