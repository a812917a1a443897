"""A problem: its shape, which is compiled, and its numbers; stated to Lariax, and to us exactly."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lariax as lx
from benchmarks.fuzz.functions import Joint, Objective, Rows, source


class Block(NamedTuple):
    """The shape of a constraint."""

    kind: str  # Equal, AtMost, AtLeast, Linear
    rows: int
    terms: str  # linear, quadratic, softplus
    samples: str  # shared, own, none

    @property
    def sign(self) -> float:
        return -1.0 if self.kind == "AtLeast" else 1.0

    @property
    def equal(self) -> bool:
        return self.kind in ("Equal", "Linear")


class Shape(NamedTuple):
    """All that is compiled. Cases of one shape differ in their numbers alone."""

    d: int
    within: str  # everything, box, nonnegative, ball, simplex, product (a ball, and the rest nonnegative)
    objective: str  # quadratic, logsumexp, logistic, cosine, linear
    blocks: tuple[Block, ...]
    source: str  # Distribution, Dataset, epochs, Stratified
    batch: int
    joint: bool

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def numbers(self) -> int:
        """In a sample: for the gradient, the curvature and each row."""
        return self.d + 1 + self.rows

    @property
    def bounded(self) -> bool:
        return self.within in ("box", "ball", "simplex")

    @property
    def in_ball(self) -> int:
        """So many entries of x, the first ones, are in a ball."""
        return {"ball": self.d, "product": (self.d + 1) // 2}.get(self.within, 0)


@dataclass(frozen=True)
class Case:
    """A problem with its truth: convex and degenerate ones have `solution`, and no other."""

    shape: Shape
    truth: str  # convex, degenerate, nonconvex, infeasible, unbounded
    objective: Objective
    rows: tuple[Rows, ...]
    bounds: tuple[np.ndarray, ...]
    set_numbers: dict[str, Any]
    start: np.ndarray
    solution: np.ndarray | None = None
    copies: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # rows that say what others say

    @property
    def names(self) -> list[str]:
        return [f"{block.kind} {i}" for i, block in enumerate(self.shape.blocks)]

    def structured(self, x: np.ndarray | Array) -> Any:
        """As the problem has it: parts for a product of sets."""
        if self.shape.within != "product":
            return jnp.asarray(x)
        return {"ball": jnp.asarray(x[: self.shape.in_ball]), "rest": jnp.asarray(x[self.shape.in_ball :])}

    @property
    def within(self) -> lx.sets.AbstractSet:
        numbers = self.set_numbers

        def ball() -> lx.sets.AbstractSet:
            return lx.sets.L2Ball(numbers["radius"], jnp.asarray(numbers["center"][: self.shape.in_ball]))

        return {
            "everything": lambda: lx.sets.Everything(),
            "box": lambda: lx.sets.Box(jnp.asarray(numbers["low"]), jnp.asarray(numbers["high"])),
            "nonnegative": lambda: lx.sets.NonNegative(),
            "ball": ball,
            "simplex": lambda: lx.sets.Simplex(numbers["total"]),
            "product": lambda: lx.sets.Product({"ball": ball(), "rest": lx.sets.NonNegative()}),
        }[self.shape.within]()

    @property
    def problem(self) -> lx.Problem:
        shape, constraints, joined = self.shape, {}, {}
        for name, block, rows, bound in zip(self.names, shape.blocks, self.rows, self.bounds, strict=True):
            bound = jnp.asarray(bound)
            if block.kind == "Linear":
                constraints[name] = lx.Linear(rows.matrix, bound)
            elif block.samples == "none":
                constraints[name] = getattr(lx, block.kind)(rows, bound, samples=None)
            elif block.samples == "own":
                own = source(shape.source, shape.numbers)
                constraints[name] = getattr(lx, block.kind)(rows, bound, samples=own)
            elif shape.joint:
                constraints[name], joined[name] = getattr(lx, block.kind)(bound=bound), rows
            else:
                constraints[name] = getattr(lx, block.kind)(rows, bound)
        samples = source(shape.source, shape.numbers)
        if shape.joint:
            fun = Joint(self.objective, joined)
            return lx.Problem.joint(fun, samples=samples, constraints=constraints, within=self.within)
        return lx.Problem(self.objective, samples=samples, constraints=constraints, within=self.within)


class Look(NamedTuple):
    """The exact problem at a point: residuals r = 0 or r <= 0, those of the set after those of the constraints."""

    value: float
    slope: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    equal: np.ndarray


@eqx.filter_jit
def _looked(objective: Objective, rows: tuple[Rows, ...], x: Array, z: tuple[Array, ...]) -> Any:
    def residuals(x: Array) -> Array:
        return jnp.concatenate([jnp.zeros(0), *(one(x, noise) for one, noise in zip(rows, z[1:], strict=True))])

    value, slope = jax.value_and_grad(objective)(x, z[0])
    return value, slope, residuals(x), jax.jacobian(residuals)(x)


def look(case: Case, x: np.ndarray, z: tuple[np.ndarray, ...] | None = None) -> Look:
    """In the mean, or with the noise z, a vector for the objective and one for each constraint."""
    none = np.zeros(case.shape.numbers)
    noise = tuple(map(jnp.asarray, (none,) * (1 + len(case.rows)) if z is None else z))
    value, slope, values, jacobian = map(np.asarray, _looked(case.objective, case.rows, jnp.asarray(x), noise))
    sign = np.concatenate([np.zeros(0), *(np.full(b.rows, b.sign) for b in case.shape.blocks)])
    bound = np.concatenate([np.zeros(0), *case.bounds])
    equal = np.concatenate([np.zeros(0, bool), *(np.full(b.rows, b.equal) for b in case.shape.blocks)])
    of_set, slopes, equal_in_set = set_rows(case.shape, case.set_numbers, x)
    return Look(
        float(value),
        slope,
        np.concatenate([sign * (values - bound), of_set]),
        np.concatenate([sign[:, None] * jacobian, slopes]),
        np.concatenate([equal, equal_in_set]),
    )


def set_rows(shape: Shape, numbers: dict[str, Any], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The set as residuals, their Jacobian, and which are equalities."""
    d, first = shape.d, shape.in_ball
    eye, inequality = np.eye(d), np.zeros(d, bool)
    if shape.within == "everything":
        return np.zeros(0), np.zeros((0, d)), np.zeros(0, bool)
    if shape.within == "box":
        residuals = np.concatenate([numbers["low"] - x, x - numbers["high"]])
        return residuals, np.concatenate([-eye, eye]), np.tile(inequality, 2)
    if shape.within == "nonnegative":
        return -x, -eye, inequality
    if shape.within == "simplex":
        rows = np.concatenate([np.ones((1, d)), -eye])
        return np.append(x.sum() - numbers["total"], -x), rows, np.append(True, inequality)
    away = np.where(np.arange(d) < first, x - numbers["center"], 0.0)
    radius = numbers["radius"]
    residuals = np.append((away @ away / radius - radius) / 2, -x[first:])
    return residuals, np.concatenate([away[None] / radius, -eye[first:]]), np.zeros(1 + d - first, bool)
