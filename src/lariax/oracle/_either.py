"""A choice between two states."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from lariax.oracle._oracle import Oracle

State = TypeVar("State", bound=PyTree)


def either(oracle: Oracle, good: Bool[Array, ""], new: State, back: State) -> State:
    """The new state if it is good, else the other. Large vectors are copied only if it is not: a loop that is not
    entered leaves them where they are, and a choice (`lax.cond`) would copy either."""

    def chosen(a: Array, b: Array) -> Array:
        return a if a is b else jnp.where(good, a, b)

    if not oracle.is_large:
        return jax.tree.map(chosen, new, back)
    leaves, others, structure = jax.tree.leaves(new), jax.tree.leaves(back), jax.tree.structure(new)
    pairs = dict(enumerate(zip(leaves, others, strict=True)))
    large = {i: (a, b) for i, (a, b) in pairs.items() if a is not b and a.shape == (oracle.dimension,)}
    _, taken = jax.lax.while_loop(
        lambda carry: carry[0],
        lambda carry: (jnp.zeros_like(carry[0]), [b for _, b in large.values()]),
        (~good, [a for a, _ in large.values()]),
    )
    numbers = {i: chosen(*pair) for i, pair in pairs.items() if i not in large}
    found = numbers | dict(zip(large, taken, strict=True))
    return jax.tree.unflatten(structure, [found[i] for i in range(len(leaves))])
