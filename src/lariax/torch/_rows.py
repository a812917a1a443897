"""The rule for one optimizer: numbers on the host, the rows of a batch where they are."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lariax.formulas import least_weights, leave_one_out, repelled
from lariax.torch import _device, _kernels
from lariax.torch._constraints import Constraints
from lariax.torch._state import Move
from lariax.torch._transfer import Transfer
from lariax.tuned import host
from lariax.tuned.curvature import Measurement
from lariax.tuned.rule import Gains, RowState, Rule, RuleState, Step, Turned, Weighed, row_state


class Numbers(NamedTuple):
    """What an iteration has seen, on its way to the host."""

    rows: Transfer  # of `weigh`
    sizes: Transfer  # ||gradient||^2, and ||dx||^2 if it was not summed in passing
    halves: Transfer | None  # of a batch that was looked at in two
    signal: float  # of constraints with a multiplier for each example
    swing: float  # the same


class RowRule:
    """Weighs rows: in NumPy, or on a GPU by a compiled program, so that nothing that comes after waits for the host."""

    def __init__(self, constraints: Constraints, dtype: torch.dtype, population: int | None, **choices: Any) -> None:
        info, inequality, random = torch.finfo(dtype), constraints.inequality, constraints.random
        self.device, self.dtype, self.constraints = constraints.device, dtype, constraints
        here = inequality.cpu().numpy()
        self.on_host = self.at_rows = Rule(
            xp=host,
            eps=float(info.eps),
            tiny=float(info.tiny),
            inequality=here,
            least_weights=least_weights(np, here),
            has_inequalities=constraints.has_inequalities,
            partners=partial(_partners, host, random.cpu().numpy(), population),
            **choices,
        )
        if not is_host(self.device):
            self.at_rows = replace(
                self.on_host,
                xp=_device,
                inequality=inequality,
                least_weights=least_weights(torch, inequality),
                partners=partial(_partners, _device, random, population),
            )
        self.weigh = self.at_rows.weigh
        if _kernels.own_kernels(self.device) is not None:
            self.weigh = torch.compile(self.at_rows.weigh, dynamic=False)
        self._shape_sent: tuple[Any, bool, Any] = (None, True, None)  # the shape, whether it was coupled, and its copy

    def as_rows(self, residuals: Tensor) -> Any:
        """In double precision; on the host tall arrays column by column in memory, which makes for long loops."""
        if self.at_rows is not self.on_host:
            return residuals.double()
        tall = residuals.ndim == 2 and residuals.shape[0] > residuals.shape[1]
        return residuals.numpy().astype(np.float64, order="F" if tall else "C")

    def turned(self, s: RuleState, k: int, gains: Gains, moved: Move, seen: Numbers) -> Turned:
        """The numbers of the next state, once those of the batch have arrived."""
        rule, measured = self.on_host, None
        told = None if seen.halves is None else seen.halves.numbers()
        gradient, *summed = seen.sizes.numbers()
        length = (summed[0] if summed else moved.square) * (moved.reach**2 or 1.0)
        if told is not None:
            noise, *rest = told
            measured = Measurement(noise + rule.eps**2 * gradient, *rest)  # rounding is noise too
        error = s.gradient_filter.error
        signal = max(length / (moved.eta**2 * error + rule.tiny), seen.signal / (error + rule.tiny))
        step = Step(gradient, length, signal, seen.swing)
        return rule.turn(s, k, gains, Weighed._make((*seen.rows.numbers(), None)), step, measured)

    def state_for(self, old: RuleState, s: RuleState, gains: Gains, rho: float) -> RowState:
        """What rows are weighed with, where they are; `s` is the old state with its shape in force."""
        state = row_state(s, gains.constraints, rho)
        if self.at_rows is self.on_host:
            return state
        send = partial(_kernels.sent, device=self.device)
        shape, coupled, there = self._shape_sent
        if shape is not old.shape or coupled != bool(old.coupled):  # it changes rarely
            there = s.shape._replace(penalty=send(s.shape.penalty), dual=send(s.shape.dual), gram=send(s.shape.gram))
            self._shape_sent = old.shape, bool(old.coupled), there
        *vectors, theta, max_gradient, rho, _ = state
        sent = send(np.append(np.stack(vectors), (theta, max_gradient, rho)))
        return RowState._make((*sent[:-3].view(4, -1), *sent[-3:], there))

    def cotangent(self, weights: np.ndarray | Tensor, total: int) -> Tensor:
        """What backward passes start from, given weights of residuals in a batch of `total` rows."""
        return self.sent(self.constraints.of_values(weights, total))

    def sent(self, weights: np.ndarray | Tensor) -> Tensor:
        if isinstance(weights, Tensor):
            return weights.to(self.dtype)
        return _kernels.sent(weights, self.device, self.dtype)


def is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _partners(xp: Any, random: Any, population: int | None, each: Any) -> Any:
    """For each row the mean of the others."""
    others = leave_one_out(each)
    return others if population is None else xp.where(random, repelled(others, each, population), others)
