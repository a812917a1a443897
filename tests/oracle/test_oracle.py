"""What a method is told must be true: gradients, products without bias, slacks, counts.

What is looked at is compiled as a whole: operation by operation takes several times as long.
"""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import Wells, WellsByHand, normal
from lariax.oracle import Batch, bind, counting

# Statistical tests here compare a mean of REPEATS draws with its expectation, coordinate by coordinate, at LIMIT
# standard errors: over at most 10 coordinates a false alarm has probability below 1e-3, and a bias of a tenth of the
# deviation (10 standard errors) goes unseen with probability below 1e-6. Seeds are fixed.
REPEATS, LIMIT = 10_000, 4.5


def oracle_for(problem, x, samples, **options):
    settings = dict(batch_size=1, copies=2, has_slacks=True) | options
    return bind(problem, x, samples, **settings)


def shapes(*arrays):
    return tuple(None if a is None else jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(float)) for a in arrays)


def many_batches(oracle, seed, count):
    @jax.jit
    def drawn(key):
        return jax.vmap(oracle.fetch)(oracle.draw(key, jnp.arange(count), (None,) * len(oracle.sources)))

    return drawn(jax.random.key(seed))


def standard_errors(samples, expected):
    error = np.asarray(samples).std(axis=0, ddof=1) / np.sqrt(len(samples))
    return np.abs(np.asarray(samples).mean(axis=0) - expected) / error


@jax.jit
def exact_penalty_gradient(x, rho):
    """Of the wells problem, in expectation over xi, zeta1 and zeta2."""
    f = lambda x: jnp.sum(1 - jnp.sqrt(2 / 2.09) * jnp.exp(-((x - Wells.a) ** 2) / 4.18))  # noqa: E731
    c = Wells.exact_constraint
    return jax.grad(f)(x) + rho * jax.jacobian(c)(x).T @ c(x)


class TestProducts:
    """x is chosen so that the covariance of a constraint's gradient and value is large: a biased product must fail."""

    x = jnp.array([1.5, 0.3, -0.4, 0.8, 1.0])
    rho = 2.0

    @pytest.mark.parametrize(("copies", "batch_size"), [(2, 1), (2, 3), (1, 2), (1, 4)])
    def test_have_no_bias(self, wells, copies, batch_size):
        oracle = oracle_for(wells, self.x, shapes(self.x, jnp.zeros(2)), copies=copies, batch_size=batch_size)
        batches = many_batches(oracle, 0, REPEATS)
        products = jax.jit(jax.vmap(lambda b: oracle.penalty_gradient(self.x, self.rho, b)[0]))(batches)
        assert standard_errors(products, exact_penalty_gradient(self.x, self.rho)).max() < LIMIT

    def test_the_same_sample_twice_would_be_seen(self, wells):
        """The power of the test above: with zeta2 = zeta1 the bias 0.25 rho x_0 is far beyond the limit."""
        oracle = oracle_for(wells, self.x, shapes(self.x, jnp.zeros(2)))
        batches = many_batches(oracle, 0, REPEATS)
        xi, zeta = batches.samples
        same = Batch((xi, zeta.at[:, 1].set(zeta[:, 0])))
        products = jax.jit(jax.vmap(lambda b: oracle.penalty_gradient(self.x, self.rho, b)[0]))(same)
        assert standard_errors(products, exact_penalty_gradient(self.x, self.rho)).max() > 2 * LIMIT

    @pytest.mark.parametrize(("copies", "batch_size"), [(2, 1), (2, 2), (1, 2), (1, 3)])
    def test_without_replacement_exactly(self, copies, batch_size):
        """Averaged over *all* ordered ways to draw the rows, the product is the one of the whole data set."""
        rows = jnp.array([0.3, -1.0, 2.0, 0.7, 1.1])
        problem = lx.Problem(
            lambda x, z: z * x[0] ** 2,
            samples=lx.Dataset(rows, epochs=True),
            constraints={"c": lx.Equal(lambda x, z: jnp.stack([x[0] * z - x[1], z**2 * x[0] * x[1]]))},
        )
        x = jnp.array([0.7, -1.2])
        oracle = oracle_for(problem, x, shapes(0.0), copies=copies, batch_size=batch_size)
        draws = jnp.array(list(permutations(range(5), copies * batch_size)))
        products = jax.jit(jax.vmap(lambda i: oracle.penalty_gradient(x, 3.0, Batch((rows[i],)))[0]))(draws)

        @jax.jit
        @jax.grad
        def gradient(x):
            c = jax.vmap(problem.constraints["c"].fun, (None, 0))(x, rows).mean(axis=0)
            return jax.vmap(problem.objective, (None, 0))(x, rows).mean() + 1.5 * c @ c

        np.testing.assert_allclose(np.mean(products, axis=0), gradient(x), rtol=1e-12)

    @pytest.mark.parametrize("epochs", [False, True])
    def test_of_rows_as_they_are_drawn(self, epochs):
        rows = jax.random.normal(jax.random.key(1), (7,))
        problem = lx.Problem(
            lambda x, z: z * x[0],
            samples=lx.Dataset(rows, epochs=epochs),
            constraints={"c": lx.Equal(lambda x, z: x[0] * z)},
        )
        x = jnp.array([1.5])
        oracle = oracle_for(problem, x, shapes(0.0), copies=1, batch_size=3)
        products = jax.jit(jax.vmap(lambda b: oracle.penalty_gradient(x, 1.0, b)[0]))(many_batches(oracle, 2, REPEATS))
        mean = rows.mean()
        # passes through the data are negatively correlated, which makes the standard error an upper bound
        assert standard_errors(products, mean + mean**2 * x[0]).max() < LIMIT

    def test_multipliers_enter_linearly(self, wells):
        oracle = oracle_for(wells, self.x, shapes(self.x, jnp.zeros(2)))
        batch = jax.tree.map(lambda a: np.asarray(a[0]), many_batches(oracle, 0, 1))
        y, (first, second) = np.array([0.5, -2.0]), batch.samples[1]
        gradient = jax.jit(lambda y: oracle.penalty_gradient(self.x, self.rho, batch, multipliers=y))
        (without, values), (with_y, _) = gradient(np.zeros(2)), gradient(y)
        difference = WellsByHand.jacobian(np.asarray(self.x), first).T @ y
        np.testing.assert_allclose(np.asarray(with_y) - without, difference, rtol=1e-12)
        np.testing.assert_allclose(values, WellsByHand.constraint(np.asarray(self.x), second), rtol=1e-12)


class TestStructure:
    def test_joint_and_separate_functions_agree(self):
        rows = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(3)}

        def loss(x, row):
            return (row["a"] @ x["w"] + x["b"] - row["b"]) ** 2

        def gap(x, row):
            return row["a"] @ x["w"]

        source = lx.Dataset(rows)
        separate = lx.Problem(loss, samples=source, constraints={"gap": lx.AtMost(gap, 0.3)})
        joint = lx.Problem.joint(
            lambda x, row: (loss(x, row), {"gap": gap(x, row)}),
            samples=source,
            constraints={"gap": lx.AtMost(bound=0.3)},
        )
        x = {"w": jnp.array([0.3, -0.1]), "b": jnp.array(0.7)}
        results = [
            lx.solve(p, x, lx.QuadraticPenalty(step_size=0.01), iterations=20, seed=5) for p in (separate, joint)
        ]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), results[0].x, results[1].x)
        assert results[0].draws == results[1].draws == 2 * 21
        assert results[0].evaluations > results[1].evaluations

    def test_slacks_complete_inequalities(self):
        problem = lx.Problem(
            lambda x: x[0],
            constraints={
                "upper": lx.AtMost(lambda x: x[0], 2.0, samples=None),
                "lower": lx.AtLeast(lambda x: x, jnp.array([0.0, 5.0]), samples=None),
                "equal": lx.Equal(lambda x: x[1], 3.0, samples=None),
            },
        )
        x = jnp.array([1.0, 3.0])
        oracle = oracle_for(problem, x, (None,))
        batch = Batch((None,))
        z = oracle.start(x, batch)
        np.testing.assert_allclose(z, [1.0, 3.0, 1.0, 1.0, 0.0])  # slacks: 2 - 1; 1 - 0; 3 < 5 is violated
        residuals = oracle.join(oracle.residuals(z, batch))
        np.testing.assert_allclose(residuals, [0.0, 0.0, 2.0, 0.0])
        values = oracle.layout.named(oracle.values(residuals, z))
        np.testing.assert_allclose(values["upper"], 1.0)
        np.testing.assert_allclose(values["lower"], [1.0, 3.0])
        np.testing.assert_allclose(values["equal"], 3.0)
        multipliers = oracle.named_multipliers(jnp.array([1.0, 2.0, 3.0, 4.0]))
        np.testing.assert_allclose(multipliers["lower"], [-2.0, -3.0])
        moved = oracle.prox(z - 10.0, 0.1)
        np.testing.assert_allclose(moved, [-9.0, -7.0, 0.0, 0.0, 0.0])

    def test_jacobian_is_never_formed(self):
        """With 10,000 constraints in 10,000 variables the Jacobian would be 800 MB; the compiled step stays below 8."""
        d = 10_000
        problem = lx.Problem(
            lambda x: jnp.sum(x), constraints={"c": lx.Equal(lambda x: jnp.sin(x) * x[0], samples=None)}
        )
        x = jnp.ones(d)
        oracle = oracle_for(problem, x, (None,))
        step = jax.jit(lambda z: oracle.penalty_gradient(z, 1.0, Batch((None,))))
        assert step.lower(x).compile().memory_analysis().temp_size_in_bytes < 8e6

    def test_counts_what_the_code_asks_for(self, wells):
        oracle = oracle_for(wells, Wells.x0, shapes(Wells.x0, jnp.zeros(2)), batch_size=4)
        assert oracle.draws_per_iteration == 4 + 2 * 4
        batch = jax.tree.map(lambda a: a[0], many_batches(oracle, 0, 1))
        with counting() as tally:
            jax.eval_shape(lambda batch: oracle.penalty_gradient(Wells.x0, 1.0, batch), batch)
        assert sum(tally) == 4 + 4 + 4  # gradients of f, gradients of c, values of c


def test_draws_of_every_kind_of_source():
    rows = {"v": jnp.arange(6.0), "g": jnp.array([0, 0, 1, 1, 1, 2])}
    problem = lx.Problem(
        lambda x, row: row["v"] * x,
        samples=lx.Dataset(rows),
        constraints={
            "shared": lx.Equal(lambda x, row: row["v"] * x),
            "grouped": lx.Equal(lambda x, row: row["v"] * x, samples=lx.Stratified(rows, by=rows["g"])),
            "own": lx.Equal(lambda x, z: z * x, samples=normal()),
        },
    )
    result = lx.solve(problem, jnp.array(0.1), lx.QuadraticPenalty(step_size=0.001), iterations=10, batch_size=2)
    per_iteration = 2 * 2 + 2 * 2 * 3 + 2 * 2
    assert result.draws == 11 * per_iteration
    assert result.multipliers["grouped"].shape == (3,)


def test_constraints_keep_their_order_and_their_samples():
    """Names that are not in alphabetical order, each with samples of its own kind: nobody sees another's."""

    def scalar(x, z):
        assert z.shape == ()
        return x[0] * z

    def vector(x, z):
        assert z.shape == (3,)
        return x[0] * z

    problem = lx.Problem(
        lambda x: x @ x,
        constraints={
            "zebra": lx.Equal(scalar, samples=lx.Dataset(jnp.array([5.0]))),
            "ant": lx.Equal(vector, samples=lx.Dataset(jnp.array([[1.0, 2.0, 3.0]]))),
        },
    )
    result = lx.solve(problem, jnp.ones(1), lx.QuadraticPenalty(step_size=1e-6), iterations=2, record_every=1)
    assert list(result.multipliers) == ["zebra", "ant"]
    np.testing.assert_allclose(result.history["constraints"]["zebra"][-1], 5.0, rtol=1e-3)
    np.testing.assert_allclose(result.history["constraints"]["ant"][-1], [1.0, 2.0, 3.0], rtol=1e-3)
