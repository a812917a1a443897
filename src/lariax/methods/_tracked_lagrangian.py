"""The default method: constraint values and Lagrangian gradient tracked by STORM, with momenta that tune themselves."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from lariax.formulas import (
    LEAST_SCALE,
    WINDOW,
    Answers,
    Curvature,
    Curved,
    Filter,
    Load,
    Shape,
    believable,
    changed,
    diagonal,
    gain,
    growths,
    has_lost_coupling,
    interval_at,
    is_kinked,
    is_real,
    jolted,
    lagged,
    largest_gradient,
    leave_one_out,
    measured,
    metric_for,
    multiplier_bound,
    next_diagonal,
    next_scale,
    noise_rate_at,
    often_at,
    penalty_for,
    push,
    rate_at,
    remembered,
    rescaled_entries,
    steepened,
    step_for,
    storm,
    times,
    travelled,
    updated,
    variance_of_mean,
    violation,
)
from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs, check_known, check_positive
from lariax.methods._metric import curvature_at, scales_at, slopes_at, units_of
from lariax.methods._whitening import shaped
from lariax.oracle import Batch, Look, Oracle, Parts, Vector, for_each

KINKED = 30  # k alpha is about 1 where all samples are averaged; from here on, jumps are worth a remark


class TrackedState(NamedTuple):
    x: Vector
    gradient: Vector  # g, an estimate of grad f + J^T w at x
    constraints: Float[Array, " m"]  # u, an estimate of c at x
    multipliers: Float[Array, " m"]  # y
    weights: Float[Array, " m"]  # w, about y + rho M u
    of_gradient: Filter  # scalars
    of_constraints: Filter  # one filter a row
    curvature: Curvature
    scale: Float[Array, ""]  # theta <= 1: steps in units of 1 / (L + rho), multiplier steps in units of rho
    force: Float[Array, ""]  # recent maximum of ||grad f||^2
    shape: Shape
    coupled: Float[Array, ""]  # 1; 0 from where on every inequality goes by itself, until the shape is made anew
    metric: Vector | None  # x = metric * (the coordinates in which the method moves); None: 1
    bends: Vector | None  # the diagonal of the curvature in these coordinates, averaged over some looks
    backed_off: Float[Array, ""]  # how many steps were refused
    jumps: Float[Array, ""]  # how many gradients jumped, and brought the estimate more error than it had


class Seen(NamedTuple):
    """What one iteration sees, and concludes for the constraints."""

    values_then: Float[Array, "n m"]  # constraint values sample by sample, at x
    values_now: Float[Array, "n m"]  # and at x+
    constraints: Float[Array, " m"]
    multipliers: Float[Array, " m"]
    weights: Float[Array, " m"]
    swing: Float[Array, ""]  # what new weights alone may change of the gradient
    then: Vector | None  # the Lagrangian's gradient at x; None: one backward pass, at x+ alone
    now: Vector  # and at x+
    noise: Float[Array, ""]  # of the gradient
    curvature: Curvature

    @property
    def measurement(self) -> Vector:
        """What the estimate is compared with."""
        return self.now if self.then is None else self.then


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
    beyond the paper whose methods are the special cases of fixed momenta; there is no convergence proof. Functions of a
    single sample should be smooth: kinks are survived, but rounded ones (softplus for max) are solved far better.

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

    needs: ClassVar[Needs] = Needs(
        smallest_batch=2, start_samples=16, refresh_samples=64, measuring_interval=partial(interval_at, jnp)
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
        return self

    # --- an iteration

    def step(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch) -> TrackedState:
        return self._step(oracle, state, k, batch, measuring=False)

    def measuring_step(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch) -> TrackedState:
        """With a look at the halves of the batch, for noise, drift and curvature: a whole batch has fewer, larger
        passes."""
        return self._step(oracle, state, k, batch, measuring=True)

    def _step(
        self, oracle: Oracle, state: TrackedState, k: Float[Array, ""], batch: Batch, measuring: bool
    ) -> TrackedState:
        oracle, s = _in_metric(oracle, state), _with_shape_in_force(oracle, state)
        rate, tiny = rate_at(jnp, k), _tiny(oracle)
        eta, rho = self._lengths(s)
        alpha_u, alpha_g = self._gain(s.of_constraints, k), self._gain(s.of_gradient, k)
        x = oracle.prox(s.x - eta * s.gradient, eta)
        seen = self._seen(oracle, s, k, batch, x, rho, alpha_u, measuring)
        if seen.then is None:  # a mean that lags behind the steps would swing
            alpha_g = jnp.maximum(alpha_g, jnp.minimum(1, 4 * s.scale))
            gradient = lagged(s.gradient, seen.now, alpha_g)
        else:
            gradient = storm(seen.now, seen.then, s.gradient, alpha_g)

        wish = _square(s.gradient) if oracle.is_free else _square(x - s.x) / eta**2
        length = eta**2 * wish
        c0, c1, curvature = seen.values_then, seen.values_now, remembered(jnp, seen.curvature, k, tiny)
        of_constraints = updated(
            s.of_constraints,
            alpha_u,
            rate,
            noise=lagged(s.of_constraints.noise, variance_of_mean(jnp, c0) + _rounding(oracle, jnp.mean(c0, 0)), rate),
            drift=lagged(s.of_constraints.drift, variance_of_mean(jnp, c1 - c0), rate),
            innovation=believable(jnp, s.of_constraints, (jnp.mean(c0, axis=0) - s.constraints) ** 2),
        )
        before, jumps, jumping = s.of_gradient, s.jumps, curvature
        if seen.then is not None:
            curvature = travelled(jnp, curvature, k, length)
            explained = s.curvature.largest * jnp.sqrt(length) + seen.swing
            before, jumping = jolted(jnp, before, curvature, _square(seen.now - seen.then), explained)
            jumps += before.error > 2 * s.of_gradient.error
        of_gradient = updated(
            before,
            alpha_g,
            rate,
            noise=seen.noise,
            drift=seen.curvature.noise * length,
            innovation=believable(jnp, s.of_gradient, _square(seen.measurement - s.gradient)),
        )

        scale = next_scale(
            jnp,
            s.scale,
            k,
            rate,
            s.shape,
            left=_violation(oracle, s),
            gain_of_step=wish / (s.of_gradient.error + tiny),
            error=s.of_constraints.error,
            of_gradient=(of_gradient.drift, alpha_g, of_gradient.noise),
            of_constraints=(of_constraints.drift, alpha_u, of_constraints.noise),
            kinked=is_kinked(jnp, curvature),
            tiny=tiny,
        )
        if self.one_backward:  # gradient noise that is not averaged away moves x, whatever it looks like from inside
            scale = jnp.minimum(scale, (1 + k / WINDOW) ** (-2 / 3))

        new = TrackedState(
            x=x,
            gradient=gradient,
            constraints=seen.constraints,
            multipliers=seen.multipliers,
            weights=seen.weights,
            of_gradient=of_gradient,
            of_constraints=of_constraints,
            curvature=jumping,
            scale=scale,
            force=s.force,
            shape=state.shape,
            coupled=s.coupled,
            metric=s.metric,
            bends=s.bends,
            backed_off=s.backed_off,
            jumps=jumps,
        )
        if oracle.has_inequalities:
            new = new._replace(coupled=jnp.where(has_lost_coupling(jnp, state.shape, new.multipliers), 0, s.coupled))
        back = state._replace(scale=jnp.maximum(s.scale / 4, 1e-8), backed_off=s.backed_off + 1)
        good = _sound(s, seen)
        return jax.tree.map(lambda a, b: a if a is b else jnp.where(good, a, b), new, back)

    def _seen(
        self,
        oracle: Oracle,
        s: TrackedState,
        k: Float[Array, ""],
        batch: Batch,
        x: Vector,
        rho: Array,
        alpha_u: Array,
        measuring: bool,
    ) -> "Seen":
        """What the batch shows at both points."""
        shape, parts = s.shape, 2 if measuring else 1

        def respond(values: Array) -> Array:
            """What a change of the constraint values does to the weights: the penalty's answer and the multiplier's."""
            return rho * (times(jnp, shape.penalty, values) + s.scale * times(jnp, shape.dual, values))

        now = oracle.look_at_parts(x, batch, parts)
        then = oracle.look_at_parts(s.x, batch, parts) if measuring or not self.one_backward else None
        c0 = oracle.residual_rows(s.x, batch) if then is None else oracle.rows_of(then)
        c1 = oracle.rows_of(now)

        # constraint values, sample by sample
        each = storm(c1, c0, s.constraints, alpha_u)
        constraints = jnp.mean(each, axis=0)
        others = self._partners(oracle, each)

        # multipliers, bounded, and weights from the other samples
        multipliers = oracle.signed(s.multipliers + s.scale * rho * times(jnp, shape.dual, constraints))
        bound = multiplier_bound(jnp, shape, multipliers, s.force, _tiny(oracle))
        each_weights = oracle.signed(bound * s.multipliers + jax.vmap(respond)(others))
        weights = jnp.mean(each_weights, axis=0)

        # Lagrangian gradients
        h1 = oracle.gradient_of(now, each_weights)
        h0 = None if then is None else oracle.gradient_of(then, s.weights)
        curvature, noise = s.curvature, s.of_gradient.noise
        if measuring and h0 is not None:
            fresh = h1 if self.one_backward else h0
            noise = lagged(noise, fresh.noise + _rounding(oracle, fresh.mean).sum(), noise_rate_at(jnp, k))
            followed = respond(jnp.mean(c1 - c0, axis=0))
            expected = s.scale * rho * times(jnp, shape.dual, s.constraints)
            curvature = self._curvature(oracle, s, often_at(jnp, k), x - s.x, h0, now, followed, expected)
        mean_then = None if self.one_backward or h0 is None else h0.mean
        swing = push(jnp, shape, weights - s.weights)
        return Seen(c0, c1, constraints, bound * multipliers, weights, swing, mean_then, h1.mean, noise, curvature)

    def _lengths(self, s: TrackedState) -> tuple[Array, Array]:
        """eta and rho."""
        tiny = jnp.finfo(s.x.dtype).tiny
        pushed = push(jnp, s.shape, times(jnp, s.shape.penalty, s.constraints))
        rho = penalty_for(jnp, s.curvature, s.force, pushed, tiny)
        rho = rho if self.penalty is None else self.penalty * s.curvature.largest
        rho = rho if s.constraints.size else jnp.zeros_like(rho)
        eta = step_for(jnp, s.curvature, s.scale, rho, tiny)
        return (eta if self.step_size is None else jnp.asarray(self.step_size)), rho

    def _gain(self, filter: Filter, k: Float[Array, ""]) -> Array:
        if self.gain_exponent is None:
            return gain(filter)
        return jnp.broadcast_to((k + 1) ** -self.gain_exponent, filter.error.shape)

    def _partners(self, oracle: Oracle, each: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """For each sample the mean over the others."""
        return oracle.repelled(leave_one_out(each), each)

    def _curvature(
        self,
        oracle: Oracle,
        s: TrackedState,
        often: Array,
        dx: Vector,
        h0: Parts,
        now: tuple[Look, ...],
        followed: Float[Array, " m"],
        expected: Float[Array, " m"],
    ) -> Curvature:
        """From D(w') = grad f(x+) + J(x+)^T w' - h0 for the old weights, for weights
        that have followed the step, and for such with the move of the multipliers that was to be expected."""
        following, moved = (
            changed(jnp, oracle.inequality, s.weights, change) for change in (followed, followed + expected)
        )
        fixed, follow, whole = (oracle.gradient_of(now, w) - h0 for w in (s.weights, following, moved))
        length = _square(dx) + _tiny(oracle)
        answers = Answers(
            length=length,
            real=is_real(jnp, length, _square(s.x), _eps(oracle)),
            fixed=_square(fixed.mean),
            along=jnp.vdot(dx, follow.mean),
            follow=_square(follow.mean),
            # one backward pass: the estimate does not follow the moves, so all of a move is drift
            drift=_square(whole.mean) if self.one_backward else whole.noise,
        )
        return measured(jnp, s.curvature, answers, often)

    # --- the start, and now and then

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> TrackedState:
        batch = batches.first
        metric = jnp.ones_like(point) if self.adaptive_metric else None
        fixed = self.adaptive_metric or self.step_size is not None
        found = None if fixed else scales_at(oracle, point, batches)
        if found is not None:
            metric, bend = found[0], found[1].largest
            oracle, point = replace(oracle, scaling=metric), point / metric
        look = oracle.look_at_parts(point, batch, 2)
        rows = oracle.rows_of(look)
        nothing = jnp.zeros(oracle.rows, oracle.dtype)
        slope = oracle.gradient_of(look, nothing).mean

        size, steep = 1 + jnp.linalg.norm(point), jnp.linalg.norm(slope)
        if (
            found is None
        ):  # curvature of the objective, from a short step along its gradient, or anywhere if it has none
            along = jnp.where(steep > 0, slope / (steep + _tiny(oracle)), point.size**-0.5)
            probe = -100 * jnp.sqrt(_eps(oracle)) * size * along
            beyond = oracle.gradient_of(oracle.look_at_parts(point + probe, batch, 1), nothing)
            bend = jnp.linalg.norm(beyond.mean - slope) / (jnp.linalg.norm(probe) + _tiny(oracle))
        largest = jnp.maximum(bend, 1e-3 * steep / size)
        zero = jnp.zeros((), oracle.dtype)
        curvature = Curvature(
            largest, largest**2, largest, largest**2, objective=largest, noise=zero, jumps=zero, path=zero
        )

        # noise of values and gradients over all batches of the start
        mean_slope, slope_noise, value_noise = self._noises(oracle, point, batches)
        load = Load.at_start(
            oracle.inequality, largest, _square(mean_slope), slope_noise, value_noise, oracle.batch_size
        )
        shape = shaped(oracle, point, batches, load, None, jax.random.key(0))
        constraints = jnp.mean(rows, axis=0)
        partners = self._partners(oracle, rows)
        given = oracle.rows_named(self.multipliers or {})
        each = oracle.signed(given + largest * jax.vmap(lambda v: times(jnp, shape.penalty, v))(partners))
        gradient = oracle.gradient_of(look, each)
        return TrackedState(
            x=point,
            gradient=gradient.mean,
            constraints=constraints,
            multipliers=given,
            weights=jnp.mean(each, axis=0),
            of_gradient=Filter.fresh(gradient.noise),
            of_constraints=Filter.fresh(value_noise),
            curvature=curvature,
            scale=zero + 0.1,
            force=_square(mean_slope),
            shape=shape,
            coupled=zero + 1,
            metric=metric,
            bends=None if found is None else found[1].diagonal,
            backed_off=zero,
            jumps=zero,
        )

    @staticmethod
    def _noises(oracle: Oracle, point: Vector, batches: Batch) -> tuple[Vector, Array, Array]:
        """Mean gradient of f, and the noise of one batch in it and in the constraint values."""
        one, samples = oracle.singles(batches)
        gradients = for_each(lambda sample: one.objective_gradient(point, sample), samples)
        values = for_each(lambda sample: one.join(one.residuals(point, sample)), samples)
        count = gradients.shape[0]
        share = count / oracle.batch_size
        return (
            jnp.mean(gradients, axis=0),
            share * jnp.sum(variance_of_mean(jnp, gradients)),
            share * variance_of_mean(jnp, values),
        )

    def refresh(self, oracle: Oracle, state: TrackedState, batches: Batch, key: Key[Array, ""]) -> TrackedState:
        """The shape of the penalty, the size of the objective's gradient and the metric, anew."""
        s = self._remeasured(oracle, state, batches)
        oracle = _in_metric(oracle, s)
        slope = jnp.mean(
            for_each(lambda batch: oracle.objective_gradient(s.x, batch), batches),
            axis=0,
        )
        force = jnp.maximum(0.8 * s.force, _square(slope))
        load = Load(
            oracle.inequality,
            s.multipliers,
            -s.constraints / (jnp.sqrt(s.of_constraints.error) + _tiny(oracle)),
            s.curvature.largest,
            s.force,
            s.of_gradient.error,
            s.of_gradient.noise,
            s.of_constraints.noise,
            oracle.batch_size,
        )
        shape = shaped(oracle, s.x, batches, load, s.shape, key)
        return s._replace(shape=shape, coupled=jnp.ones_like(s.coupled), force=force)

    def _remeasured(self, oracle: Oracle, s: TrackedState, batches: Batch) -> TrackedState:
        """In units that fit the curvature as it is now; with `adaptive_metric`, in Adam's: a step is divided by the
        root mean square of each entry of the sampled gradient: an ordinary one in z = x / metric, metric^2 = 1 / rms.
        """
        if s.metric is None:
            return s
        scaled, labels, bends = _in_metric(oracle, s), units_of(oracle), s.bends
        if bends is None or labels is None:
            seen = Curved.flat(slopes_at(scaled, s.x, batches, s.weights))
            rms = jnp.sqrt(seen.slopes) / s.metric
            wanted = metric_for(jnp, rms, jnp.mean(rms), _tiny(oracle))
            change = jnp.sqrt(wanted / s.metric)  # halfway, so that one noisy look does not decide
        else:
            seen = curvature_at(scaled, s.x, batches, s.weights, labels)
            bends = next_diagonal(jnp, bends, seen.diagonal)
            change = rescaled_entries(jnp, bends)
            bends = bends * change**2
        size, growth = growths(jnp, change, seen)
        return s._replace(
            x=s.x / change,
            gradient=s.gradient * change,
            of_gradient=Filter(*(value * size for value in s.of_gradient)),
            curvature=steepened(jnp, s.curvature.in_metric(growth), growth * seen.largest, _tiny(oracle)),
            force=s.force * size,
            shape=s.shape._replace(jacobian=s.shape.jacobian * change),
            metric=s.metric * change,
            bends=bends,
        )

    # --- what it knows

    def answer(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> Answer:
        point = state.x if state.metric is None else state.metric * state.x
        return Answer(point, state.constraints, state.weights)

    def diagnose(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> Diagnosis:
        """Violated: by more than five standard errors, and a thousandth of the run's length."""
        size = diagonal(jnp, state.shape.gram)
        left = _violation(oracle, state) ** 2
        far = left > 1e-6 * (1 + _square(state.x)) * size
        violated = jnp.any(far & (left > 25 * state.of_constraints.error))
        return Diagnosis(violated, state.scale < LEAST_SCALE, state.metric, self._remark(state, k))

    def _remark(self, state: TrackedState, k: Float[Array, ""]) -> str:
        suffers = is_kinked(jnp, state.curvature) | (k * self._gain(state.of_gradient, k) >= KINKED)
        if state.jumps < 3 or not suffers:
            return ""
        return (
            f"The gradient of a sample jumped {int(state.jumps)} times, as at the kinks of max, abs or relu, and each "
            "jump undid much averaging: round the kinks (softplus, Huber's loss, a logistic step) for a far more "
            "accurate answer."
        )

    def observe(self, oracle: Oracle, state: TrackedState, k: Float[Array, ""]) -> dict[str, Array]:
        step_size, penalty = self._lengths(_with_shape_in_force(oracle, state))
        return {
            "stationarity": _in_metric(oracle, state).stationarity(state.x, state.gradient),
            "step_size": step_size,
            "penalty": penalty,
            "gain": self._gain(state.of_gradient, k),
            "curvature": state.curvature.largest,
            "scale": state.scale,
            "gradient_error": jnp.sqrt(state.of_gradient.error),
            "constraint_error": jnp.sqrt(jnp.sum(state.of_constraints.error)),
            "backed_off": state.backed_off,
            "jumps": state.jumps,
        }


def _in_metric(oracle: Oracle, state: TrackedState) -> Oracle:
    return oracle if state.metric is None else replace(oracle, scaling=state.metric)


def _with_shape_in_force(oracle: Oracle, state: TrackedState) -> TrackedState:
    if not oracle.has_inequalities:
        return state
    apart, keep = state.shape.uncoupled, state.coupled > 0
    penalty, dual = jnp.where(keep, state.shape.penalty, apart.penalty), jnp.where(keep, state.shape.dual, apart.dual)
    return state._replace(shape=state.shape._replace(penalty=penalty, dual=dual))


def _violation(oracle: Oracle, s: TrackedState) -> Float[Array, " m"]:
    return violation(jnp, oracle.inequality, s.multipliers, s.constraints)


def _sound(s: TrackedState, seen: Seen) -> Bool[Array, ""]:
    """Whether the gradient is finite and has not grown beyond reason in one step."""
    limit = largest_gradient(jnp, s.of_gradient, _square(seen.measurement), seen.swing)
    known = jnp.sum(seen.constraints) + seen.noise + seen.curvature.noise + seen.curvature.largest
    return (jnp.sqrt(_square(seen.now)) <= limit) & jnp.isfinite(limit + known)


def _square(vector: Array) -> Float[Array, ""]:
    return jnp.sum(vector**2)


def _rounding(oracle: Oracle, value: Array) -> Array:
    """What rounding adds to the noise of a value."""
    return (_eps(oracle) * value) ** 2


def _tiny(oracle: Oracle) -> float:
    return float(jnp.finfo(oracle.dtype).tiny)


def _eps(oracle: Oracle) -> float:
    return float(jnp.finfo(oracle.dtype).eps)
