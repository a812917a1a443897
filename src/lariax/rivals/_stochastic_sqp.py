"""Stochastic sequential quadratic optimisation, for deterministic equalities and a random objective."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.methods import AbstractMethod, Answer, linearized, nearest, unbounded
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import check_all_positive, check_deterministic
from lariax.sets import Everything

PROBES = 10  # points near the start, at a distance of
DISTANCE = 1e-4  # at which gradients are compared

RULES = ("start", "steps")


class SQPState(NamedTuple):
    x: Vector
    residuals: Float[Array, " m"]
    multipliers: Float[Array, " m"]
    merit: Float[Array, ""]  # tau
    ratio: Float[Array, ""]  # xi
    lipschitz: Float[Array, ""]  # L, of grad f
    curvature: Float[Array, ""]  # Gamma, the sum over rows of the Lipschitz constants of their gradients
    step_size: Float[Array, ""]


class StochasticSQP(AbstractMethod):
    """Stochastic SQP with an l1 merit function, H = I, for deterministic equalities.

        d    = argmin  g . d + ||d||^2 / 2   over  c + J d = 0,          g a sampled gradient
        tau <- (1 - eps) tau_trial, if tau > tau_trial = (1 - sigma) ||c||_1 / (g . d + ||d||^2)
        xi  <- (1 - eps) xi_trial,  if xi > xi_trial = D / (tau ||d||^2),   D = ||c||_1 - tau g . d
        a    = beta D / ((tau L + Gamma) ||d||^2),   b = a - 4 ||c||_1 / ((tau L + Gamma) ||d||^2),
               both projected on  beta xi tau / (tau L + Gamma) + [0, theta beta^2]
        x   += d times  a if a < 1,  b if b > 1,  1 otherwise

    L and Gamma come from differences of gradients on the same sample: with `rule="start"` at ten points near x_1, and
    then kept; with `rule="steps"` they are raised by what every step shows, at the price of a second gradient.

    The paper was not at hand in full: the settings below are those that its authors' experiments are known by.

    Arguments:
        rule: "start" or "steps", as above.
        decay: p in beta_k = k^-p; 0 as in the experiments, 1/2 or 1 for convergence.
        merit, ratio: tau and xi at the start.
        width: theta.

    Reference: A. S. Berahas, F. E. Curtis, D. P. Robinson, B. Zhou, "Sequential Quadratic Optimization for Nonlinear
    Equality Constrained Stochastic Optimization", SIAM J. Optim. 31 (2021).

    >>> import lariax as lx
    >>> method = lx.rivals.StochasticSQP(rule="steps")
    >>> method.rule
    'steps'
    """

    rule: str = eqx.field(static=True, default="start")
    decay: Any = 0.0
    merit: Any = 1.0
    ratio: Any = 1.0
    width: Any = 10.0

    def __check_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, found {self.rule!r}.")
        check_all_positive(self, "merit", "ratio", "width", or_zero=("decay",))

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "StochasticSQP":
        check_deterministic(self, oracle)
        inequalities = [block.name for block in oracle.blocks if block.inequality]
        if inequalities or not isinstance(oracle.problem.simple, Everything):
            found = (
                f"inequalities ({', '.join(inequalities)})" if inequalities else type(oracle.problem.simple).__name__
            )
            raise ValueError(
                f"StochasticSQP is for equalities and x unrestricted, found {found}. Use lx.TangentNormal() or "
                'method="auto".'
            )
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> SQPState:
        batch, residuals = batches.first, oracle.exact_residuals(point)[0]
        away = jax.random.normal(jax.random.key(0), (PROBES, point.size), point.dtype)
        away = DISTANCE * away / jnp.linalg.norm(away, axis=1, keepdims=True)
        here = oracle.objective_gradient(point, batch), oracle.jacobian(point, batch)

        def seen(move: Vector) -> tuple[Array, Array]:
            there = oracle.objective_gradient(point + move, batch), oracle.jacobian(point + move, batch)
            return _constants(here, there, move)

        lipschitz, curvature = jax.lax.map(seen, away)
        return SQPState(
            point,
            residuals,
            jnp.zeros_like(residuals),
            jnp.asarray(self.merit, oracle.dtype),
            jnp.asarray(self.ratio, oracle.dtype),
            jnp.max(lipschitz),
            jnp.max(curvature),
            jnp.zeros((), oracle.dtype),
        )

    def step(self, oracle: Oracle, state: SQPState, k: Float[Array, ""], batch: Batch) -> SQPState:
        s, tiny = state, jnp.finfo(oracle.dtype).tiny
        beta, eps, sigma = k**-self.decay, 1e-6, 0.5
        g = oracle.objective_gradient(s.x, batch)
        rows, scaled = linearized(oracle, s.x, plain=True, usual=jnp.zeros_like(s.residuals))
        near = nearest(rows, scaled, -g, unbounded(s.x), jnp.zeros_like(scaled))
        d, violation = near.step, jnp.sum(jnp.abs(s.residuals))
        length = jnp.sum(d**2) + tiny
        uphill = jnp.vdot(g, d) + length
        rises = uphill > 1e-8 * length  # on the constraints it is 0, and rounding must not lower tau
        trial = jnp.where(rises, (1 - sigma) * violation / jnp.where(rises, uphill, 1), jnp.inf)
        merit = jnp.where(s.merit > trial, (1 - eps) * trial, s.merit)
        falls = violation - merit * jnp.vdot(g, d)
        trial = falls / (merit * length + tiny)
        ratio = jnp.where(s.ratio > trial, (1 - eps) * trial, s.ratio)
        bend = merit * s.lipschitz + s.curvature + tiny
        low = beta * ratio * merit / bend
        high = low + self.width * beta**2
        a = jnp.clip(beta * falls / (bend * length), low, high)
        b = jnp.clip((beta * falls - 4 * violation) / (bend * length), low, high)
        step_size = jnp.where(a < 1, a, jnp.where(b > 1, b, 1))
        x = s.x + step_size * d
        lipschitz, curvature = s.lipschitz, s.curvature
        if self.rule == "steps":
            there = oracle.objective_gradient(x, batch), oracle.jacobian(x, batch)
            found = _constants((g, oracle.jacobian(s.x, batch)), there, x - s.x)
            moved = step_size * jnp.sqrt(length) > 1e-10 * (1 + jnp.linalg.norm(s.x))  # otherwise it is rounding
            lipschitz, curvature = (
                jnp.where(moved & jnp.isfinite(new), jnp.maximum(old, new), old)
                for old, new in zip((lipschitz, curvature), found, strict=True)
            )
        residuals, _ = oracle.exact_residuals(x)
        return SQPState(x, residuals, near.weights / rows.size, merit, ratio, lipschitz, curvature, step_size)

    def answer(self, oracle: Oracle, state: SQPState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residuals, state.multipliers)

    def observe(self, oracle: Oracle, state: SQPState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": state.step_size, "merit": state.merit, "ratio": state.ratio, "lipschitz": state.lipschitz}


def _constants(here: tuple[Array, Array], there: tuple[Array, Array], move: Vector) -> tuple[Array, Array]:
    """How fast the gradient of f and those of all constraints together change along a move."""
    distance = jnp.linalg.norm(move) + jnp.finfo(move.dtype).tiny
    rows = jnp.sqrt(jnp.sum((there[1] - here[1]) ** 2, axis=1))
    return jnp.linalg.norm(there[0] - here[0]) / distance, jnp.sum(rows) / distance
