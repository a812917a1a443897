"""Where there is no error bar."""

from lariax.utils import HelpfulError


class InferenceError(HelpfulError, ValueError):
    """The point is not one around which intervals would mean anything; the message says why, and what to do.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> noise = lx.Distribution(lambda key: jax.random.normal(key, (2,)))
    >>> flat = lx.Problem(lambda x, z: jnp.sum(x * z), samples=noise)
    >>> try:
    ...     lx.inference(flat, jnp.zeros(2))
    ... except lx.InferenceError:
    ...     print("no curvature, no error bars")
    no curvature, no error bars
    """

    topic = "inference"
