"""Functions that are traced once."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jaxtyping import PyTree


class Program:
    """A function that is traced once, for arguments like these, wherever it is called."""

    def __init__(self, function: Callable[..., Any], *like: PyTree):
        self.program, self.output = jax.make_jaxpr(function, return_shape=True)(*like)

    def __call__(self, *args: PyTree) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(self.output), jaxpr_as_fun(self.program)(*jax.tree.leaves(args)))
