"""The default method: constraint values and Lagrangian gradient tracked by STORM, with momenta that tune themselves."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from lariax.compilation import on_host
from lariax.formulas import least_weights, storm
from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs, check_known, check_positive
from lariax.methods._survey import (
    Face,
    SampledJacobian,
    differences_at,
    face_at,
    gradient_moments,
    held_at,
    hessian_at,
    jumps_at,
    mean_over,
    scales_at,
    slopes_at,
    square,
    squares,
    units_of,
)
from lariax.oracle import Batch, Look, Oracle, Parts, Vector, either, for_each
from lariax.risk import is_numbered
from lariax.tuned.averaging import averaged, farther, reach, with_look, with_spread
from lariax.tuned.averaging import is_kinked as averages_now
from lariax.tuned.constants import (
    AT_LIMIT,
    FIRST_JUMP,
    JUMP_STEPS,
    JUMPY_SAMPLES,
    KINK_GAIN,
    KINK_JUMPS,
    LEAST_THETA,
    MULTIPLIER_LIMIT,
    REFRESH_SAMPLES,
    START_SAMPLES,
    VIOLATED_ERRORS,
    VIOLATED_LENGTH,
)
from lariax.tuned.curvature import Measurement, first_curvature, is_kinked, noisy_slope, probe_direction, probe_length
from lariax.tuned.filter import gain_at, running_mean, variance_of_mean
from lariax.tuned.rates import interval_at
from lariax.tuned.rule import FirstLook, Rule, RuleState, Step, row_state
from lariax.tuned.shape import ShapeInputs, diagonal, face_step, jacobian_norm, shape_at, violation
from lariax.tuned.units import HessianEstimate


class TrackedState(NamedTuple):
    x: Vector
    gradient: Vector  # g, an estimate of grad f + J^T w at x
    metric: Vector | None  # x = metric * (the coordinates in which the method moves); None: 1
    average: Vector | None  # of the iterates since kinks were seen: the answer, where there are any; None: never
    slope: Vector | None  # the same of g, where x is in a set or has a regulariser; None: never
    rule: RuleState  # all else


class TrackedLagrangian(AbstractMethod):
    """A single loop without settings: primal steps on an augmented Lagrangian that is tracked, not sampled.

    With a batch of B samples i, c0_i = c(x, zeta_i), c1_i = c(x+, zeta_i), and u_-i the mean of u_j over j != i:

        x+   = P_X(x - eta g)
        u_i  = u + (c1_i - c0_i) + alpha_u (c0_i - u)                       u+ = mean of u_i
        y+   = [y + theta rho M u+]                                         [.] = max(0, .) for inequalities
        w_i  = [y + rho (M + theta M) u_-i]                                 w+ = mean of w_i
        g+   = mean of grad f(x+, xi_i) + J_i(x+)^T w_i  +  (1 - alpha_g) (g - mean of grad f(x, xi_i) + J_i(x)^T w)

    The weight of a sample's constraint gradient comes from the *other* samples' constraint values, so nothing is
    biased: with alpha_u = 1 this is the product from all ordered pairs, with alpha_u near 0 weights that are tracked.
    The momenta are Kalman gains, alpha = (P + Q) / (P + Q + R), with noise R and drift Q measured on the batch; as x
    settles they fall like 1/k, and the method averages to the accuracy that the samples allow. M, about (J J^T)^-1,
    makes scale and correlation of the constraints irrelevant; rho follows the curvature L; the step is as long as
    L + rho and the secants of recent steps permit, and shrinks (theta) when its own noise would show.

    Inequalities have their slacks eliminated. Sets and regularisers enter through the proximal step. All of this goes
    beyond the paper whose methods are the special cases of fixed momenta; there is no convergence proof.

    Where gradients of single samples jump (max, abs, a hinge, a quantile), differences of them tell nothing: from when
    that is seen, g is the gradient of the batch, steps are as long as it takes to forget the start, and the answer is
    the average of the iterates. With one of the first four options iterates are not averaged.

    Arguments:
        step_size: a fixed eta, instead of the controller's.
        penalty: a fixed rho, in units of the curvature of the objective, instead of the rule's.
        gain_exponent: p for scheduled momenta (k + 1)^-p, instead of the measured ones.
        one_backward: for large models, one backward pass an iteration: constraint values are tracked, gradients are
            averaged as they come, with a gain that counts every move of x as drift. Cheaper, and less accurate.
        adaptive_metric: divide steps by the root mean square of each entry of the gradient, as Adam does; entries below
            a tenth of the mean are treated alike. For sets and regularisers that act on every entry alone.
        multipliers: by name, what to start from, such as those of a run with another optimizer; 0 where left out.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
    ...     samples=lx.Distribution(jax.random.normal),
    ...     constraints={"line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
    ... )
    >>> result = lx.solve(problem, jnp.zeros(2), method=lx.TrackedLagrangian(), iterations=20_000, batch_size=8)
    >>> [round(float(value), 1) for value in result.x]
    [-0.5, 1.5]
    """

    step_size: float | Array | None = None
    penalty: float | Array | None = None
    gain_exponent: float | Array | None = None
    one_backward: bool = eqx.field(static=True, default=False)
    adaptive_metric: bool = eqx.field(static=True, default=False)
    multipliers: Mapping[str, Any] | None = None
    may_jump: bool = eqx.field(static=True, default=False, kw_only=True, repr=False)  # `prepare` looks
    has_events: bool = eqx.field(static=True, default=False, kw_only=True, repr=False)  # values jump too

    needs: ClassVar[Needs] = Needs(
        smallest_batch=2,
        start_samples=START_SAMPLES,
        refresh_samples=REFRESH_SAMPLES,
        measuring_interval=partial(interval_at, jnp),
    )

    def __check_init__(self) -> None:
        for name in ("step_size", "penalty", "gain_exponent"):
            check_positive(name, getattr(self, name))

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "TrackedLagrangian":
        simple = oracle.problem.simple
        if self.adaptive_metric and not simple.separable:
            raise ValueError(
                f"adaptive_metric=True scales every entry of x on its own, which {type(simple).__name__} does not "
                "allow: it ties entries together. Use a Box, NonNegative, L1 or nothing, or leave the metric out."
            )
        check_known(self.multipliers, [block.name for block in oracle.blocks])
        events = any(map(is_numbered, oracle.problem.sources))
        return replace(self, may_jump=oracle.may_jump or events, has_events=events)

    # --- an iteration

    def step(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch) -> TrackedState:
        return self._step(oracle, state, k, batch, measuring=False)

    def measuring_step(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch) -> TrackedState:
        """With a look at the halves of the batch, for noise, drift and curvature: a whole batch has fewer, larger
        passes."""
        return self._step(oracle, state, k, batch, measuring=True)

    def rule(self, oracle: Oracle) -> Rule:
        """The rule for this problem."""
        info = jnp.finfo(oracle.dtype)
        return Rule(
            xp=jnp,
            eps=float(info.eps),
            tiny=float(info.tiny),
            inequality=oracle.inequality,
            least_weights=least_weights(jnp, oracle.inequality),
            has_inequalities=oracle.has_inequalities,
            partners=oracle.partners,
            step_size=None if self.step_size is None else jnp.asarray(self.step_size),
            penalty=self.penalty,
            gain_exponent=self.gain_exponent,
            one_backward=self.one_backward,
            averages=self.may_jump and not self.one_backward and self.step_size is None and self.gain_exponent is None,
        )

    def _step(
        self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch, measuring: bool
    ) -> TrackedState:
        oracle, rule, parts = _in_metric(oracle, state), self.rule(oracle), 2 if measuring else 1
        s = rule.in_force(state.rule)
        (eta, rho), gains = rule.lengths(s), rule.gains(s, k)
        x = oracle.prox(state.x - eta * state.gradient, eta)

        # both points on the same samples: constraint values, weights, gradients of the Lagrangian
        now = oracle.look_at_parts(x, batch, parts)
        then = oracle.look_at_parts(state.x, batch, parts) if measuring or not self.one_backward else None
        c0 = oracle.residual_rows(state.x, batch) if then is None else oracle.rows_of(then)
        c1, row = oracle.rows_of(now), row_state(s, gains.constraints, rho)
        rows = rule.weigh(row, c0, c1)
        h1 = oracle.gradient_of(now, rows.each_weights)
        h0 = None if then is None else oracle.gradient_of(then, s.weights)
        seen = None
        if measuring and h0 is not None:
            expected = rule.expected_weights(row, c0, c1)
            seen = self._measured(oracle, (state.x, x - state.x), (h0, h1), now, (s.weights, *expected))
        if self.one_backward or h0 is None:
            fresh = stale = h1.mean
            gradient = running_mean(state.gradient, fresh, gains.gradient)
        else:
            fresh, stale = h1.mean, h0.mean
            gradient = storm(fresh, stale, state.gradient, gains.gradient)

        # filters, curvature and theta; or a step back
        size, change, innovation, next_size = squares(oracle, stale, fresh - stale, stale - state.gradient, fresh)
        aim = square(state.gradient) if oracle.is_free else square(x - state.x) / eta**2
        step = Step(size, eta**2 * aim, aim / (s.gradient_filter.error + rule.tiny))
        turned = rule.turn(s, k, gains, rows, step, seen)
        learned = rule.learn(state.rule, turned, innovation, change)
        average, slope = state.average, state.slope
        if average is not None:
            averaging, share = averaged(jnp, learned.averaging, learned.constraints, learned.weights)
            average = running_mean(average, x, share)
            slope = None if slope is None else running_mean(slope, gradient, share)
            if measuring:
                averaging = with_spread(averaging, square(x - average), rule.tiny)
            learned = learned._replace(averaging=averaging)
        new = TrackedState(x, gradient, state.metric, average, slope, learned)
        back = state._replace(rule=rule.back_off(state.rule))
        good = jnp.sqrt(next_size) <= turned.limit
        return jax.lax.cond(good, lambda: new, lambda: back) if measuring else either(oracle, good, new, back)

    def _measured(
        self,
        oracle: Oracle,
        moved: tuple[Vector, Vector],
        gradients: tuple[Parts, Parts],
        now: tuple[Look, ...],
        weights: tuple[Array, Array, Array],
    ) -> Measurement:
        """From x and dx, the gradients at both points, and D(w') = grad f(x+) + J(x+)^T w' - h0 for the old weights,
        for weights that have followed the step, and for these with the expected move of the multipliers."""
        (x, dx), (h0, h1), eps = moved, gradients, float(jnp.finfo(oracle.dtype).eps)
        (fixed, _, _), (follow, along, _), (whole, _, noise) = differences_at(oracle, now, weights, h0, dx)
        fresh = h1 if self.one_backward else h0
        return Measurement(
            noise=fresh.noise + ((eps * fresh.mean) ** 2).sum(),  # rounding is noise too
            length=square(dx),
            size=square(x),
            fixed=fixed,
            along=along,
            follow=follow,
            # one backward pass: the estimate does not follow the moves, so all of a move is drift
            drift=whole if self.one_backward else noise,
        )

    # --- the start, and now and then

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> TrackedState:
        batch, found = batches.first, None
        metric = jnp.ones_like(point) if self.adaptive_metric else None
        if not self.adaptive_metric and self.step_size is None:
            found = scales_at(oracle, point, batches)
        if found is not None:
            metric = found[0]
            oracle, point = replace(oracle, scaling=metric), point / metric
        rule, look = self.rule(oracle), oracle.look_at_parts(point, batch, 2)
        curvature = self._first_curvature(oracle, point, batch, look, found and found[1])

        # noise of values and gradients over all batches of the start
        one, samples = oracle.singles(batches)
        slopes = gradient_moments(oracle, point, batches)
        values = for_each(lambda sample: one.join(one.residuals(point, sample)), samples)
        share = slopes.samples / oracle.batch_size
        gradient_noise = share * jnp.sum(slopes.error)
        value_noise = share * variance_of_mean(jnp, values)
        max_gradient = square(slopes.mean)
        jumps, size = jnp.zeros_like(curvature), 1 + jnp.linalg.norm(point)
        if rule.averages:
            is_linear = found is not None and found[1].largest == 0
            jumps = self._first_jumps(oracle, point, batches, slopes.mean, is_linear)
            jumps = jnp.maximum(jumps, JUMPY_SAMPLES) if self.has_events else jumps
            rough = (jumps >= JUMPY_SAMPLES) | is_linear  # in pieces, perhaps, with kinks that few samples showed
            least = jnp.where(rough, noisy_slope(jnp, max_gradient, gradient_noise) / size, 0)
            curvature = jnp.maximum(curvature, least)
        inputs = ShapeInputs.at_start(
            oracle.inequality, curvature, max_gradient, gradient_noise, value_noise, oracle.batch_size, rule.averages
        )
        first = FirstLook(
            curvature=curvature,
            max_gradient=max_gradient,
            rows=oracle.rows_of(look),
            value_noise=value_noise,
            multipliers=oracle.rows_named(self.multipliers or {}),
            shape=self._shape(oracle, point, batches, inputs, None, jax.random.key(0)),
            diagonal=found and found[1].diagonal,
            jumps=jumps,
        )
        weights = rule.first_weights(first)
        gradient = oracle.gradient_of(look, weights)
        average = point if rule.averages else None
        slope = None if average is None or oracle.is_free else gradient.mean
        return TrackedState(point, gradient.mean, metric, average, slope, rule.start(first, weights, gradient.noise))

    @staticmethod
    def _first_jumps(
        oracle: Oracle, point: Vector, batches: Batch, slope: Vector, is_linear: Float[Array, ""] | bool
    ) -> Float[Array, ""]:
        """How many samples show a jump on the way down, with constraints pressing as hard as the objective does."""
        steep, size = jnp.linalg.norm(slope), 1 + jnp.linalg.norm(point)
        rows = jnp.linalg.norm(oracle.jacobian(point, batches.first), axis=1)
        weights = jnp.where(rows > 0, steep / jnp.where(rows > 0, rows, 1), 0)
        direction = probe_direction(jnp, slope, steep, float(jnp.finfo(oracle.dtype).tiny))
        length = jnp.where(is_linear, 1.0, FIRST_JUMP) * size
        return jumps_at(oracle, point, -length * direction, batches, weights)

    @staticmethod
    def _first_curvature(
        oracle: Oracle, point: Vector, batch: Batch, look: tuple[Look, ...], seen: HessianEstimate | None
    ) -> Float[Array, ""]:
        """Of the objective; where its Hessian was not looked at, from a short step."""
        info, nothing = jnp.finfo(oracle.dtype), jnp.zeros(oracle.rows, oracle.dtype)
        slope = oracle.gradient_of(look, nothing).mean
        size, steep = 1 + jnp.linalg.norm(point), jnp.linalg.norm(slope)
        if seen is not None:
            return first_curvature(jnp, seen.largest, steep, size)
        length = probe_length(jnp, size, float(info.eps))
        beyond = point - length * probe_direction(jnp, slope, steep, float(info.tiny))
        change = oracle.gradient_of(oracle.look_at_parts(beyond, batch, 1), nothing).mean - slope
        return first_curvature(jnp, jnp.linalg.norm(change) / (length + float(info.tiny)), steep, size)

    @staticmethod
    def _shape(
        oracle: Oracle,
        point: Vector,
        batches: Batch,
        inputs: ShapeInputs,
        before: Any,
        key: Key[Array, ""],
        face: Face | None = None,
    ) -> Any:
        return shape_at(jnp, SampledJacobian(oracle, point, batches, key, face), oracle.rows, inputs, before)

    def refresh(self, oracle: Oracle, state: TrackedState, batches: Batch, key: Key[Array, ""]) -> TrackedState:
        """The shape of the penalty, the size of the objective's gradient and the metric, anew."""
        rule = self.rule(oracle)
        eta = rule.lengths(rule.in_force(state.rule)).eta
        eta = face_step(jnp, eta, square(state.gradient), square(state.x))
        face = face_at(_in_metric(oracle, state), state.x - eta * state.gradient, eta)
        state = self._rescaled(oracle, rule, state, batches)
        oracle, s = _in_metric(oracle, state), state.rule
        slope = mean_over(lambda batch: oracle.objective_gradient(state.x, batch), batches)
        s = rule.with_gradient(s, square(slope), square(state.x))
        shape = self._shape(oracle, state.x, batches, rule.shape_inputs(s, oracle.batch_size), s.shape, key, face)
        s = rule.refreshed(s, shape, square(slope))
        if state.average is not None:
            ahead = state.average - state.x - rule.lengths(rule.in_force(s)).eta * state.gradient
            ahead = ahead * farther(jnp, s.averaging, jnp.linalg.norm(ahead), rule.tiny)
            jumps = jumps_at(oracle, state.x, JUMP_STEPS * ahead, batches, s.weights)
            jumps = jnp.maximum(jumps, JUMPY_SAMPLES) if self.has_events else jumps
            s = s._replace(averaging=with_look(jnp, s.averaging, jumps))
        return state._replace(rule=s)

    def _rescaled(self, oracle: Oracle, rule: Rule, state: TrackedState, batches: Batch) -> TrackedState:
        """In units that fit the curvature as it is now; with `adaptive_metric`, in Adam's."""
        if state.metric is None:
            return state
        scaled, labels, s = _in_metric(oracle, state), units_of(oracle), state.rule
        if s.diagonal is None or labels is None:
            seen = HessianEstimate.flat(slopes_at(scaled, state.x, batches, s.weights))
        else:
            seen = self._curvature(scaled, rule, state, batches, labels)
        held = None
        if labels is not None and not oracle.is_free:
            eta = rule.lengths(rule.in_force(s)).eta
            held = held_at(scaled, state.x, state.x - eta * state.gradient, eta, labels)
        s, change = rule.rescaled(s, state.metric, seen, held)
        return TrackedState(
            state.x / change,
            state.gradient * change,
            state.metric * change,
            None if state.average is None else state.average / change,
            None if state.slope is None else state.slope * change,
            s,
        )

    @staticmethod
    def _curvature(
        oracle: Oracle, rule: Rule, state: TrackedState, batches: Batch, labels: Int[np.ndarray, " d"]
    ) -> HessianEstimate:
        """Of the Lagrangian; at kinks over as much as x spreads around its average."""
        s = state.rule
        if state.average is None:
            return hessian_at(oracle, state.x, batches, s.weights, labels)
        step = rule.lengths(rule.in_force(s)).eta * state.gradient
        span = jnp.maximum(jnp.linalg.norm(state.x - state.average), reach(jnp, s.averaging)) + jnp.linalg.norm(step)
        look = lambda at: lambda: hessian_at(oracle, state.x, batches, s.weights, labels, at)  # noqa: E731
        return jax.lax.cond(averages_now(s.averaging), look(span), look(None))

    # --- what it knows

    def answer(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> Answer:
        s, averaging = state.rule, state.rule.averaging
        now = Answer(state.x, s.constraints, s.weights)
        if state.average is not None:
            means = Answer(self._on_faces(oracle, state, state.average), averaging.constraints, averaging.weights)
            now = jax.tree.map(lambda mean, last: jnp.where(averaging.count > 0, mean, last), means, now)
        return now if state.metric is None else now._replace(point=state.metric * now.point)

    def _on_faces(self, oracle: Oracle, state: TrackedState, average: Vector) -> Vector:
        """The average after one step along the average gradient: iterates come and go, and their mean is inside of a
        set whose faces hold the solution. Along a face the average gradient is next to nothing."""
        if state.slope is None:
            return average
        rule = self.rule(oracle)
        rho = rule.lengths(rule.in_force(state.rule)).rho
        length = 1 / (state.rule.curvature.largest + rho + rule.tiny)
        return _in_metric(oracle, state).prox(average - length * state.slope, length)

    def diagnose(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> Diagnosis:
        """Violated: by more than five standard errors, and a thousandth of the run's length; idle: by as many."""
        s = jax.tree.map(on_host, state.rule)  # for NumPy nothing has to be compiled
        size = np.sum(np.asarray(state.x) ** 2) if state.x.is_fully_addressable else float(square(state.x))
        left = violation(np, oracle.layout.inequality, s.multipliers, s.constraints) ** 2
        off = left > VIOLATED_ERRORS**2 * s.constraint_filter.error
        violated = np.any(off & (left > VIOLATED_LENGTH**2 * (1 + size) * diagonal(np, s.shape.gram)))
        idle = np.any(off & oracle.layout.inequality & (np.asarray(s.constraints) < 0))
        pressed = jacobian_norm(np, s.shape, s.multipliers) > AT_LIMIT * MULTIPLIER_LIMIT * np.sqrt(s.max_gradient)
        return Diagnosis(
            violated, pressed, s.theta < LEAST_THETA, state.metric, self._remark(s, int(k)), True, idle=idle
        )

    def _remark(self, s: RuleState, k: int) -> str:
        averages = s.averaging and s.averaging.count > 0
        suffers = is_kinked(np, s.curvature) | (k * gain_at(s.gradient_filter, k, self.gain_exponent) >= KINK_GAIN)
        if averages or s.jumps < KINK_JUMPS or not suffers:
            return ""
        return (
            f"The gradient of a sample jumped {int(s.jumps)} times, as at the kinks of max, abs or relu, and each "
            "jump undid much averaging: round the kinks (softplus, Huber's loss, a logistic step) for a far more "
            "accurate answer."
        )

    def observe(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> dict[str, Array]:
        rule = self.rule(oracle)
        s = rule.in_force(state.rule)
        eta, rho = rule.lengths(s)
        return {
            "stationarity": _in_metric(oracle, state).stationarity(state.x, state.gradient),
            "step_size": eta,
            "penalty": rho,
            "gain": gain_at(s.gradient_filter, k, self.gain_exponent),
            "curvature": s.curvature.largest,
            "scale": s.theta,
            "gradient_error": jnp.sqrt(s.gradient_filter.error),
            "constraint_error": jnp.sqrt(jnp.sum(s.constraint_filter.error)),
            "backed_off": s.backed_off,
            "jumps": s.jumps,
            "averaged": s.averaging.count if s.averaging else jnp.zeros_like(s.theta),  # iterates, at kinks
        }


def _in_metric(oracle: Oracle, state: TrackedState) -> Oracle:
    return oracle if state.metric is None else replace(oracle, scaling=state.metric)
