"""Programs that are compiled soon."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable[..., Any])

CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""Less than half the time of compiling on a CPU, and the same microseconds an iteration (`benchmarks.first_answer`)."""

ONCE_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""For what runs once: compiling takes longer than running."""


class _Programs:
    """A function compiled in two ways: on its own, with options, and as a part of another program."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        self._function, self._options = function, options

    @cached_property
    def own(self) -> Any:
        filter_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit
        options = self._options if jax.default_backend() == "cpu" else None
        return filter_jit(self._function, compiler_options=options)

    @cached_property
    def within(self) -> Any:
        return eqx.filter_jit(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        return (self.within if traced else self.own)(*args, **kwargs)


def compiled(function: F, *, once: bool = False) -> F:
    """`eqx.filter_jit`, with options that shorten compiling; `once`: still more, for what runs once.

    The options are the same for every run of a problem, so the same seed gives the same bits.
    """
    programs = _Programs(function, ONCE_OPTIONS if once else CPU_OPTIONS)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return programs(*args, **kwargs)

    return call  # type: ignore[return-value]
