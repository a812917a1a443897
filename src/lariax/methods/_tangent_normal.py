"""For constraints that are known exactly: a step back to them, a step along them, and a gradient that is averaged."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from lariax.formulas import (
    Filter,
    allowed_drift,
    believable,
    gain,
    is_real,
    is_whitened,
    lagged,
    rate_at,
    rescaled,
    storm,
    updated,
    variance_of_mean,
)
from lariax.methods._base import AbstractMethod, Answer
from lariax.methods._face import ROUNDS, Bounds, Linearized, Near, Values, along_face, bent, linearized, nearest
from lariax.oracle import Batch, Oracle, Vector, for_each, occasionally
from lariax.problem import Problem
from lariax.prox import Zero
from lariax.sets import Everything

MODEL_ENTRIES = 256
"""Up to this many entries of x the curvature is a matrix, learnt from steps; beyond, it is one number."""

HALVINGS = 16  # the most that a step is shortened within an iteration
OFF = 0.2  # how far from the constraints a tangential step may lead, in units of its length
TRUST = 4.0  # steps get longer only if what they follow stands out by this from the error of the estimate, squared
FORGET = 0.9  # what is left of a curvature after an iteration, where it is one number


class TangentState(NamedTuple):
    x: Vector
    gradient: Vector  # g, an estimate of grad f at x
    residuals: Values  # of the constraints at x, exactly
    multipliers: Values
    usual: Values  # the longest that each row of J has been
    model: Array  # B, or one number for B / I: the curvature of the Lagrangian
    of_gradient: Filter
    radius: Float[Array, ""]  # the longest tangential step
    scale: Float[Array, ""]  # theta <= 1: the part of a step that is taken
    backed_off: Float[Array, ""]  # how many steps were refused
    trials: Int[Array, ""]  # evaluations of the constraints in loops whose length only the run knows


class _Trial(NamedTuple):
    """A point that is being tried."""

    length: Float[Array, ""]  # in units of the step
    point: Vector
    residuals: Values  # scaled
    back: Vector  # from there to the linearised constraints
    tries: Int[Array, ""]


class TangentNormal(AbstractMethod):
    """For deterministic constraints and bounds: exact normal steps, tangential steps on an averaged gradient.

    With r the constraint values, J their Jacobian, both exact, and J^+ the least-squares way back within the bounds:

        x'  = x - J^+ r(x)                                    halved until the violation falls
        t   = argmin  g . t + t^T B t / 2                     over J t = 0 (<= -r for inequalities) and the bounds,
                                                              halved until ||J^+ r(x' + t)|| <= ||t|| / 5
        x+  = x' + t - J^+ r(x' + t)                          if that is nearer to the constraints
        g+  = grad f(x+, xi) + (1 - alpha) (g - grad f(x, xi))

    Multipliers are those of the least-squares problem for t. The momentum alpha is a Kalman gain whose noises are
    measured on the batch, as in `TrackedLagrangian`: as x settles it falls like 1/k. B is learnt from same-sample
    differences of gradients, D = grad f(x+, xi) - grad f(x, xi) + (J+ - J)^T y: a matrix by damped BFGS for up to 256
    entries of x, one number beyond. A step that raises the Lagrangian, by what D says, is not taken, and the next is
    shorter; steps also shrink (theta) when their noise would show.

    Constraints cost values and Jacobians, never samples. Up to 256 rows the Jacobian is formed; beyond that products
    with J J^T serve conjugate gradients. Dependent rows do no harm. There is no convergence proof.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: -((z @ x) ** 2),
    ...     samples=lx.Distribution(lambda key: jnp.array([3.0, 2.0, 1.0]) * jax.random.normal(key, (3,))),
    ...     constraints={"sphere": lx.Equal(lambda x: x @ x, 1.0, samples=None)},
    ... )
    >>> result = lx.solve(problem, jnp.ones(3), method=lx.TangentNormal(), iterations=2_000)
    >>> round(float(abs(result.x[0])), 1), bool(abs(result.x @ result.x - 1) < 1e-5)
    (1.0, True)
    """

    wants_slacks: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 2
    start_samples: ClassVar[int] = 16
    refresh_samples: ClassVar[int] = 0
    copies: ClassVar[int] = 1

    @staticmethod
    def unfit(problem: Problem) -> str | None:
        """Why the method is not for a problem; None when it is."""
        random = [name for name, constraint in problem.constraints.items() if constraint.samples is not None]
        if random:
            return f"the constraints {', '.join(map(repr, random))} are random"
        if not isinstance(problem.regularizer, Zero):
            return f"the regulariser {type(problem.regularizer).__name__} is not a bound on x"
        if not problem.within.separable:
            return f"the set {type(problem.within).__name__} ties entries of x together"
        return None

    def prepare(self, oracle: Oracle, x: PyTree[Array]) -> "TangentNormal":
        why = self.unfit(oracle.problem)
        if why is not None:
            raise ValueError(
                "TangentNormal is for deterministic constraints (samples=None, or lx.Linear) and bounds on single "
                f'entries of x (lx.sets.Box, NonNegative), but {why}. Use lx.TrackedLagrangian() or method="auto".'
            )
        return self

    # --- an iteration

    def step(self, oracle: Oracle, state: TangentState, k: Float[Array, ""], batch: Batch) -> TangentState:
        s, rate = state, rate_at(jnp, k)
        bounds, plain = _bounds(oracle)
        rows, values = linearized(oracle, s.x, plain, s.usual)

        def residuals(point: Vector) -> Values:
            with occasionally(0):  # counted in the state
                return rows.scaled(oracle.exact_residuals(point)[0])

        # back to the constraints, then along them, then back again
        normal = _normal(oracle, rows, bounds, residuals, s.x, values)
        model = s.model / s.scale
        largest = _largest(model)
        whole, near = _tangent(rows, normal, s, model, largest, bounds)
        part = jnp.minimum(1, s.radius / (jnp.linalg.norm(whole) + _tiny(oracle)))
        trial = _along(rows, bounds, residuals, normal, part * whole)
        tangent = trial.length * part * whole
        x, corrected = _corrected(rows, bounds, residuals, trial)

        # the gradient there and here, on the same samples
        h1, h0 = (oracle.halved_objective_gradient(point, batch) for point in (x, s.x))
        fresh, stale = h1.mean, h0.mean
        multipliers = largest * near.weights / rows.size
        exact, pull = oracle.exact_residuals(x)
        here = rows.backward(largest * near.weights)
        change, dx = fresh - stale + pull(multipliers) - here, x - s.x
        drift = (h1 - h0).noise

        # was it a good step? By the trapezoidal rule along it, with the averaged gradient at its beginning
        slope = jnp.vdot(s.gradient + here, tangent)
        expected = slope + _curve(s.model, tangent) / 2
        found = slope + jnp.vdot(change, tangent) / 2
        moved, off = jnp.linalg.norm(tangent), jnp.linalg.norm(normal.point - s.x)
        judged = jnp.abs(slope) > 100 * _epsilon(oracle) * jnp.linalg.norm(s.gradient) * moved
        sound = jnp.isfinite(jnp.sum(fresh) + jnp.sum(exact) + jnp.sum(x))
        worse = judged & ~(found <= 0)
        good = sound & ~(worse & (off <= moved))
        signal = _square(largest * near.step) / (s.of_gradient.error + _tiny(oracle))
        longer = judged & (found < 0.75 * expected) & (moved > 0.99 * s.radius) & (signal > TRUST)
        radius = jnp.where((trial.tries > 1) & (moved > 0), 2 * moved, s.radius)
        radius = jnp.where(judged & (found > 0.25 * expected), moved / 2, radius)
        radius = jnp.where(longer, 4 * s.radius, radius)
        radius = jnp.where(worse | ~sound, jnp.maximum(moved, s.radius * (moved == 0)) / 4, radius)

        # what was learnt
        alpha = gain(s.of_gradient) if oracle.problem.samples is not None else jnp.ones((), oracle.dtype)
        rounding = _square(_epsilon(oracle) * stale)  # is noise too
        of_gradient = updated(
            s.of_gradient,
            alpha,
            rate,
            noise=lagged(s.of_gradient.noise, h0.noise + rounding, rate),
            drift=lagged(s.of_gradient.drift, jnp.where(good, drift, 0), rate),
            innovation=believable(jnp, s.of_gradient, _square(stale - s.gradient)),
        )
        real = sound & is_real(jnp, _square(dx), _square(s.x), _epsilon(oracle))
        too_long = of_gradient.drift > allowed_drift(jnp, k, signal) * alpha**2 * of_gradient.noise
        return TangentState(
            x=jnp.where(good, x, s.x),
            gradient=storm(jnp.where(good, fresh, stale), stale, s.gradient, alpha),
            residuals=jnp.where(good, exact, s.residuals),
            multipliers=multipliers,
            usual=jnp.maximum(s.usual, rows.length),
            model=jnp.where(real, _learnt(s.model, dx, change, drift), s.model),
            of_gradient=of_gradient,
            radius=jnp.maximum(radius, _epsilon(oracle) * (1 + jnp.linalg.norm(s.x))),
            scale=rescaled(jnp, s.scale, too_long, rate),
            backed_off=s.backed_off + ~good,
            trials=s.trials + len(oracle.blocks) * (normal.tries + trial.tries + corrected),
        )

    # --- the start

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> TangentState:
        one, samples = oracle.singles(batches)
        each = for_each(lambda sample: one.objective_gradient(point, sample), samples)
        slope, error = jnp.mean(each, axis=0), _noise(each)
        noise = error * each.shape[0] / oracle.batch_size  # of one batch
        # curvature of the objective, from a short step along its gradient, or anywhere if it has none
        size, steep = 1 + jnp.linalg.norm(point), jnp.linalg.norm(slope)
        along = jnp.where(steep > 0, slope / (steep + _tiny(oracle)), point.size**-0.5)
        probe = -100 * jnp.sqrt(_epsilon(oracle)) * size * along
        ahead, here = (oracle.objective_gradient(p, batches.first) for p in (point + probe, point))
        bend = jnp.linalg.norm(ahead - here) / (jnp.linalg.norm(probe) + _tiny(oracle))
        largest = jnp.maximum(jnp.where(jnp.isfinite(bend), bend, 0), 1e-3 * steep / size)
        largest = jnp.where(largest > 0, largest, 1)  # f is constant there: any step will do
        residuals, _ = oracle.exact_residuals(point)
        zero = jnp.zeros((), oracle.dtype)
        return TangentState(
            x=point,
            gradient=slope,
            residuals=residuals,
            multipliers=jnp.zeros_like(residuals),
            usual=jnp.zeros_like(residuals),
            model=largest * jnp.eye(point.size, dtype=oracle.dtype) if _has_matrix(oracle) else largest,
            of_gradient=Filter(error=error, noise=noise, drift=zero, innovation=error + noise),
            radius=jnp.maximum(1, jnp.linalg.norm(point)),
            scale=zero + 1,
            backed_off=zero,
            trials=jnp.int32(0),
        )

    def refresh(self, oracle: Oracle, state: TangentState, batches: Batch, key: Key[Array, ""]) -> TangentState:
        return state

    # --- what it knows

    def answer(self, oracle: Oracle, state: TangentState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residuals, state.multipliers)

    def counted(self, state: TangentState) -> Int[Array, ""]:
        return state.trials

    def is_violated(self, oracle: Oracle, state: TangentState) -> Bool[Array, ""]:
        """By more than rounding, in units of how long the rows of J have been."""
        residuals, _ = oracle.exact_residuals(state.x)
        usual = jnp.where(state.usual > 0, state.usual, 1)
        violation = jnp.where(oracle.inequality, jnp.maximum(residuals, 0), residuals) / usual
        return jnp.linalg.norm(violation) > jnp.sqrt(_epsilon(oracle)) * (1 + jnp.linalg.norm(state.x))

    def observe(self, oracle: Oracle, state: TangentState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "curvature": _largest(state.model),
            "radius": state.radius,
            "scale": state.scale,
            "gain": gain(state.of_gradient),
            "gradient_error": jnp.sqrt(state.of_gradient.error),
            "backed_off": state.backed_off,
        }


# --- the parts of a step


def _normal(
    oracle: Oracle,
    rows: Linearized,
    bounds: Bounds,
    residuals: Callable[[Vector], Values],
    x: Vector,
    values: Values,
) -> _Trial:
    """The Gauss-Newton step, halved until the violation falls; none if it does not, or if there is nothing to mend."""
    step = nearest(rows, values, jnp.zeros_like(x), bounds.around(x), jnp.zeros_like(values)).step
    before = jnp.linalg.norm(rows.violation(values))
    far = before > jnp.sqrt(_epsilon(oracle)) * (1 + jnp.linalg.norm(x))  # nearer, a full step helps or none

    longest = jnp.maximum(1, jnp.linalg.norm(x)) / (jnp.linalg.norm(step) + _tiny(oracle))

    def at(length: Array, count: Array) -> _Trial:
        point = _within(bounds, x + length * step)
        return _Trial(length, point, residuals(point), x, count)

    def better(trial: _Trial) -> Array:
        return jnp.linalg.norm(rows.violation(trial.residuals)) <= (1 - 1e-4 * trial.length) * before

    trial = jax.lax.while_loop(
        lambda t: far & ~better(t) & (t.tries < HALVINGS),
        lambda t: at(t.length / 2, t.tries + 1),
        at(jnp.minimum(1, longest), jnp.int32(1)),
    )
    took = better(trial)
    point, found = jnp.where(took, trial.point, x), jnp.where(took, trial.residuals, values)
    back = nearest(rows, found, jnp.zeros_like(x), bounds.around(point), jnp.zeros_like(values)).step
    return trial._replace(point=point, residuals=found, back=back)


def _tangent(
    rows: Linearized, normal: _Trial, s: TangentState, model: Array, largest: Array, bounds: Bounds
) -> tuple[Vector, Near]:
    """The step that the model wants along the linearised constraints, and the gradient step with its multipliers."""
    around = bounds.around(normal.point)
    room = jnp.where(rows.inequality, jnp.maximum(-normal.residuals, 0), 0)
    near = nearest(rows, -room, -s.gradient / largest, around, s.multipliers * rows.size / largest)
    if model.ndim == 0:
        return near.step, near
    step = along_face(rows, s.gradient, model, room, around, near)
    if rows.plain:
        return jnp.where(jnp.all(jnp.isfinite(step)), step, near.step), near

    def again(carry: tuple[Vector, Array, Array]) -> tuple[Vector, Array, Array]:
        """A gradient step of the model from there, which may leave the face, and along the new one."""
        step, count, _ = carry
        target = step - (s.gradient + model @ step) / largest
        turned = nearest(rows, -room, target, around, near.weights)
        new = along_face(rows, s.gradient, model, room, around, turned)
        same = _square(new - step) <= 1e-12 * _square(new)
        return new, count + 1, same

    begin = (step, jnp.int32(1), jnp.asarray(False))
    step, _, _ = jax.lax.while_loop(lambda c: (c[1] < ROUNDS) & ~c[2], again, begin)
    return jnp.where(jnp.all(jnp.isfinite(step)), step, near.step), near


def _along(
    rows: Linearized, bounds: Bounds, residuals: Callable[[Vector], Values], normal: _Trial, step: Vector
) -> _Trial:
    """The tangential step, halved until it stays near the constraints; none if it does not."""
    nothing = jnp.zeros_like(step)
    length = jnp.linalg.norm(step)

    def at(part: Array, count: Array) -> _Trial:
        point = _within(bounds, normal.point + part * step)
        values = residuals(point)
        back = nearest(rows, values, nothing, bounds.around(point), jnp.zeros_like(values)).step
        return _Trial(part, point, values, back, count)

    off = 0.9 * jnp.linalg.norm(normal.back)
    rounding = 4 * jnp.finfo(step.dtype).eps * (1 + jnp.linalg.norm(normal.point))

    def stays(trial: _Trial) -> Array:
        limit = jnp.maximum(jnp.maximum(OFF * trial.length * length, off), rounding)
        return jnp.linalg.norm(trial.back) <= limit

    trial = jax.lax.while_loop(
        lambda t: ~stays(t) & (OFF * t.length * length > off) & (t.tries < HALVINGS),
        lambda t: at(t.length / 2, t.tries + 1),
        at(jnp.ones((), step.dtype), jnp.int32(1)),
    )
    still = normal._replace(length=jnp.zeros((), step.dtype), tries=trial.tries)
    return jax.tree.map(lambda a, b: jnp.where(stays(trial), a, b), trial, still)


def _corrected(
    rows: Linearized, bounds: Bounds, residuals: Callable[[Vector], Values], trial: _Trial
) -> tuple[Vector, int]:
    """One more step back, if it helps, that leaves no bound; and how many evaluations that took."""
    back = trial.back
    if not rows.plain:
        around = bounds.held(trial.point)
        back = nearest(rows, trial.residuals, jnp.zeros_like(back), around, jnp.zeros_like(trial.residuals)).step
    point = _within(bounds, trial.point + back)
    before, after = (jnp.linalg.norm(rows.violation(values)) for values in (trial.residuals, residuals(point)))
    return jnp.where(after < before, point, trial.point), 1


def _within(bounds: Bounds, point: Vector) -> Vector:
    return jnp.clip(point, bounds.low, bounds.high)


def _bounds(oracle: Oracle) -> tuple[Bounds, bool]:
    """The bounds on x, and whether there is nothing but equalities. (A separable convex set is a box.)"""
    ends = (jnp.full(oracle.coordinates.size, end, oracle.dtype) for end in (-jnp.inf, jnp.inf))
    within = oracle.problem.within
    bounds = Bounds(*(oracle.coordinates.ravel(within.project(oracle.coordinates.unravel(end))) for end in ends))
    return bounds, isinstance(within, Everything) and not any(block.inequality for block in oracle.blocks)


def _noise(parts: Float[Array, "n d"]) -> Float[Array, ""]:
    """The variance of the mean of independent parts, over all entries; a single part is exact."""
    return jnp.sum(variance_of_mean(jnp, parts)) if parts.shape[0] > 1 else jnp.zeros((), parts.dtype)


def _square(vector: Array) -> Float[Array, ""]:
    return jnp.sum(vector**2)


def _tiny(oracle: Oracle) -> float:
    return float(jnp.finfo(oracle.dtype).tiny)


def _epsilon(oracle: Oracle) -> float:
    return float(jnp.finfo(oracle.dtype).eps)


# --- the curvature, a matrix or a number


def _has_matrix(oracle: Oracle) -> bool:
    return oracle.dimension <= MODEL_ENTRIES and is_whitened(oracle.rows, oracle.dimension)


def _largest(model: Array) -> Array:
    """Not below the largest eigenvalue."""
    return jnp.sqrt(jnp.sum(model**2)) + jnp.finfo(model.dtype).tiny


def _curve(model: Array, step: Vector) -> Array:
    return jnp.vdot(step, model @ step) if model.ndim else model * _square(step)


def _learnt(model: Array, step: Vector, change: Vector, noise: Array) -> Array:
    if model.ndim:
        return bent(model, step, change, noise)
    return jnp.maximum(jnp.linalg.norm(change) / jnp.linalg.norm(step), FORGET * model)
