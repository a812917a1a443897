"""What an entry of the gallery gives: a problem, a start, what is known of the solution, and pictures of an answer."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec

import numpy as np
from jaxtyping import PyTree

from lariax.problem import Problem

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Picture:
    """Arrays to be drawn, by whatever draws.

    Attributes:
        title: what one sees.
        kind: "bars", "lines", "scatter" or "heatmap".
        series: by name. Bars: one value a category. Lines and scatter: points of shape (n, 2). Heatmap: one matrix,
            whose first axis is drawn upwards.
        x_label, y_label: of the axes.
        categories: of bars.
        reference: a horizontal line to compare with, such as a bound.
        extent: of a heatmap, (left, right, bottom, top).

    >>> from lariax import gallery
    >>> case = gallery.load("portfolio")
    >>> [picture.kind for picture in case.pictures(case.x0)]
    ['bars', 'lines']
    """

    title: str
    kind: Literal["bars", "lines", "scatter", "heatmap"]
    series: Mapping[str, np.ndarray]
    x_label: str = ""
    y_label: str = ""
    categories: tuple[str, ...] = ()
    reference: float | None = None
    extent: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """What is known exactly. None: not known, or not unique.

    Attributes:
        value: the least E[f] + h.
        x: where it is attained.
        multipliers: by name, with the signs of `result.multipliers`.

    >>> from lariax import gallery
    >>> sorted(gallery.load("portfolio").solution.multipliers)
    ['cvar']
    """

    value: float
    x: PyTree | None = None
    multipliers: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """What the function of an entry puts together; its docstring supplies the words of the `Case`."""

    problem: Problem
    x0: PyTree
    defaults: Mapping[str, Any]
    solve: Callable[[], Solution] | None = None
    draw: Callable[[Any], Sequence[Picture]] | None = None
    measure: Callable[[Any], Mapping[str, float]] | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A problem of the gallery.

    Attributes:
        name, title: of the entry.
        mathematics: what is solved, in formulas.
        scale: how large it is.
        check: how one knows that an answer is right.
        problem, x0: for `lx.solve`.
        defaults: options of `lx.solve` that suit it: batch_size, and iterations or draws.
        options: the options of the entry, as given or by default.

    >>> from lariax import gallery
    >>> case = gallery.load("portfolio")
    >>> case.scale
    '20 assets, 21 unknowns, 1 constraint.'
    """

    name: str
    title: str
    mathematics: str
    scale: str
    check: str
    problem: Problem
    x0: PyTree
    defaults: Mapping[str, Any]
    options: Mapping[str, Any]
    _parts: Entry = field(repr=False)

    @functools.cached_property
    def solution(self) -> Solution | None:
        """What is known of the solution, worked out when first asked for; None: nothing."""
        return self._parts.solve() if self._parts.solve else None

    def pictures(self, x: PyTree) -> list[Picture]:
        """Pictures of an answer."""
        return list(self._parts.draw(x)) if self._parts.draw else []

    def measures(self, x: PyTree) -> dict[str, float]:
        """Numbers that the field of the problem asks for, such as an accuracy on rows that nobody trained on."""
        return dict(self._parts.measure(x)) if self._parts.measure else {}


ENTRIES: dict[str, Callable[..., Case]] = {}
"""The functions of the gallery, by name."""


def entry(function: Callable[P, Entry]) -> Callable[P, Case]:
    """Put a function into the gallery. Its docstring holds the words: title, mathematics, `Scale:`, `Check:`."""
    words = _words(function)

    @functools.wraps(function)
    def case(*args: P.args, **kwargs: P.kwargs) -> Case:
        parts = function(*args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return Case(
            name=function.__name__,
            **words,
            problem=parts.problem,
            x0=parts.x0,
            defaults=parts.defaults,
            options=dict(bound.arguments),
            _parts=parts,
        )

    ENTRIES[function.__name__] = case
    return case


def _words(function: Callable[..., Any]) -> dict[str, str]:
    """The sections of a docstring: the first line, what follows it, and what stands after `Scale:` and `Check:`."""
    title, _, body = inspect.cleandoc(function.__doc__ or function.__name__).partition("\n")
    mathematics, *sections = re.split(r"^(Scale|Check|Arguments):", body, flags=re.MULTILINE)
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    return {
        "title": title.rstrip("."),
        "mathematics": mathematics.strip("\n"),
        "scale": " ".join(named.get("Scale", "").split()),
        "check": " ".join(named.get("Check", "").split()),
    }
