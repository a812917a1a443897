"""The self-tuned method as an optimizer.

Vectors like the parameters stay on their device; everything else is a few numbers, kept on the host in double precision
and turned over by the rule that the core uses.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.methods import check_known
from lariax.torch import _kernels, _sums
from lariax.torch._calendar import Calendar
from lariax.torch._constraints import AbstractConstraint, ClosureValues
from lariax.torch._kernels import sum_of_squares
from lariax.torch._kinks import Average, has_kinks
from lariax.torch._optimizer import AbstractConstrained
from lariax.torch._passes import Choice, Closure, Cut, Kept
from lariax.torch._proximal import units_of
from lariax.torch._rows import Numbers, RowRule
from lariax.torch._space import Vector, minus
from lariax.torch._state import Evaluation, Move, Pending, is_finite, leaves_of, numbers_of, state_of
from lariax.torch._survey import Survey
from lariax.torch._swings import SwingWatch
from lariax.torch._transfer import Transfer
from lariax.tuned import host
from lariax.tuned.averaging import is_kinked
from lariax.tuned.filter import gain_at
from lariax.tuned.rates import interval_at
from lariax.tuned.rule import Rule, RuleState
from lariax.tuned.shape import face_step
from lariax.utils import warn


class TrackedLagrangian(AbstractConstrained):
    """A single loop without settings: the method of `lariax.TrackedLagrangian`, which states the formulas.

    Now and then a batch is seen in two halves, so that the noise of its gradients shows: two rows are the least.
    The first calls only collect rows until there are 16; the parameters move from then on. A loss of one value a row
    lets the start see its noise more precisely than a mean does.

    Where gradients of single rows jump (clamp, abs, max; not rectifiers inside of a network), and a look row by row is
    cheap, iterates are averaged: between calls the parameters are the average, and what is changed in them from outside
    is lost in the next call.

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
        self.choices = {"step_size": step_size, "penalty": penalty, "gain_exponent": gain_exponent}
        for name, value in self.choices.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, found {value}.")
        self.one_backward = one_backward
        check_known(multipliers, list(self.constraints.named))
        self.given = dict(multipliers or {})
        self.units = None if adaptive_metric or step_size is not None else units_of(self.param_groups)
        self.estimate: Vector = []
        self.metric: Vector | None = None  # squares of it multiply steps
        self.known: RuleState | None = None  # where a step is pending, before it
        self.pending: Pending | None = None
        self.calendar = Calendar()
        self.moved = Move(0.0, 0.0, 0.0)
        self.has_warned = False
        self.watch = SwingWatch()
        self.rules: RowRule | None = None  # once the rows are known
        self.average = Average()

    # --- a call

    @torch.no_grad()
    @np.errstate(all="ignore")  # a step that is not finite is taken back
    def _step(self, closure: Closure, batch: Any) -> Tensor:
        self.average.hide(self.space)
        try:
            return self._collect(closure, batch) if self.known is None else self._iterate(closure, batch)
        finally:  # where iterates are averaged, the parameters are the answer between calls
            if self.average.point:
                self.average.show(self.space, self._answer())

    def _iterate(self, closure: Closure, batch: Any) -> Tensor:
        k = self.calls + 1 - self.calendar.start
        is_refresh, measuring = k == self.calendar.next_refresh, k % interval_at(host, k) == 0
        with self.passes.or_not_at_all() as buffers:
            cut = self.passes.halves(batch) if measuring else self.passes.cut(batch, 1)
            self._check_population(cut.total)
            if measuring:
                seen = self.passes.insist(lambda: self._evaluate(closure, cut, k, measuring=True))
            else:
                seen = self._evaluate(closure, cut, k, measuring=False)
        loss = self.passes.mean_loss(seen.present)
        self.calls += 1
        self.calendar.keep(k, batch)
        if is_refresh or self.space.flat or self.indexed or any(self.proximals) or self._averages_now(seen.old):
            self._finish(closure, seen, is_refresh, buffers)
        else:
            self._launch(seen, buffers)
        self.watch.look(k, self.average.seen(seen.old), self.constraints.layout)
        return loss

    def _evaluate(self, closure: Closure, cut: Cut, k: int, measuring: bool) -> Evaluation:
        """A batch at both points, and the state that follows from it. On a GPU numbers travel, and the host turns them
        over, while passes are under way; none waits for it."""
        hold, both = not cut.streamed, measuring or not self.one_backward
        random = self.passes.random_state()
        with self.passes.at(self.previous):
            looks = [self.passes.call(closure, piece, graph=both) for piece in cut.pieces] if hold or not both else []
            old, rules = self.current(), self.rules  # known, and sent, while the device is at work
            assert old is not None
            assert rules is not None
            s = rules.on_host.in_force(old)
            gains = rules.on_host.gains(s, k)
            row = rules.state_for(old, s, gains, self.moved.rho)
            weights, then = rules.cotangent(row.weights, cut.total), None
            if both:
                (then,), looks = self.passes.backward(closure, cut, [self.indexed.choice(weights, 0)], looks or None)
        self.passes.set_random_state(random)
        hold = hold and not (measuring and self.passes.single_use)
        graphs = [self.passes.call(closure, piece) for piece in cut.pieces] if hold else None
        seen_rows = self.passes.residuals(graphs) if graphs else self.passes.rows(closure, cut.pieces)
        c0, c1 = rules.as_rows(self.passes.residuals(looks)), rules.as_rows(seen_rows)
        weighed = rules.weigh(row, c0, c1)
        rows = Transfer(*weighed[:-1])
        early = None if then is None or self.one_backward else self._sizes(then.mean)

        own = rules.cotangent(weighed.each_weights[self.passes.own(cut.total)], cut.total)
        sets = [self.indexed.choice(own, 1, cut.pieces)]
        if measuring:
            follow, moved = (rules.cotangent(w, cut.total) for w in rules.at_rows.expected_weights(row, c0, c1))
            fixed: Choice = lambda i, look: (weights, self.indexed.weights(looks[i].indexed, 0))  # noqa: E731
            sets += [fixed, self.indexed.choice(follow, 1), self.indexed.choice(moved, 1)]
        found, present = self.passes.backward(closure, cut, sets, graphs, (1, 2, 3) if self.one_backward else (0, 1, 2))
        now = found[0]
        square, halves = self._square(now.mean), None
        early = self._sizes(now.mean) if early is None else early
        if measuring and then is not None:
            at, dx = self.space.pack(self.previous), self._dx()
            halves = Transfer(*_sums.measurement(at, dx, then, found, cut.shares, self.metric, self.one_backward))
        stale = now.mean if then is None or self.one_backward else then.mean
        own_rows = (self.indexed.signal(present), self.indexed.swing(looks, present)) if self.indexed else (0.0, 0.0)
        turned = rules.turned(s, k, gains, self.moved, Numbers(rows, early, halves, *own_rows))
        limit = float(turned.limit**2) if turned.limit >= 0 else -1.0
        return Evaluation(old, turned, now.mean, stale, present, square, limit, measuring)

    @property
    def rule(self) -> Rule:
        assert self.rules is not None
        return self.rules.on_host

    def _make_rules(self, averages: bool) -> RowRule:
        choices = {**self.choices, "one_backward": self.one_backward, "is_stiffened": bool(self.indexed)}
        choices["averages"] = averages
        self.rules = RowRule(self.constraints, self.space.dtype, self.population, **choices)
        return self.rules

    def current(self) -> RuleState | None:
        """The numbers of the method; where a step is pending, after it."""
        if self.pending is not None:
            sums, seen, moves = self.pending
            good, innovation, change, square = sums.numbers()
            self.known = self._learned(seen, innovation, change) if good else self._refused(seen)
            moved = moves[0 if good else 1]
            self.moved, self.pending = moved._replace(square=square if moved.reach else None), None
        return self.known

    def _finish(self, closure: Closure, seen: Evaluation, is_refresh: bool, buffers: list[Kept]) -> None:
        """The refresh and the move that follow; or the step back, and a shorter one from there."""
        fresh: Vector | None = seen.fresh
        stale: Vector | None = seen.stale
        momentum = seen.turned.gain
        if seen.square.item() <= seen.limit:
            innovation = self._square(minus(seen.stale, self.estimate)).item()
            change = self._square(minus(seen.fresh, seen.stale)).item()
            self.known = self._learned(seen, innovation, change)
            self.indexed.follow(seen.present, self.calendar.rows, seen.old)
        else:
            fresh, stale, momentum, self.known = None, None, 1.0, self._refused(seen)
            torch._foreach_copy_(self.space.params, self.previous)
            self.passes.restore(buffers)
            self.exact = {}
        if is_refresh and fresh is not None and stale is not None:
            _kernels.follow(self.estimate, fresh, stale, momentum)
            fresh = stale = None
        try:
            if is_refresh:
                self._refresh(closure, self.known)
        finally:  # whatever happens in the closure, estimate and parameters go together
            if is_refresh:
                self.calendar.turn(self.calls)
            self._move(fresh, stale, momentum)

    def _learned(self, seen: Evaluation, innovation: float, change: float) -> RuleState:
        """After a good step; with the current point in the average, where there is one."""
        s = self.rule.learn(seen.old, seen.turned, innovation, change)
        if not self.rule.averages:
            return s
        slope, spread = seen.fresh if any(self.proximals) else None, self.metric if seen.measured else False
        return self.average.learned(self.rule, s, self.space.point(), slope, spread)

    def _averages_now(self, s: RuleState) -> bool:
        return self.rule.averages and bool(is_kinked(s.averaging))

    def _answer(self) -> list[Tensor]:
        """The average; with sets or regularisers after one step along the average gradient, as iterates come and go and
        their mean is inside of a set whose faces hold the solution."""
        assert self.known is not None
        answer = [
            part.to(p.dtype) for part, p in zip(self.space.views(self.average.point), self.space.params, strict=True)
        ]
        if self.average.slope:
            answer = [part.clone() for part in answer]
            rho = self.rule.lengths(self.rule.in_force(self.known)).rho
            length = float(1 / (self.known.curvature.largest + rho + self.rule.tiny))
            self._shift(answer, self.average.slope, self._steps(length), self._scaling())
            self._apply_sets(answer, length, self._scaling())
        return answer

    def _launch(self, seen: Evaluation, buffers: list[Kept]) -> None:
        """The update, under way on the device before the host knows whether the step was good."""
        good = seen.square <= seen.limit
        self.passes.restore(buffers, unless=good)
        moves = [self._next_move(state) for state in (seen.turned.state, self.rule.back_off(seen.old))]
        numbers = [seen.turned.gain, *(step for moved in moves for step in self._steps(moved.eta))]
        sums = self._fused(seen.fresh, seen.stale, self.estimate, self._scaling(), good, numbers, summed=True)
        self._apply_sets(self._targets(), 0.0, None)
        self.pending = Pending(Transfer(good, *sums), seen.numbers(), moves)

    def _refused(self, seen: Evaluation) -> RuleState:
        """After a step that is taken back."""
        if not self.has_warned and (seen.limit < 0 or not np.isfinite(seen.square.item())):
            self.has_warned = True
            warn(
                f"in call {self.calls} or the one before it the loss, a constraint or a gradient was not finite: the "
                "step to there is taken back, and the next ones are shorter. observe()['backed_off'] counts them.",
                RuntimeWarning,
            )
        return self.rule.back_off(seen.old)

    # --- sums over vectors

    def _sizes(self, gradient: Vector) -> Transfer:
        """||gradient||^2; and ||dx||^2 or ||dx / reach||^2, if it was not summed in passing."""
        sizes = [self._square(gradient)]
        if self.moved.square is None:
            sizes.append(self._square(self.estimate) if self.moved.reach else _sums.length(self._dx(), self.metric))
        return Transfer(*sizes)

    def _dx(self) -> Vector:
        return minus(self.space.point(), self.space.pack(self.previous))

    def _square(self, gradient: Vector) -> Tensor:
        return _sums.square(gradient, self.metric)

    # --- moving

    def _move(self, fresh: Vector | None, stale: Vector | None, momentum: float) -> None:
        assert self.known is not None
        self.moved = self._next_move(self.known)
        self.advance(self.estimate, fresh, stale, momentum, self.moved.eta, self._scaling())

    def _next_move(self, s: RuleState) -> Move:
        eta, rho = map(float, self.rule.lengths(self.rule.in_force(s)))
        rates = {group["lr"] for group in self.param_groups}
        free = len(rates) == 1 and not self.low and not any(self.proximals)
        return Move(eta, rho, eta * rates.pop() if free else 0.0)

    def _scaling(self) -> Vector | None:
        return None if self.metric is None else [m**2 for m in self.metric]

    # --- the start, and now and then

    def _collect(self, closure: Closure, batch: Any) -> Tensor:
        """Until there are enough rows to start from."""
        cut = self.passes.cut(batch)
        self._check_population(cut.total)
        self.calendar.collect(self.calls, batch, cut.total)
        if self.calls + 1 == self.calendar.start:
            first, started = self.passes.halves(self.calendar.recent[0]), None
            with self.passes.or_not_at_all() as buffers, suppress(np.linalg.LinAlgError):
                started = self.passes.insist(lambda: self._started(closure, first))
            if started is None or not (is_finite(started[0]) and bool(sum_of_squares(self.estimate).isfinite())):
                self.calendar.recent, self.calls = [], 0
                self.passes.restore(buffers)
                raise ValueError(
                    "the loss, a constraint or a gradient is not finite on the first batches: there is nothing to "
                    "start from. Check the data and the model's initial parameters."
                )
            self.known, looks = started
            loss = self.passes.mean_loss(looks)
            self.indexed.follow(looks, self.calendar.rows, self.known)
            self.calendar.begin()
            self._move(None, None, 1.0)
        else:
            with self.passes.undisturbed():
                loss = self.passes.mean_loss([self.passes.call(closure, piece, graph=False) for piece in cut.pieces])
        self.calls += 1
        return loss

    def _started(self, closure: Closure, cut: Cut) -> tuple[RuleState, list[ClosureValues]]:
        """From all batches collected; gradients and values from the first, of which it also returns what was seen."""
        rows = self.passes.rows(closure, cut.pieces).double().cpu().numpy()
        plain = not (self.one_backward or self.indexed or self.choices["step_size"] or self.choices["gain_exponent"])
        plain = plain and not (self.model and any(True for _ in self.model.buffers()))  # which no average goes with
        rules = self._make_rules(averages=plain and has_kinks(self.passes, closure, cut.pieces[0]))
        self.metric = self.space.split(torch.ones(self.space.size)) if self.adaptive_metric else None
        given = self.rule.signed(self.constraints.rows_named(self.given))
        first, survey = self._survey(closure, 0).first_look(self.rule, rows, given, self.units)
        self.metric = survey.metric_as_vector()
        self.indexed.size = survey.indexed_size(self.calls)
        self.indexed.penalty = (first.curvature / self.indexed.size,) * 2
        each = self.rule.first_weights(first)
        own = rules.cotangent(each[self.passes.own(cut.total)], cut.total)
        (gradient,), looks = self.passes.backward(closure, cut, [self.indexed.choice(own, 1, cut.pieces)], None)
        self.estimate = gradient.mean
        noise = np.float64(_sums.noise(gradient.each, cut.shares, self.metric))
        return self.rule.start(first, each, noise), looks

    def _refresh(self, closure: Closure, s: RuleState) -> None:
        """Nothing changes if numbers are not finite: a sample that the method refused may be among the last."""

        def attempt() -> tuple[RuleState, Vector | None, float]:
            survey = self._survey(closure, self.calls)
            eta = self.rule.lengths(self.rule.in_force(s)).eta
            short = face_step(np, eta, float(self._square(self.estimate)), survey.looks.square_of_x())
            held = self.held(self.estimate, eta, self._scaling())
            ahead = partial(self.average.ahead, self.space, self.estimate, self.rule)
            survey.face = self.face(self.estimate, float(short), self._scaling())
            new, survey = survey.refreshed(self.rule, s, self.calendar.rows, self.units, self.indexed, held, ahead)
            return new, survey.metric_as_vector(), survey.indexed_size(self.calls)

        with suppress(np.linalg.LinAlgError):
            before, (new, self.metric, size) = self.metric, self.passes.insist(attempt)
            finite = self.metric is None or bool(self._square(self.estimate).isfinite())
            if finite and is_finite(new) and np.isfinite(size):
                self.known = s = new
                self.indexed.size = size
            else:
                self.metric = before

    def _survey(self, closure: Closure, seed: int) -> Survey:
        scales = None
        if self.metric is not None:
            scales = torch.cat([part.reshape(-1) for part in self.metric]).double().cpu().numpy()
        return Survey(self.passes, closure, self.calendar.recent, scales, seed)

    # --- what it knows

    def _named_multipliers(self) -> dict[str, Tensor]:
        s = self.current()
        if s is None or self.rules is None:
            return {}
        return self.constraints.by_name(self.rules.sent(self.average.seen(s).weights))

    def observe(self) -> dict[str, float]:
        """Numbers worth plotting. They never feed back."""
        s = self.current()
        if s is None:
            return {}
        gain = gain_at(s.gradient_filter, float(self.calls - self.calendar.start), self.choices["gain_exponent"])
        return {"step_size": self.moved.eta * self.lr, "penalty": self.moved.rho, "gain": float(gain), **numbers_of(s)}

    @property
    def values(self) -> dict[str, Tensor]:
        """The tracked estimates of the constraints' means, by name, in their own units."""
        s = self.current()
        if s is None or self.rules is None:
            return {}
        return self.constraints.values_by_name(self.rules.sent(self.average.seen(s).constraints))

    def _vectors(self) -> dict[str, Vector | None]:
        return {"estimate": self.estimate, "metric": self.metric, **self.average.vectors()}

    def _export(self) -> dict[str, Any]:
        s = self.current()
        return {
            "adaptive_metric": self.adaptive_metric,
            "rule": s and leaves_of(s),
            **self.calendar.export(),
            "moved": [None if number is None else float(number) for number in self.moved],
        }

    def _check_state(self, saved: dict[str, Any]) -> None:
        super()._check_state(saved)
        if saved["rule"] and saved["adaptive_metric"] != self.adaptive_metric:
            raise ValueError("the state was saved with another adaptive_metric: make the optimizer with the same.")

    def _import(self, saved: dict[str, Any], vectors: dict[str, Vector]) -> None:
        self.estimate, self.metric = vectors.get("estimate", []), vectors.get("metric")
        self.average = Average.loaded(vectors)
        self.calendar = Calendar.loaded(saved)
        self.moved = Move(*saved["moved"])
        self.known, self.pending = saved["rule"] and state_of(saved["rule"]), None
        if self.known is not None:
            self._make_rules(bool(self.known.averaging))

    def __getstate__(self) -> dict[str, Any]:
        self.known = self.current()  # nothing is pending any more
        return super().__getstate__() | {"rules": None}  # which may be compiled

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.known is not None:
            self._make_rules(bool(self.known.averaging))
