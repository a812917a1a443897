"""Sets and proximable terms of the core, on tensors.

Those that act on each entry alone, and the ball, are written in torch; all others go through the core's own
implementation on the host.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from lariax.problem import units
from lariax.prox import L1, AbstractProximable, ElasticNet, Indicator, Zero
from lariax.prox._numerics import spread
from lariax.sets import Everything, L2Ball
from lariax.sets._intervals import AbstractIntervals

Params = list[Tensor]
Proximal = Callable[[Params, Any], Params]
"""(parameters, steps) -> parameters. `steps`: one step size, or one tensor of them for each parameter."""


def proximal_of(group: dict[str, Any]) -> Proximal | None:
    """The proximal map of a group of parameters; complains where its set or regulariser does not fit them."""
    within, regularizer, params = group.get("within"), group.get("regularizer"), group["params"]
    if within is not None and regularizer is not None:
        raise ValueError("a group of parameters has either within= or regularizer=, found both. Use two groups.")
    term = regularizer if within is None else within
    if term is None:
        return None
    if not isinstance(term, AbstractProximable):
        raise TypeError(
            f"within= takes a set of lariax.sets and regularizer= a term of lariax.prox, found {type(term).__name__}."
        )
    problem = term.mismatch(_like(params))
    if problem is not None:
        raise ValueError(f"{problem} Here x is the list of the parameters of a group.")
    with jax.enable_x64(_is_double(params)):
        return proximal(term, params)


def is_separable(group: dict[str, Any]) -> bool:
    term = _term(group)
    return term is None or bool(term.separable)


def units_of(groups: list[dict[str, Any]]) -> np.ndarray | None:
    """Labels for all entries of the parameters: those with the same label have a common unit. None: all have."""
    shapes, tied, count = [], [], 0
    for group in groups:
        like = _like(group["params"])
        own = (_term(group) or Zero()).tied(like)
        tied += [np.where(labels < 0, labels, labels + count) for labels in own]
        shapes += [part.shape for part in like]
        count += 1 + max(int(labels.max(initial=-1)) for labels in own)
    return units(shapes, tied)


def _term(group: dict[str, Any]) -> AbstractProximable | None:
    return group.get("regularizer") if group.get("within") is None else group["within"]


@singledispatch
def proximal(term: AbstractProximable, params: Params) -> Proximal:
    """Any term, on the host."""

    def by_the_core(params: Params, steps: Any) -> Params:
        double = _is_double(params)
        with jax.enable_x64(double):
            x = [p.detach().to("cpu", torch.float64 if double else torch.float32).numpy() for p in params]
            new = term.prox(x, steps if isinstance(steps, float) else [s.cpu().numpy() for s in steps])
            return [torch.from_numpy(np.array(value)).to(p) for value, p in zip(new, params, strict=True)]

    return by_the_core


@proximal.register
def _(term: Everything | Zero, params: Params) -> Proximal:
    return lambda params, steps: params


@proximal.register
def _(term: Indicator, params: Params) -> Proximal:
    return proximal(term.set, params)


@proximal.register
def _(term: AbstractIntervals, params: Params) -> Proximal:
    lower, upper = (_tensors(bounds, params) for bounds in term._bounds(_like(params)))
    return lambda params, steps: [torch.clamp(p, low, high) for p, low, high in zip(params, lower, upper, strict=True)]


@proximal.register
def _(term: L1, params: Params) -> Proximal:
    weights = _tensors(spread(term.weight, _like(params)), params)
    return lambda params, steps: [
        _shrunk(p, w * t) for p, w, t in zip(params, weights, _each(steps, params), strict=True)
    ]


@proximal.register
def _(term: ElasticNet, params: Params) -> Proximal:
    first, second = (_tensors(spread(w, _like(params)), params) for w in (term.l1, term.l2))
    return lambda params, steps: [
        _shrunk(p, a * t) / (1 + b * t) for p, a, b, t in zip(params, first, second, _each(steps, params), strict=True)
    ]


@proximal.register
def _(term: L2Ball, params: Params) -> Proximal:
    center, radius = _tensors(spread(term.center, _like(params)), params), float(term.radius)

    def project(params: Params, steps: Any) -> Params:
        offsets = [p - c for p, c in zip(params, center, strict=True)]
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(o) for o in offsets]))
        shrink = radius / torch.clamp(length, min=radius)
        return [
            torch.where(length <= radius, p, c + o * shrink) for p, c, o in zip(params, center, offsets, strict=True)
        ]

    return project


def _shrunk(x: Tensor, threshold: Tensor) -> Tensor:
    return x - torch.clamp(x, -threshold, threshold)


def _each(steps: Any, params: Params) -> list[Any]:
    return [steps] * len(params) if isinstance(steps, float) else steps


def _like(params: Params) -> list[np.ndarray]:
    """Stand-ins in NumPy, for questions about structure; they take no memory."""
    return [np.broadcast_to(np.zeros((), np.float64 if _is_double([p]) else np.float32), p.shape) for p in params]


def _is_double(params: Params) -> bool:
    return any(p.dtype == torch.float64 for p in params)


def _tensors(constants: Any, params: Params) -> Params:
    return [torch.from_numpy(np.array(value)).to(p.device, p.dtype) for value, p in zip(constants, params, strict=True)]
