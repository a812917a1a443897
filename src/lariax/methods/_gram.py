"""Systems with a Gram matrix, by the smaller of the two factorisations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

REFINED = 2  # corrections from the residual: one takes back all but some 1e-4 of what cancels in the other form


def gram_solve(
    half: Float[Array, "m d"], diagonal: Float[Array, " m"], right: Float[Array, " m"]
) -> Float[Array, " m"]:
    """y with  (A A^T + D) y = b,  D > 0.

    With no more rows than columns by the m-by-m matrix; with more, by the d-by-d one,

        y = D^-1/2 (1 - S (I + S^T S)^-1 S^T) D^-1/2 b,      S = D^-1/2 A

    in which b and what it is made of cancel where D is small: hence the corrections.
    """
    rows, columns = half.shape
    if rows <= columns:
        return jax.scipy.linalg.cho_solve(
            jax.scipy.linalg.cho_factor(half @ half.T + jnp.diag(diagonal), lower=True), right
        )
    root = jnp.sqrt(diagonal)
    scaled = half / root[:, None]
    inner = scaled.T @ scaled
    least = 1 + 2 * jnp.finfo(inner.dtype).eps * jnp.trace(inner)  # what rounding cannot take away
    factor = jax.scipy.linalg.cho_factor(inner + least * jnp.eye(columns, dtype=inner.dtype), lower=True)

    def once(b: Array) -> Array:
        part = b / root
        return (part - scaled @ jax.scipy.linalg.cho_solve(factor, scaled.T @ part)) / root

    def corrected(_: int, y: Array) -> Array:
        return y + once(right - half @ (half.T @ y) - diagonal * y)

    return jax.lax.fori_loop(0, 1 + REFINED, corrected, jnp.zeros_like(right))  # one body is compiled sooner than three
