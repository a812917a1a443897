"""For constraints that are known exactly: a step back to them, a step along them, and a gradient that is averaged."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lariax.compilation import on_host
from lariax.formulas import storm
from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs
from lariax.methods._face import bent, linearized
from lariax.methods._nearest import Bounds, Values
from lariax.methods._steps import BasePoint, TangentialStep, normal_step, tangential_direction, tangential_step
from lariax.methods._survey import gradient_moments, scales_at, square
from lariax.oracle import Batch, Oracle, Vector, occasionally
from lariax.problem import Problem
from lariax.prox import Zero
from lariax.sets import Everything
from lariax.tuned.constants import START_SAMPLES
from lariax.tuned.curvature import first_curvature, probe_direction, probe_length, shortest_step
from lariax.tuned.filter import Filter, clipped_innovation, gain, running_mean, updated
from lariax.tuned.rates import allowed_drift, next_theta, rate_at
from lariax.tuned.shape import is_whitened

MODEL_ENTRIES = 256
"""Up to this many entries of x the curvature is a matrix, learnt from steps; beyond, it is one number."""

FEW_ROWS = 16
"""Beyond that many entries, a Jacobian of more rows than this costs more than it brings: on a network for Burgers'
equation with 128 rows `TrackedLagrangian` makes nine iterations in the time of one, and each gets as far."""

TRUST = 4.0  # steps get longer only if what they follow stands out by this from the error of the estimate, squared
REACH = 100.0  # the first normal step may be this many times as long as x
LEAST_RADIUS = 100.0  # the least radius, in units of what is rounding: a shorter one would never grow again
FORGET = 0.9  # what is left after an iteration of a maximum: of the length of a row, of a curvature that is one number


class TangentState(NamedTuple):
    x: Vector
    gradient: Vector  # g, an estimate of grad f at x
    residuals: Values  # of the constraints at x, exactly
    multipliers: Values
    usual: Values  # how long each row of J has been, recently
    model: Array  # B, or one number for B / I: the curvature of the Lagrangian
    of_gradient: Filter
    metric: Vector | None  # x, steps and gradients here are those of x / metric; None: 1
    size: Float[Array, ""]  # how large x and its steps are, recently
    reach: Float[Array, ""]  # the longest normal step
    radius: Float[Array, ""]  # the longest tangential step
    scale: Float[Array, ""]  # theta <= 1: the part of a step that is taken
    backed_off: Float[Array, ""]  # how many steps were refused
    extra_evaluations: Int[Array, ""]  # evaluations of the constraints in loops whose length only the run knows


class TangentNormal(AbstractMethod):
    """For deterministic constraints and bounds: exact normal steps, tangential steps on an averaged gradient.

    With r the constraint values and J their Jacobian, both exact, and J^+ the least-squares way back within the bounds:

        x'  = x + argmin_d  ||J d + r(x)||^2 + mu ||d||^2     within the bounds; mu rises until the violation falls
        t   = argmin  g . t + t^T B t / 2                     over J t = 0 (<= -r for inequalities) and the bounds,
                                                              shortened until ||J^+ r(x' + t)|| <= ||t|| / 5
        x+  = x' + t - J^+ r(x' + t)                          if that is nearer to the constraints
        g+  = grad f(x+, xi) + (1 - alpha) (g - grad f(x, xi))

    Multipliers are those of the least-squares problem for t. The momentum alpha is a Kalman gain whose noises are
    measured on the batch, as in `TrackedLagrangian`: as x settles it falls like 1/k. B is learnt from same-sample
    differences of gradients, D = grad f(x+, xi) - grad f(x, xi) + (J+ - J)^T y: a matrix by damped BFGS for up to 256
    entries of x, one number beyond. A step that raises the Lagrangian, by what D says, is not taken, and the next is
    shorter; steps also shrink (theta) when their noise would show. Where constraints are violated and show no way back,
    as a sphere at its centre, x is moved a little at random.

    Constraints cost values and Jacobians, never samples. Up to 256 rows the Jacobian is formed; beyond that products
    with J J^T serve conjugate gradients. Dependent rows do no harm, nor do more rows than entries of x. Up to 256
    entries x may be in any units: steps are taken in those of the curvature of f on the first batch. There is no
    convergence proof.

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

    needs: ClassVar[Needs] = Needs(smallest_batch=2, start_samples=START_SAMPLES)

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

    @staticmethod
    def has_many_rows(oracle: Oracle) -> bool:
        """Whether it would work, but another method gets further in the same time."""
        many = oracle.dimension > MODEL_ENTRIES and oracle.rows > FEW_ROWS
        return many or not is_whitened(oracle.rows, oracle.dimension)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "TangentNormal":
        why = self.unfit(oracle.problem)
        if why is not None:
            raise ValueError(
                "TangentNormal is for deterministic constraints (samples=None, or lx.Linear) and bounds on single "
                f'entries of x (lx.sets.Box, NonNegative), but {why}. Use lx.TrackedLagrangian() or method="auto".'
            )
        return self

    # --- an iteration

    def step(self, oracle: Oracle, state: TangentState, k: Float[Array, ""], batch: Batch) -> TangentState:
        oracle, s, rate = replace(oracle, scaling=state.metric), state, rate_at(jnp, k)
        base = _base_point(oracle, s)
        rows = base.rows

        # back to the constraints, then along them, then back again
        back, reach = normal_step(base, s.reach)
        model = s.model / s.scale
        largest = _largest(model)
        whole, near = tangential_direction(base, back, s.gradient, model, largest, s.multipliers * rows.size / largest)
        part = jnp.minimum(1, s.radius / (jnp.linalg.norm(whole) + _tiny(oracle)))
        trial = tangential_step(base, back, part * whole)
        x = base.within(trial.point + _kick(base, s, k))

        # the gradient there and here, on the same samples
        h1, h0 = (oracle.halved_objective_gradient(point, batch) for point in (x, s.x))
        fresh, stale = h1.mean, h0.mean
        multipliers = largest * near.weights / rows.size
        exact, pull = oracle.exact_residuals(x)
        here = rows.backward(largest * near.weights)
        change, dx = fresh - stale + pull(multipliers) - here, x - s.x
        drift = (h1 - h0).noise
        signal = square(largest * near.step) / (s.of_gradient.error + _tiny(oracle))
        sound = jnp.isfinite(jnp.sum(fresh) + jnp.sum(exact) + jnp.sum(x))
        off = jnp.linalg.norm(back.point - s.x)
        good, radius = _verdict(s, trial, part * whole, s.gradient + here, change, off, sound)

        # what was learnt
        alpha = gain(s.of_gradient) if oracle.problem.samples is not None else jnp.ones((), oracle.dtype)
        rounding = square(_epsilon(oracle) * stale)  # is noise too
        of_gradient = updated(
            s.of_gradient,
            alpha,
            rate,
            noise=running_mean(s.of_gradient.noise, h0.noise + rounding, rate),
            drift=running_mean(s.of_gradient.drift, jnp.where(good, drift, 0), rate),
            innovation=clipped_innovation(jnp, s.of_gradient, square(stale - s.gradient)),
        )
        real = sound & (jnp.linalg.norm(dx) > shortest_step(_epsilon(oracle)) * s.size)
        too_long = of_gradient.drift > allowed_drift(jnp, k, signal) * alpha**2 * of_gradient.noise
        size = jnp.maximum(jnp.linalg.norm(s.x), jnp.maximum(jnp.linalg.norm(dx) * sound, 0.99 * s.size))
        return TangentState(
            x=jnp.where(good, x, s.x),
            gradient=storm(jnp.where(good, fresh, stale), stale, s.gradient, alpha),
            residuals=jnp.where(good, exact, s.residuals),
            multipliers=multipliers,
            usual=jnp.maximum(FORGET * s.usual, rows.length),
            model=jnp.where(real, _learnt(s.model, dx, change, drift), s.model),
            of_gradient=of_gradient,
            metric=s.metric,
            size=size,
            reach=jnp.maximum(reach, _epsilon(oracle) * size),
            radius=jnp.maximum(radius, LEAST_RADIUS * shortest_step(_epsilon(oracle)) * size),
            scale=next_theta(jnp, s.scale, too_long, rate),
            backed_off=s.backed_off + ~good,
            extra_evaluations=s.extra_evaluations + len(oracle.blocks) * (back.tries + 2 * trial.tries),
        )

    # --- the start

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> TangentState:
        slope, entries, count = gradient_moments(oracle, point, batches)
        found = scales_at(oracle, point, batches, by_pull=False) if _has_matrix(oracle) else None
        metric = None if found is None else found[0]
        if metric is not None:
            oracle, point = replace(oracle, scaling=metric), point / metric
            slope, entries = metric * slope, metric**2 * entries
        error = jnp.sum(entries)
        noise = error * count / oracle.batch_size  # of one batch
        norm, steep = jnp.linalg.norm(point), jnp.linalg.norm(slope)
        size = jnp.where(norm > 0, norm, 1) if metric is None else jnp.ones((), oracle.dtype)
        length = probe_length(jnp, size, _epsilon(oracle))
        beyond = point - length * probe_direction(jnp, slope, steep, _tiny(oracle))
        ahead, here = (oracle.objective_gradient(p, batches.first) for p in (beyond, point))
        seen = jnp.linalg.norm(ahead - here) / (length + _tiny(oracle))
        largest = first_curvature(jnp, jnp.where(jnp.isfinite(seen), seen, 0), steep, size)
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
            metric=metric,
            size=size,
            reach=REACH * size,
            radius=size,
            scale=zero + 1,
            backed_off=zero,
            extra_evaluations=jnp.int32(0),
        )

    # --- what it knows

    def answer(self, oracle: Oracle, state: TangentState, k: Float[Array, ""]) -> Answer:
        point = state.x if state.metric is None else state.metric * state.x
        return Answer(point, state.residuals, state.multipliers)

    def diagnose(self, oracle: Oracle, state: TangentState, k: Float[Array, ""]) -> Diagnosis:
        """Violated: by more than rounding, in units of how long the rows of J have been."""
        residuals, usual, size = map(on_host, (state.residuals, state.usual, state.size))  # nothing is compiled
        violation = np.where(oracle.layout.inequality, np.maximum(residuals, 0), residuals)
        far = np.linalg.norm(violation / np.where(usual > 0, usual, 1)) > np.sqrt(_epsilon(oracle)) * size
        return Diagnosis(violated=far, scales=state.metric)

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


def _base_point(oracle: Oracle, s: TangentState) -> BasePoint:
    bounds, plain = _bounds(oracle)
    rows, values = linearized(oracle, s.x, plain, s.usual)

    def residuals(point: Vector) -> Values:
        with occasionally(0):  # counted in the state
            return rows.scaled(oracle.exact_residuals(point)[0])

    return BasePoint(rows, bounds, residuals, s.x, values, s.size)


def _kick(base: BasePoint, s: TangentState, k: Float[Array, ""]) -> Vector:
    """A little in a random direction, where constraints are violated and show no way back.

    At a saddle of the violation, such as the centre of a sphere, steps grow from there; elsewhere they come back.
    """
    rows, eps = base.rows, base.eps
    violation = rows.violation(base.values)
    downhill = jnp.clip(-rows.backward(violation), *base.bounds.around(s.x))
    is_flat = base.is_far & (square(downhill) <= 100 * eps * square(violation))
    direction = jax.random.normal(jax.random.fold_in(jax.random.key(0), k.astype(int)), s.x.shape, s.x.dtype)
    length = eps ** (1 / 3) * s.size / jnp.linalg.norm(direction)
    hidden = ~rows.alive & (jnp.abs(rows.violation(s.residuals)) > eps**0.5 * s.usual * s.size)
    return jnp.where(is_flat | jnp.any(hidden), length, 0) * direction


def _verdict(
    s: TangentState,
    trial: TangentialStep,
    step: Vector,
    slope: Vector,
    change: Vector,
    off: Array,
    sound: Array,
) -> tuple[Bool[Array, ""], Float[Array, ""]]:
    """Whether a step is taken, and how long the next tangential one may be.

    By the trapezoidal rule along the tangential step, with the averaged gradient of the Lagrangian at its beginning.
    """
    moved = trial.taken * step
    length, eps = jnp.linalg.norm(moved), float(jnp.finfo(moved.dtype).eps)
    down = jnp.vdot(slope, moved)
    expected, found = down + _curve(s.model, moved) / 2, down + jnp.vdot(change, moved) / 2
    judged = jnp.abs(down) > 100 * eps * jnp.linalg.norm(s.gradient) * length
    real = jnp.linalg.norm(step) > LEAST_RADIUS / 2 * shortest_step(eps) * s.size  # in a corner there is no way on
    judged = judged & real
    worse = judged & ~(found <= 0)
    trusted = down**2 > TRUST * s.of_gradient.error / moved.size * length**2
    longer = judged & (found < 0.75 * expected) & (length > 0.99 * s.radius) & trusted
    cut = jnp.where(trial.fine, jnp.minimum(2 * length, s.radius), s.radius / 16)
    radius = jnp.where(real & (trial.tries > 1), cut, s.radius)
    radius = jnp.where(judged & (found > 0.25 * expected), length / 2, radius)
    radius = jnp.where(longer, 4 * s.radius, radius)
    radius = jnp.where(worse | ~sound, jnp.where(length > 0, length, s.radius) / 4, radius)
    return sound & ~(worse & (off <= length)), radius


# --- small things


def _bounds(oracle: Oracle) -> tuple[Bounds, bool]:
    """The bounds on x, and whether there is nothing but equalities. (A separable convex set is a box.)"""
    ends = (jnp.full(oracle.coordinates.size, end, oracle.dtype) for end in (-jnp.inf, jnp.inf))
    within = oracle.problem.within
    low, high = (oracle.coordinates.ravel(within.project(oracle.coordinates.unravel(end))) for end in ends)
    bounds = Bounds(low, high) if oracle.scaling is None else Bounds(low / oracle.scaling, high / oracle.scaling)
    return bounds, isinstance(within, Everything) and not any(block.inequality for block in oracle.blocks)


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
    return jnp.vdot(step, model @ step) if model.ndim else model * square(step)


def _learnt(model: Array, step: Vector, change: Vector, noise: Array) -> Array:
    if model.ndim:
        return bent(model, step, change, noise)
    return jnp.maximum(jnp.linalg.norm(change) / jnp.linalg.norm(step), FORGET * model)
