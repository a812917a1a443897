"""Algorithm 2 against the paper's lines written out in NumPy, and against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, WellsByHand, batches_of, normal

STEPS = 50


class Transcript:
    """Algorithm 2 in NumPy, with gradients by hand: an independent account of the same lines."""

    def __init__(self, case, project, step_size=0.05, penalty=1.5):
        self.p, self.q, self.r = {"III": (3 / 5, 1 / 5, 4 / 5), "II": (1 / 2, 1 / 4, 1 / 2)}[case]
        self.project, self.step_size, self.penalty = project, step_size, penalty

    @staticmethod
    def penalty_gradient(x, rho, xi, zeta1, zeta2):
        values = WellsByHand.constraint(x, zeta2)
        return WellsByHand.gradient(x, xi) + rho * WellsByHand.jacobian(x, zeta1).T @ values, values

    def run(self, batches):
        """Iterates x_2 .. x_{K+1} and their multipliers, from the batches B_1 .. B_{K+1}."""
        x = np.asarray(Wells.x0)
        x = self.project(x)
        g, u = self.penalty_gradient(x, self.penalty, *batches[0])
        iterates = []
        for k in range(1, len(batches)):
            eta = self.step_size / (k + 1) ** self.p
            rho, rho_next = self.penalty * k**self.q, self.penalty * (k + 1) ** self.q
            alpha = 72 / 81 / (k + 1) ** self.r
            x_next = self.project(x - eta * g)
            fresh, now = self.penalty_gradient(x_next, rho_next, *batches[k])
            stale, then = self.penalty_gradient(x, rho, *batches[k])
            g = fresh + (1 - alpha) * (g - stale)
            u = now + (1 - alpha) * (u - then)
            x = x_next
            iterates.append((x, rho * u))
        return iterates


@pytest.mark.parametrize(
    ("name", "case", "project"),
    [
        ("wells", "III", lambda x: x),
        ("wells_deterministic", "II", lambda x: x),
        ("wells_in_box", "III", lambda x: np.clip(x, 0.1, 0.9)),
    ],
)
def test_follows_the_paper_line_by_line(name, case, project, method, request):
    problem = request.getfixturevalue(name)
    seen = []
    result = lx.solve(
        problem,
        Wells.x0,
        method,
        iterations=STEPS,
        seed=3,
        record_every=1,
        callback=lambda s: seen.append(s) and False,
    )
    expected = Transcript(case, project).run(batches_of(result, STEPS + 1))
    assert len(seen) == STEPS
    for snapshot, (x, y) in zip(seen, expected, strict=True):
        np.testing.assert_allclose(snapshot.x, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(snapshot.multipliers["c"], y, rtol=0, atol=1e-12)


def test_random_output_is_one_of_the_iterates_with_its_own_multiplier(wells, method):
    result = lx.solve(wells, Wells.x0, method, iterations=STEPS, seed=3, output="random")
    iterates = Transcript("III", lambda x: x).run(batches_of(result, STEPS + 1))
    distance = [np.abs(np.asarray(result.x) - x).max() for x, _ in iterates]
    k = int(np.argmin(distance))
    assert distance[k] < 1e-12
    np.testing.assert_allclose(result.multipliers["c"], iterates[k][1], rtol=0, atol=1e-12)


@pytest.mark.long
def test_random_output_is_uniform_over_iterations():
    """x_{k+1} = x_k - eta_k moves by known steps, so x tells k. Chi-square test over 8 outcomes, false alarm 1e-4."""
    problem = lx.Problem(lambda x: jnp.sum(x))
    method = lx.QuadraticPenalty(step_size=1.0)
    runs, k = 2000, 8
    x = jax.vmap(lambda s: lx.solve(problem, jnp.zeros(1), method, iterations=k, output="random", seed=s).x[0])(
        jnp.arange(runs)
    )
    positions = -np.cumsum([(i + 1) ** -0.5 for i in range(1, k + 1)])
    index = np.abs(np.asarray(x)[:, None] - positions).argmin(axis=1)
    counts = np.bincount(index, minlength=k)
    chi_square = np.sum((counts - runs / k) ** 2 / (runs / k))
    assert np.abs(np.asarray(x) - positions[index]).max() < 1e-12
    assert chi_square < 29.9  # 1 - 1e-4 quantile with 7 degrees of freedom


def test_theory_parameters():
    constants = dict(
        constraints=3,
        gradient_lipschitz=2.0,
        constraint_bound=0.5,
        constraint_lipschitz=1.5,
        constraint_gradient_bound=0.7,
        constraint_gradient_lipschitz=0.2,
    )
    lipschitz = np.sqrt(4 * 2.0**2 + 4 * 3**2 * (0.5**2 * 0.2**2 + 0.7**2 * 1.5**2))
    method = lx.QuadraticPenalty.from_constants(penalty=2.0, **constants)
    assert method.step_size == pytest.approx(1 / (9 * lipschitz * 2.0), rel=1e-14)
    with pytest.raises(ValueError, match="penalty > 1"):
        lx.QuadraticPenalty.from_constants(penalty=0.5, **constants)


class TestClosedForms:
    """The penalty method ends near the minimiser of f + (rho_K / 2) ||c||^2, whose multiplier is y* to first order."""

    def test_quadratic_with_a_random_linear_constraint(self):
        # min ||x - E z||^2 / 2, sum x = 1: x = z + y', y* = (sum z - 1) / 3
        center = jnp.array([1.0, 2.0, 3.0])
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - center - 0.2 * z) ** 2),
            samples=normal(3),
            constraints={"sum": lx.Equal(lambda x, z: jnp.sum(x) - 1.0 + 0.2 * z, samples=normal())},
        )
        method = lx.QuadraticPenalty(step_size=0.5, penalty=3.0, pairs=True)
        result = lx.solve(problem, jnp.zeros(3), method, iterations=40_000, batch_size=8)
        penalty = 3.0 * 40_000**0.2
        y = (6.0 - 1.0) / (3 + 1 / penalty)  # of the penalised problem
        np.testing.assert_allclose(result.x, center - y, atol=0.02)
        np.testing.assert_allclose(result.multipliers["sum"], y, atol=0.1)

    def test_sphere(self):
        # min a.x, ||x||^2 = 1: x = -a/||a||, y = ||a||/2
        a = jnp.array([3.0, 4.0])
        problem = lx.Problem(
            lambda x, z: (a + z) @ x,
            samples=normal(2),
            constraints={"sphere": lx.Equal(lambda x: x @ x, 1.0, samples=None)},
        )
        result = lx.solve(
            problem,
            jnp.array([1.0, 0.0]),
            lx.QuadraticPenalty(step_size=0.05, penalty=5.0),
            iterations=100_000,
            batch_size=4,
        )
        np.testing.assert_allclose(result.x, -a / 5, atol=0.03)
        np.testing.assert_allclose(result.multipliers["sphere"], 2.5, atol=0.1)

    def test_simplex(self):
        # min ||x - (1, .8, -1)||^2 / 2 on the simplex with x_0 - x_1 = 0.5: x = (.75, .25, 0), y = -.15
        target = jnp.array([1.0, 0.8, -1.0])
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - target - 0.1 * z) ** 2),
            samples=normal(3),
            constraints={"gap": lx.Equal(lambda x: x[0] - x[1], 0.5, samples=None)},
            within=lx.sets.Simplex(),
        )
        result = lx.solve(
            problem,
            jnp.ones(3) / 3,
            lx.QuadraticPenalty(step_size=0.1, penalty=5.0),
            iterations=20_000,
            batch_size=4,
        )
        np.testing.assert_allclose(result.x, [0.75, 0.25, 0.0], atol=0.01)
        np.testing.assert_allclose(result.multipliers["gap"], -0.15, atol=0.02)
