"""K^-1 without matrices: MINRES on Hessian-vector products, the whole of it compiled.

No row of J is formed: J^T w and J v come with the Hessian's product, as the derivative of (gradient of the Lagrangian,
residuals) along (v, w). So a solution takes some eight vectors like x, however many constraints there are.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lariax.compilation import compiled
from lariax.inference._moments import Multipliers, Sample, product
from lariax.oracle import Oracle, Vector


class Both(NamedTuple):
    """A vector like x and one like the multipliers. They are kept apart, so that nothing copies them together."""

    z: Vector
    y: Multipliers

    def plus(self, times: float | Array, other: "Both") -> "Both":
        return Both(self.z + times * other.z, self.y + times * other.y)

    def scaled(self, times: float | Array) -> "Both":
        return Both(times * self.z, times * self.y)

    def dot(self, other: "Both") -> Float[Array, ""]:
        return self.z @ other.z + self.y @ other.y

    def length(self) -> Float[Array, ""]:
        return jnp.sqrt(self.dot(self))


class System(eqx.Module):
    """K at a point, along the face of the set on which x lies there.

    Attributes:
        sample: the samples that the curvature is of.
        z, y: the point, and the multipliers.
        gradient: of the Lagrangian, which presses x on the face.
        active: the rows that K has; the others are 0 in what it is applied to, and in what comes out.
    """

    sample: Sample
    z: Vector
    y: Multipliers
    gradient: Vector
    active: Bool[Array, " m"]

    @property
    def oracle(self) -> Oracle:
        return self.sample.oracle

    def times(self, vector: Both) -> Both:
        if self.oracle.is_free:
            along, bend = vector.z, jnp.zeros((), vector.z.dtype)
        else:
            along, bend = tangent_and_bend(self.oracle, self.z, self.gradient, vector.z)
        of_z, of_y = product(self.sample, self.z, self.y, along, self.held(vector.y))
        return self.kept(of_z + bend, of_y)

    def kept(self, of_z: Vector, of_y: Multipliers) -> Both:
        """The part along the face and of the active rows."""
        return Both(self.along(of_z), self.held(of_y))

    def along(self, vector: Vector) -> Vector:
        """A direction, as far as x can move that way."""
        return vector if self.oracle.is_free else tangent_and_bend(self.oracle, self.z, self.gradient, vector)[0]

    def held(self, rows: Multipliers) -> Multipliers:
        return jnp.where(self.active, rows, 0)


@eqx.filter_jit
def tangent_and_bend(oracle: Oracle, z: Vector, gradient: Vector, vector: Vector) -> tuple[Vector, Vector]:
    """A vector along the face on which x lies, and what the face's curvature adds to that of the Lagrangian.

    With M_t the derivative of the proximal map of step t at z - t gradient, P the projection on the face's tangents and
    B its curvature, M_t = (1 + t B)^-1 P, so

        P = 2 M_t - M_2t + O((t B)^2),      B = (M_t - M_2t) / t + O(t B^2)
    """
    step = jnp.cbrt(jnp.finfo(z.dtype).eps) * (1 + jnp.linalg.norm(z)) / (1 + jnp.linalg.norm(gradient))

    def derivative(times: float) -> Array:
        def prox(point: Array) -> Array:
            return oracle.prox(point, times * step)

        return jax.jvp(prox, (z - times * step * gradient,), (vector,))[1]

    once, twice = derivative(1.0), derivative(2.0)
    return 2 * once - twice, (once - twice) / step


class _Lanczos(NamedTuple):
    """Where MINRES stands: two Lanczos vectors and two directions, the rotation, what is left of the residual."""

    solution: Both
    vectors: tuple[Both, Both]
    directions: tuple[Both, Both]
    beta: Float[Array, ""]
    delta: Float[Array, ""]
    epsilon: Float[Array, ""]
    cosine: Float[Array, ""]
    sine: Float[Array, ""]
    left: Float[Array, ""]
    steps: Int[Array, ""]


@compiled(briefly=True)
def minres(
    system: System, right: Both, precise: Float[Array, ""], most: Int[Array, ""]
) -> tuple[Both, Float[Array, ""]]:
    """K^-1 right, and the length of what is left, right - K (that). With most=0, K right instead, by the same program.

    C. C. Paige, M. A. Saunders, "Solution of sparse indefinite systems of linear equations", SIAM Journal on Numerical
    Analysis 12 (1975).

    Arguments:
        precise: the length of the residual, beside that of `right`, at which to end.
        most: products.
    """
    size = right.length()
    zero, none = jnp.zeros_like(size), right.scaled(0)
    unit = right.scaled(1 / jnp.where(size > 0, size, 1))
    start = _Lanczos(none, (none, unit), (none, none), zero, zero, zero, zero - 1, zero, size, jnp.int32(0))

    def goes_on(now: _Lanczos) -> Bool[Array, ""]:
        return (now.left > precise * size) & (now.steps < most)

    found = jax.lax.while_loop(goes_on, lambda now: _next(system, now), start).solution
    solving = most > 0
    found = jax.tree.map(lambda a, b: jnp.where(solving, a, b), found, right)
    product = system.times(found)
    return jax.tree.map(lambda a, b: jnp.where(solving, a, b), found, product), right.plus(-1, product).length()


def _next(system: System, now: _Lanczos) -> _Lanczos:
    """A Lanczos vector more, and the least residual with it."""
    before, own = now.vectors
    new = system.times(own).plus(-now.beta, before)
    alpha = new.dot(own)
    new = new.plus(-alpha, own)
    beta = new.length()
    delta = now.cosine * now.delta + now.sine * alpha
    gamma = now.sine * now.delta - now.cosine * alpha
    length = jnp.maximum(jnp.hypot(gamma, beta), jnp.finfo(beta.dtype).tiny)
    cosine, sine = gamma / length, beta / length
    older, old = now.directions
    direction = own.plus(-now.epsilon, older).plus(-delta, old).scaled(1 / length)
    return _Lanczos(
        now.solution.plus(cosine * now.left, direction),
        (own, new.scaled(1 / jnp.where(beta > 0, beta, 1))),
        (old, direction),
        beta,
        -now.cosine * beta,
        now.sine * beta,
        cosine,
        sine,
        sine * now.left,
        now.steps + 1,
    )
