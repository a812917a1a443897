"""A data scientist: a classifier from a data frame, the mean loss of the smaller group at most 0.6."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import lariax as lx

LIMIT = 0.6


def customers(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    small = rng.uniform(size=n) < 0.2
    age, spent = rng.normal(size=n), rng.normal(size=n) + small
    bought = np.where(small, spent - age, age + spent) + rng.logistic(size=n) > 0
    return pd.DataFrame({"age": age, "spent": spent, "small": small, "bought": bought}).astype("float32")


def loss(x, row):
    score = x[0] + x[1] * row["age"] + x[2] * row["spent"] + x[3] * row["small"]
    return jax.nn.softplus(score) - row["bought"] * score


def main():
    frame = customers()
    constraints = {"small group": lx.AtMost(loss, LIMIT, samples=lx.Dataset(frame[frame["small"] == 1]))}
    problem = lx.Problem(loss, samples=lx.Dataset(frame), constraints=constraints)
    result = lx.solve(problem, jnp.zeros(4), iterations=20_000, batch_size=16)
    print(result.certificate)
    return result


if __name__ == "__main__":
    main()
