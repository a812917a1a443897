"""The self-tuned method as an optimizer.

Vectors like the parameters stay on their device; everything else is a few numbers, kept on the host in double precision
and turned over by the formulas that the core uses.
"""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.formulas import (
    WINDOW,
    Answers,
    Curvature,
    Curved,
    Filter,
    Load,
    Shape,
    believable,
    has_lost_coupling,
    interval_at,
    is_kinked,
    is_real,
    jolted,
    lagged,
    largest_gradient,
    measured,
    metric_for,
    next_diagonal,
    next_refresh,
    next_scale,
    noise_rate_at,
    often_at,
    push,
    rate_at,
    remembered,
    rescaled_entries,
    travelled,
    updated,
    variance_of_mean,
    violation,
)
from lariax.methods import check_known
from lariax.torch import _device, _kernels
from lariax.torch._constraints import AbstractConstraint, Seen
from lariax.torch._optimizer import AbstractConstrained
from lariax.torch._passes import (
    Choice,
    Closure,
    Cut,
    Groups,
    Kept,
    Vector,
    devices_of,
    minus,
    on_devices,
    plain,
)
from lariax.torch._proximal import units_of
from lariax.torch._survey import Survey
from lariax.torch._swings import Watch
from lariax.torch._tuned import (
    Arriving,
    Looked,
    Moved,
    Rules,
    Sent,
    Spread,
    Tuned,
    UnderWay,
    rows_times,
    sum_of_squares,
)
from lariax.tuned import host as _host

START_ROWS = 16  # rows that the start wants to see
REFRESH_ROWS = 64  # rows that a refresh looks back on


class TrackedLagrangian(AbstractConstrained):
    """A single loop without settings: the method of `lariax.TrackedLagrangian`, which states the formulas.

    Now and then a batch is seen in two halves, so that the noise of its gradients shows: two rows are the least.
    The first calls only collect rows until there are 16; the parameters move from then on. A loss of one value a row
    lets the start see its noise more precisely than a mean does.

    Arguments:
        params: the model, its parameters, or groups of them; a group may have `lr`, `within` (a set of `lariax.sets`)
            and `regularizer` (a term of `lariax.prox`).
        constraints: `Equal`, `AtMost` or `AtLeast` by name.
        lr: multiplies the steps that the method finds by itself; for schedulers, and for groups of their own.
        step_size: a fixed step instead of the controller's.
        penalty: a fixed penalty, in units of the curvature of the objective, instead of the rule's.
        gain_exponent: p for scheduled momenta (k + 1)^-p, instead of the measured ones.
        one_backward: one backward pass a call: cheaper, and less accurate.
        adaptive_metric: divide steps by the root mean square of each entry of the gradient, as Adam does.
        population: the number of rows, where batches are drawn without replacement.
        model: the module whose buffers (batch norm) are to be updated once a call, where `params` is not the model.
        multipliers: by name, what to start from, such as those of `lariax.torch.Multipliers`; 0 where left out.

    >>> import torch, lariax.torch as lt
    >>> _ = torch.manual_seed(0)
    >>> x = torch.zeros(2, requires_grad=True)
    >>> def closure(z):
    ...     return 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2), {"line": x[0] + x[1] - 1 + 2 * z * (x[0] - x[1])}
    >>> opt = lt.TrackedLagrangian([x], {"line": lt.Equal()})
    >>> for _ in range(1000):
    ...     loss = opt.step(closure, torch.randn(32))
    >>> [round(value, 1) for value in x.tolist()]
    [-0.5, 1.5]
    """

    def __init__(
        self,
        params: Any,
        constraints: Mapping[str, AbstractConstraint],
        lr: float = 1.0,
        *,
        step_size: float | None = None,
        penalty: float | None = None,
        gain_exponent: float | None = None,
        one_backward: bool = False,
        adaptive_metric: bool = False,
        population: int | None = None,
        model: torch.nn.Module | None = None,
        multipliers: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            params, constraints, lr=lr, model=model, population=population, adaptive_metric=adaptive_metric
        )
        for name, value in (("step_size", step_size), ("penalty", penalty), ("gain_exponent", gain_exponent)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, found {value}.")
        self.rules = Rules(step_size, penalty, gain_exponent, population, bool(self.indexed), self.space.dtype)
        self.near = self.rules  # for the rows of a batch,
        self.weigh = self.rules.values  # of which this is compiled where they are on a GPU
        self.shape_there: tuple[Shape | None, Any] = (None, None)
        self.one_backward = one_backward
        check_known(multipliers, list(self.constraints.named))
        self.given = dict(multipliers or {})
        self.units = units_of(self.param_groups)
        self.estimate: Vector = []
        self.metric: Vector | None = None  # squares of it multiply steps
        self.known: Tuned | None = None
        self.under_way: UnderWay | None = None
        self.recent: list[Any] = []  # batches that the start or the next refresh will look at
        self.start = self.window = self.next_refresh = 0
        self.moved = Moved(0.0, 0.0, 0.0)
        self.indexed_penalty = (0.0, 0.0)  # for the estimate, and to come
        self.rows = 0  # in a batch, over all processes
        self.has_warned = False
        self.watch = Watch()
        self.indexed_size = 1.0

    # --- a call

    @torch.no_grad()
    @np.errstate(all="ignore")  # a step that is not finite is taken back
    def _step(self, closure: Closure, batch: Any) -> Tensor:
        if self.known is None:
            return self._collect(closure, batch)
        k = self.calls + 1 - self.start
        refresh = k == self.next_refresh
        measuring = k % interval_at(_host, k) == 0
        with self.passes.or_not_at_all() as buffers:
            cut = self.passes.cut(batch, 1 + measuring)
            self._check_population(cut.total)
            if measuring:
                seen = self.passes.insist(lambda: self._look(closure, cut, k, measuring=True))
            else:
                seen = self._look(closure, cut, k, measuring=False)
        loss = self._loss(seen.present)
        self.calls += 1
        if k > self.next_refresh - self.window:
            self.recent.append(batch)
        if refresh or self.space.flat or self.indexed or any(self.proximals):
            self._settle(closure, seen, refresh, buffers)
        else:
            self._launch(seen, buffers)
        return loss

    @property
    def tuned(self) -> Tuned | None:
        """The state; where a step is under way, after it."""
        if self.under_way is not None:
            told, seen, moves = self.under_way
            sound, off, change, square = told.numbers()
            self.known = self._learned(seen, off, change) if sound else self._refused(seen)
            moved = moves[0 if sound else 1]
            self.moved, self.under_way = moved._replace(square=square if moved.reach else None), None
        return self.known

    def _settle(self, closure: Closure, seen: Looked, refresh: bool, buffers: list[Kept]) -> None:
        """The refresh and the move that follow; or the step back, and a shorter one from there."""
        fresh: Vector | None = seen.now
        stale: Vector | None = seen.before
        momentum = seen.alpha
        if seen.now_square.item() <= seen.limit:
            off = self._square(minus(seen.before, self.estimate)).item()
            change = self._square(minus(seen.now, seen.before)).item()
            self.known = self._learned(seen, off, change)
            self._move_indexed(seen.present, seen.old)
        else:
            fresh, stale, momentum, self.known = None, None, 1.0, self._refused(seen)
            torch._foreach_copy_(self.space.params, self.previous)
            self.passes.restore(buffers)
            self.exact = {}
        if refresh and fresh is not None and stale is not None:
            _kernels.follow(self.estimate, fresh, stale, momentum)
            fresh = stale = None
        try:
            if refresh:
                self.known = self._soundly_refreshed(closure, self.known)
                self.watch.look({b.name: b.sign * self.known.multipliers[b.rows] for b in self.constraints.blocks})
        finally:  # whatever happens in the closure, estimate and parameters go together
            if refresh:
                k = self.calls - self.start
                self.recent, self.next_refresh = [], int(next_refresh(np, k, self.start, self.window))
            self._move(fresh, stale, momentum)

    def _refused(self, seen: Looked) -> Tuned:
        """After a step that is taken back."""
        if not self.has_warned and (seen.limit < 0 or not np.isfinite(seen.now_square.item())):
            self.has_warned = True
            warnings.warn(
                f"in call {self.calls} or the one before it the loss, a constraint or a gradient was not finite: the "
                "step to there is taken back, and the next ones are shorter. observe()['backed_off'] counts them.",
                RuntimeWarning,
                stacklevel=4,
            )
        return seen.old.backed()

    def _look(self, closure: Closure, cut: Cut, k: int, measuring: bool) -> Looked:
        """A batch at both points, and the state that follows from it. On a GPU numbers travel, and the host turns them
        over, while passes are under way; none waits for it."""
        hold, both = not cut.streamed, measuring or not self.one_backward
        random = self.passes.random_state()
        with self.passes.at(self.previous):
            looks = [self.passes.call(closure, piece, graph=both) for piece in cut.pieces] if hold or not both else []
            s = self.tuned  # known, and sent, while the device is at work
            assert s is not None
            alpha = self.rules.gain(s.of_constraints, k)
            there = self._near_rows(s, alpha)
            weights, before = self._cotangent(there.weights, cut), None
            if both:
                (before,), looks = self.passes.backward(closure, cut, [self._alike(weights, 0)], looks or None)
        self.passes.set_random_state(random)
        hold = hold and not (measuring and self.passes.single_use)
        graphs = [self.passes.call(closure, piece) for piece in cut.pieces] if hold else None
        rows = self._gathered(graphs) if graphs else self.passes.rows(closure, cut.pieces)
        c0, c1 = self.near.rows(self._gathered(looks)), self.near.rows(rows)
        values = self.weigh(there, c0, c1)
        arriving = Arriving(*values[:3], *values.spread)
        early = None if before is None or self.one_backward else self._sizes(before.mean)

        own, whole = self._cotangent(values.each_weights[self.passes.own(cut.total)], cut), len(cut.pieces) == 1
        sets: list[Choice] = [lambda i, look: (own if whole else own[cut.pieces[i].rows], self._indexed(look, 1))]
        if measuring:
            follow, moved = (self._cotangent(w, cut) for w in self.near.following(there, c0, c1))
            sets += [
                lambda i, look: (weights, self._indexed(looks[i], 0)),
                self._alike(follow, 1),
                self._alike(moved, 1),
            ]
        (now, *others), present = self.passes.backward(closure, cut, sets, graphs)
        size, told = self._square(now.mean), None
        if early is None:
            early = self._sizes(now.mean)
        if measuring and before is not None:
            told = Arriving(*self._answers(others, before, now, cut.shares)).numbers()
        size_before, *summed = early.numbers()
        length = (summed[0] if summed else self.moved.square) * (self.moved.reach**2 or 1.0)
        left = self._indexed_left(present) if self.indexed else 0.0
        new, momentum = self._turned(s, k, alpha, arriving.numbers(), [size_before, length, left], told)
        swing = push(_host, s.shape, new.weights - s.weights) + (
            self._indexed_swing(looks, present) if self.indexed else 0.0
        )
        return Looked(
            s,
            new,
            momentum,
            rate_at(_host, k),
            now=now.mean,
            before=now.mean if before is None or self.one_backward else before.mean,
            present=present,
            now_square=size,
            limit=self._limit(s, new, size_before, swing),
            explained=s.curvature.largest * np.sqrt(length) + swing,
        )

    def _turned(
        self,
        s: Tuned,
        k: int,
        alpha_u: Any,
        values: list[Any],
        sizes: list[Any],
        told: list[Any] | None,
    ) -> tuple[Tuned, float]:
        """The next state but for what its gradients say about their estimate, and the momentum of the gradient."""
        rules, rate = self.rules, rate_at(_host, k)
        constraints, multipliers, weights, *spread = values
        of_constraints = rules.of_constraints(s, Spread(*spread), alpha_u, rate)
        size, length, left = sizes
        alpha, scale = rules.gain(s.of_gradient, k), s.scale
        if self.one_backward:
            alpha = max(alpha, min(1.0, 4 * scale))  # a mean that lags behind the steps would swing
        curvature, noise = s.curvature, s.of_gradient.noise
        if told is not None:
            spread, dx, x, *answers = told
            noise = lagged(noise, spread + rules.eps**2 * size, noise_rate_at(_host, k))  # rounding is noise too
            dx = dx + rules.tiny
            seen = Answers(dx, is_real(_host, dx, x, rules.eps), *answers)
            curvature = measured(_host, curvature, seen, often_at(_host, k))
        drift, curvature = curvature.noise * length, remembered(_host, curvature, k, rules.tiny)
        if not self.one_backward:
            curvature = travelled(_host, curvature, k, length)
        scale = next_scale(
            _host,
            scale,
            k,
            rate,
            s.shape,
            left=violation(_host, rules.inequality, s.multipliers, s.constraints),
            gain_of_step=max(
                length / (self.moved.eta**2 * s.of_gradient.error + rules.tiny),
                left / (s.of_gradient.error + rules.tiny),
            ),
            error=s.of_constraints.error,
            of_gradient=(drift, alpha, noise),
            of_constraints=(of_constraints.drift, alpha_u, of_constraints.noise),
            kinked=is_kinked(_host, curvature),
            tiny=rules.tiny,
        )
        if self.one_backward:  # gradient noise that is not averaged away moves x, whatever it looks like from inside
            scale = min(scale, (1 + k / WINDOW) ** (-2 / 3))
        return s._replace(
            constraints=constraints,
            multipliers=multipliers,
            weights=weights,
            shape=s.shape.uncoupled if has_lost_coupling(_host, s.shape, multipliers) else s.shape,
            of_gradient=s.of_gradient._replace(noise=noise, drift=drift),
            of_constraints=of_constraints,
            curvature=curvature,
            scale=scale,
        ), alpha

    def _learned(self, seen: Looked, off: Any, change: Any) -> Tuned:
        """The next state, given the squares of what the gradient at the previous point is off the estimate and of its
        change by the step."""
        before, new = seen.old.of_gradient, seen.new.of_gradient
        shaken, curvature = jolted(_host, before, seen.new.curvature, change, seen.explained)
        filter = updated(
            shaken,
            seen.alpha,
            seen.rate,
            noise=new.noise,
            drift=new.drift,
            innovation=believable(_host, before, off),
        )
        jumps = seen.old.jumps + (shaken.error > 2 * before.error)
        return seen.new._replace(of_gradient=filter, curvature=curvature, jumps=jumps)

    def _limit(self, s: Tuned, new: Tuned, square: Any, swing: Any) -> float:
        """What ||gradient||^2 may be, not to have grown beyond reason in one step; -1 where numbers are not finite."""
        limit = largest_gradient(_host, s.of_gradient, square, swing)
        known = _host.sum(new.constraints) + new.of_gradient.noise + new.of_gradient.drift + new.curvature.largest
        return float(limit**2) if np.isfinite(limit + known) else -1.0

    def _launch(self, seen: Looked, buffers: list[Kept]) -> None:
        """The update, under way on the device before the host knows whether the step was good."""
        good = seen.now_square <= seen.limit
        self.passes.restore(buffers, unless=good)
        moves = [self._moving(tuned) for tuned in (seen.new, seen.old.backed())]
        numbers = [seen.alpha, *(step for moved in moves for step in self._steps(moved.eta))]
        sums = self._fused(seen.now, seen.before, self.estimate, self._scaling(), good, numbers, summed=True)
        self._finish(self.targets, 0.0, None)
        self.under_way = UnderWay(Arriving(good, *sums), seen.numbers(), moves)

    # --- looking

    def _gathered(self, looks: list[Seen]) -> Tensor:
        rows = [look.residuals for look in looks]
        return self.passes.gather(rows[0] if len(rows) == 1 else torch.cat(rows))

    def _loss(self, looks: list[Seen]) -> Tensor:
        local = sum(look.size for look in looks)
        first, *rest = [self.constraints.mean_loss(look, local) for look in looks]
        return self.passes.mean(sum(rest, first))

    def _cotangent(self, weights: np.ndarray | Tensor, cut: Cut) -> Tensor:
        """What backward passes start from, given weights of residuals."""
        return self._sent(self.constraints.of_values(weights, cut.total))

    def _sent(self, weights: np.ndarray | Tensor) -> Tensor:
        if isinstance(weights, Tensor):
            return weights.to(self.space.dtype)
        return _kernels.sent(weights, self.constraints.device, self.space.dtype)

    def _near_rows(self, s: Tuned, gains: np.ndarray) -> Sent:
        """What rows are turned over with, where they are."""
        here, send = self.near is self.rules, partial(_kernels.sent, device=self.constraints.device)
        if self.shape_there[0] is not s.shape:  # it changes rarely
            shape = s.shape
            if not here:
                shape = shape._replace(penalty=send(shape.penalty), dual=send(shape.dual), gram=send(shape.gram))
            self.shape_there = s.shape, shape
        vectors: Any = s.constraints, s.multipliers, s.weights, gains
        numbers: Any = s.scale, s.force, self.moved.rho
        if not here:
            sent = send(np.append(np.stack(vectors), numbers))
            vectors, numbers = sent[:-3].view(4, -1), sent[-3:]
        return Sent._make((*vectors, *numbers, self.shape_there[1]))

    # --- the numbers

    def _sizes(self, gradient: Vector) -> Arriving:
        """||gradient||^2; and ||dx||^2 or ||dx / reach||^2, if it was not summed in passing."""
        sizes = [self._square(gradient)]
        if self.moved.square is None:
            sizes.append(self._square(self.estimate) if self.moved.reach else self._length(self._dx()))
        return Arriving(*sizes)

    def _dx(self) -> Vector:
        return minus(self.space.point(), self.space.pack(self.previous))

    def _answers(self, others: list[Groups], before: Groups, now: Groups, shares: list[float]) -> list[Tensor]:
        """Noise of the gradient, ||dx||^2, ||x||^2, and how the gradient answers to the step: with fixed weights, with
        weights that follow, and with multipliers that move on."""
        fixed, follow, whole = others
        dx, at_fixed, at_follow = self._dx(), minus(fixed.mean, before.mean), minus(follow.mean, before.mean)
        if self.one_backward:  # the estimate does not follow the moves, so all of a move is drift
            noise, drift = self._spread(now.each, shares), self._square(minus(whole.mean, before.mean))
        else:
            moves = [minus(a, b) for a, b in zip(whole.each, before.each, strict=True)]
            noise, drift = self._spread(before.each, shares), self._spread(moves, shares)
        along = torch.stack([torch.sum(a * b) for a, b in zip(dx, at_follow, strict=True)]).sum()
        size = self._length(self.space.pack(self.previous))
        return [noise, self._length(dx), size, self._square(at_fixed), along, self._square(at_follow), drift]

    def _square(self, vector: Vector) -> Tensor:
        """||gradient||^2, in the coordinates of the metric."""
        if self.metric is not None:
            vector = [x * m for x, m in zip(vector, self.metric, strict=True)]
        return sum_of_squares(vector)

    def _length(self, move: Vector) -> Tensor:
        """||dx||^2, likewise."""
        if self.metric is not None:
            move = [x / m for x, m in zip(move, self.metric, strict=True)]
        return sum_of_squares(move)

    def _spread(self, each: list[Vector], shares: list[float]) -> Tensor:
        """The variance of the mean over two halves, in all entries together."""
        return shares[0] * shares[1] * self._square(minus(each[0], each[1]))

    # --- moving

    def _move(self, fresh: Vector | None, stale: Vector | None, momentum: float) -> None:
        assert self.known is not None
        self.moved = self._moving(self.known)
        self.advance(self.estimate, fresh, stale, momentum, self.moved.eta, self._scaling())

    def _moving(self, s: Tuned) -> Moved:
        """How far the next move goes."""
        eta, rho = self.rules.lengths(s)
        rates = {group["lr"] for group in self.param_groups}
        free = len(rates) == 1 and not self.low and not any(self.proximals)
        return Moved(eta, rho, eta * rates.pop() if free else 0.0)

    def _scaling(self) -> Vector | None:
        return None if self.metric is None else [m**2 for m in self.metric]

    def _alike(self, weights: Tensor, which: int) -> Choice:
        """The same weights for all rows."""
        return lambda i, look: (weights, self._indexed(look, which))

    def _indexed(self, look: Seen, which: int) -> list[Tensor]:
        return self.indexed_weights(look.indexed, self.indexed_penalty[which], which) if self.indexed else []

    def _indexed_left(self, looks: list[Seen]) -> float:
        """What the examples' violations would change of the gradient, squared."""
        squares, seen = 0.0, self.joined([look.indexed for look in looks])
        for constraint, y, (residual, index) in zip(self.constraints.indexed.values(), self.indexed, seen, strict=True):
            left = violation(_device, constraint.inequality, y[1][index], residual)
            squares += float(torch.mean(left**2))
        return self.indexed_penalty[1] ** 2 * self.indexed_size * squares

    def _indexed_swing(self, before: list[Seen], now: list[Seen]) -> float:
        """What new weights of examples may change of the gradient."""
        old, new = (
            self.indexed_weights(self.joined([look.indexed for look in looks]), self.indexed_penalty[which], which)
            for which, looks in enumerate((before, now))
        )
        squares = sum(float(torch.mean((b - a) ** 2)) for a, b in zip(old, new, strict=True))
        return (self.indexed_size * squares) ** 0.5

    def _move_indexed(self, looks: list[Seen], s: Tuned) -> None:
        if self.indexed:
            penalty = self.indexed_penalty[1]
            waits = [y.shape[1] / self.rows for y in self.indexed]  # calls between two visits to an example
            lengths = [min(1.0, float(s.scale) * wait) * penalty for wait in waits]
            self.move_indexed([look.indexed for look in looks], penalty, lambda i, residual, _: lengths[i] * residual)
            self.indexed_penalty = (self.indexed_penalty[1], float(s.curvature.largest) / self.indexed_size)

    # --- the start, and now and then

    def _collect(self, closure: Closure, batch: Any) -> Tensor:
        """Until there are enough rows to start from."""
        cut = self.passes.cut(batch)
        self._check_population(cut.total)
        if self.calls == 0:
            self.rows, self.start = cut.total, -(-START_ROWS // cut.total)
            self.window = 1 << (max(REFRESH_ROWS // cut.total, 1).bit_length() - 1)
        self.recent = [*self.recent[: self.calls], batch]
        if self.calls + 1 == self.start:
            first = self.passes.cut(self.recent[0])
            started = None
            with self.passes.or_not_at_all() as buffers, suppress(np.linalg.LinAlgError):
                started = self.passes.insist(lambda: self._started(closure, first))
            if started is None or not (started[0].is_finite() and bool(sum_of_squares(self.estimate).isfinite())):
                self.recent, self.calls = [], 0
                self.passes.restore(buffers)
                raise ValueError(
                    "the loss, a constraint or a gradient is not finite on the first batches: there is nothing to "
                    "start from. Check the data and the model's initial parameters."
                )
            self.known, looks = started
            loss = self._loss(looks)
            self._move_indexed(looks, self.known)
            self.next_refresh = int(next_refresh(np, 0, self.start, self.window))
            self.recent = self.recent[len(self.recent) - max(self.window - self.next_refresh, 0) :]
            self._move(None, None, 1.0)
        else:
            with self.passes.undisturbed():
                loss = self._loss([self.passes.call(closure, piece, graph=False) for piece in cut.pieces])
        self.calls += 1
        return loss

    def _lay_out(self) -> None:
        """Once the rows are known."""
        self.near = self.rules.lay_out(self.constraints.inequality, self.constraints.random)
        self.weigh = self.near.values
        if _kernels.own_kernels(self.constraints.device) is not None:
            self.weigh = torch.compile(self.near.values, dynamic=False)

    def _started(self, closure: Closure, cut: Cut) -> tuple[Tuned, list[Seen]]:
        """From all batches collected; gradients and values from the first, of which it also returns what was seen."""
        passes = self.passes
        rows = passes.rows(closure, cut.pieces).double().cpu().numpy()
        self._lay_out()
        self.metric, seen = (self.space.split(torch.ones(self.space.size)) if self.adaptive_metric else None), None
        fixed = self.adaptive_metric or self.rules.step_size is not None
        if self.units is not None and not fixed and not passes.single_use:
            with suppress(RuntimeError):  # an operation can be differentiated only once
                scales, seen = self._survey(closure).scales(self.units)
                self.metric = self.space.split(torch.as_tensor(scales))
        self.indexed_size = self._indexed_size(closure)
        bend = self._survey(closure).bend() if seen is None else seen.largest
        largest = np.float64(max(bend, 1e-3 * self._survey(closure).steepness()))

        # noise of values and gradients over all batches
        objective = self._survey(closure).objective()
        force = np.float64(sum_of_squares([objective.mean]))
        all_rows = [passes.rows(closure, passes.whole(batch)).double().cpu().numpy() for batch in self.recent]
        each_row = np.concatenate(all_rows)
        value_noise = each_row.shape[0] / cut.total * variance_of_mean(np, each_row)
        load = Load.at_start(
            self.rules.inequality, largest, force, objective.variance / cut.total, value_noise, cut.total
        )
        shape = self._survey(closure).shape(load, None, 0)

        constraints = np.mean(rows, axis=0)
        given = self.rules.signed(self.constraints.rows_named(self.given))
        each = self.rules.signed(given + largest * rows_times(shape.penalty, self.rules.others(rows)))
        own = self._cotangent(each[passes.own(cut.total)], cut)
        self.indexed_penalty = (largest / self.indexed_size,) * 2
        sets: list[Choice] = [lambda i, look: (own[cut.pieces[i].rows], self._indexed(look, 1))]
        (first,), looks = self.passes.backward(closure, cut, sets, None)
        self.estimate = first.mean
        noise = np.float64(self._spread(first.each, cut.shares))
        return Tuned(
            constraints,
            given,
            np.mean(each, axis=0),
            Filter.fresh(noise),
            Filter.fresh(value_noise),
            Curvature(largest, largest**2, largest, largest**2, objective=largest, noise=0.0, jumps=0.0, path=0.0),
            np.float64(0.1),
            force,
            shape,
            np.zeros(0) if seen is None else seen.diagonal,
        ), looks

    def _soundly_refreshed(self, closure: Closure, s: Tuned) -> Tuned:
        """A sample that the method refused, among those that are looked back on, would spoil it."""
        kept, new = (self.metric, self.indexed_size), None

        def attempt() -> Tuned:
            self.metric, self.indexed_size = kept
            return self._refreshed(closure, s)

        def is_sound() -> bool:
            if new is None or not (new.is_finite() and np.isfinite(self.indexed_size)):
                return False
            return self.metric is None or bool(self._square(self.estimate).isfinite())

        try:
            with suppress(np.linalg.LinAlgError):
                new = self.passes.insist(attempt)
        finally:
            if not (sound := is_sound()):
                self.metric, self.indexed_size = kept
        return new if sound and new is not None else s

    def _refreshed(self, closure: Closure, s: Tuned) -> Tuned:
        """The shape of the penalty, the size of the objective's gradient and the metric, anew."""
        if self.metric is not None:
            s = self._remeasured(closure, s, self.metric)
        survey = self._survey(closure)
        slope = survey.objective(by_row=False).mean
        load = Load(
            self.rules.inequality,
            s.multipliers,
            -s.constraints / (np.sqrt(s.of_constraints.error) + self.rules.tiny),
            s.curvature.largest,
            s.force,
            s.of_gradient.error,
            s.of_gradient.noise,
            s.of_constraints.noise,
            self.rows,
        )
        if self.indexed:
            self.indexed_size = self._indexed_size(closure)
        force = np.maximum(0.8 * s.force, float(sum_of_squares([slope])))
        return s._replace(shape=survey.shape(load, s.shape, self.calls), force=force)

    def _remeasured(self, closure: Closure, s: Tuned, before: Vector) -> Tuned:
        """As in the core: in units that fit the curvature as it is now, or in Adam's. What is kept in those coordinates
        is carried over; the estimate is kept in those of x."""
        scales = torch.cat([part.reshape(-1) for part in before]).double().cpu().numpy()
        if self.units is None or not s.bends.size:
            seen = Curved.flat(self._slopes(closure, s) * scales**2)
            rms = np.sqrt(seen.slopes) / scales
            change = np.sqrt(metric_for(np, rms, np.mean(rms), self.rules.tiny) / scales)  # halfway: looks are noisy
        else:
            seen = self._survey(closure).curvature(s.weights, self.units, scales)
            bends = next_diagonal(np, s.bends, seen.diagonal)
            change = rescaled_entries(np, bends)
            s = s._replace(bends=bends * change**2)
        self.metric = self.space.split(torch.as_tensor(scales * change))
        return s.in_metric(change, seen, self.rules.tiny)

    def _slopes(self, closure: Closure, s: Tuned) -> np.ndarray:
        """Mean squares of the gradients of half batches."""
        squares, count = self.space.zeros(), 0
        with self.passes.undisturbed():
            for cut in map(self.passes.cut, self.recent):
                weights = self._cotangent(s.weights, cut)
                for group in self.passes.backward(closure, cut, [self._alike(weights, 1)], None)[0][0].each:
                    torch._foreach_addcmul_(squares, group, group)
                    count += 1
        return torch.cat([total.reshape(-1) for total in squares]).double().cpu().numpy() / count

    def _survey(self, closure: Closure) -> Survey:
        metric = None if self.metric is None else torch.cat([part.reshape(-1) for part in self.metric])
        return Survey(self.passes, closure, self.recent, metric)

    def _indexed_size(self, closure: Closure) -> float:
        """The mean of ||J_i||^2 over examples, from one backward pass with random signs."""
        return self._survey(closure).indexed_size(self.calls) if self.indexed else 1.0

    # --- what it knows

    def _named_multipliers(self) -> dict[str, Tensor]:
        return {} if self.tuned is None else self.constraints.by_name(self._sent(self.tuned.weights))

    def observe(self) -> dict[str, float]:
        """Numbers worth plotting. They never feed back."""
        if self.tuned is None:
            return {}
        s = self.tuned
        return {
            "step_size": self.moved.eta * self.lr,
            "penalty": self.moved.rho,
            "gain": float(self.rules.gain(s.of_gradient, float(self.calls - self.start))),
            "curvature": float(s.curvature.largest),
            "scale": float(s.scale),
            "gradient_error": float(np.sqrt(s.of_gradient.error)),
            "constraint_error": float(np.sqrt(np.sum(s.of_constraints.error))),
            "backed_off": s.backed_off,
            "jumps": float(s.jumps),
        }

    @property
    def values(self) -> dict[str, Tensor]:
        """The tracked estimates of the constraints' means, by name, in their own units."""
        return {} if self.tuned is None else self.constraints.values_by_name(self._sent(self.tuned.constraints))

    def _export(self) -> dict[str, Any]:
        s = self.tuned
        return {
            "estimate": [part.clone() for part in self.estimate],
            "metric": self.metric,
            "adaptive_metric": self.adaptive_metric,
            "tuned": s and s.leaves(),
            "recent": [plain(batch) for batch in self.recent],
            "devices": [devices_of(batch) for batch in self.recent],
            "rhythm": [self.rows, self.start, self.window, self.next_refresh],
            "moved": list(self.moved),
            "indexed_penalty": [float(number) for number in (*self.indexed_penalty, self.indexed_size)],
        }

    def _check_state(self, saved: dict[str, Any]) -> None:
        super()._check_state(saved)
        if saved["tuned"] and saved["adaptive_metric"] != self.adaptive_metric:
            raise ValueError("the state was saved with another adaptive_metric: make the optimizer with the same.")

    def _import(self, saved: dict[str, Any]) -> None:
        self.estimate = [self._here(part) for part in saved["estimate"]]
        self.metric = saved["metric"] and [self._here(part) for part in saved["metric"]]
        self.recent = [on_devices(*each) for each in zip(saved["recent"], saved["devices"], strict=True)]
        self.rows, self.start, self.window, self.next_refresh = saved["rhythm"]
        self.moved = Moved(*saved["moved"])
        *penalties, self.indexed_size = saved["indexed_penalty"]
        self.indexed_penalty = tuple(penalties)
        self.known, self.under_way = saved["tuned"] and Tuned.of(saved["tuned"]), None
        if self.known is not None:
            self._lay_out()

    def __getstate__(self) -> dict[str, Any]:
        self.known = self.tuned  # nothing is under way any more
        return super().__getstate__() | {"weigh": None}  # which may be compiled

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.weigh = self.rules.values
        if self.known is not None:
            self._lay_out()
