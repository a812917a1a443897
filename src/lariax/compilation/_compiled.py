"""Programs that are compiled soon."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable[..., Any])

SOON = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""On a CPU, half the time of compiling. With 50 or 10,000 variables an iteration takes as long as with XLA's usual
options; with a network of 8,320 parameters 1.4 times as long."""

SOONER = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""For what runs once."""

SMALL = 1024
"""Up to so many variables an answer is sooner had by compiling soon."""


class _Programs:
    """A function compiled in three ways: with options, as usual, and as a part of another program."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        self._function, self._options = function, options

    @cached_property
    def soon(self) -> Any:
        filter_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit
        options = self._options if jax.default_backend() == "cpu" else None
        return filter_jit(self._function, compiler_options=options)

    @cached_property
    def usual(self) -> Any:
        return eqx.filter_jit(self._function)


def compiled(*, once: bool = False, briefly: bool = False) -> Callable[[F], F]:
    """`eqx.filter_jit` that compiles soon what runs `once` or `briefly`, or works on few variables, those of the first
    argument or of its `oracle`. Which it is depends on the problem alone, so the same seed gives the same bits."""

    def decorate(function: F) -> F:
        programs = _Programs(function, SOONER if once else SOON)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
            small = once or briefly or getattr(args[0], "oracle", args[0]).dimension <= SMALL
            return (programs.soon if small and not traced else programs.usual)(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
