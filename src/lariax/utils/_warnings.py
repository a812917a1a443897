"""Warnings that point at the person's own line."""

import sys
import warnings

NOT_THE_CALLER = {"lariax", "equinox", "jax", "numpy", "torch", "sklearn", "contextlib", "functools", "threading"}
"""Packages whose frames stand between the person's line and ours."""


class LariaxWarning(UserWarning):
    """Something was changed on the way in, and the run goes on.

    >>> import warnings, lariax as lx
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", lx.LariaxWarning)  # be strict: whatever Lariax would change is an error
    """


def warn(message: str, category: type[Warning] = LariaxWarning) -> None:
    """A warning at the line that called Lariax."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_THE_CALLER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
