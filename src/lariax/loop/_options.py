"""Names of options, as they are written at the keyboard."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def explains_options(function: Callable[P, R]) -> Callable[P, R]:
    """Say what was meant when an option is misspelt."""
    options = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in options:
                close = difflib.get_close_matches(name, options, n=1)
                hint = f"Did you mean {close[0]!r}? " if close else ""
                raise TypeError(f"{function.__name__} has no option {name!r}. {hint}It takes {', '.join(options)}.")
        return function(*args, **kwargs)

    return checked
