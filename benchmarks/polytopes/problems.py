"""Smooth convex objectives over polytopes that are seen through noise. Numbers are leaves of what is built, so that
problems of one shape share their compiled code."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx

# --- objectives: what they are in the mean, and what a sample shows of it


class Bowl(eqx.Module):
    """(x - t)' H (x - t) / 2."""

    hessian: Array
    target: Array

    def __call__(self, x: Array) -> Array:
        return 0.5 * (x - self.target) @ self.hessian @ (x - self.target)


class LogCosh(eqx.Module):
    """sum log cosh (x - t) and a tenth of a bowl: flat far away, curved near t."""

    target: Array

    def __call__(self, x: Array) -> Array:
        away = x - self.target
        return jnp.sum(jnp.logaddexp(away, -away)) + 0.05 * away @ away


class LogSumExp(eqx.Module):
    """log sum exp (B x) - t'x and half a bowl."""

    factors: Array
    target: Array

    def __call__(self, x: Array) -> Array:
        return jax.nn.logsumexp(self.factors @ x) - self.target @ x + 0.25 * x @ x


class Exponential(eqx.Module):
    """sum exp (x - t) - (x - t), and a tenth of a bowl: curvature of very different sizes on the two sides."""

    target: Array

    def __call__(self, x: Array) -> Array:
        away = x - self.target
        return jnp.sum(jnp.exp(away) - away) + 0.05 * away @ away


class Noisy(eqx.Module):
    """A function whose gradient is seen with noise of a constant deviation."""

    mean: eqx.Module
    deviation: Array

    def __call__(self, x: Array, z: Array) -> Array:
        return self.mean(x) + self.deviation * z[: x.size] @ x

    def gradient_noise(self, x: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
        """Normal vectors with the covariance of a sample's gradient at x, one a row."""
        return float(self.deviation) * rng.standard_normal((count, x.size))


class Regression(eqx.Module):
    """Least squares on random inputs a ~ N(0, H): (a'(x - t) + s e)^2 / 2."""

    mean: Bowl
    root: Array  # of H
    deviation: Array

    def __call__(self, x: Array, z: Array) -> Array:
        d = x.size
        return 0.5 * ((self.root @ z[:d]) @ (x - self.mean.target) + self.deviation * z[d]) ** 2

    def gradient_noise(self, x: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
        """The covariance is (u'Hu + s^2) H + (Hu)(Hu)' with u = x - t, by the fourth moments of normals."""
        slope = np.asarray(self.mean.hessian) @ (x - np.asarray(self.mean.target))
        size = np.sqrt((x - np.asarray(self.mean.target)) @ slope + float(self.deviation) ** 2)
        inputs = rng.standard_normal((count, x.size)) @ np.asarray(self.root)
        return size * inputs + rng.standard_normal((count, 1)) * slope


# --- rows


class Values(eqx.Module):
    """A x + s z, z of each row's own number; with `matrix_deviation` the entries of A are noisy too."""

    matrix: Array
    deviation: Array
    index: Array
    matrix_deviation: Array | None
    matrix_place: int = eqx.field(static=True)

    def __call__(self, x: Array, z: Array) -> Array:
        values = self.matrix @ x + self.deviation * z[self.index]
        if self.matrix_deviation is None:
            return values
        entries = z[self.matrix_place : self.matrix_place + self.matrix.size].reshape(self.matrix.shape)
        return values + self.matrix_deviation * (entries @ x)


class Exact(eqx.Module):
    matrix: Array

    def __call__(self, x: Array) -> Array:
        return self.matrix @ x


class Normal(eqx.Module):
    size: int = eqx.field(static=True)

    def __call__(self, key: Array) -> Array:
        return jax.random.normal(key, (self.size,))


@dataclass(frozen=True)
class Rows:
    """A x <= b, = b or >= b.

    `noise` is the deviation of each row's value, None where rows are exact; `index` says which normal number is in it
    (rows of one number share their noise). `matrix_noise`: the deviation of the entries of A, row by row.
    """

    kind: str  # a constraint of Lariax: AtMost, AtLeast, Equal, Linear
    matrix: np.ndarray
    bound: np.ndarray
    noise: np.ndarray | None = None
    index: np.ndarray | None = None
    matrix_noise: np.ndarray | None = None

    @property
    def sign(self) -> float:
        return -1.0 if self.kind == "AtLeast" else 1.0

    @property
    def equal(self) -> bool:
        return self.kind in ("Equal", "Linear")


@dataclass(frozen=True)
class Case:
    """A problem. A set is a box `low`, `high`; with `total`, a simplex."""

    name: str
    objective: Noisy | Regression
    blocks: tuple[Rows, ...]
    d: int
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    total: float | None = None

    @property
    def x0(self) -> Array:
        return jnp.zeros(self.d) if self.total is None else jnp.full(self.d, self.total / self.d)

    @property
    def m(self) -> int:
        return sum(len(block.bound) for block in self.blocks)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Cases of one shape share their compiled code."""
        kinds = tuple(
            (b.kind, len(b.bound), b.noise is None, b.matrix_noise is None, len(np.unique(self._index(b))))
            for b in self.blocks
        )
        kind_of_set = "simplex" if self.total else ("box" if self.low is not None else "")
        return self.d, kinds, type(self.objective).__name__, type(self.objective.mean).__name__, kind_of_set

    def _index(self, block: Rows) -> np.ndarray:
        return np.arange(len(block.bound)) if block.index is None else block.index

    @property
    def numbers(self) -> int:
        """How many normal numbers the values of all rows take."""
        noisy = [self._index(block).max() + 1 for block in self.blocks if block.noise is not None]
        return int(max(noisy, default=0))

    @property
    def problem(self) -> lx.Problem:
        first = self.d + 1  # a regression takes one more than there are variables
        place, constraints = first + self.numbers, {}
        for number, block in enumerate(self.blocks):
            matrix, bound = jnp.asarray(block.matrix), jnp.asarray(block.bound)
            name = f"{block.kind} {number}"
            if block.kind == "Linear":
                constraints[name] = lx.Linear(matrix, bound)
            elif block.noise is None:
                constraints[name] = getattr(lx, block.kind)(Exact(matrix), bound, samples=None)
            else:
                entries = None if block.matrix_noise is None else jnp.asarray(block.matrix_noise)
                index = jnp.asarray(first + self._index(block))
                values = Values(matrix, jnp.asarray(block.noise), index, entries, place)
                constraints[name] = getattr(lx, block.kind)(values, bound)
                place += 0 if entries is None else matrix.size
        return lx.Problem(
            self.objective, samples=lx.Distribution(Normal(place)), constraints=constraints, within=self._within
        )

    @property
    def _within(self) -> lx.sets.AbstractSet | None:
        if self.total is not None:
            return lx.sets.Simplex(self.total)
        return None if self.low is None else lx.sets.Box(jnp.asarray(self.low), jnp.asarray(self.high))

    def system(
        self, draws: float = np.inf, rng: np.random.Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """C, c and which rows are equalities: C x <= c, with the set among them; with `rng`, as the averages of so many
        draws show it."""
        scale = 0.0 if rng is None else 1 / np.sqrt(draws)
        rng = rng or np.random.default_rng(0)
        means = scale * rng.standard_normal(self.numbers)
        parts = []
        for block in self.blocks:
            matrix, bound = block.matrix, block.bound
            if block.noise is not None:
                bound = bound - block.noise * means[self._index(block)]
            if block.matrix_noise is not None:
                matrix = matrix + scale * block.matrix_noise[:, None] * rng.standard_normal(matrix.shape)
            parts.append((block.sign * matrix, block.sign * bound, np.full(len(bound), block.equal)))
        eye, none = np.eye(self.d), np.zeros(self.d, bool)
        if self.total is not None:
            parts += [(np.ones((1, self.d)), np.array([self.total]), np.array([True])), (-eye, np.zeros(self.d), none)]
        elif self.low is not None and self.high is not None:
            kept = np.isfinite(self.high)
            parts += [(-eye, -self.low, none), (eye[kept], self.high[kept], none[kept])]
        matrices, bounds, equal = zip(*parts, strict=True)
        return np.concatenate(matrices), np.concatenate(bounds), np.concatenate(equal)
