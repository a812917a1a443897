"""Stochastic SQP with error bars of its own, for deterministic equalities.

    (dx, dy) = -K_t^-1 (g + J^T y, c),     K_t = [ B_t  J^T ; J  0 ],     B_t the mean of the Hessians sampled so far
    x += a_t dx,   y += a_t dy,            a_t uniform in [b_t, b_t + b_t^2],   b_t = t^-0.501

S. Na, M. W. Mahoney, "Statistical Inference of Constrained Stochastic Optimization via Sketched Sequential Quadratic
Programming" (arXiv:2205.13687) take the last iterate, with the covariance a_t K^-1 Omega K^-1 / 2. X. Du, W. Zhu, W. B.
Wu, S. Na, "Online Statistical Inference of Constrained Stochastic Optimization via Random Scaling" (arXiv:2505.18327)
take the average of the iterates, by random scaling; its plug-in covariance is K^-1 Omega K^-1 / n.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.inference.cases import BETA, ROOT, D, W, sampler, solution, uneven
from benchmarks.inference.run import Numbers
from lariax.inference import QUANTILES

AT = float(W @ BETA) - 1
TAIL = 1 / 11  # of the iterations, from which Omega is taken
CHECKED = (
    "stochastic SQP by S. Na and M. W. Mahoney (the last iterate), and its average (X. Du, W. Zhu, W. B. Wu, S. Na). "
    "The steps t^-0.501 with a random part up to its square, the first B and multiplier, Omega from the last eleventh "
    "of the iterations and the interval of the last iterate are those of the authors' published code for constrained "
    "least squares (github.com/senna1128/Inf-StoSQP), which runs for 100,000 iterations, here 2,000. Two things are "
    "kinder than there: systems are solved exactly, and the mean of the Hessians has that of the draw itself (without "
    "it the first steps go astray, and spoil an average of 2,000: 53 % of the plug-in intervals hold x). The "
    "averages follow the abstract of arXiv:2505.18327; no code of theirs was found."
)


def run(key, draws):
    """The last iterate and the average, as (x, y), with the standard error of the one and two of the other."""
    draw, row = sampler(uneven, BETA, ROOT), jnp.asarray(W)[None]

    def step(state, t):
        z, bends, average, tail, paths = state
        keys = jax.random.split(jax.random.fold_in(key, t))
        sample = draw(keys[0])
        a, x, y = sample["a"], z[:D], z[D:]
        gradient = -(sample["b"] - a @ x) * a
        bends = bends + (jnp.outer(a, a) - bends) / (t + 2)
        system = jnp.block([[bends, row.T], [row, jnp.zeros((1, 1))]])
        move = -jnp.linalg.solve(system, jnp.concatenate([gradient + y @ row, row @ x - AT]))
        base = (t + 1.0) ** -0.501
        length = base + base**2 * jax.random.uniform(keys[1])
        z = z + length * move
        average = average + (z - average) / (t + 1)
        seen = jnp.where(t >= draws * (1 - TAIL), 1.0, 0.0)
        tail = tail[0] + seen, tail[1] + seen * gradient, tail[2] + seen * jnp.outer(gradient, gradient)
        weight = (t + 1.0) ** 2
        paths = paths[0] + weight * average**2, paths[1] + weight * average, paths[2] + weight
        return (z, bends, average, tail, paths), length

    first, none = jnp.zeros(D + 1).at[D].set(1.0), jnp.zeros(D + 1)
    start = (first, jnp.eye(D), none, (0.0, jnp.zeros(D), jnp.zeros((D, D))), (none, none, 0.0))
    (z, bends, average, tail, paths), lengths = jax.lax.scan(step, start, jnp.arange(draws))
    inverse = jnp.linalg.inv(jnp.block([[bends, row.T], [row, jnp.zeros((1, 1))]]))
    mean = tail[1] / tail[0]
    noise = jnp.zeros((D + 1, D + 1)).at[:D, :D].set(tail[2] / tail[0] - jnp.outer(mean, mean))
    omega = jnp.diag(inverse @ noise @ inverse)
    squares = paths[0] - 2 * average * paths[1] + paths[2] * average**2
    return z, average, jnp.sqrt(lengths[-1] * omega / 2), jnp.sqrt(omega / draws), jnp.sqrt(squares / draws) / draws


def measured(seeds: int, draws: int = 2000) -> dict[str, Numbers]:
    start = time.process_time()
    keys = jax.random.split(jax.random.key(11), seeds)
    found = map(np.asarray, jax.jit(jax.vmap(partial(run, draws=draws)))(keys))
    last, average, of_last, plug_in, scaled = found
    truth = solution([W], [AT], ["c"])
    exact = np.append(truth.x, truth.multipliers["c"])
    parts = {"x": slice(0, D), "multipliers": slice(D, D + 1), "objective": slice(0, 0)}
    seconds = time.process_time() - start
    normal = 1.959964
    ways = {
        "stochastic SQP": (last, normal * of_last),
        "averaged SQP, plug-in": (average, normal * plug_in),
        "averaged SQP, random scaling": (average, QUANTILES[0.95] * scaled),
    }
    return {
        name: Numbers(estimate, estimate - reach, estimate + reach, exact, parts, 0, seconds)
        for name, (estimate, reach) in ways.items()
    }
