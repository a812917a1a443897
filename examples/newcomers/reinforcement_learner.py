"""An RL researcher: a stochastic policy in two states, by policy gradients, with a bound on its mean cost.

The second action pays more and costs more; entropy is rewarded. Gradients are value times that of log-probability.
"""

import jax
import jax.numpy as jnp

import lariax as lx

REWARD = jnp.array([[1.0, 2.0], [0.5, 3.0]])  # of a state and an action
COST = jnp.array([[0.0, 1.0], [0.0, 2.0]])
LIMIT, ENTROPY = 0.6, 0.5


def acted(x, z, values):
    """What was seen, with its gradient by the score function."""
    chance = jax.nn.sigmoid(x[z["state"]])  # of the second action
    action = jax.lax.stop_gradient(z["noise"] < chance).astype(int)
    seen = jax.lax.stop_gradient(values(z["state"], action, chance))
    return lx.Proxy(seen, seen * jnp.log(jnp.where(action == 1, chance, 1 - chance)))


def payoff(state, action, chance):
    return -REWARD[state, action] + ENTROPY * jnp.log(jnp.where(action == 1, chance, 1 - chance))


def main():
    states = lambda key: jax.random.randint(key, (), 0, 2)  # noqa: E731
    noise = lambda key: jax.random.uniform(jax.random.fold_in(key, 1))  # noqa: E731
    samples = lx.Distribution(lambda key: {"state": states(key), "noise": noise(key)})
    cost = lx.AtMost(lambda x, z: acted(x, z, lambda state, action, _: COST[state, action]), LIMIT)
    problem = lx.Problem(lambda x, z: acted(x, z, payoff), samples=samples, constraints={"cost": cost})
    result = lx.solve(problem, jnp.zeros(2), iterations=20_000, batch_size=64)
    print(jax.nn.sigmoid(result.x), result.multipliers)
    return result


if __name__ == "__main__":
    main()
