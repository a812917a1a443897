"""The functions of which problems are made. All are linear in their noise, so that a sample's function is one code with
the expectation (no noise) and with the average of many samples (small noise). Numbers are leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx

ROWS = 1024
"""Of a data set."""


def flat(x: Any) -> Array:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(x)])


def numbers(z: Array) -> Array:
    """The noise of a sample: numbers of mean 0 and variance 1. One with several groups of rows is their sum."""
    rows = z.reshape(-1, z.shape[-1])
    return jnp.sum(rows, axis=0) / np.sqrt(rows.shape[0])


class Objective(eqx.Module):
    """x'Hx / 2 + g'x, with `factors` log sum exp of them or a mean logistic loss, with `waves` a sum of cosines."""

    hessian: Array
    slope: Array
    factors: Array | None
    waves: Array | None
    deviation: Array  # of the gradient, and of the curvature
    logistic: bool = eqx.field(static=True)

    def mean(self, x: Array) -> Array:
        value = 0.5 * x @ self.hessian @ x + self.slope @ x
        if self.factors is not None:
            inner = self.factors @ x
            value += jnp.mean(jax.nn.softplus(inner)) if self.logistic else jax.nn.logsumexp(inner)
        if self.waves is not None:
            value += jnp.sum(self.waves * jnp.cos(2 * x))
        return value

    def __call__(self, x: Any, z: Array) -> Array:
        x, n = flat(x), numbers(z)
        d = x.size
        return self.mean(x) + self.deviation[0] * n[:d] @ x + 0.5 * self.deviation[1] * n[d] * x @ x


class Rows(eqx.Module):
    """a'x, with `quadratic` x'Qx / 2, with `weight` softplus of a linear function; row by row.

    The noise of a row is a number, shared by rows of one `index`, times s + m'x.
    """

    matrix: Array
    quadratic: Array | None
    weight: Array | None
    inner: Array | None
    deviation: Array
    slope_deviation: Array
    index: Array

    def mean(self, x: Array) -> Array:
        values = self.matrix @ x
        if self.quadratic is not None:
            values += 0.5 * (self.quadratic @ x) @ x
        if self.weight is not None:
            values += self.weight * jax.nn.softplus(self.inner @ x)
        return values

    def __call__(self, x: Any, *z: Array) -> Array:
        x = flat(x)
        if not z:
            return self.mean(x)
        return self.mean(x) + numbers(z[0])[self.index] * (self.deviation + self.slope_deviation @ x)


class Joint(eqx.Module):
    """Objective and rows in one function."""

    objective: Objective
    rows: dict[str, Rows]

    def __call__(self, x: Any, z: Array) -> tuple[Array, dict[str, Array]]:
        return self.objective(x, z), {name: rows(x, z) for name, rows in self.rows.items()}


class Normal(eqx.Module):
    size: int = eqx.field(static=True)

    def __call__(self, key: Array) -> Array:
        return jax.random.normal(key, (self.size,))


def source(kind: str, size: int) -> lx.Distribution | lx.Dataset | lx.Stratified:
    """Of vectors of so many numbers, of mean 0 and variance 1 exactly where they are rows of a data set."""
    if kind == "Distribution":
        return lx.Distribution(Normal(size))
    groups = 2 if kind == "Stratified" else 1
    rows = np.random.default_rng(size).standard_normal((groups, ROWS // groups, size))
    rows = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    rows = rows.reshape(ROWS, size)
    if groups == 2:
        return lx.Stratified(rows, by=np.repeat([0, 1], ROWS // 2))
    return lx.Dataset(rows, epochs=kind == "epochs")
