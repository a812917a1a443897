"""An engineer: the lightest cantilever beam whose expected stress and deflection keep their limits under random loads.

Width w and height h in centimetres, length 100; the load is lognormal, about 1,000 newtons.
"""

import jax
import jax.numpy as jnp

import lariax as lx

LENGTH, STIFFNESS = 100.0, 2.0e7  # cm, N / cm^2
LOADS = lx.Distribution(lambda key: 1000.0 * jnp.exp(0.3 * jax.random.normal(key)))


def stress(x, load):  # at the clamp, in units of the limit of 20,000 N / cm^2
    return 6 * load * LENGTH / (x["w"] * x["h"] ** 2) / 20_000


def deflection(x, load):  # of the tip, in units of the limit of 0.5 cm
    return 4 * load * LENGTH**3 / (STIFFNESS * x["w"] * x["h"] ** 3) / 0.5


def main():
    problem = lx.Problem(
        lambda x, load: x["w"] * x["h"] / 10,
        samples=LOADS,
        constraints={"stress": lx.AtMost(stress, 1.0), "deflection": lx.AtMost(deflection, 1.0)},
        within=lx.sets.Box(1.0, 12.0),
    )
    result = lx.solve(problem, {"w": jnp.array(5.0), "h": jnp.array(8.0)}, iterations=20_000, batch_size=16)
    print(result)
    return result


if __name__ == "__main__":
    main()
