"""Rivals as their documentation uses them, with grids; and ours, with nothing to set.

A rival is a function (task, model, setting) -> step, and step(batch) is one iteration of a training loop. Primal steps
are Adam's, as in the examples and benchmarks of both projects.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cooper
import torch
from humancompatible.train import dual_optim
from torch import Tensor

import lariax.torch as lt
from benchmarks.peers.tasks import Batch, Task

Setting = dict[str, Any]
Step = Callable[[Batch], object]
Build = Callable[[Task, torch.nn.Module, Setting], Step]

TOLERANCE = 0.01
"""Penalty-barrier and switching methods have inequalities only: an equality c = 0 is |c| <= this, as is advised."""


class Rival(NamedTuple):
    build: Build
    grid: list[Setting]


def grid(**values: Sequence[Any]) -> list[Setting]:
    """All combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


# --- cooper


def with_cooper(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
    rows, augmented = task.shape.rows, "penalty" in setting
    kind = cooper.formulations.AugmentedLagrangian if augmented else cooper.formulations.Lagrangian
    extra = {}
    if augmented:
        start = torch.full((rows,), float(setting["penalty"]))
        extra["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(start)
    relation = cooper.ConstraintType.EQUALITY if task.shape.equality else cooper.ConstraintType.INEQUALITY
    closure = task.closure(model)

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(num_constraints=rows)
            self.c = cooper.Constraint(constraint_type=relation, formulation_type=kind, multiplier=multiplier, **extra)

        def compute_cmp_state(self, batch: Batch) -> cooper.CMPState:
            losses, values = closure(batch)
            state = cooper.ConstraintState(violation=values["c"].mean(dim=0))
            return cooper.CMPState(loss=losses.mean(), observed_constraints={self.c: state})

    problem = Problem()
    primal = torch.optim.Adam(model.parameters(), lr=setting["lr"])
    parameters = problem.dual_parameters()
    if "kp" in setting:
        dual = cooper.optim.nuPI(
            parameters, lr=setting["dual_lr"], Kp=setting["kp"], ema_nu=setting["nu"], maximize=True
        )
    else:
        dual = torch.optim.SGD(parameters, lr=setting["dual_lr"], maximize=True)
    alternates = augmented or setting.get("updates") == "alternating"
    make = cooper.optim.AlternatingDualPrimalOptimizer if alternates else cooper.optim.SimultaneousOptimizer
    optimizer = make(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)
    growth = setting.get("growth", 1.0)
    if growth == 1.0:
        return lambda batch: optimizer.roll(compute_cmp_state_kwargs={"batch": batch})
    updater = cooper.penalty_coefficients.MultiplicativePenaltyCoefficientUpdater(growth_factor=growth)

    def step(batch: Batch) -> None:
        rolled = optimizer.roll(compute_cmp_state_kwargs={"batch": batch})
        updater.step(rolled.cmp_state.observed_constraints)

    return step


# --- humancompatible-train


def _smoothed(optimizer: torch.optim.Optimizer, mu: float) -> Any:
    return dual_optim.MoreauEnvelope(optimizer, mu=mu) if mu > 0 else optimizer


def _as_inequalities(task: Task, values: Tensor) -> Tensor:
    means = values.mean(dim=0)
    return means.abs() - TOLERANCE if task.shape.equality else means


def _loop(task: Task, model: torch.nn.Module, setting: Setting, dual: Any, inequalities: bool = False) -> Step:
    """The training loop of its documentation."""
    adam = torch.optim.Adam(model.parameters(), lr=setting["lr"])
    primal, closure = _smoothed(adam, setting.get("mu", 0.0)), task.closure(model)

    def step(batch: Batch) -> None:
        losses, values = closure(batch)
        constraints = _as_inequalities(task, values["c"]) if inequalities else values["c"].mean(dim=0)
        lagrangian = dual.forward_update(losses.mean(), constraints)
        lagrangian.backward()
        primal.step()
        adam.zero_grad()

    return step


def with_alm(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
    """ALM; with mu, through its Moreau envelope, which makes it SSL-ALM."""
    dual = dual_optim.ALM(
        m=task.shape.rows, lr=setting["dual_lr"], penalty=setting["penalty"], is_ineq=not task.shape.equality
    )
    return _loop(task, model, setting, dual)


def with_nupi(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
    dual = dual_optim.nuPI(
        m=task.shape.rows, nu=setting["nu"], ki=setting["ki"], kp=setting["kp"], is_ineq=not task.shape.equality
    )
    return _loop(task, model, setting, dual)


def with_pbm(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
    update, factor = setting["penalty_update"]
    dual = dual_optim.PBM(
        m=task.shape.rows,
        penalty_mult=factor,
        gamma=setting["gamma"],
        penalty_update=update,
        dual_range=(0.01, 100.0),
        epoch_length=task.shape.epoch,
    )
    return _loop(task, model, setting, dual, inequalities=True)


def with_switching(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
    """Two optimizers over the same parameters, as its documentation says for Adam: one for each branch."""
    rule = dual_optim.SSG(m=task.shape.rows)
    adams = [torch.optim.Adam(model.parameters(), lr=setting[name]) for name in ("lr", "constraint_lr")]
    primals, closure = [_smoothed(adam, setting["mu"]) for adam in adams], task.closure(model)

    def step(batch: Batch) -> None:
        losses, values = closure(batch)
        rule.forward_update(losses.mean(), _as_inequalities(task, values["c"])).backward()
        primals[rule.last_switched_to_constraints].step()
        adams[0].zero_grad()

    return step


RATES = (1e-3, 5e-3, 1e-2, 5e-2)
"""Of Adam. The grids hold what both projects' documentation, examples and benchmarks use, and more."""

RIVALS: dict[str, Rival] = {
    "cooper Lagrangian": Rival(
        with_cooper, grid(lr=RATES, dual_lr=(1e-3, 1e-2, 0.1, 1.0), updates=("simultaneous", "alternating"))
    ),
    "cooper augmented": Rival(
        with_cooper,
        [
            {**setting, "penalty": penalty, "growth": growth}
            for setting in grid(lr=RATES, dual_lr=(1e-2, 0.1, 1.0))
            for penalty, growth in ((1.0, 1.0), (10.0, 1.0), (1.0, 1.01))
        ],
    ),
    "cooper nuPI": Rival(with_cooper, grid(lr=RATES, dual_lr=(1e-2, 0.1), kp=(1.0, 10.0), nu=(0.0, 0.9))),
    "hc ALM": Rival(with_alm, grid(lr=RATES, dual_lr=(1e-3, 1e-2, 0.1), penalty=(0.0, 1.0, 10.0))),
    "hc nuPI": Rival(with_nupi, grid(lr=RATES, ki=(1e-2, 0.1), kp=(1.0, 10.0), nu=(0.01, 0.9))),
    "hc PBM": Rival(
        with_pbm,
        grid(
            lr=RATES,
            gamma=(0.1, 0.9, 0.99),
            penalty_update=(("dimin_adapt", 0.1), ("dimin_adapt", 0.9), ("dimin", 0.999)),
        ),
    ),
    "hc SSL-ALM": Rival(with_alm, grid(lr=RATES, dual_lr=(1e-2, 0.1), penalty=(0.0, 1.0), mu=(1.0, 2.0))),
    "hc switching": Rival(with_switching, grid(lr=RATES, constraint_lr=RATES, mu=(0.0, 2.0))),
}


def with_lariax(make: Callable[..., Any]) -> Build:
    def build(task: Task, model: torch.nn.Module, setting: Setting) -> Step:
        kind = lt.Equal() if task.shape.equality else lt.AtMost()
        optimizer, closure = make(model, {"c": kind}, **setting), task.closure(model)
        return lambda batch: optimizer.step(closure, batch)

    return build


JAX, TORCH = "lariax (JAX)", "lariax.torch"
"""`lx.solve`, and `lariax.torch.TrackedLagrangian`: on their defaults."""
