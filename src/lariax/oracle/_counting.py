"""Evaluations, counted while tracing, so that the count is of the code that runs.

One evaluation is one call of one of the user's functions on one sample, with or without its gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_tally: ContextVar[list[float] | None] = ContextVar("evaluations", default=None)
_share: ContextVar[float] = ContextVar("share", default=1.0)


def count(evaluations: int) -> None:
    """Note evaluations that are asked for."""
    tally = _tally.get()
    if tally is not None:
        tally.append(evaluations * _share.get())


@contextmanager
def counting() -> Iterator[list[float]]:
    """The evaluations asked for meanwhile: `sum(tally)`."""
    tally: list[float] = []
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """What is asked for here has been counted already."""
    token = _tally.set(None)
    try:
        yield
    finally:
        _tally.reset(token)


@contextmanager
def occasionally(share: float) -> Iterator[None]:
    """What is asked for here is computed in this share of the iterations, and counts for as much."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
