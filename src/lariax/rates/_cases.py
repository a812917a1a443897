"""A family of problems whose constants, expectations and solutions are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lariax.oracle import Vector
from lariax.problem import AbstractConstraint, Distribution, Equal, Linear, Problem
from lariax.sets import Box, Everything

VARIABLES, ROWS = 6, 3
OBJECTIVE_NOISE, VALUE_NOISE, SLOPE_NOISE = 0.5, 0.3, 0.3
OUTWARD = 0.3
"""How steeply the objective falls beyond the bound of the box."""

NEWTON_STEPS = 12


class Waves(eqx.Module):
    """f(x, xi) = sum_i 1 - cos(x_i - a_i - s xi_i), xi standard normal. Nonconvex; the gradient of every sample has the
    Lipschitz constant 1. Its mean is  sum_i 1 - exp(-s^2 / 2) cos(x_i - a_i)."""

    centers: Vector
    noise: Float[Array, ""] | float

    def __call__(self, x: Vector, xi: Vector) -> Float[Array, ""]:
        return jnp.sum(1 - jnp.cos(x - self.centers - self.noise * xi))

    def mean(self, x: Vector) -> Float[Array, ""]:
        return jnp.sum(1 - jnp.exp(-0.5 * jnp.square(self.noise)) * jnp.cos(x - self.centers))


class Bowls(eqx.Module):
    """c_i(x, zeta) = A_i (x - p) + (kappa / 2) ||x - p||^2 + zeta_i (s + t w_i . (x - p)), zeta standard normal.

    In the mean c(p) = 0, with Jacobian A there. Value and gradient of one sample are correlated.
    """

    matrix: Float[Array, "m d"]
    point: Vector
    tilt: Float[Array, "m d"]
    curvature: float
    value_noise: float = VALUE_NOISE
    slope_noise: float = SLOPE_NOISE

    def __call__(self, x: Vector, zeta: Float[Array, " m"]) -> Float[Array, " m"]:
        away = x - self.point
        return self.mean(x) + zeta * (self.value_noise + self.slope_noise * (self.tilt @ away))

    def mean(self, x: Vector) -> Float[Array, " m"]:
        away = x - self.point
        return self.matrix @ away + 0.5 * self.curvature * jnp.sum(away**2)


class Member(eqx.Module):
    """One problem of a family: p solves it, with multipliers y.

    A has orthonormal rows. The first entry of p sits on a bound of the box, unless there is none.
    """

    objective: Waves
    constraint: Bowls
    multipliers: Float[Array, " m"]
    bounded: bool = eqx.field(static=True)

    @classmethod
    def draw(cls, key: Key[Array, ""], *, pull: float, curvature: float, bounded: bool) -> "Member":
        keys = jax.random.split(key, 4)
        matrix = jnp.linalg.qr(jax.random.normal(keys[0], (VARIABLES, VARIABLES)))[0][:ROWS]
        point, tilt = jax.random.normal(keys[1], (VARIABLES,)), jax.random.normal(keys[2], (ROWS, VARIABLES))
        multipliers = jax.random.normal(keys[3], (ROWS,))
        multipliers = pull * multipliers / jnp.linalg.norm(multipliers)
        force = -matrix.T @ multipliers  # grad f at p, and so a from its sine
        if bounded:
            force = force.at[0].add(-OUTWARD)
        centers = point - jnp.arcsin(jnp.exp(0.5 * OBJECTIVE_NOISE**2) * force)
        bowls = Bowls(matrix, point, tilt / jnp.sqrt(VARIABLES), curvature)
        return cls(Waves(centers, OBJECTIVE_NOISE), bowls, multipliers, bounded)

    @property
    def box(self) -> Box:
        far = jnp.full(VARIABLES, jnp.inf)
        return Box(-far, far.at[0].set(self.constraint.point[0]))

    def start(self, penalty: float | Array) -> Vector:
        """Where f + (penalty / 2) ||c||^2 is least, near p, by Newton's method (on the face of the box)."""

        def value(x: Vector) -> Float[Array, ""]:
            return self.objective.mean(x) + 0.5 * penalty * jnp.sum(self.constraint.mean(x) ** 2)

        free = jnp.ones(VARIABLES).at[0].set(not self.bounded)

        def newton(_: int, x: Vector) -> Vector:
            hessian = jax.hessian(value)(x) * free[:, None] * free + jnp.diag(1 - free)
            return x - jnp.linalg.solve(hessian, free * jax.grad(value)(x))

        return jax.lax.fori_loop(0, NEWTON_STEPS, newton, self.constraint.point)

    def problem(self, kind: str) -> Problem:
        """With constraints that are "linear", "deterministic" or "random"."""
        bowls, within = self.constraint, self.box if self.bounded else Everything()
        constraint: AbstractConstraint
        if kind == "linear":
            constraint = Linear(bowls.matrix, bowls.matrix @ bowls.point, norm=1.0, smallest=1.0)
        elif kind == "deterministic":
            constraint = Equal(bowls.mean, samples=None)
        else:
            constraint = Equal(bowls, samples=ZETA)
        return Problem(self.objective, samples=XI, constraints={"c": constraint}, within=within)


XI = Distribution(lambda key: jax.random.normal(key, (VARIABLES,)))
ZETA = Distribution(lambda key: jax.random.normal(key, (ROWS,)))
