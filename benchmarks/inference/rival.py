"""Averaged stochastic SQP with error bars of its own, for deterministic equalities.

    (dx, dy) = -K_t^-1 (g + J^T y, c),     K_t = [ B_t  J^T ; J  0 ],     B_t the mean of the sampled Hessians so far
    x += a_t dx,   y += a_t dy,            a_t uniform in [b_t, b_t + b_t^2],   b_t = t^-0.501

and the average of all iterates is the estimate. Its error bars are by the plug-in sandwich or by random scaling.

After S. Na, M. W. Mahoney, "Statistical Inference of Constrained Stochastic Optimization via Sketched Sequential
Quadratic Programming" (arXiv:2205.13687): a random step between b_t and b_t + o(b_t), and a plug-in covariance; with
the system solved exactly, which is their best case. Averages of the iterates and random scaling are of X. Du, W. Zhu,
W. B. Wu, S. Na, "Online Statistical Inference of Constrained Stochastic Optimization via Random Scaling"
(arXiv:2505.18327). Both are about deterministic equalities, as here. The abstracts were at hand, not the experiments:
the exponent 0.501, just above the least that averaging allows, and b_t^2 are ours.
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


def run(key, draws):
    """The average, and its standard errors both ways, as (x, y)."""
    draw, row = sampler(uneven, BETA, ROOT), jnp.asarray(W)[None]

    def step(state, t):
        z, bends, average, noise, paths = state
        keys = jax.random.split(jax.random.fold_in(key, t))
        sample = draw(keys[0])
        a, x, y = sample["a"], z[:D], z[D:]
        gradient = -(sample["b"] - a @ x) * a
        bends = bends + (jnp.outer(a, a) - bends) / (t + 1)
        matrix = bends + 0.1 / (t + 1) * jnp.eye(D)
        system = jnp.block([[matrix, row.T], [row, jnp.zeros((1, 1))]])
        move = -jnp.linalg.solve(system, jnp.concatenate([gradient + y @ row, row @ x - AT]))
        base = (t + 1.0) ** -0.501
        z = z + (base + base**2 * jax.random.uniform(keys[1])) * move
        average = average + (z - average) / (t + 1)
        noise = noise + (jnp.outer(gradient + y @ row, gradient + y @ row) - noise) / (t + 1)
        weight = (t + 1.0) ** 2
        paths = paths[0] + weight * average**2, paths[1] + weight * average, paths[2] + weight
        return (z, bends, average, noise, paths), None

    none = jnp.zeros(D + 1)
    start = (none, jnp.eye(D), none, jnp.zeros((D, D)), (none, none, 0.0))
    (_, bends, average, noise, paths), _ = jax.lax.scan(step, start, jnp.arange(draws))
    inverse = jnp.linalg.inv(jnp.block([[bends, row.T], [row, jnp.zeros((1, 1))]]))
    wide = jnp.zeros((D + 1, D + 1)).at[:D, :D].set(noise)
    plug_in = jnp.sqrt(jnp.diag(inverse @ wide @ inverse) / draws)
    squares = paths[0] - 2 * average * paths[1] + paths[2] * average**2
    return average, plug_in, jnp.sqrt(squares / draws) / draws


def measured(seeds: int, draws: int = 2000) -> dict[str, Numbers]:
    start = time.process_time()
    keys = jax.random.split(jax.random.key(11), seeds)
    estimate, plug_in, scaled = map(np.asarray, jax.jit(jax.vmap(partial(run, draws=draws)))(keys))
    truth = solution([W], [AT], ["c"])
    exact = np.append(truth.x, truth.multipliers["c"])
    parts = {"x": slice(0, D), "multipliers": slice(D, D + 1), "objective": slice(0, 0)}
    seconds = time.process_time() - start
    return {
        name: Numbers(estimate, estimate - reach, estimate + reach, exact, parts, 0, seconds)
        for name, reach in {"plug-in": 1.959964 * plug_in, "random scaling": QUANTILES[0.95] * scaled}.items()
    }
