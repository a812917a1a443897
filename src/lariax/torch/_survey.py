"""What is too costly for every iteration: gradients row by row, the Jacobian, products with it and with the Hessian.

Row by row where that is cheap; for large models from the parts of a batch, which show the same less precisely.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.problem import probes
from lariax.torch._batch_looks import BatchLooks
from lariax.torch._constraints import ClosureValues
from lariax.torch._hessian import LagrangianHessian
from lariax.torch._indexed import IndexedMultipliers
from lariax.torch._kinks import first_jumps, jumps_along
from lariax.torch._moments import VectorMoments
from lariax.torch._passes import Closure, Passes, Piece
from lariax.torch._space import Vector
from lariax.tuned import host
from lariax.tuned.averaging import is_kinked as averages_now
from lariax.tuned.averaging import with_look
from lariax.tuned.constants import JUMP_STEPS, JUMPY_SAMPLES, PROBES
from lariax.tuned.curvature import first_curvature, noisy_slope, probe_direction, probe_length
from lariax.tuned.filter import variance_of_mean
from lariax.tuned.rule import FirstLook, Rule, RuleState
from lariax.tuned.shape import PenaltyShape, ShapeInputs, is_whitened, shape_at
from lariax.tuned.units import LAST_TURN, HessianEstimate, diagonal_of, next_scales, pull_of


class Survey:
    """What the start and refreshes want to know, from looks at a few batches at the current parameters."""

    def __init__(
        self, passes: Passes, closure: Closure, batches: list[Any], scales: np.ndarray | None, seed: int
    ) -> None:
        self.looks, self.seed = BatchLooks(passes, closure, batches, scales), seed
        self.passes, self.closure, self.batches, self.scales = passes, closure, batches, scales
        self.space, self.constraints, self.origin = passes.space, passes.constraints, self.looks.origin
        self.metric, self.gradients = self.looks.metric, self.looks.gradients
        self.face: Callable[[np.ndarray], np.ndarray] | None = None

    def _in(self, scales: np.ndarray) -> "Survey":
        """The same in other units; entries that a face ties together have one."""
        survey = Survey(self.passes, self.closure, self.batches, scales, self.seed)
        survey.face = self.face
        return survey

    def metric_as_vector(self) -> Vector | None:
        return None if self.scales is None else self.space.split(torch.as_tensor(self.scales))

    # --- the start, and refreshes

    def first_look(
        self, rule: Rule, rows: np.ndarray, multipliers: np.ndarray, units: np.ndarray | None
    ) -> tuple[FirstLook, "Survey"]:
        """All that the start wants to know, given the values of the first batch; and the survey in the units to move
        in."""
        seen, survey = None, self
        if units is not None and not self.passes.single_use:
            with suppress(RuntimeError):  # an operation can be differentiated only once
                scales, seen = self.balanced_scales(units)
                survey = self._in(scales)
        curvature = survey.first_curvature(seen)
        objective, total = survey.objective(), rows.shape[0]
        all_rows = [self.passes.rows(self.closure, self.passes.whole(batch)) for batch in self.batches]
        each = np.concatenate([part.double().cpu().numpy() for part in all_rows])
        noise, max_gradient = each.shape[0] / total * variance_of_mean(np, each), objective.square
        jumps = 0.0
        if rule.averages:
            is_linear = seen is not None and seen.largest == 0
            jumps = first_jumps(survey.looks, objective.mean, is_linear)
            if jumps >= JUMPY_SAMPLES or is_linear:  # in pieces, perhaps, with kinks that few samples showed
                steep = noisy_slope(host, max_gradient, objective.variance / total)
                curvature = max(curvature, np.float64(steep / (1 + np.sqrt(survey.looks.square_of_x()))))
        inputs = ShapeInputs.at_start(
            rule.inequality, curvature, max_gradient, objective.variance / total, noise, total, rule.averages
        )
        shape, diagonal = survey.shape(inputs, None), None if seen is None else seen.diagonal
        return FirstLook(curvature, max_gradient, rows, noise, multipliers, shape, diagonal, jumps), survey

    def refreshed(
        self,
        rule: Rule,
        s: RuleState,
        batch_size: int,
        units: np.ndarray | None,
        indexed: IndexedMultipliers,
        held: np.ndarray | None,
        ahead: Callable[[BatchLooks, RuleState], tuple[Tensor, float]],
    ) -> tuple[RuleState, "Survey"]:
        """The shape of the penalty, the size of the objective's gradient and the units, anew. `held`: entries that stay
        at a bound. `ahead`: for kinks, the way to the average and one step on, and how far x spreads."""
        survey, scales = self, self.scales
        if scales is not None:
            if units is None or s.diagonal is None:
                seen, held = HessianEstimate.flat(self._slopes(s.weights, indexed) * scales**2), None
            else:
                rough = rule.averages and averages_now(s.averaging)
                seen = self.hessian(s.weights, units, ahead(self.looks, s)[1] if rough else None)
                held = None if held is None else held & (np.bincount(units)[units] == 1)
            s, change = replace(rule, xp=np).rescaled(s, scales, seen, held)  # long vectors, not single numbers
            survey = self._in(scales * change)
        gradient = survey.objective(by_row=False).square
        s = rule.with_gradient(s, gradient, survey.looks.square_of_x())
        shape = survey.shape(rule.shape_inputs(s, batch_size), s.shape)
        s = rule.refreshed(s, shape, gradient)
        if rule.averages:
            jumps = jumps_along(survey.looks, JUMP_STEPS * ahead(survey.looks, s)[0], s.weights)
            s = s._replace(averaging=with_look(host, s.averaging, jumps))
        return s, survey

    # --- the objective

    def objective(self, by_row: bool = True) -> VectorMoments:
        """The gradient of the objective, row by row where the closure gives its loss so."""
        rows = by_row and self.constraints.loss_by_row
        return self.looks.moments(lambda seen, _: seen.loss, 1, rows, 1 + by_row)[0]

    def first_curvature(self, seen: HessianEstimate | None) -> np.float64:
        """Of the objective, on the first batch; where its Hessian was not looked at, from a short step."""
        info, x = torch.finfo(self.space.dtype), self.looks.point()
        slope = self._objective_slope([p.data for p in self.space.params], halved=seen is None)
        size, steep = 1 + _norm(x if self.metric is None else x / self.metric), _norm(slope)
        if seen is not None:
            return np.float64(first_curvature(host, seen.largest, steep, size))
        length = probe_length(host, size, info.eps)
        step = length * probe_direction(host, slope, steep, info.tiny)
        beyond = self._objective_slope(self.looks.values(x - (step if self.metric is None else step * self.metric)))
        return np.float64(first_curvature(host, _norm(beyond - slope) / (length + info.tiny), steep, size))

    def _objective_slope(self, point: list[Tensor], halved: bool = True) -> Tensor:
        """On the first batch; in halves where the model may be large, as later passes are."""
        nothing = self.origin.new_zeros(self.constraints.rows)

        def objective_alone(i: int, look: ClosureValues) -> tuple[Tensor, list[Tensor]]:
            return nothing, [torch.zeros_like(residual) for residual, _ in look.indexed]

        cut = self.passes.cut(self.batches[0], 1 + halved)
        with self.passes.undisturbed(), self.passes.at(point):
            gradient = self.passes.backward(self.closure, cut, [objective_alone], None)[0][0].mean
        return self.gradients.flat(self.space.views(gradient))

    # --- the units of the parameters

    def balanced_scales(self, labels: np.ndarray) -> tuple[np.ndarray, HessianEstimate]:
        """Scales for the start, those that make the curvature equal along all axes, and the curvature there."""
        point, own = self.looks.point().double().cpu().numpy(), self.objective()
        squares = (own.mean**2 + own.squares / own.weight, own.variances)
        slopes, noise = (_by_unit(values.double().cpu().numpy(), labels) for values in squares)
        rows = None
        if self.constraints.rows and is_whitened(self.constraints.rows, point.size):
            with self.passes.undisturbed():
                rows = BatchLooks(self.passes, self.closure, self.batches[:1], None).jacobian()[0]

        def seen_in(scales: np.ndarray) -> HessianEstimate:
            seen = self._in(scales).hessian(np.zeros(self.constraints.rows), labels)
            pull = np.zeros_like(scales) if rows is None else _by_unit(pull_of(np, rows * scales), labels)
            return seen._replace(slopes=scales**2 * slopes, noise=scales**2 * noise, pull=pull)

        scales, seen = np.ones_like(point), HessianEstimate.flat(slopes)
        for turn in range(LAST_TURN + 1):
            scales = next_scales(np, turn, scales, seen, point / scales)
            seen = seen_in(scales)
        return scales, seen

    def hessian(self, weights: np.ndarray, labels: np.ndarray, span: float | None = None) -> HessianEstimate:
        """From products with the Hessian of the Lagrangian, on the mean over all batches. `span`: from differences over
        so much to both sides, where gradients of rows jump."""
        w = torch.as_tensor(weights).to(self.origin)
        directions = torch.as_tensor(probes(len(labels))).to(self.origin)
        with self.passes.undisturbed(), torch.enable_grad():
            hessian = LagrangianHessian(self.looks, w, len(directions), span)
            gradients, products = hessian.products(directions)
            along = torch.linalg.qr(products.T)[0].T
            largest = float(torch.linalg.matrix_norm(hessian.products(along)[1], ord=2))
        squares = torch.mean(gradients**2, dim=0)
        spread = torch.clamp(squares - torch.mean(gradients, dim=0) ** 2, min=0)
        v, hv, *rest = (values.double().cpu().numpy() for values in (directions, products, squares, spread))
        diagonal, slopes, noise = (_by_unit(each, labels) for each in (diagonal_of(np, v, hv, largest), *rest))
        return HessianEstimate(diagonal, slopes, noise, largest)

    def _slopes(self, weights: np.ndarray, indexed: IndexedMultipliers) -> np.ndarray:
        """Mean squares of the Lagrangian's gradients on half batches, in the coordinates of x."""
        squares, count = self.space.zeros(), 0
        with self.passes.undisturbed():
            for cut in map(self.passes.cut, self.batches):
                own = torch.as_tensor(self.constraints.of_values(weights, cut.total)).to(self.origin)
                choice = indexed.choice(own, 1)
                for group in self.passes.backward(self.closure, cut, [choice], None)[0][0].each:
                    torch._foreach_addcmul_(squares, group, group)
                    count += 1
        return torch.cat([total.reshape(-1) for total in squares]).double().cpu().numpy() / count

    # --- constraints with a multiplier for each example

    def indexed_size(self, seed: int) -> float:
        """The mean of ||J_i||^2 over the examples; for large models the largest of a few random ||J^T v||^2, which is
        rather too large than too small."""
        if not self.constraints.indexed:
            return 1.0
        batch = self.batches[-1]
        pieces, total = self.passes.whole(batch), self.origin.new_zeros(())
        with self.passes.undisturbed(), torch.enable_grad():
            if self.looks.cheap(batch, len(self.constraints.indexed)):
                for piece in pieces:
                    for slope in self._of_examples(self.passes.call(self.closure, piece)):
                        total = total + torch.stack([torch.sum(chunk**2) for chunk in self.gradients.each(slope)]).sum()
                (total,) = self.passes.total([total])
            else:
                total = torch.stack([torch.sum(vector**2) for vector in self._mixed(pieces, seed)]).max()
        return max(float(total) / self.looks.rows_in(batch), torch.finfo(total.dtype).tiny)

    def _of_examples(self, look: ClosureValues) -> list[Tensor]:
        return [slope.reshape(-1) for slope in look.slopes[len(self.constraints.blocks) :]]

    def _mixed(self, pieces: list[Piece], seed: int) -> list[Tensor]:
        """J^T v for a few normal v, the same whatever number of processes has its entries."""
        generator, sums = torch.Generator().manual_seed(seed), [self.origin] * PROBES
        for piece in pieces:
            for i, (look, keep) in enumerate(self.passes.copies(self.closure, piece, PROBES)):
                mixed = []
                for slope in self._of_examples(look):
                    weights = torch.randn((self.passes.processes, *slope.shape), generator=generator)[self.passes.rank]
                    mixed.append(torch.sum(slope * weights.to(slope)))
                sums[i] = sums[i] + self.gradients.of(torch.stack(mixed).sum(), keep)
        return self.passes.total(sums)

    # --- the shape of the penalty

    def shape(self, inputs: ShapeInputs, before: PenaltyShape | None) -> PenaltyShape:
        """The shape at the current point; the Jacobian is averaged with the one before."""
        with self.passes.undisturbed():
            return shape_at(host, self, self.constraints.rows, inputs, before)

    def empty(self) -> np.ndarray:
        return np.zeros((0, self.space.size))

    def on_face(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.face is None else self.face(rows)

    def jacobian(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.looks.jacobian()

    def along(self) -> np.ndarray:
        generator, like = torch.Generator(self.origin.device).manual_seed(self.seed), self.origin

        def on_each_batch() -> np.ndarray:
            probe = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            return np.stack([self._forward(batch, probe) for batch in self.batches])

        return np.stack([on_each_batch() for _ in range(PROBES)], axis=1)

    def products(self) -> tuple[Callable[[Tensor], np.ndarray], Callable[[np.ndarray], Tensor]]:
        """J v is a difference of values, J^T w a backward pass."""
        return partial(self._forward, self.batches[0]), partial(self._backward, self.batches[0])

    def repeat(self, function: Callable[[Any], Any], vector: Any, times: int) -> Any:
        for _ in range(times):
            vector = function(vector)
        return vector

    def _forward(self, batch: Any, direction: Tensor) -> np.ndarray:
        """J v, by a central difference."""
        x = self.looks.point()
        step = direction if self.metric is None else direction * self.metric
        length = float(torch.linalg.vector_norm(step))
        reach = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + float(torch.linalg.vector_norm(x))) / max(length, 1e-30)
        ends = []
        for sign in (1, -1):
            with self.passes.at(self.looks.values(x + sign * reach * step)):
                looks = [self.passes.call(self.closure, piece, graph=False) for piece in self.passes.whole(batch)]
            rows = sum(look.size for look in looks)
            mean = sum((self.constraints.slope_means(look) * (look.size / rows) for look in looks), start=0.0)
            ends.append(self.passes.mean(torch.as_tensor(mean)).double().cpu().numpy())
        return (ends[0] - ends[1]) / (2 * reach)

    def _backward(self, batch: Any, weights: np.ndarray) -> Tensor:
        """J^T w."""
        w = torch.as_tensor(weights).to(self.origin)
        with torch.enable_grad():
            means = self.looks.parts(batch, 1, 1, lambda seen, _: (self.constraints.slope_means(seen) * w).sum())
            ((_, (mean,)),) = means
        return mean


def _by_unit(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Means over the entries with a common unit."""
    return (np.bincount(labels, values) / np.bincount(labels))[labels]


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
