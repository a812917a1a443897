"""Kinks: which closures may have some, how many rows show one, and the average of the iterates where they do."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.torch import _sums
from lariax.torch._batch_looks import BatchLooks
from lariax.torch._passes import Closure, Passes, Piece
from lariax.torch._space import Space, Vector, minus
from lariax.tuned import host
from lariax.tuned.averaging import averaged, farther, is_jump, reach, with_spread
from lariax.tuned.constants import FIRST_JUMP, JUMP_PART
from lariax.tuned.curvature import probe_direction
from lariax.tuned.rule import Rule, RuleState

KINKED = re.compile(
    r"(Leaky|R)?Relu|Prelu|Threshold|Abs|Clamp|Maximum|Minimum|Max|Min|Fmax|Fmin|Amax|Amin|Aminmax|Where|Sort|Topk|"
    r"Kthvalue|Median|Nanmedian|Mode|Hard|Softshrink|Cummax|Cummin|AdaptiveMax|FractionalMax"
)
"""How the names of operations begin whose gradients may jump."""


JOINING = re.compile(r"(Add|Sub|Rsub|Cat|Stack|Sum|Mean)Backward")
"""How those begin in which a parameter may meet a kink: they are linear in both, as `Addmm` of a layer is not."""


def may_jump(outputs: Iterable[Tensor]) -> bool:
    """Whether the graph behind these values has operations with kinks, and none is inside of a network: a kink whose
    value is multiplied by further parameters. Weights of networks do not act on the average as they do one by one."""
    found: dict[Any, tuple[bool, bool]] = {None: (False, False)}  # whether parameters, and kinks, are behind a node
    left = [output.grad_fn for output in outputs]
    tops = list(left)
    while left:
        node = left[-1]
        behind = [] if node is None else [each for each, _ in node.next_functions]
        waiting = [each for each in behind if each not in found]
        left += waiting
        if waiting:
            continue
        left.pop()
        if node in found:
            continue
        name, moving = type(node).__name__, [found[each] for each in behind if found[each][0]]
        is_kink, has_kinks = bool(KINKED.match(name)), any(kinks for _, kinks in moving)
        if len(moving) > 1 and has_kinks and not is_kink and not JOINING.match(name):
            return False
        found[node] = bool(moving) or not behind, has_kinks or (is_kink and bool(moving))
    return any(found[top][1] for top in tops)


def has_kinks(passes: Passes, closure: Closure, piece: Piece) -> bool:
    """Whether a closure may have kinks."""
    with passes.undisturbed(), torch.enable_grad():
        seen = passes.call(closure, piece)
        return may_jump([seen.loss, *seen.slopes])


def first_jumps(looks: BatchLooks, slope: Tensor, is_linear: bool) -> float:
    """How many rows show a jump on the way down, with constraints pressing as hard as the objective does."""
    steep, size = float(torch.linalg.vector_norm(slope)), 1 + np.sqrt(looks.square_of_x())
    weights = np.zeros(looks.constraints.rows)
    if weights.size:
        first = BatchLooks(looks.passes, looks.closure, looks.batches[:1], looks.scales)
        with looks.passes.undisturbed():
            rows = np.linalg.norm(first.jacobian()[0], axis=1)
        weights = np.where(rows > 0, steep / np.where(rows > 0, rows, 1), 0)
    direction = probe_direction(host, slope, steep, torch.finfo(slope.dtype).tiny)
    step = -(1.0 if is_linear else FIRST_JUMP) * size * direction
    return jumps_along(looks, step if looks.metric is None else step * looks.metric, weights)


def jumps_along(looks: BatchLooks, step: Tensor, weights: np.ndarray) -> float:
    """How many rows have a gradient that jumps along a step of the parameters. 0 where they are too many to be looked
    at one by one, or the loss is a mean."""
    if not looks.constraints.loss_by_row or not all(looks.cheap(batch, 3) for batch in looks.batches):
        return 0.0
    x, eps, norm = looks.point(), torch.finfo(step.dtype).eps, torch.linalg.vector_norm
    w, count = torch.as_tensor(weights).to(looks.origin), looks.origin.new_zeros(())
    for batch in looks.batches:
        with looks.passes.undisturbed():
            here, near, far = (
                _row_gradients(looks, x + share * step, batch, w) for share in (1.0, 1 - 1 / JUMP_PART, 0.0)
            )
        size = norm(here, dim=1) + norm(far, dim=1)
        count = count + is_jump(norm(far - here, dim=1), norm(near - here, dim=1), size, eps).sum()
    return float(looks.passes.total([count])[0])


def _row_gradients(looks: BatchLooks, point: Tensor, batch: Any, weights: Tensor) -> Tensor:
    """Of the Lagrangian at a point, in the units of the looks."""
    found: list[Tensor] = []
    with looks.passes.at(looks.values(point)), torch.enable_grad():
        for piece in looks.passes.whole(batch):
            seen = looks.passes.call(looks.closure, piece)
            at, rows = 0, seen.loss.reshape(-1)
            for block, slopes in zip(looks.constraints.blocks, seen.slopes, strict=False):  # indexed ones come last
                values = slopes.reshape(seen.size if block.random else 1, block.size) * block.sign
                rows = rows + values @ weights[at : at + block.size].to(values.dtype)
                at += block.size
            found += looks.gradients.each(rows)
    return torch.cat(found)


class Average:
    """The average of the iterates since kinks were seen. Between calls the parameters are the answer that it gives, and
    the iterate is kept here."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.point: Vector = []
        self.slope: Vector = []  # the same of gradients, where there is a set or a regulariser
        self.iterate: Vector = []  # while the parameters are the answer

    def learned(self, rule: Rule, s: RuleState, point: Vector, slope: Vector | None, spread: Any) -> RuleState:
        """After a good step to a point, which is taken in. `spread`: the metric in which it is measured how far x is
        from the average; False: not now."""
        averaging, share = averaged(host, s.averaging, s.constraints, s.weights)
        if averaging.count > 0:
            self.point = _with(self.point, point, float(share))
            self.slope = [] if slope is None else _with(self.slope, slope, float(share))
        else:
            self.clear()
        if spread is not False:
            square = float(_sums.length(minus(point, self.point), spread)) if self.point else 0.0
            averaging = with_spread(averaging, square, rule.tiny)
        return s._replace(averaging=averaging)

    def seen(self, s: RuleState) -> RuleState:
        """With the averages of constraint values and multipliers, where there are any."""
        if not self.point:
            return s
        means = s.averaging
        return s._replace(constraints=means.constraints, multipliers=means.weights, weights=means.weights)

    def ahead(
        self, space: Space, estimate: Vector, rule: Rule, looks: BatchLooks, s: RuleState
    ) -> tuple[Tensor, float]:
        """The way to the average and one step on; and how far x spreads around it, in the units of the looks."""
        eta, norm = float(rule.lengths(rule.in_force(s)).eta), torch.linalg.vector_norm
        slope = torch.cat([part.reshape(-1) for part in estimate])
        away, spread = torch.zeros_like(slope), float(reach(host, s.averaging))
        if self.point:
            away = torch.cat([part.reshape(-1) for part in minus(self.point, space.point())])
        if looks.metric is None:
            way, span = away - eta * slope, max(float(norm(away)), spread) + float(norm(eta * slope))
            return way * float(farther(host, s.averaging, float(norm(way)), rule.tiny)), span
        step = eta * looks.metric * slope
        way = away - step * looks.metric
        size = float(norm(way / looks.metric))
        span = max(float(norm(away / looks.metric)), spread) + float(norm(step))
        return way * float(farther(host, s.averaging, size, rule.tiny)), span

    def vectors(self) -> dict[str, Vector]:
        """To be saved, where there are any."""
        named = {"average": self.point, "slope": self.slope, "iterate": self.iterate}
        return {name: vector for name, vector in named.items() if vector}

    @classmethod
    def loaded(cls, vectors: dict[str, Vector]) -> "Average":
        new = cls()
        new.point, new.slope, new.iterate = (vectors.get(name, []) for name in ("average", "slope", "iterate"))
        return new

    def show(self, space: Space, answer: list[Tensor]) -> None:
        """The parameters are the answer."""
        self.iterate = [part.clone() for part in space.point()]
        torch._foreach_copy_(space.params, answer)

    def hide(self, space: Space) -> None:
        """The parameters are the iterate."""
        if self.iterate:
            torch._foreach_copy_(space.params, space.views(self.iterate))
            self.iterate = []


def _with(mean: Vector, new: Vector, share: float) -> Vector:
    if share >= 1 or not mean:
        return [part.clone() for part in new]
    torch._foreach_lerp_(mean, new, share)
    return mean
