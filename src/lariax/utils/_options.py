"""Options as they are written at the keyboard: names, and values."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from lariax.utils._pages import with_help

P = ParamSpec("P")
R = TypeVar("R")


HABITS = {
    **dict.fromkeys(("tol", "ftol", "gtol", "rtol", "atol"), "Write tolerance= for the accuracy to stop at."),
    **dict.fromkeys(("maxiter", "max_iter", "steps"), "Write iterations= for the budget."),
    "epochs": "Write draws= for a budget in samples: epochs times the number of rows.",
    **dict.fromkeys(("lr", "learning_rate"), "A method has its settings in its constructor; the default has none."),
    "options": "Each has a name of its own here: iterations=, tolerance=, progress=.",
    "args": "Close over what the functions need: lambda x, sample: fun(x, sample, more).",
    "bounds": "They are part of the problem: lx.Problem(..., within=lx.sets.Box(lower, upper)).",
    "constraints": "They are part of the problem: lx.Problem(..., constraints={...}).",
    "jac": "It is not needed: JAX differentiates the functions.",
    **dict.fromkeys(("verbose", "disp"), "Write progress=True for a progress bar."),
    **dict.fromkeys(("random_state", "rng", "key"), "Write seed= for it."),
}
"""Names that other libraries have, and what to write here."""


def did_you_mean(name: Any, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """A sentence with the known names that are close to one that is not, and a space after it; empty if none is."""
    close = difflib.get_close_matches(str(name), list(known), n=most, cutoff=cutoff)
    return f"Did you mean {' or '.join(map(repr, close))}? " if close else ""


def helped_by(topic: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name the page that helps with what Lariax itself refuses in a function."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError) as error:
                if _refused(error):
                    with_help(error, topic)
                raise

        return called

    return wrap


def explains_options(topic: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say what was meant when an option is misspelt, and name the page that helps with what Lariax itself refuses."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        known = list(inspect.signature(function).parameters)
        options = [name for name in known if name != "self" and not name.startswith("_")]
        called = function.__qualname__.removesuffix(".__init__")

        @helped_by(topic)
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    hint = f"{HABITS[name]} " if name in HABITS else did_you_mean(name, options)
                    raise TypeError(f"{called} has no option {name!r}. {hint}It takes {', '.join(options)}.")
            return function(*args, **kwargs)

        return checked

    return wrap


def _refused(error: BaseException) -> bool:
    """Whether it was raised by Lariax, rather than by a function of the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "lariax"


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments; True where that cannot be seen."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_number(value: Any, kind: type = float) -> bool:
    """Whether it is a number of Python or NumPy, and no truth value."""
    kinds = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 1, below: int | None = None) -> None:
    """Refuse what is no whole number from `least` on."""
    if is_number(value, int) and value >= least and (below is None or value < below):
        return
    kind = "a positive integer" if least == 1 else f"a whole number of at least {least}"
    limit = "" if below is None else f" below {below}" if below < 1000 else f" below 2^{below.bit_length()}"
    raise ValueError(f"{name} must be {kind}{limit}, found {value!r}.")


def check_confidence(value: Any) -> None:
    scalar = np.ndim(value) == 0 and hasattr(value, "__float__") and not isinstance(value, bool)
    if not (scalar and 0.5 <= value < 1):
        raise ValueError(f"confidence must be at least 0.5 and below 1, found {value!r}.")


def check_among(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is none of the known words."""
    words = list(known)
    if not (isinstance(value, str) and value in words):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, found {value!r}.")
