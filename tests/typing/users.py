"""What a user may write under a type checker: `mypy` reads this file, nothing runs it."""

import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx


def share(x: Array, row: Array) -> Array:
    return row @ x


constraints = {
    "number": lx.AtMost(share, 0.005),
    "whole": lx.AtLeast(share, 1),
    "array": lx.Equal(share, np.zeros(3)),
    "own": lx.AtMost(lambda x: x @ x, jnp.ones(()), samples=None),
}
bound: Array = lx.AtMost(share, 0.1).bound
lx.AtMost(share, "a lot")  # type: ignore[arg-type]

sets = [lx.sets.L2Ball(1.0), lx.sets.L2Ball(2, center=np.zeros(3)), lx.sets.Box(0, 1), lx.sets.Simplex(1.0)]
terms = [lx.prox.L1(0.1), lx.prox.ElasticNet(0.1, 0.2)]
problem = lx.Problem(share, samples=lx.Dataset(np.eye(3)), constraints=constraints, within=sets[0])
result = lx.solve(problem, jnp.zeros(3), iterations=100, batch_size=2)
