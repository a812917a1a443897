"""Algorithm 2, with and without dual updates, as optimizers."""

from collections.abc import Mapping
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lariax.formulas import (
    DETERMINISTIC_CONSTRAINTS,
    STOCHASTIC_CONSTRAINTS,
    Exponents,
    PenaltySchedule,
    dual_length,
    leave_one_out,
    repelled,
    storm,
)
from lariax.torch._constraints import AbstractConstraint
from lariax.torch._optimizer import AbstractConstrained
from lariax.torch._passes import Closure, Piece
from lariax.torch._space import Vector, weighted
from lariax.tuned.filter import running_mean

DECAY = 0.999  # of the running mean of squares behind the adaptive metric
EPSILON = 1e-8


class PenaltySample(NamedTuple):
    """The sampled penalty function at one point."""

    gradient: Vector
    slack_gradient: Tensor
    residuals: Tensor  # means, slacks included
    loss: Tensor
    indexed: list[Any]


class QuadraticPenalty(AbstractConstrained):
    """Algorithm 2 of Alacaoglu & Wright: f + (rho_k / 2) ||c||^2 with a STORM estimate of its gradient.

    The method of `lariax.QuadraticPenalty(pairs=True)`, which states the formulas: products of constraint gradient and
    value come from all ordered pairs of a batch, so a batch needs two rows; inequalities have slacks.

    Arguments:
        params: the model, its parameters, or groups of them; a group may have `lr`, `within` (a set of `lariax.sets`)
            and `regularizer` (a term of `lariax.prox`).
        constraints: `Equal`, `AtMost` or `AtLeast` by name.
        lr: the steps are lr / (k + 1)^(3/5), or (k + 1)^(1/2) for constraints without samples. A scheduler multiplies.
        penalty: rho_k = penalty * k^(1/5), or k^(1/4).
        exponents: other powers of k.
        population: the number of rows, where batches are drawn without replacement.
        adaptive_metric: divide steps by the root mean square of each entry of the gradient, as Adam does.
        model: the module whose buffers (batch norm) are to be updated once a call, where `params` is not the model.

    >>> import torch, lariax.torch as lt
    >>> x = torch.ones(2, requires_grad=True)
    >>> opt = lt.QuadraticPenalty([x], {"sum": lt.Equal(1.0, samples=None)}, lr=0.02, penalty=10.0)
    >>> for _ in range(300):
    ...     loss = opt.step(lambda batch: (((x - 1) ** 2).sum(), {"sum": x.sum()}), None)
    >>> x.detach().round(decimals=1).tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        params: Any,
        constraints: Mapping[str, AbstractConstraint],
        lr: float = 0.1,
        penalty: float = 1.0,
        *,
        exponents: Exponents | None = None,
        population: int | None = None,
        adaptive_metric: bool = False,
        model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(
            params, constraints, lr=lr, model=model, population=population, adaptive_metric=adaptive_metric
        )
        if not penalty > 0:
            raise ValueError(f"penalty must be positive, found {penalty}.")
        cases = STOCHASTIC_CONSTRAINTS if self.constraints.has_pairs else DETERMINISTIC_CONSTRAINTS
        self.schedule = PenaltySchedule(1.0, penalty, exponents or cases)
        self.estimate: Vector = []
        self.squares: Vector = []
        self.tracked: dict[str, Tensor] = {}

    @torch.no_grad()
    def _step(self, closure: Closure, batch: Any) -> Tensor:
        pieces, k = self.passes.whole(batch), self.calls
        random = self.passes.random_state()
        schedule = self.schedule
        self.indexed.penalty = (schedule.penalty_at(k), schedule.penalty_at(k + 1))
        if k == 0:
            with self.passes.or_not_at_all():
                now = self._start(closure, pieces)
            t = self.tracked
            self.advance(self.estimate, None, None, 1.0, schedule.step_size_at(1), self._scaling(now.gradient))
        else:
            t = self.tracked
            with self.passes.at(self.previous):
                stale = self._look(closure, pieces, schedule.penalty_at(k), t["multipliers"], t["last_slacks"], 0)
            self.passes.set_random_state(random)
            with self.passes.or_not_at_all():
                now = self._look(closure, pieces, schedule.penalty_at(k + 1), t["following"], t["slacks"], 1)
            momentum, scaling = schedule.momentum_after(k), self._scaling(now.gradient)
            for name, old, new in (
                ("slack_gradient", stale.slack_gradient, now.slack_gradient),
                ("residuals", stale.residuals, now.residuals),
            ):
                t[name] = storm(new, old, t[name], momentum)
            t["last"], t["multipliers"] = t["multipliers"], t["following"]
            t["following"] = self._moved(t["following"], k + 1, now.residuals)
            self.advance(self.estimate, now.gradient, stale.gradient, momentum, schedule.step_size_at(k + 1), scaling)
        t["last_slacks"] = t["slacks"]
        if self.constraints.has_inequalities:
            step_size = schedule.step_size_at(k + 1) * self.lr
            moved = torch.add(t["slacks"], t["slack_gradient"], alpha=-step_size).clamp_(min=0)
            t["slacks"] = torch.where(self.constraints.inequality, moved, 0)
        self.indexed.move(now.indexed, self._indexed_move)
        self.calls += 1
        return now.loss

    def _start(self, closure: Closure, pieces: list[Piece]) -> PenaltySample:
        rows = self.passes.rows(closure, pieces)
        inequality, mean = self.constraints.inequality, self.constraints.mean(rows)
        nothing = torch.zeros_like(mean)
        slacks = torch.where(inequality, (-mean).clamp(min=0), nothing)
        now = self._look(closure, pieces, self.schedule.penalty_at(1), nothing, slacks, 1)
        self.estimate = [part.clone() for part in now.gradient]
        self.tracked = {
            "slacks": slacks,
            "slack_gradient": now.slack_gradient,
            "residuals": now.residuals,
            "last": nothing,
            "multipliers": nothing,
            "following": self._moved(nothing, 1, now.residuals),
        }
        return now

    def _look(
        self,
        closure: Closure,
        pieces: list[Piece],
        penalty: float,
        multipliers: Tensor,
        slacks: Tensor,
        which: int,
    ) -> PenaltySample:
        """An unbiased gradient of  f + y . r + (rho / 2) ||r||^2  and what went into it."""
        passes, graphs = self.passes, []
        if len(pieces) == 1:
            graphs = [passes.call(closure, pieces[0])]
            rows = passes.residuals(graphs)
        else:  # all values come before the first gradient, and one piece is in memory at a time
            rows = passes.rows(closure, pieces)
        total = rows.shape[0]
        self._check_population(total)
        if total < 2 and self.constraints.has_pairs:
            raise ValueError(
                f"{type(self).__name__} forms unbiased products from pairs within a batch, and this one has "
                f"{'one row' if total else 'no rows'}. Give batches of two or more."
            )
        residuals = rows + slacks
        mean = self.constraints.mean(rows) + slacks
        weights = torch.add(multipliers, self._partners(residuals), alpha=penalty)
        own = self.constraints.of_values(weights[passes.own(total)] if passes.processes > 1 else weights, total)
        parts: list[Vector] = []
        looks, at = [], 0
        for i, piece in enumerate(pieces):
            seen = graphs[i] if graphs else passes.call(closure, piece)
            extra = self.indexed.weights(seen.indexed, which)
            parts.append(passes.pull(seen, own if graphs else own[at : at + seen.size], extra, total))
            parts = [weighted(parts, [1.0, 1.0])] if len(parts) == 2 else parts
            looks.append(seen.without_graph())
            at += seen.size
        slack_gradient = torch.add(multipliers, mean, alpha=penalty)  # the mean of the weights
        loss, indexed = passes.mean_loss(looks), [look.indexed for look in looks]
        return PenaltySample(passes.total(parts[0]), slack_gradient, mean, loss, indexed)

    def _partners(self, rows: Tensor) -> Tensor:
        """For each row the mean of the others; its own value where a constraint has no samples."""
        if not self.constraints.has_pairs:
            return rows
        others = leave_one_out(rows)
        if self.population is not None:
            others = repelled(others, rows, self.population)
        return others if self.constraints.all_random else torch.where(self.constraints.random, others, rows)

    def _scaling(self, gradient: Vector) -> Vector | None:
        """Adam's: 1 / root of the running mean square of each entry of the gradient."""
        if not self.adaptive_metric:
            return None
        if not self.squares:
            self.squares = self.space.zeros()
        for mean, value in zip(self.squares, gradient, strict=True):
            mean.copy_(running_mean(mean, value**2, 1 - DECAY))
        settled = 1 - DECAY ** (self.calls + 1)
        return [1 / (torch.sqrt(mean / settled) + EPSILON) for mean in self.squares]

    def _moved(self, multipliers: Tensor, k: int, values: Tensor) -> Tensor:
        """y_{k+1}; without dual updates it stays."""
        return multipliers

    def _indexed_move(self, i: int, residual: Tensor, visits: Tensor) -> Tensor | float:
        """How far the multiplier of an example moves."""
        return 0.0

    def _named_multipliers(self) -> dict[str, Tensor]:
        if not self.tracked:
            return {}
        t, k = self.tracked, max(self.calls - 1, 1)
        return self.constraints.by_name(t["last"] + self.schedule.penalty_at(k) * t["residuals"])

    def observe(self) -> dict[str, float]:
        """Step size, penalty and momentum of the iteration to come."""
        now = self.schedule.at(max(self.calls, 1))
        return {**now, "step_size": now["step_size"] * self.lr}

    def _vectors(self) -> dict[str, Vector | None]:
        return {"estimate": self.estimate, "squares": self.squares}

    def _export(self) -> dict[str, Any]:
        return {"tracked": dict(self.tracked)}

    def _import(self, saved: dict[str, Any], vectors: dict[str, Vector]) -> None:
        self.estimate, self.squares = vectors.get("estimate", []), vectors.get("squares", [])
        self.tracked = {name: self._here(value) for name, value in saved["tracked"].items()}


class DualPenalty(QuadraticPenalty):
    """Algorithm 2 with multipliers, which move by a summable amount along the sign of the sampled constraints.

    The method of `lariax.DualPenalty(pairs=True)`, which states the formulas.

    Arguments:
        dual_step: gamma, of the size of the solution's multipliers; all steps together move one by at most 3.4 gamma.
        params, constraints, lr, penalty, exponents, population, adaptive_metric, model: as in `QuadraticPenalty`.

    >>> import torch, lariax.torch as lt
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = lt.DualPenalty(model, {"size": lt.AtMost(1.0, samples=None)}, lr=0.1, dual_step=0.3)
    """

    def __init__(
        self,
        params: Any,
        constraints: Mapping[str, AbstractConstraint],
        *args: Any,
        dual_step: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, constraints, *args, **kwargs)
        if not dual_step >= 0:
            raise ValueError(f"dual_step must be at least 0, found {dual_step}.")
        self.dual_step = dual_step

    def _indexed_move(self, i: int, residual: Tensor, visits: Tensor) -> Tensor | float:
        return dual_length(self.dual_step, visits, torch.log(visits + 1)) * torch.sign(residual)

    def _moved(self, multipliers: Tensor, k: int, values: Tensor) -> Tensor:
        return multipliers + dual_length(self.dual_step, k, log(k + 1)) * torch.sign(values)
