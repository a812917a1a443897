# %% [markdown]
# A multiplier is a price. Open this file as a notebook (the cells are marked), or run it as a script.

# %%
import jax
import jax.numpy as jnp

import lariax as lx

NOISE = lx.Distribution(lambda key: jax.random.normal(key, (2,)))


def solved(bound):
    """The point of x1 + 2 x2 <= bound, on average, that is nearest to (2, 2)."""
    line = lx.AtMost(lambda x, z: (1 + 0.5 * z[0]) * x[0] + (2 + 0.5 * z[1]) * x[1], bound)
    problem = lx.Problem(lambda x, z: 0.5 * jnp.sum((x - 2) ** 2), samples=NOISE, constraints={"line": line})
    return lx.solve(problem, jnp.zeros(2), iterations=20_000, batch_size=16)


# %% The answer, and what the certificate says of it
result = solved(4.0)
print(result.x, result.multipliers["line"])
print(result.certificate.verdict)

# %% Loosen the bound a little: the objective falls by the multiplier times as much
change = (solved(4.1).fun - solved(3.9).fun) / 0.2
print(change, "is about", -result.multipliers["line"])
