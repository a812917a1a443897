"""A user of the command line: `lariax solve command_line.py --iterations 20000 --batch-size 8`.

How much of three goods to keep in stock: what is kept costs, what is missing loses a sale, and on average at most 2 of
all that is kept may be left over.
"""

import jax
import jax.numpy as jnp

import lariax as lx

PRICE, COST = jnp.array([3.0, 2.0, 4.0]), jnp.array([1.0, 1.0, 1.5])
DEMAND = lx.Distribution(lambda key: jnp.array([4.0, 6.0, 2.0]) * jax.random.gamma(key, 4.0, (3,)) / 4)


def least(a, b, width=0.1):
    """The smaller of two, rounded off."""
    return a - width * jax.nn.softplus((a - b) / width)


problem = lx.Problem(
    lambda x, demand: jnp.sum(COST * x - PRICE * least(x, demand)),
    samples=DEMAND,
    constraints={"left over": lx.AtMost(lambda x, demand: jnp.sum(x - least(x, demand)), 2.0)},
    within=lx.sets.NonNegative(),
)
x0 = jnp.array([4.0, 6.0, 2.0])
