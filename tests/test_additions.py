"""A set, a kind of constraint and a proximable term that Lariax does not have, written as CONTRIBUTING.md says: nothing
else has to know of them. (A method and a source are on docs/own-method.md, a front end is `lariax.scipy`.)"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt
from conftest import normal
from lariax.problem import SHARED, AbstractConstraint
from lariax.sets._base import AbstractVectorSet
from lariax.utils import Converted


class Ray(AbstractVectorSet):
    """{t v : t >= 0}."""

    v: Converted = eqx.field(converter=jnp.asarray)

    def _project(self, array):
        v = self.v.astype(array.dtype)
        return v * jnp.maximum(array @ v, 0) / (v @ v)

    def _nearest_normal(self, array, direction, allow):
        v = self.v.astype(array.dtype) / jnp.linalg.norm(self.v).astype(array.dtype)
        along = direction @ v
        at_the_end = array @ v <= allow(self._scale(array))
        return direction - v * jnp.where(at_the_end, jnp.maximum(along, 0), along)

    def _scale(self, array):
        return jnp.linalg.norm(array)

    def _size_mismatch(self, size):
        return None if size == self.v.size else f"Ray has {self.v.size} entries, but x has {size}: give as many."


class Below(AbstractConstraint):
    """E[fun(x, sample)] is below a bound in percent."""

    fun: Callable | None = None
    bound: Converted = eqx.field(default=0.0, converter=lambda percent: jnp.asarray(percent) / 100)
    samples: object = eqx.field(default=SHARED, kw_only=True)
    heldout: object = eqx.field(default=None, kw_only=True)

    sign: ClassVar[float] = 1.0
    inequality: ClassVar[bool] = True
    relation: ClassVar[str] = "below"


class Tilt(lx.prox.AbstractProximable):
    """h(x) = a . x"""

    a: Converted = eqx.field(converter=jnp.asarray)

    separable: ClassVar[bool] = True

    def value(self, x):
        return self.a @ x

    def prox(self, x, step_size):
        return x - step_size * self.a

    def nearest_subgradient(self, x, direction, tolerance=None):
        return self.a

    def _mismatch(self, x):
        return None


def distance(x, z):
    return 0.5 * jnp.sum((x - jnp.array([1.0, 2.0]) - 0.1 * z) ** 2)


def total(x, z):
    return x[0] + x[1] + 0.1 * z[0]


@pytest.fixture(scope="module")
def problem():
    """t (1, 1) is nearest to (1, 2) at t = 3/2; with 2 t <= 2 it is t = 1, and the multiplier is 1/2."""
    return lx.Problem(
        distance, samples=normal(2), constraints={"total": Below(total, 200.0)}, within=Ray(jnp.array([1.0, 1.0]))
    )


def test_a_set_and_a_kind_of_constraint(problem, tmp_path):
    result = lx.solve(problem, jnp.zeros(2), iterations=2_000, batch_size=16, checkpoint=tmp_path)
    np.testing.assert_allclose(result.x, 1.0, atol=0.02)
    np.testing.assert_allclose(result.multipliers["total"], 0.5, atol=0.05)
    assert result.certificate.stationarity.low < 0.01
    assert "below" in str(result.certificate)
    np.testing.assert_array_equal(lx.resume(tmp_path, problem).x, result.x)
    with pytest.raises(ValueError, match="Ray has 2 entries"):
        lx.solve(problem, jnp.zeros(3), iterations=1)


def test_the_same_set_in_torch():
    x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = lt.TrackedLagrangian([{"params": [x], "within": Ray(np.array([1.0, 1.0]))}], {"total": lt.AtMost(2.0)})
    rng = torch.Generator().manual_seed(0)
    for _ in range(400):
        noise = 0.1 * torch.randn(16, 2, dtype=torch.float64, generator=rng)
        optimizer.step(
            lambda z: (0.5 * ((x - torch.tensor([1.0, 2.0]) - z) ** 2).sum(1), {"total": x.sum() + z[:, 0]}), noise
        )
    np.testing.assert_allclose(x.detach(), 1.0, atol=0.05)


def test_a_term():
    """||x - m||^2 / 2 + a . x is least at m - a."""
    problem = lx.Problem(distance, samples=normal(2), regularizer=Tilt(jnp.array([0.5, -0.25])))
    result = lx.solve(problem, jnp.zeros(2), lx.QuadraticPenalty(step_size=0.5), iterations=1_000)
    np.testing.assert_allclose(result.x, [0.5, 2.25], atol=0.05)
