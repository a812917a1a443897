"""The self-tuned rule: from what a batch shows, how far and how hard the next step goes.

One iteration, in the stages that a front end may take apart:

    lengths   eta and rho, for the step to x+
    weigh     constraint values, multipliers and cross-fitted weights from the rows of a batch: u, y, w
    turn      filters, curvature and theta, from numbers of the rows and of the step
    learn     what the gradients say of their estimate, once the sums over them are there
    back_off  instead, if the gradient at x+ makes no sense

docs/theory/self-tuned.md derives them. Everything is a pure function of arrays of the library `xp`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lariax.formulas import storm
from lariax.tuned import averaging as iterates
from lariax.tuned.averaging import Averaging
from lariax.tuned.constants import (
    BACK_OFF,
    FIRST_THETA,
    GRADIENT_MEMORY,
    LAG,
    LEAST_PENALTY,
    LEAST_THETA,
    MULTIPLIER_LIMIT,
    ONE_BACKWARD_POWER,
    OUTLIER,
    PENALTY_LIMIT,
    REFUSED_THETA,
    SIGNAL_ERRORS,
    WINDOW,
)
from lariax.tuned.curvature import (
    Curvature,
    Measurement,
    at_kinks,
    forgotten,
    is_kinked,
    longest_step,
    mean_look,
    measured,
    secant_bound,
    with_gradient,
    with_jump,
    with_step,
    within_eigenvalue,
)
from lariax.tuned.filter import Filter, clipped_innovation, gain_at, running_mean, updated, variance_of_mean
from lariax.tuned.rates import allowed_drift, curvature_rate_at, next_theta, noise_rate_at, rate_at
from lariax.tuned.shape import (
    PenaltyShape,
    ShapeInputs,
    diagonal,
    has_lost_coupling,
    jacobian_norm,
    multiply,
    multiply_rows,
    slack_of,
    violation,
)
from lariax.tuned.units import HessianEstimate, adam_change, growth, next_units


class RuleState(NamedTuple):
    """Everything that the rule keeps, but for vectors like x."""

    constraints: Any  # u, an estimate of c at x
    multipliers: Any  # y
    weights: Any  # w, about y + rho M u
    gradient_filter: Filter  # of the estimate g of grad f + J^T w at x: scalars
    constraint_filter: Filter  # of u, one filter a row
    curvature: Curvature
    theta: Any  # <= 1: steps in units of 1 / (L + rho), multiplier steps in units of rho
    max_gradient: Any  # recent maximum of ||grad f||^2
    shape: PenaltyShape
    coupled: Any  # 1; 0 from where on every inequality goes by itself, until the shape is made anew
    diagonal: Any  # of the Hessian in the units of the method, averaged over some looks; None: not looked at
    backed_off: Any  # how many steps were refused
    jumps: Any  # how many gradients jumped, and brought the estimate more error than it had
    averaging: Any = ()  # an `Averaging`, where iterates are averaged at kinks


class Lengths(NamedTuple):
    eta: Any  # of the step
    rho: Any  # of the penalty


class Gains(NamedTuple):
    """alpha, the share of a new measurement in each estimate."""

    constraints: Any  # one a row
    gradient: Any


class RowState(NamedTuple):
    """What rows are weighed with, where they are."""

    constraints: Any
    multipliers: Any
    weights: Any
    gains: Any
    theta: Any
    max_gradient: Any
    rho: Any
    shape: PenaltyShape


class Weighed(NamedTuple):
    """What follows from the constraint values of a batch."""

    constraints: Any  # u+
    multipliers: Any  # y+
    weights: Any  # w+
    mean: Any  # of the values at x,
    noise: Any  # the variance of this mean,
    drift: Any  # and that of the mean difference
    each_weights: Any  # w_i, row by row


class Step(NamedTuple):
    """What is known of a step when filters and theta are turned over."""

    gradient: Any  # ||G~||^2 of the measurement that the estimate is compared with
    length: Any  # ||dx||^2
    signal: Any  # what the step follows, squared, over the variance of its error
    swing: Any = 0.0  # what else than the weights of the rows may change the gradient by


class Turned(NamedTuple):
    """The state after a step, but for what its gradients say about their estimate."""

    state: RuleState
    gain: Any  # alpha_g
    rate: Any
    limit: Any  # of the gradient's norm; -1 where numbers are not finite
    explained: Any  # of the norm of its change


class FirstLook(NamedTuple):
    """What the start has seen."""

    curvature: Any  # of the objective
    max_gradient: Any  # ||grad f||^2
    rows: Any  # constraint values of the first batch
    value_noise: Any
    multipliers: Any  # to start from
    shape: PenaltyShape
    diagonal: Any  # of the Hessian; None: not looked at
    jumps: Any = 0.0  # samples whose gradients jump


@dataclass(frozen=True)
class Rule:
    """The rule for one problem: the user's choices, the kinds of rows, and the library of the arrays."""

    xp: Any
    eps: float
    tiny: float
    inequality: Any  # which rows are c <= 0
    least_weights: Any  # 0 for those, else -inf
    has_inequalities: bool
    partners: Callable[[Any], Any]  # u_i, row by row -> u_-i
    step_size: Any = None
    penalty: Any = None
    gain_exponent: Any = None
    one_backward: bool = False
    is_stiffened: bool = False  # by constraints that are not rows of the residuals
    averages: bool = False  # iterates, at kinks

    # --- an iteration

    def in_force(self, state: RuleState) -> RuleState:
        """With the shape as it is meant now: every inequality by itself, where couplings have been lost."""
        if not self.has_inequalities:
            return state
        shape, keep = state.shape, state.coupled > 0
        pairs = zip((shape.penalty, shape.dual), shape.uncoupled, strict=True)
        penalty, dual = (self.xp.where(keep, together, apart) for together, apart in pairs)
        return state._replace(shape=shape._replace(penalty=penalty, dual=dual))

    def lengths(self, s: RuleState) -> Lengths:
        """eta = min(theta / (L + rho), secant bound),  rho = min(L, 2 ||grad f|| / ||J^T M u||); and a little where
        grad f vanishes, also where L does."""
        xp, largest = self.xp, s.curvature.largest
        if s.constraints.shape[0] == 0:
            rho = 0 * largest
        elif self.penalty is not None:
            rho = self.penalty * largest
        else:
            pressed = jacobian_norm(xp, s.shape, multiply(xp, s.shape.penalty, s.constraints))
            bound = PENALTY_LIMIT * xp.sqrt(s.max_gradient) / (pressed + self.tiny)
            least = LEAST_PENALTY * s.curvature.objective
            rho = xp.where(s.max_gradient > 0, xp.minimum(largest, xp.maximum(bound, least)), least)
        if self.step_size is not None:
            return Lengths(self.step_size, rho)
        stiffness = rho + largest if self.is_stiffened else rho
        bound = secant_bound(xp, s.curvature, self.tiny)
        if self._looks(s):
            bound = xp.where(iterates.is_under_way(s.averaging), xp.inf, bound)
        return Lengths(xp.minimum(s.theta / (largest + stiffness + self.tiny), bound), rho)

    def gains(self, s: RuleState, k: Any) -> Gains:
        """alpha = (P + Q) / (P + Q + R), or as scheduled."""
        of_constraints, of_gradient = (
            gain_at(filter, k, self.gain_exponent) for filter in (s.constraint_filter, s.gradient_filter)
        )
        if self.one_backward:  # a mean that lags behind the steps would swing
            of_gradient = self.xp.maximum(of_gradient, self.xp.minimum(1, LAG * s.theta))
        if self.averages:  # differences of one sample tell nothing
            of_gradient = self.xp.where(iterates.is_kinked(s.averaging), 1, of_gradient)
        return Gains(of_constraints, of_gradient)

    def signed(self, weights: Any) -> Any:
        """No negative weight for an inequality: its slack takes up the rest."""
        return self.xp.maximum(weights, self.least_weights)

    def weigh(self, s: RowState, c0: Any, c1: Any) -> Weighed:
        """u+, y+, w_i and w+ from constraint values at x and at x+, row by row."""
        xp, each = self.xp, storm(c1, c0, s.constraints, s.gains)
        constraints = xp.mean(each, axis=0)
        multipliers = self.signed(s.multipliers + s.theta * s.rho * multiply(xp, s.shape.dual, constraints))
        norm = jacobian_norm(xp, s.shape, multipliers)
        bound = xp.minimum(1, MULTIPLIER_LIMIT * xp.sqrt(s.max_gradient) / (norm + self.tiny))
        weights = self.signed(bound * s.multipliers + self._response(s, self.partners(each)))
        mean = xp.mean(c0, axis=0)
        return Weighed(
            constraints,
            bound * multipliers,
            xp.mean(weights, axis=0),
            mean,
            variance_of_mean(xp, c0, mean),
            variance_of_mean(xp, c1 - c0),
            weights,
        )

    def _response(self, s: RowState, values: Any) -> Any:
        """rho (M + theta M_d) u: what a change of the constraint values does to the weights."""
        return multiply_rows(self.xp, s.rho * (s.shape.penalty + s.theta * s.shape.dual), values)

    def expected_weights(self, s: RowState, c0: Any, c1: Any) -> tuple[Any, Any]:
        """The old weights, where they would have followed the step; and with the expected move of the multipliers.

        An inequality that does not bind stays without a weight.
        """
        followed = self._response(s, self.xp.mean(c1 - c0, axis=0))
        moved = followed + s.theta * s.rho * multiply(self.xp, s.shape.dual, s.constraints)
        idle = self.inequality & (s.weights <= 0)
        return self.xp.where(idle, 0, s.weights + followed), self.xp.where(idle, 0, s.weights + moved)

    def turn(self, s: RuleState, k: Any, gains: Gains, rows: Weighed, step: Step, seen: Measurement | None) -> Turned:
        """The next state, as far as it is known before the gradients have been compared with their estimate."""
        xp, rate, kinked = self.xp, rate_at(self.xp, k), iterates.is_kinked(s.averaging) if self.averages else None
        curvature, noise = s.curvature, s.gradient_filter.noise
        if seen is not None:
            noise = running_mean(noise, seen.noise, noise_rate_at(xp, k))
            curvature = measured(xp, curvature, seen, curvature_rate_at(xp, k), self.eps, self.tiny, kinked)
        drift, curvature = curvature.noise * step.length, forgotten(xp, curvature, k, self.tiny)
        if self._looks(s):
            curvature = at_kinks(xp, kinked, s.curvature.largest, curvature)
        if not self.one_backward:
            curvature = with_step(xp, curvature, k, step.length)
        new = s._replace(
            constraints=rows.constraints,
            multipliers=rows.multipliers,
            weights=rows.weights,
            gradient_filter=s.gradient_filter._replace(noise=noise, drift=drift),
            constraint_filter=self._constraint_filter(s, gains.constraints, rate, rows),
            curvature=curvature,
        )
        if self.averages:
            new = new._replace(averaging=iterates.with_travel(s.averaging, k, step.length))
        if self.has_inequalities:
            new = new._replace(coupled=xp.where(has_lost_coupling(xp, s.shape, rows.multipliers), 0, s.coupled))
        swing = jacobian_norm(xp, s.shape, rows.weights - s.weights) + step.swing
        limit = OUTLIER * (xp.sqrt(step.gradient) + xp.sqrt(s.gradient_filter.noise) + swing)
        finite = xp.isfinite(limit + xp.sum(rows.constraints) + noise + drift + curvature.largest)
        return Turned(
            new._replace(theta=self._next_theta(s, new, k, gains, step.signal)),
            gains.gradient,
            rate,
            xp.where(finite, limit, -1.0),
            s.curvature.largest * xp.sqrt(step.length) + swing,
        )

    def _constraint_filter(self, s: RuleState, alpha: Any, rate: Any, rows: Weighed) -> Filter:
        """Row by row; rounding is noise too."""
        old = s.constraint_filter
        return updated(
            old,
            alpha,
            rate,
            noise=running_mean(old.noise, rows.noise + (self.eps * rows.mean) ** 2, rate),
            drift=running_mean(old.drift, rows.drift, rate),
            innovation=clipped_innovation(self.xp, old, (rows.mean - s.constraints) ** 2),
        )

    def _next_theta(self, s: RuleState, new: RuleState, k: Any, gains: Gains, signal: Any) -> Any:
        """Down when the steps add too much to the noise, measured by what there is to gain.

        Where the estimate does not follow the steps, at kinks, they are those of stochastic approximation, of order
        1/k.
        """
        xp, weight = self.xp, diagonal(self.xp, s.shape.penalty)
        left = self.violation(s)
        signal = xp.maximum(
            signal,
            left
            @ multiply(xp, s.shape.penalty, left)
            / (SIGNAL_ERRORS * (weight @ s.constraint_filter.error) + self.tiny),
        )
        allowed = allowed_drift(xp, k, signal)
        filter, filters = new.gradient_filter, new.constraint_filter
        too_long = (filter.drift > allowed * gains.gradient**2 * filter.noise) | (
            weight @ filters.drift > allowed * (weight @ (gains.constraints**2 * filters.noise))
        )
        too_long = too_long | (is_kinked(xp, new.curvature) & (s.theta * (1 + k / WINDOW) > 1))
        theta = next_theta(xp, s.theta, too_long, rate_at(xp, k))
        if self.averages:
            noises = s.constraint_filter.noise, s.gradient_filter.noise / (s.curvature.largest + self.tiny) ** 2
            is_off = iterates.is_off(xp, s.averaging, s.shape, self.inequality, noises)
            mixing = iterates.mixing_theta(xp, s.averaging, s.theta, k, is_off)
            theta = xp.where(iterates.is_kinked(s.averaging), xp.clip(mixing, LEAST_THETA, 1), theta)
        if self.one_backward:  # gradient noise that is not averaged away moves x, whatever it looks like from inside
            theta = xp.minimum(theta, (1 + k / WINDOW) ** ONE_BACKWARD_POWER)
        return theta

    def violation(self, s: RuleState) -> Any:
        """Constraint values, less what an inequality without a multiplier has to spare."""
        return violation(self.xp, self.inequality, s.multipliers, s.constraints)

    def learn(self, old: RuleState, turned: Turned, innovation: Any, change: Any) -> RuleState:
        """The next state, given the squares of what the gradient at x is off the estimate, and of its change."""
        before, new = old.gradient_filter, turned.state
        filter, curvature, jumps = before, new.curvature, old.jumps
        if not self.one_backward:
            filter, curvature = with_jump(self.xp, before, curvature, change, turned.explained)
            jumps = jumps + (filter.error > 2 * before.error)
        filter = updated(
            filter,
            turned.gain,
            turned.rate,
            noise=new.gradient_filter.noise,
            drift=new.gradient_filter.drift,
            innovation=clipped_innovation(self.xp, before, innovation),
        )
        return new._replace(gradient_filter=filter, curvature=curvature, jumps=jumps, shape=old.shape)

    def back_off(self, old: RuleState) -> RuleState:
        """After a step that is not taken: the next one is shorter."""
        theta = self.xp.maximum(old.theta / BACK_OFF, REFUSED_THETA)
        return old._replace(theta=theta, backed_off=old.backed_off + 1)

    # --- the start

    def first_weights(self, first: FirstLook) -> Any:
        """w_i, row by row."""
        answer = multiply_rows(self.xp, first.shape.penalty, self.partners(first.rows))
        return self.signed(first.multipliers + first.curvature * answer)

    def start(self, first: FirstLook, each_weights: Any, gradient_noise: Any) -> RuleState:
        xp, zero = self.xp, 0 * first.curvature
        averaging = Averaging.first(xp, first.jumps, first.multipliers) if self.averages else ()
        return RuleState(
            constraints=xp.mean(first.rows, axis=0),
            multipliers=first.multipliers,
            weights=xp.mean(each_weights, axis=0),
            gradient_filter=Filter.first(gradient_noise),
            constraint_filter=Filter.first(first.value_noise),
            curvature=Curvature.first(first.curvature),
            theta=zero + FIRST_THETA,
            max_gradient=first.max_gradient,
            shape=first.shape,
            coupled=zero + 1,
            diagonal=first.diagonal,
            backed_off=zero,
            jumps=zero,
            averaging=averaging,
        )

    # --- now and then

    def _looks(self, s: RuleState) -> bool:
        """Whether at kinks L comes from looks at the Hessian of the mean."""
        return self.averages and s.diagonal is not None

    def shape_inputs(self, s: RuleState, batch_size: int) -> ShapeInputs:
        """For a new shape."""
        lengths = diagonal(self.xp, s.shape.gram) / (s.curvature.largest + self.tiny)
        return ShapeInputs(
            self.inequality,
            s.multipliers,
            slack_of(self.xp, s.constraints, s.constraint_filter, s.multipliers * lengths, self.eps, self.tiny),
            s.curvature.largest,
            s.max_gradient,
            s.gradient_filter.error,
            s.gradient_filter.noise,
            s.constraint_filter.noise,
            batch_size,
            iterates.is_under_way(s.averaging) if self.averages else None,
        )

    def with_gradient(self, s: RuleState, gradient: Any, size: Any) -> RuleState:
        """With L enough for ||grad f||^2 and x.x as they are now; at kinks theta, or L, is so for its noise too."""
        xp, noise = self.xp, s.gradient_filter.noise
        new = s._replace(curvature=with_gradient(xp, s.curvature, gradient, size))
        if not self.averages:
            return new
        kinked = iterates.is_kinked(s.averaging)
        if self._looks(s):
            stiffness = new.curvature.largest + self.lengths(new).rho
            longest = stiffness * longest_step(xp, gradient, size, noise, self.tiny)
            return new._replace(theta=xp.where(kinked, xp.minimum(s.theta, longest), s.theta))
        rough = with_gradient(xp, s.curvature, gradient, size, noise).largest
        return new._replace(curvature=at_kinks(xp, kinked, rough, new.curvature))

    def refreshed(self, s: RuleState, shape: PenaltyShape, gradient: Any) -> RuleState:
        """With a new shape, and with ||grad f||^2 as it is now."""
        most = self.xp.maximum(GRADIENT_MEMORY * s.max_gradient, gradient)
        return s._replace(shape=shape, coupled=0 * s.coupled + 1, max_gradient=most)

    def rescaled(self, s: RuleState, metric: Any, seen: HessianEstimate, held: Any = None) -> tuple[RuleState, Any]:
        """In units that fit the curvature as it is now, or in Adam's; and what scales are to be multiplied by. `held`:
        entries that stay at a bound, if there are bounds."""
        xp, kinked = self.xp, iterates.is_kinked(s.averaging) if self.averages else None
        if s.diagonal is None:
            change = adam_change(xp, metric, seen.slopes, self.tiny)
        else:
            new, change = next_units(xp, s.diagonal, seen.diagonal, held, (s.weights, s.shape.jacobian), kinked)
            s = s._replace(diagonal=new)
        noisier, steeper = growth(xp, change, seen)
        scaled, largest = s.curvature.scaled(steeper), steeper * seen.largest
        curvature = within_eigenvalue(xp, scaled, largest, self.tiny)
        if self._looks(s):
            curvature = at_kinks(xp, kinked, mean_look(scaled, largest), curvature)
        return s._replace(
            gradient_filter=s.gradient_filter.scaled(noisier),
            curvature=curvature,
            max_gradient=s.max_gradient * noisier,
            shape=s.shape.scaled(xp, change),
            averaging=s.averaging.scaled(1 / noisier) if self.averages else (),
        ), change


def row_state(s: RuleState, gains: Any, rho: Any) -> RowState:
    return RowState(s.constraints, s.multipliers, s.weights, gains, s.theta, s.max_gradient, rho, s.shape)
