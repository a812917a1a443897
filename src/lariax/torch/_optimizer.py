"""What the optimizers have in common: parameters and their groups, moves, states that can be saved."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.torch import _kernels
from lariax.torch._constraints import AbstractConstraint, Constraints
from lariax.torch._gradient_sizes import is_sharded
from lariax.torch._indexed import IndexedMultipliers
from lariax.torch._passes import Closure, Passes
from lariax.torch._proximal import Proximal, is_separable, proximal_of
from lariax.torch._saving import TEXT, bound, numbers_of, packed, vectors_of
from lariax.torch._space import Space, Vector, precision_of

OBJECTS = ("within", "regularizer")  # entries of a group that are not saved
KEYS = {"params", "param_names", "name", "lr", "initial_lr", *OBJECTS}


MISSING: Any = object()


class AbstractConstrained(torch.optim.Optimizer):
    """A single-loop method as an optimizer: `opt.step(closure, batch)`.

    A call sees a batch at the current parameters and at those before, makes the estimates for the current ones, and
    takes the step to the next.
    """

    def __init__(
        self,
        params: Any,
        constraints: Mapping[str, AbstractConstraint],
        *,
        lr: float,
        model: torch.nn.Module | None,
        population: int | None,
        adaptive_metric: bool,
    ) -> None:
        if isinstance(params, torch.nn.Module):
            model = params if model is None else model
            params = [p for p in params.parameters() if p.requires_grad]
        if not lr > 0:
            raise ValueError(f"lr must be positive, found {lr}.")
        if population is not None and population < 2:
            raise ValueError(f"population is the number of rows that batches are drawn from, found {population}.")
        super().__init__(params, {"lr": lr, "within": None, "regularizer": None})
        self.model, self.population, self.adaptive_metric = model, population, adaptive_metric
        self.previous: list[Tensor] = []
        self.exact: dict[int, Tensor] = {}  # parameters of low precision with their long tail, by number
        self.calls = 0
        self.stated = constraints
        self._settle()

    def _settle(self) -> None:
        """Everything that depends on what the parameters are, and where."""
        trained = self._trained()
        _check(trained, self.param_groups, self.adaptive_metric)
        dtype, device = precision_of(trained), trained[0].device
        self.space = Space(trained, dtype)
        self.constraints = Constraints(self.stated, dtype, device)
        self.passes = Passes(self.space, self.constraints, self.model)
        self.proximals: list[Proximal | None] = [proximal_of(group) for group in self.param_groups]
        self.sure = torch.ones((), dtype=torch.bool, device=device)
        self.low = [i for i, p in enumerate(trained) if torch.finfo(p.dtype).bits < 32]
        self.indexed = IndexedMultipliers(self.passes, dtype, device)

    def _trained(self) -> list[Tensor]:
        """The parameters as the groups have them now: wrappers may move or replace them."""
        return [p for group in self.param_groups for p in group["params"]]

    def _look_up(self) -> None:
        """Before a call."""
        trained = self._trained()
        others = any(a is not b for a, b in zip(trained, self.space.params, strict=True))
        if self.calls == 0 and (others or trained[0].device != self.constraints.device):
            self._settle()
        elif others:
            _check(trained, self.param_groups, self.adaptive_metric)
            self.space.params, self.passes.params = trained, tuple(trained)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "space"):
            raise NotImplementedError(
                "parameters cannot be added during a run: the estimates are about those of the start. Make a new "
                "optimizer, with all groups."
            )
        super().add_param_group(param_group)

    # --- what a method does

    def step(self, closure: Closure | None = None, batch: Any = MISSING) -> Tensor:  # type: ignore[override]
        """One iteration on a fresh batch; returns the mean loss at the current parameters.

        `closure(batch)` returns (loss, {name: values, ...}) with a value for each row, and is called several times.
        Where a wrapper lets one argument through, give `functools.partial(closure, batch)`. Without arguments, and
        gradients of zero, a new optimizer only makes room for its state: tools that save and load states do that.
        """
        closure, batch = bound(closure, batch, MISSING)
        if closure is None and batch is MISSING and self._is_new():
            self._show([p.detach().clone() for p in self._trained()])
            return torch.zeros(())
        if not callable(closure) or batch is MISSING:
            raise TypeError(
                "step(closure, batch) wants the batch, and a function of it that returns (loss, {name: values, ...}); "
                "within a wrapper that takes one argument, step(functools.partial(closure, batch)). The optimizer "
                "takes gradients itself: no zero_grad() and no backward(). Where others call step(), use "
                "lt.Multipliers with any optimizer."
            )
        self._look_up()
        return self._step(closure, batch)

    def _is_new(self) -> bool:
        """Whether nothing has been seen, and gradients are zero, as tools set them that want a state to be there."""
        gradients = [p.grad for p in self._trained()]
        return self.calls == 0 and not self.state and all(g is not None and not bool(g.any()) for g in gradients)

    def _show(self, previous: list[Tensor]) -> None:
        """State by parameter, for torch's tools."""
        for p, own in zip(self._trained(), previous, strict=True):
            self.state[p] = {"previous": own}

    def _step(self, closure: Closure, batch: Any) -> Tensor:
        raise NotImplementedError

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """By name, with L = f + sum y . value: >= 0 for AtMost, <= 0 for AtLeast."""
        return {**self._named_multipliers(), **self.indexed.multipliers()}

    def _named_multipliers(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _vectors(self) -> dict[str, Vector | None]:
        """The method's own vectors like the parameters; None or empty: not there yet."""
        raise NotImplementedError

    def _export(self) -> dict[str, Any]:
        """The rest of its state: tensors, numbers, and lists and dictionaries of them."""
        raise NotImplementedError

    def _import(self, saved: dict[str, Any], vectors: dict[str, Vector]) -> None:
        raise NotImplementedError

    def _check_population(self, rows: int) -> None:
        if self.population is not None and rows > self.population:
            raise ValueError(
                f"population={self.population} is the number of rows that batches are drawn from without replacement, "
                f"and this batch has {rows}. Give the number of training rows, or leave it out."
            )

    # --- moves

    def _targets(self) -> list[Tensor]:
        """What a step changes: the parameters, or for those of low precision copies that keep the long tail."""
        params = self.space.params
        if self.low and not self.exact:
            self.exact = {i: params[i].detach().to(self.space.dtype) for i in self.low}
        return [self.exact.get(i, p) for i, p in enumerate(params)] if self.exact else params

    def advance(
        self,
        estimate: Vector,
        fresh: Vector | None,
        stale: Vector | None,
        momentum: float,
        step_size: float,
        scaling: Vector | None = None,
    ) -> None:
        """g <- storm(fresh, stale, g), x+ = prox(x - eta scaling g), and x is kept as the previous point.

        Without `fresh` the estimate stays as it is.
        """
        params, targets = self.space.params, self._targets()
        if not self.previous:
            self.previous = [torch.empty_like(p) for p in params]
            self._show(self.previous)
        if not self.space.flat and fresh is not None and stale is not None:
            self._fused(fresh, stale, estimate, scaling, self.sure, [momentum, *2 * self._steps(step_size)])
        else:
            if fresh is not None and stale is not None:
                _kernels.follow(estimate, fresh, stale, momentum)
            torch._foreach_copy_(self.previous, params)
            self._shift(targets, estimate, self._steps(step_size), scaling)
        self._apply_sets(targets, step_size, scaling)

    def _steps(self, step_size: float) -> list[float]:
        """Of each parameter."""
        return [step_size * group["lr"] for group in self.param_groups for _ in group["params"]]

    @property
    def lr(self) -> float:
        """The largest of the groups'."""
        return max(group["lr"] for group in self.param_groups)

    def _fused(
        self,
        fresh: Vector,
        stale: Vector,
        estimate: Vector,
        scaling: Vector | None,
        good: Tensor,
        numbers: list[float],
        summed: bool = False,
    ) -> list[Tensor]:
        """The update where vectors are not flat, and sums."""
        device = self.space.params[0].device
        vectors = (self.space.params, self._targets(), self.previous, estimate, fresh, stale)
        sent = _kernels.sent(np.array(numbers), device, self.space.dtype)
        return _kernels.update_on(device)(_kernels.Update(*vectors, scaling, good, sent), summed)

    def _shift(self, targets: list[Tensor], estimate: Vector, steps: list[float], scaling: Vector | None) -> None:
        views = self.space.views(estimate)
        if scaling is not None:
            views = [g * s for g, s in zip(views, self.space.views(scaling), strict=True)]
        if len(set(steps)) == 1:
            torch._foreach_add_(targets, views, alpha=-steps[0])
        else:
            torch._foreach_sub_(targets, torch._foreach_mul(views, steps))

    def _apply_sets(self, targets: list[Tensor], step_size: float, scaling: Vector | None) -> None:
        """Sets and regularisers, and parameters of low precision."""
        scales = None if scaling is None else self.space.views(scaling)
        at = 0
        for group, prox in zip(self.param_groups, self.proximals, strict=True):
            part = slice(at, at + len(group["params"]))
            if prox is not None:
                length = step_size * group["lr"]
                steps = length if scales is None else [length * s for s in scales[part]]
                torch._foreach_copy_(targets[part], prox(targets[part], steps))
            at = part.stop
        for i, exact in self.exact.items():
            self.space.params[i].copy_(exact)

    def held(self, estimate: Vector, step_size: float, scaling: Vector | None) -> np.ndarray | None:
        """Which entries a set or regulariser keeps in place, though a step would move them; None: there is neither."""
        if not any(self.proximals):
            return None
        targets = self._targets()
        moved = [target.clone() for target in targets]
        self._shift(moved, estimate, self._steps(step_size), scaling)
        goes = [new != old for new, old in zip(moved, targets, strict=True)]
        self._apply_sets(moved, step_size, scaling)
        stays = [(new == old) & on for new, old, on in zip(moved, targets, goes, strict=True)]
        return torch.cat([part.reshape(-1) for part in stays]).cpu().numpy()

    def face(self, estimate: Vector, step_size: float, scaling: Vector | None) -> Callable[[np.ndarray], Any] | None:
        """What a step keeps of vectors, row by row: differences of the proximal map. None where entries go by
        themselves."""
        if all(is_separable(group) for group in self.param_groups):
            return None
        beyond = [target.detach().clone() for target in self._targets()]
        self._shift(beyond, estimate, self._steps(step_size), scaling)
        sizes = [part.numel() for part in beyond]
        length = sum(float(torch.sum(part.double() ** 2)) for part in beyond) ** 0.5

        def kept(row: np.ndarray) -> np.ndarray:
            short = torch.finfo(self.space.dtype).eps ** 0.5 * (1 + length) / (np.linalg.norm(row) or 1.0)
            ends = [[part.clone() for part in beyond] for _ in range(2)]
            for part, change in zip(ends[1], torch.from_numpy(row).split(sizes), strict=True):
                part.add_((short * change).reshape(part.shape).to(part))
            for end in ends:
                self._apply_sets(end, step_size, scaling)
            moves = [(new - old).reshape(-1).double().cpu() for old, new in zip(*ends, strict=True)]
            return torch.cat(moves).numpy() / short

        return lambda rows: np.stack([kept(np.ascontiguousarray(row, float)) for row in rows])

    # --- saving

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; what torch adds to an optimizer it adds to a copy by itself."""
        own = {name: value for name, value in self.__dict__.items() if not name.startswith("_")}
        return {**own, **super().__getstate__()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next call needs, the state of torch's random numbers included: vectors by parameter, and
        all numbers as a text in the first group. `torch.load(..., weights_only=True)` reads it."""
        groups = super().state_dict()["param_groups"]
        groups = [{k: v for k, v in group.items() if k not in OBJECTS} for group in groups]
        vectors = {name: self.space.views(v) for name, v in self._vectors().items() if v}
        numbers = {
            "method": type(self).__name__,
            "calls": self.calls,
            "process": [self.passes.rank, self.passes.processes],
            "shapes": {name: list(shape) for name, shape in self.constraints.shapes.items()},
            "loss_by_row": self.constraints.loss_by_row,
            "kinds": [(list(p.shape), str(p.dtype)) for p in self.space.params],
            "vectors": ["previous", *vectors] if self.previous else [],
            "exact": sorted(self.exact),
            "random": self.passes.random_state(),
            **self.indexed.export(),
            **self._export(),
        }
        groups[0][TEXT] = packed(numbers)
        return {"state": self._by_parameter(vectors) if self.state else {}, "param_groups": groups}

    def _by_parameter(self, vectors: dict[str, list[Tensor]]) -> dict[int, dict[str, Tensor]]:
        """Every entry that there may ever be, so that states of all times fit on each other."""
        found = {}
        for i, p in enumerate(self.space.params):
            parts = {name: vectors[name][i] if name in vectors else None for name in self._vectors()}
            if i in self.low:
                parts["exact"] = self.exact.get(i)
            found[i] = {
                name: torch.zeros_like(p, dtype=self.space.dtype) if part is None else part.clone()
                for name, part in parts.items()
            }
            found[i]["previous"] = self.previous[i].clone() if self.previous else p.detach().clone()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, random numbers included; the model's own state is loaded apart."""
        saved = numbers_of(state_dict)
        if saved.get("method") != type(self).__name__:
            raise ValueError(
                f"the state is of {saved.get('method', 'another optimizer')}, and this is a {type(self).__name__}."
            )
        self._look_up()
        self._check_state(saved)
        objects = [{key: group[key] for key in OBJECTS} for group in self.param_groups]
        groups = [{k: v for k, v in group.items() if k != TEXT} for group in state_dict["param_groups"]]
        super().load_state_dict({"state": {}, "param_groups": groups})
        for group, kept in zip(self.param_groups, objects, strict=True):
            group.update(kept)
        self.calls = saved["calls"]
        shapes = {name: tuple(shape) for name, shape in saved["shapes"].items()}
        self.constraints.restore(shapes, saved.get("loss_by_row", False))
        vectors = vectors_of(state_dict, saved["vectors"])
        self.previous = [self._here(p) for p in vectors.pop("previous", [])]
        if state_dict["state"]:
            self._show(self.previous or [p.detach().clone() for p in self.space.params])
        tails = vectors_of(state_dict, ["exact"])["exact"] if saved["exact"] else []
        self.exact = {i: self._here(tails[i]) for i in saved["exact"]}
        self.indexed.load(saved, self._here)
        self._import(saved, {name: self.space.pack([self._here(p) for p in v]) for name, v in vectors.items()})
        self.passes.set_random_state(saved["random"])

    def _here(self, saved: Tensor) -> Tensor:
        return saved.to(self.constraints.device, copy=True)

    def _check_state(self, saved: dict[str, Any]) -> None:
        """Before anything is changed."""
        own, theirs = list(self.constraints.named), list(saved["shapes"])
        if saved["calls"] and own != theirs:
            raise ValueError(
                f"the state is of constraints {theirs}, and this optimizer has {own}: use the same names, in the same "
                "order."
            )
        self.indexed.check(saved)
        own_kinds = [(tuple(p.shape), str(p.dtype)) for p in self.space.params]
        kinds = [(tuple(shape), dtype) for shape, dtype in saved["kinds"]]
        if saved["calls"] and kinds != own_kinds:
            raise ValueError(f"the state is of parameters {kinds}, and these are {own_kinds}.")
        process = [self.passes.rank, self.passes.processes]
        if saved["process"] != process:
            raise ValueError(
                "the state was saved by process {} of {}, and this is process {} of {}: each has rows and random "
                "numbers of its own, so let each save and load its own state.".format(*saved["process"], *process)
            )


def _check(params: list[Tensor], groups: list[dict[str, Any]], adaptive_metric: bool) -> None:
    if not params or not all(p.requires_grad for p in params):
        raise ValueError(
            f"{sum(not p.requires_grad for p in params)} of {len(params)} parameters require no gradient. Pass those "
            "that are to be trained, or the model itself."
        )
    if any(map(is_sharded, params)):
        raise NotImplementedError(
            "the parameters are sharded (FSDP, tensor parallelism), which these optimizers do not support: use "
            "lt.Multipliers with any optimizer."
        )
    other = sorted({str(p.dtype) for p in params if not p.is_floating_point()})
    if other:
        raise ValueError(f"parameters must be real numbers, found {other}. Split complex ones by torch.view_as_real.")
    for group in groups:
        unknown = sorted(group.keys() - KEYS)
        if unknown:
            raise ValueError(
                f"a group of parameters has {unknown}, which this optimizer does not know. It may have lr, within (a "
                "set) and regularizer (for weight decay lariax.prox.ElasticNet(0.0, decay))."
            )
        if not group["lr"] >= 0:
            raise ValueError(f"the lr of a group must be at least 0, found {group['lr']}.")
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(f"the parameters are on several devices: {devices}. Put the model on one.")
    if adaptive_metric and not all(is_separable(group) for group in groups):
        raise ValueError(
            "adaptive_metric=True scales every entry on its own, which a set or regulariser that ties entries together "
            "does not allow. Use a Box, NonNegative, L1 or nothing, or leave the metric out."
        )
