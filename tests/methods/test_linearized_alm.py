"""Algorithm 1 against the paper's lines in NumPy, its constants in high precision, and closed forms."""

from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

import lariax as lx
from conftest import Wells, WellsByHand, lasso_with_sum_one, normal
from lariax.formulas import LinearizedConstants

STEPS = 50
A = np.array([[1.0, -1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 1.0, 0.0, -1.0]])
B = np.array([0.3, -0.2])


@pytest.fixture(scope="module")
def wells_linear():
    return lx.Problem(Wells.objective, samples=normal(Wells.d), constraints={"flow": lx.Linear(A, B)})


def transcript(samples, penalty, step_sizes, momenta):
    x, y = np.asarray(Wells.x0), np.zeros(2)
    g = WellsByHand.gradient(x, samples[0])
    iterates = []
    for k in range(len(samples) - 1):  # the paper's k, from 0
        x_next = x - step_sizes[k + 1] * (g + A.T @ y + penalty * A.T @ (A @ x - B))
        y = y + penalty * (A @ x_next - B)
        xi = samples[k + 1]
        g = WellsByHand.gradient(x_next, xi) + (1 - momenta[k + 1]) * (g - WellsByHand.gradient(x, xi))
        x = x_next
        iterates.append((x, y))
    return iterates


def samples_of(result):
    oracle = result.continuation.oracle
    tickets = oracle.draw(result.continuation.loop.key, jnp.arange(STEPS + 1), (None,))
    return np.asarray(tickets[0])[:, 0]


def practical(lipschitz):
    norm = np.linalg.norm(A, 2)
    penalty = lipschitz / norm**2
    k = np.arange(STEPS + 1)
    eta = 0.5 / (lipschitz + penalty * norm**2) * (k + 1.0) ** (-1 / 3)
    return penalty, eta, np.minimum(1, 4 * (lipschitz * eta) ** 2)


def large_theory():
    """The shape of the theorem's steps with constants that move."""
    penalty, eta, c, k0 = 0.8, 0.6, 2.0, 30.0
    k = np.arange(STEPS + 1)
    steps = eta / ((k + k0) ** (1 / 3) * np.log(k + k0))
    return lx.LinearizedALM(1.0, penalty, eta, c, np.log(k0)), (penalty, steps, np.minimum(1, c * steps**2))


@pytest.mark.parametrize("which", ["practical", "theory"])
def test_follows_the_paper_line_by_line(wells_linear, which):
    method, parameters = (lx.LinearizedALM(0.7), practical(0.7)) if which == "practical" else large_theory()
    seen = []
    result = lx.solve(
        wells_linear,
        Wells.x0,
        method,
        iterations=STEPS,
        seed=3,
        record_every=1,
        callback=lambda s: seen.append(s) and False,
    )
    for snapshot, (x, y) in zip(seen, transcript(samples_of(result), *parameters), strict=True):
        np.testing.assert_allclose(snapshot.x, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(snapshot.multipliers["flow"], y, rtol=0, atol=1e-12)


def test_random_output_has_the_multiplier_of_its_index(wells_linear):
    result = lx.solve(wells_linear, Wells.x0, lx.LinearizedALM(0.7), iterations=STEPS, seed=3, output="random")
    iterates = transcript(samples_of(result), *practical(0.7))
    distance = [np.abs(np.asarray(result.x) - x).max() for x, _ in iterates]
    assert min(distance) < 1e-12
    np.testing.assert_allclose(result.multipliers["flow"], iterates[int(np.argmin(distance))][1], rtol=0, atol=1e-12)


def in_high_precision(lipschitz, norm, delta, c1, c2, c3, c4):
    getcontext().prec = 80
    L, a, delta, c1, c2, c3, c4 = map(Decimal, map(str, (lipschitz, norm, delta, c1, c2, c3, c4)))
    c = 121 * L**2
    m = min(1 / (448 * L), 1 / (32 * (1 + c2 + c3) * L), 1 / (8 * (1 + 2 * c3) * L))
    rho = max(7 * (1 + c1) / (m * delta), 4 * (6 + c4) * (1 + c1) * L / delta, 168 * (1 + c1) * L / delta)
    eta = 1 / (11 * (L + rho * a**2))
    k0 = max(
        (10 * m / (3 * c1 * eta)) ** 2,
        (20 / (3 * eta * c2 * L)) ** 2,
        (10 / (3 * c3 * L)) ** 2,
        400 / (3 * eta**2 * c4 * L**2),
        (20 / (c * eta**2)) ** 4,
        (50 / (3 * c * eta**2)) ** 6,
        Decimal(2),
    )
    return rho, eta, k0, c


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 1, 1, 1, 1, 1, 1),
        (1, 1, 0.01, 1, 1, 1, 1),
        (3.5, 2.5, 0.3, 0.1, 20, 5, 0.5),
        (0.2, 7, 1e-6, 10, 0.01, 0.001, 300),
        (1, 1, 1, 1e-30, 1, 1e-90, 1e-60),
    ],
)
def test_theory_constants_in_high_precision(numbers):
    rho, eta, k0, c = in_high_precision(*numbers)
    names = ("lipschitz", "norm", "smallest", "c1", "c2", "c3", "c4")
    found = LinearizedConstants.of(**dict(zip(names, numbers, strict=True)))
    assert found.penalty == pytest.approx(float(rho), rel=1e-13)
    assert found.step_size == pytest.approx(float(eta), rel=1e-13)
    assert found.log_offset == pytest.approx(float(k0.ln()), rel=1e-13)
    assert found.momentum == pytest.approx(float(c), rel=1e-13)
    method = lx.LinearizedALM.from_constants(**dict(zip(names, numbers, strict=True)))
    for k in (1, 1000, 10**9):
        log = (k + k0).ln()
        expected = eta * (-log / 3).exp() / log
        assert float(method.step_size_at(jnp.asarray(float(k)))) == pytest.approx(float(expected), rel=1e-11)


def test_theory_steps_as_the_documentation_says():
    found = LinearizedConstants.of(lipschitz=1.0, norm=1.0, smallest=1.0)
    assert (round(found.penalty), f"{found.step_size:.2e}", f"{found.offset:.1e}") == (6272, "1.45e-05", "8.0e+52")
    method = lx.LinearizedALM.from_constants(lipschitz=1.0, norm=1.0, smallest=1.0)
    assert f"{float(method.step_size_at(jnp.asarray(1.0))):.1e}" == "2.8e-25"


class TestLinear:
    """Every form of A gives the same run."""

    forms = {  # noqa: RUF012 (a table)
        "dense": lambda: lx.Linear(A, B),
        "csr": lambda: lx.Linear(scipy.sparse.csr_matrix(A), B),
        "coo": lambda: lx.Linear(scipy.sparse.coo_array(A), B),
        "bcoo": lambda: lx.Linear(sparse.BCOO.fromdense(jnp.asarray(A)), B),
        "function": lambda: lx.Linear(lambda x: jnp.asarray(A) @ x, B, shape=A.shape),
        "pair": lambda: lx.Linear((lambda x: jnp.asarray(A) @ x, lambda w: jnp.asarray(A).T @ w), B, shape=A.shape),
    }

    @pytest.mark.parametrize("form", forms)
    def test_form(self, form):
        linear = self.forms[form]()
        singular = np.linalg.svd(A)[1]
        assert linear.norm() == pytest.approx(singular[0], rel=1e-12)
        assert linear.smallest_eigenvalue() == pytest.approx(singular[-1] ** 2, rel=1e-12)
        problem = lx.Problem(lambda x: jnp.sum((x - 1.0) ** 2) / 2, constraints={"flow": linear})
        result = lx.solve(problem, jnp.zeros(5), lx.LinearizedALM(1.0), iterations=3000)
        # x = 1 - A^T y with A x = b
        y = np.linalg.solve(A @ A.T, A @ np.ones(5) - B)
        np.testing.assert_allclose(result.x, 1 - A.T @ y, atol=1e-9)
        np.testing.assert_allclose(result.multipliers["flow"], y, atol=1e-9)

    def test_the_user_s_transposed_product_is_used(self):
        calls = []

        def transposed(w):
            calls.append(1)
            return jnp.asarray(A).T @ w

        linear = lx.Linear((lambda x: jnp.asarray(A) @ x, transposed), B, shape=A.shape)
        problem = lx.Problem(lambda x: jnp.sum(x**2), constraints={"flow": linear})
        lx.solve(problem, jnp.zeros(5), lx.QuadraticPenalty(step_size=0.01), iterations=2)
        assert calls

    @pytest.mark.long
    def test_singular_values_without_the_matrix(self):
        """A cycle of 1,200 nodes with chords: one redundant row for each cycle, and a null space."""
        rng = np.random.default_rng(0)
        n, chords = 1200, 300
        ends = np.concatenate([np.c_[np.arange(n), (np.arange(n) + 1) % n], rng.integers(0, n, (chords, 2))])
        ends = ends[ends[:, 0] != ends[:, 1]]
        rows = np.repeat(np.arange(len(ends)), 2)
        matrix = scipy.sparse.coo_array((np.tile([1.0, -1.0], len(ends)), (rows, ends.ravel())), (len(ends), n)).tocsr()
        eigenvalues = np.linalg.eigvalsh((matrix.T @ matrix).toarray())
        linear = lx.Linear(matrix, matrix @ rng.normal(size=n))
        assert linear.norm() == pytest.approx(np.sqrt(eigenvalues[-1]), rel=1e-6)
        assert linear.smallest_eigenvalue() == pytest.approx(eigenvalues[eigenvalues > 1e-9][0], rel=1e-5)

    def test_rank_in_single_precision(self):
        matrix = np.array([[0.3, 0.7, 0.1], [0.2, 0.5, 0.9], [0.5, 1.2, 1.0]], np.float32)  # the third is the sum
        singular = np.linalg.svd(matrix.astype(float))[1]
        assert lx.Linear(matrix, np.zeros(3, np.float32)).smallest_eigenvalue() == pytest.approx(
            singular[1] ** 2, rel=1e-4
        )

    @pytest.mark.long
    def test_many_rows_with_a_transposed_product(self):
        """300 rows that tie two halves of x together: no matrix is formed, the user's two products are enough."""
        pair = (lambda x: x[:300] - x[300:], lambda w: jnp.concatenate([w, -w]))
        linear = lx.Linear(pair, [0.0] * 300, shape=(300, 600))
        target = jnp.linspace(0.0, 1.0, 600)
        problem = lx.Problem(lambda x: 0.5 * jnp.sum((x - target) ** 2), constraints={"tie": linear})
        result = lx.solve(problem, jnp.zeros(600), iterations=500)
        np.testing.assert_allclose(result.x, jnp.tile((target[:300] + target[300:]) / 2, 2), atol=1e-3)

    def test_what_is_known_need_not_be_computed(self):
        linear = lx.Linear(A, B, norm=2.0, smallest=0.5)
        assert (linear.norm(), linear.smallest_eigenvalue()) == (2.0, 0.5)

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: lx.Linear(np.ones(3), 0.0), "must be a matrix"),
            (lambda: lx.Linear(A, np.ones(3)), "one entry for each of the 2 rows"),
            (lambda: lx.Linear(np.array([[np.nan, 1.0]]), 0.0), "not finite"),
            (lambda: lx.Linear(lambda x: x, 0.0), "needs shape="),
            (
                lambda: lx.solve(lx.Problem(jnp.sum, constraints={"c": lx.Linear(A, B)}), jnp.zeros(3), iterations=1),
                "5 columns, but x has 3 entries",
            ),
            (
                lambda: lx.solve(
                    lx.Problem(jnp.sum, constraints={"c": lx.Equal(jnp.sum, samples=None)}),
                    jnp.zeros(3),
                    lx.LinearizedALM(),
                    iterations=1,
                ),
                "all lx.Linear, found others: 'c'",
            ),
        ],
    )
    def test_wrong_input(self, make, text):
        with pytest.raises(ValueError, match=text):
            make()

    def test_no_solution_is_found_and_said(self):
        """x = 0 and x = 1 at once: the violation cannot be lowered below that of x = 1/2."""
        problem = lx.Problem(
            lambda x, z: 0.05 * z @ x,
            samples=normal(1),
            constraints={
                "low": lx.Linear(jnp.ones((1, 1)), 0.0),
                "high": lx.Linear(jnp.ones((1, 1)), 1.0),
            },
        )
        result = lx.solve(problem, jnp.zeros(1), lx.LinearizedALM(1.0), iterations=2000)
        assert result.status == "infeasible_stationary"
        assert not result.success
        np.testing.assert_allclose(result.x, 0.5, atol=0.05)


class TestClosedForms:
    def test_consensus_least_squares(self):
        """Agents on a ring with data of their own agree on the mean; x is a matrix, A a function of it."""
        agents, d = 6, 2
        centers = jax.random.normal(jax.random.key(0), (agents, d))
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - centers - 0.3 * z) ** 2),
            samples=normal(agents, d),
            constraints={"ring": lx.Linear(lambda x: jnp.ravel(x - jnp.roll(x, 1, axis=0)), shape=(12, 12))},
        )
        result = lx.solve(problem, jnp.zeros((agents, d)), lx.LinearizedALM(1.0), iterations=30_000, batch_size=8)
        np.testing.assert_allclose(result.x, jnp.tile(centers.mean(axis=0), (agents, 1)), atol=0.02)
        # the gradient is balanced: x - center + A^T y = 0; y itself is not unique, A^T y is
        y = result.multipliers["ring"].reshape(agents, d)
        np.testing.assert_allclose(y - jnp.roll(y, -1, axis=0), centers - result.x, atol=0.02)

    def test_resource_sharing(self):
        """min sum w_i (x_i - t_i)^2 / 2 with sum x = total: x = t - y / w, y = (sum t - total) / sum(1/w)."""
        w, t, total = jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0]), 3.0
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum(w * (x - t) ** 2) + 0.2 * z @ x,
            samples=normal(3),
            constraints={"total": lx.Linear(jnp.ones((1, 3)), total)},
        )
        y = (t.sum() - total) / (1 / w).sum()
        for method in (lx.LinearizedALM(4.0), lx.LinearizedALM(4.0, penalty=10.0)):
            result = lx.solve(problem, jnp.zeros(3), method, iterations=30_000, batch_size=4)
            np.testing.assert_allclose(result.x, t - y / w, atol=0.02)
            np.testing.assert_allclose(result.multipliers["total"], y, atol=0.05)

    def test_rank_deficient_but_consistent(self):
        matrix = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
        target = np.array([1.0, -1.0, 2.0])
        b = matrix @ np.array([0.5, 0.5, -0.5])
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - target - 0.2 * z) ** 2),
            samples=normal(3),
            constraints={"c": lx.Linear(matrix, b)},
        )
        result = lx.solve(problem, jnp.zeros(3), lx.LinearizedALM(1.0), iterations=30_000, batch_size=4)
        pinv = np.linalg.pinv(matrix)
        expected = pinv @ b + (np.eye(3) - pinv @ matrix) @ target
        assert result.status == "budget"
        np.testing.assert_allclose(result.x, expected, atol=0.02)
        # from y = 0 the multiplier stays in the range of A: the shortest one
        np.testing.assert_allclose(result.multipliers["c"], pinv.T @ (target - expected), atol=0.03)

    def test_lasso_with_a_linear_constraint(self):
        """min ||x - t||^2 / 2 + w ||x||_1 with sum x = 1, beyond the theorem: x = soft(t - y, w)."""
        t, weight = np.array([2.0, 0.3, -0.1, 0.2]), 0.25
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - t - 0.2 * z) ** 2),
            samples=normal(4),
            constraints={"sum": lx.Linear(jnp.ones((1, 4)), 1.0)},
            regularizer=lx.prox.L1(weight),
        )
        result = lx.solve(problem, jnp.zeros(4), lx.LinearizedALM(1.0), iterations=30_000, batch_size=4)
        x, y = lasso_with_sum_one(t, weight)
        np.testing.assert_allclose(result.x, x, atol=0.02)
        np.testing.assert_allclose(result.multipliers["sum"], y, atol=0.03)
        assert (np.asarray(result.x)[x == 0] == 0).all()
