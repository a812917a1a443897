"""Measures without units: what they say does not depend on how x, the objective and the rows are measured."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.certificate import RelativeTolerance
from lariax.certificate._tolerance import accepts

TARGET = np.array([2.0, 3.0, -1.0])
SOLUTION = np.array([1.5, 2.5, -1.0])  # of least distance to the target with x1 + x2 <= 4 and x3 <= 0
MULTIPLIERS = np.array([0.5, 0.0])


class Cost(eqx.Module):
    units: jax.Array
    unit: jax.Array

    def __call__(self, x, z):
        return self.unit * (0.5 * jnp.sum((x / self.units - TARGET) ** 2) + 0.1 * z @ (x / self.units))


class Limits(eqx.Module):
    units: jax.Array
    rows: jax.Array

    def __call__(self, x, z):
        u = x / self.units
        return self.rows * (jnp.stack([u[0] + u[1], u[2]]) + 0.1 * z[:2])


class Noise(eqx.Module):
    def __call__(self, key):
        return jax.random.normal(key, (3,))


def measured(units, unit, rows, point=SOLUTION, multipliers=MULTIPLIERS):
    """The certificate of a point, given in units of 1, of the problem in other ones."""
    units, rows = np.asarray(units, float), np.asarray(rows, float)
    problem = lx.Problem(
        Cost(jnp.asarray(units), jnp.asarray(float(unit))),
        samples=lx.Distribution(Noise()),
        constraints={"limit": lx.AtMost(Limits(jnp.asarray(units), jnp.asarray(rows)), jnp.asarray(rows * [4.0, 0.0]))},
    )
    return lx.certify(problem, jnp.asarray(point * units), {"limit": multipliers * unit / rows}, draws=2048)


def three(relative):
    return [relative.stationarity, relative.feasibility, relative.complementarity]


@pytest.mark.parametrize("off", [[0.0, 0.0, 0.0], [0.1, 0.0, 0.2], [-1.2, -2.1, 1.5]])
def test_units_do_not_matter(off):
    point = SOLUTION + np.array(off)
    plain = measured(np.ones(3), 1.0, np.ones(2), point)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        units, (unit, *rows) = 10 ** rng.uniform(-3, 3, 3), 10 ** rng.uniform(-3, 3, 3)
        other = measured(units, unit, rows, point)
        for one, two in zip(three(plain.relative), three(other.relative), strict=True):
            for end in ("estimate", "low", "high"):
                np.testing.assert_allclose(getattr(one, end), getattr(two, end), rtol=1e-5, atol=1e-9)


def test_a_variable_of_small_gradients_counts_as_much_as_the_others():
    """x2 is measured in thousandths, so that its gradient is small, and it is far off."""
    off = SOLUTION + np.array([0.0, 1.0, 0.0])
    wrong = measured([1.0, 1e3, 1.0], 1.0, np.ones(2), off, np.array([0.5, 0.0]))
    assert wrong.stationarity.high < 0.02
    assert wrong.relative.stationarity.low > 0.1
    right = measured([1.0, 1e3, 1.0], 1.0, np.ones(2))
    assert right.relative.stationarity.high < 0.01
    tolerance = RelativeTolerance(0.02, np.zeros(3))
    assert accepts(right, tolerance)
    assert not accepts(wrong, tolerance)


def test_rows_count_in_their_own_units():
    """Half of a bound of 1e-3 is much, though it is little."""
    problem = lx.Problem(
        lambda x: jnp.sum(x**2), constraints={"small": lx.AtLeast(lambda x: 1e-3 * x[0], 2e-3, samples=None)}
    )
    certificate = lx.certify(problem, jnp.ones(2), {"small": -2e3})
    np.testing.assert_allclose(certificate.feasibility.estimate, 1e-3)
    assert certificate.relative.feasibility.estimate > 0.2


def test_tables_show_it():
    certificate = measured(np.ones(3), 1.0, np.ones(2))
    assert "relative" in str(certificate)
    assert f"{certificate.relative.stationarity.estimate:.2g}" in str(certificate)
