"""A physicist: the ground state of an anharmonic oscillator, -psi''/2 + x^2/2 psi + x^4/10 psi, by random points.

The energy is an expectation over x in [-5, 5], and so is the norm, which is to be 1. The answer has an even basis.
"""

import jax
import jax.numpy as jnp

import lariax as lx

WIDTH, POWERS = 10.0, jnp.arange(0, 8, 2)
POINTS = lx.Distribution(lambda key: jax.random.uniform(key, minval=-WIDTH / 2, maxval=WIDTH / 2))


def psi(c, x):
    return jnp.sum(c * x**POWERS / 2.0 ** (POWERS / 2)) * jnp.exp(-0.6 * x**2)


def energy(c, x):
    slope = jax.grad(psi, argnums=1)(c, x)
    return WIDTH * (slope**2 / 2 + (x**2 / 2 + x**4 / 10) * psi(c, x) ** 2)


def main():
    norm = lx.Equal(lambda c, x: WIDTH * psi(c, x) ** 2, 1.0)
    problem = lx.Problem(energy, samples=POINTS, constraints={"norm": norm})
    start = jnp.array([0.8, 0.0, 0.0, 0.0])
    result = lx.solve(problem, start, iterations=40_000, batch_size=64)
    print(
        result.certificate.objective, "and minus the multiplier of the norm is the energy:", -result.multipliers["norm"]
    )
    return result


if __name__ == "__main__":
    main()
