"""The gradient of the objective at a point, for those who look for it beside an answer."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from lariax.compilation import compiled
from lariax.problem import Dataset, Problem, Stream

SAMPLES = 4_096
"""The most that the gradient is averaged over."""


def objective_gradient(problem: Problem, x: PyTree[Array], key: Key[Array, ""]) -> PyTree[Array]:
    """E[grad f], exactly where nothing is random, else over fresh samples, or all rows of a small data set."""
    source = problem.samples
    if isinstance(source, Stream):
        raise ValueError("the rows of a Stream are not drawn for a gradient: use jax.grad on the objective.")
    return _mean_gradient(problem, x, key)


@compiled(briefly=True)  # not `once`: of jnp.max the gradient would be wrong
def _mean_gradient(problem: Problem, x: PyTree[Array], key: Key[Array, ""]) -> PyTree[Array]:
    source = problem.samples

    def value(point: PyTree[Array], *sample: Any) -> Array:
        found = problem.objective(point, *sample)
        return found[0] if problem.is_joint else found

    if source is None:
        return jax.grad(value)(x)
    if isinstance(source, Dataset) and len(source) <= SAMPLES:
        samples = source.fetch(jnp.arange(len(source)))
    else:
        tickets = source.draw(key, jnp.arange(1), SAMPLES)
        samples = source.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
    return jax.grad(lambda point: jnp.mean(jax.vmap(lambda sample: value(point, sample))(samples)))(x)
