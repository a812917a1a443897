"""K^-1 without matrices: SYMMLQ on Hessian-vector products.

No row of J is formed: J^T w and J v come with the Hessian's product, as the derivative of (gradient of the Lagrangian,
residuals) along (v, w). SYMMLQ keeps four vectors, one less than MINRES, and products are summed up in one of them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lariax.compilation import compiled
from lariax.inference._moments import KeptSample, Multipliers, product
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
        gradient: of the Lagrangian, which presses x on the face; None: x is free.
        active: the rows that K has; the others are 0 in what it is applied to, and in what comes out.
    """

    sample: KeptSample
    z: Vector
    y: Multipliers
    gradient: Vector | None
    active: Bool[Array, " m"]

    @property
    def oracle(self) -> Oracle:
        return self.sample.oracle

    def times(self, vector: Both, start: Both | None = None) -> Both:
        """K vector, added to `start`."""
        start = Both(jnp.zeros_like(vector.z), jnp.zeros_like(vector.y)) if start is None else start
        if self.oracle.is_free:
            of_z, of_y = product(self.sample, self.z, self.y, vector.z, self.held(vector.y), start)
            return Both(of_z, self.held(of_y))
        along, bend = tangent_and_bend(self.oracle, self.z, self._gradient, vector.z)
        of_z, of_y = product(self.sample, self.z, self.y, along, self.held(vector.y), start.scaled(0))
        return start.plus(1, self.kept(of_z + bend, of_y))

    def kept(self, of_z: Vector, of_y: Multipliers) -> Both:
        """The part along the face and of the active rows."""
        return Both(self.along(of_z), self.held(of_y))

    def along(self, vector: Vector) -> Vector:
        """A direction, as far as x can move that way."""
        return vector if self.oracle.is_free else tangent_and_bend(self.oracle, self.z, self._gradient, vector)[0]

    def bend(self, vector: Vector) -> Vector:
        """What the face's curvature adds along it."""
        return self.along(tangent_and_bend(self.oracle, self.z, self._gradient, vector)[1])

    @property
    def _gradient(self) -> Vector:
        assert self.gradient is not None
        return self.gradient

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


class _Scalars(NamedTuple):
    """Where SYMMLQ stands, but for its vectors.

    Attributes:
        beta, delta, epsilon, cosine, sine: of the tridiagonal matrix and its factors.
        taken: how far the last two steps went.
        shrunk: the least residual that the vectors allow, that of MINRES.
        left: the residual that there would be if it ended here.
    """

    beta: Float[Array, ""]
    delta: Float[Array, ""]
    epsilon: Float[Array, ""]
    cosine: Float[Array, ""]
    sine: Float[Array, ""]
    taken: tuple[Float[Array, ""], Float[Array, ""]]
    shrunk: Float[Array, ""]
    left: Float[Array, ""]


def symmlq(system: System, right: Both, precise: float, most: int) -> Both:
    """K^-1 right, for a symmetric K that need not be definite.

    With T the tridiagonal matrix of Lanczos's vectors V and T = L Q, the solution is V Q^T L^-1 e_1 |right|. Columns of
    V Q^T are made one by one and never change. The last one is replaced when it ends: C. C. Paige, M. A. Saunders,
    "Solution of sparse indefinite systems of linear equations", SIAM Journal on Numerical Analysis 12 (1975).

    The loop is the host's, and every program in it writes over a vector that is not needed again: in one program, XLA
    would copy those that change places.

    Arguments:
        precise: the length of the residual, beside that of `right`, at which to end.
        most: products.
    """
    size = right.length()
    zero, enough = jnp.zeros_like(size), precise * size
    now = _Scalars(zero, zero, zero, zero - 1, zero, (zero, zero), size, size)
    before, solution = right.scaled(0), right.scaled(0)
    own, direction = (right.scaled(1 / jnp.where(size > 0, size, 1)) for _ in range(2))
    for step in range(most):
        if not now.left > enough:
            break
        whether = jnp.asarray(step == 0), jnp.asarray(step == most - 1)
        new, now, along, aside = _next((system, own, now, enough, *whether), before)
        solution = _combined((jnp.ones_like(size), ((along, direction), (aside, new))), solution)
        direction = _combined((now.sine, ((-now.cosine, new),)), direction)
        before, own = own, new
    return solution


@compiled(briefly=True, overwrite=True)
def _combined(given: tuple[Array, tuple[tuple[Array, Both], ...]], vector: Both) -> Both:
    """times vector + the sum of the terms, in the place of the vector."""
    times, terms = given
    vector = vector.scaled(times)
    for share, other in terms:
        vector = vector.plus(share, other)
    return vector


@compiled(briefly=True, overwrite=True)
def _next(
    given: tuple[System, Both, _Scalars, Array, Array, Array], before: Both
) -> tuple[Both, _Scalars, Array, Array]:
    """A Lanczos vector more, in the place of the last but one, and the step that it allows: along the direction, and
    along the new vector."""
    system, own, now, enough, is_first, is_last = given
    tiny = jnp.finfo(now.beta.dtype).tiny
    new = system.times(own, before.scaled(-now.beta))
    alpha = new.dot(own)
    new = new.plus(-alpha, own)
    beta = new.length()
    new = new.scaled(1 / jnp.where(beta > 0, beta, 1))
    delta = now.cosine * now.delta + now.sine * alpha
    gamma = now.sine * now.delta - now.cosine * alpha
    length = jnp.maximum(jnp.hypot(gamma, beta), tiny)
    cosine, sine = gamma / length, beta / length
    older, old = now.taken
    first = jnp.where(is_first, now.shrunk, -now.epsilon * older - delta * old)
    step, last = first / length, first / jnp.where(jnp.abs(gamma) > tiny, gamma, tiny)
    shrunk = sine * now.shrunk
    left = shrunk / jnp.maximum(jnp.abs(cosine), tiny)
    ends = (left <= enough) | is_last
    along, aside = jnp.where(ends, last, step * cosine), jnp.where(ends, 0, step * sine)
    scalars = _Scalars(beta, -now.cosine * beta, now.sine * beta, cosine, sine, (old, step), shrunk, left)
    return new, scalars, along, aside
