"""Algorithm 2 on the wells problem as a native loop, written for speed and for nothing else.

    f(x, xi) = sum_i 1 - exp(-(x_i - a_i - 0.3 xi_i)^2 / 4)
    c(x, z)  = ( ||x||^2 - 4 + 0.5 z_1 x_1 ,  x_1 - x_2 + 0.1 z_2 )

Two passes over the coordinates an iteration, gradients by hand, samples drawn where they are used, nothing stored that
is not needed again. `fastmath` is on, which the compiled loop of Lariax does without.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np


@numba.njit(fastmath=True)
def ziggurat(rng: np.random.Generator) -> float:
    """One draw from NumPy's newer generators: the fastest normal numbers that numba has."""
    return rng.standard_normal()


@numba.njit(fastmath=True)
def polar(rng: np.random.Generator) -> float:
    """One draw from NumPy's older global generator: what `np.random.standard_normal()` gives inside numba."""
    return np.random.standard_normal()  # noqa: NPY002 (the older generator is the point)


def compiled(normal: Callable[[np.random.Generator], float]) -> Any:
    """run(rng, a, x, iterations, step_size, penalty) -> (x, multipliers), with a normal generator of choice."""

    @numba.njit(fastmath=True)
    def run(rng, a, x, iterations, step_size, penalty):
        d = x.size
        gradient, new = np.zeros(d), x.copy()
        tracked_0, tracked_1 = 0.0, 0.0
        for k in range(iterations + 1):
            if k == 0:  # the first estimate is a plain gradient
                eta, keep, rho, rho_new = 0.0, 0.0, penalty, penalty
            else:
                eta, keep = step_size * (k + 1) ** -0.6, 1 - (72 / 81) * (k + 1) ** -0.8
                rho, rho_new = penalty * k**0.2, penalty * (k + 1) ** 0.2
            first_0 = normal(rng)
            normal(rng)  # the other half of zeta1: c_2 has a gradient without noise
            second_0, second_1 = normal(rng), normal(rng)

            old_norm, new_norm = 0.0, 0.0
            for i in range(d):
                new[i] = x[i] - eta * gradient[i]
                old_norm += x[i] * x[i]
                new_norm += new[i] * new[i]
            old_0 = old_norm - 4 + 0.5 * second_0 * x[0]
            old_1 = x[0] - x[1] + 0.1 * second_1
            new_0 = new_norm - 4 + 0.5 * second_0 * new[0]
            new_1 = new[0] - new[1] + 0.1 * second_1

            old_weight, new_weight = 2 * rho * old_0, 2 * rho_new * new_0
            for i in range(d):
                center = a[i] + 0.3 * normal(rng)
                now, then = new[i] - center, x[i] - center
                fresh = math.exp(-0.25 * now * now) * 0.5 * now + new_weight * new[i]
                stale = math.exp(-0.25 * then * then) * 0.5 * then + old_weight * x[i]
                gradient[i] = fresh + keep * (gradient[i] - stale)
            gradient[0] += rho_new * (0.5 * first_0 * new_0 + new_1) - keep * rho * (0.5 * first_0 * old_0 + old_1)
            gradient[1] += keep * rho * old_1 - rho_new * new_1
            tracked_0 = new_0 + keep * (tracked_0 - old_0)
            tracked_1 = new_1 + keep * (tracked_1 - old_1)
            x, new = new, x
        return x, rho * np.array([tracked_0, tracked_1])

    return run
