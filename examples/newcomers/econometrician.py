"""An econometrician: a production function with constant returns to scale, a + b = 1, with standard errors."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

import lariax as lx


def firms(n=2000, seed=0):
    """log output = 0.4 + 0.3 log capital + 0.7 log labour + noise."""
    rng = np.random.default_rng(seed)
    capital, labour = rng.normal(2.0, 1.0, n), rng.normal(1.0, 1.0, n)
    output = 0.4 + 0.3 * capital + 0.7 * labour + 0.5 * rng.normal(size=n)
    return pd.DataFrame({"capital": capital, "labour": labour, "output": output}, dtype="float32")


def squared(x, firm):
    return 0.5 * (firm["output"] - x["constant"] - x["a"] * firm["capital"] - x["b"] * firm["labour"]) ** 2


def main():
    problem = lx.Problem(
        squared,
        samples=lx.Dataset(firms()),
        constraints={"returns": lx.Equal(lambda x: x["a"] + x["b"], 1.0, samples=None)},
    )
    start = {name: jnp.array(0.0) for name in ("constant", "a", "b")}
    result = lx.solve(problem, start, iterations=20_000, batch_size=16)
    print(result.inference())
    return result


if __name__ == "__main__":
    main()
