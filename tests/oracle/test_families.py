"""Many named constraints: evaluated as one where they differ in numbers alone, with the same values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.loop import _verdict
from lariax.oracle import bind, sample_structure

NAMES, WIDTH = 20, 7
ROWS = np.random.default_rng(0).normal(size=(40, WIDTH)).astype(np.float32)
MATRIX = np.random.default_rng(1).normal(size=(NAMES, WIDTH)).astype(np.float32)
X = jnp.linspace(-1.0, 1.0, WIDTH)


def by_places(i):
    return lambda x, row: row[i % WIDTH] * x[(2 * i) % WIDTH] - 0.1 * i


def by_arrays(i):
    own = jnp.asarray(MATRIX[i])
    return lambda x, row: jnp.tanh(own @ x) * row[0]


def by_windows(i):
    return lambda x, row: x[i % 3 : i % 3 + 4] ** 2 + row[i % WIDTH]


def with_a_derivative_of_their_own(i):
    return lambda x, row: jnp.logaddexp(row[i % WIDTH] * x[0], 0.0)  # traced anew each time


def with_kinks(i):
    return lambda x, row: 0.1 * i * jax.nn.relu(row[i % WIDTH] * x[1])


def that_differ(i):
    return lambda x, row: (1 + row[i % WIDTH] * x[0]) ** (2 + i % 5)


def with_derivatives_that_differ(i):
    @jax.custom_jvp
    def twice(value):
        return 2 * value

    twice.defjvp(lambda at, change: (2 * at[0], (2.0 + i) * change[0]))  # on purpose not that of the function
    return lambda x, row: twice(row[0] * x[0])


def all_alike(i):
    return lambda x, row: jnp.sum(x * row)


ALIKE = [by_places, by_arrays, by_windows, with_a_derivative_of_their_own, with_kinks, all_alike]
KINDS = [*ALIKE, that_differ, with_derivatives_that_differ]


def oracle_of(functions, **options):
    constraints = {f"c{i}": lx.AtMost(function, 0.1 * i) for i, function in enumerate(functions)}
    problem = lx.Problem(lambda x, row: jnp.sum((x - row) ** 2), samples=lx.Dataset(ROWS), constraints=constraints)
    structure = (sample_structure(problem.samples),)
    return bind(problem, X, structure, batch_size=3, copies=1, has_slacks=False)


def batch_of(oracle):
    tickets = oracle.draw(jax.random.key(0), jnp.arange(1), (None,))
    return oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))


def expected(functions, rows):
    return jnp.stack(
        [jnp.concatenate([jnp.ravel(f(X, row)) - 0.1 * i for i, f in enumerate(functions)]) for row in rows]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_each_function(kind):
    functions = [kind(i) for i in range(NAMES)]
    oracle = oracle_of(functions)
    assert len(oracle.functions[0].families) == (kind in ALIKE)
    batch = batch_of(oracle)
    look = oracle.look(X, batch)
    np.testing.assert_allclose(look.residuals[0], expected(functions, batch.samples[0]), rtol=1e-5, atol=1e-6)
    weights = jnp.cos(jnp.arange(oracle.rows * 1.0))
    mean = lambda x: sum(  # noqa: E731
        weights @ jnp.concatenate([jnp.ravel(f(x, row)) for f in functions]) for row in batch.samples[0]
    )
    slope = jax.grad(mean)(X) / 3
    np.testing.assert_allclose(look.gradient(oracle.split(weights), objective=0.0), slope, rtol=1e-4, atol=1e-5)


def test_families_among_others_keep_the_order():
    functions = [kind(i) for i in range(NAMES) for kind in (by_windows, that_differ, by_places)]
    oracle = oracle_of(functions)
    assert len(oracle.functions[0].families) == 2
    batch = batch_of(oracle)
    found = oracle.residuals(X, batch)[0]
    np.testing.assert_allclose(found, expected(functions, batch.samples[0]), rtol=1e-5, atol=1e-6)


def test_problems_alike_share_compiled_code():
    """The numbers are arguments of the code, so other ones do not compile again."""
    calls = []

    @eqx.filter_jit
    def values(functions, x, row):
        calls.append(1)
        return functions(None, x.dtype, x, row)

    for shift in (0, 5):
        oracle = oracle_of([by_places(i + shift) for i in range(NAMES)])
        values(oracle.functions[0], X, jnp.asarray(ROWS[0]))
    assert len(calls) == 1


def equations(jaxpr):
    inner = [
        getattr(part, "jaxpr", part)
        for equation in jaxpr.eqns
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
        if hasattr(part, "eqns") or hasattr(part, "jaxpr")
    ]
    return len(jaxpr.eqns) + sum(map(equations, inner))


def step_equations(functions):
    """Of an iteration of the default method with a closer look: the longest piece of the compiled loop."""
    oracle, method = oracle_of(functions), lx.TrackedLagrangian()
    tickets = oracle.draw(jax.random.key(0), jnp.arange(2), (None,))
    batches = jax.vmap(oracle.fetch)(tickets)
    state = eqx.filter_eval_shape(method.init, oracle, X, batches)
    step = eqx.filter_make_jaxpr(method.measuring_step)
    return equations(step(oracle, state, jnp.ones(()), batches.first)[0].jaxpr)


@pytest.mark.long
def test_the_step_does_not_grow_with_the_names():
    few, many = (step_equations([by_places(i) for i in range(count)]) for count in (NAMES, 10 * NAMES))
    assert many <= few + 10


def test_the_step_grows_by_little_with_functions_of_their_own():
    """Forward and backward, at two points, on two halves, for several weights: per pass, a few equations a name."""
    few, many = (step_equations([with_a_derivative_of_their_own(i) for i in range(n)]) for n in (2, 12))
    passes = 4 + 2 * 5  # looks, and gradients of them
    assert (many - few) / 10 <= 20 * passes


def test_large_arrays_of_their_own_are_not_copied(monkeypatch):
    monkeypatch.setattr("lariax.oracle._families.MOST_NUMBERS", NAMES * WIDTH)
    assert not oracle_of([by_arrays(i) for i in range(NAMES)]).functions[0].families


@pytest.mark.parametrize("few", [0, 10 * NAMES])
def test_many_constraints_without_a_gradient_are_seen(monkeypatch, few):
    """One by one, and all at once."""
    monkeypatch.setattr(_verdict, "FEW_BLOCKS", few)
    flat = [lambda x, row: jnp.sign(x[0] + row[0]) + 0 * x[1]]
    oracle = oracle_of([*flat, *(by_places(i) for i in range(NAMES)), *flat])
    found = _verdict._has_gradient(oracle, [oracle.look(X, batch_of(oracle))])
    np.testing.assert_array_equal(found, [False, *[True] * NAMES, False])


@pytest.mark.long
def test_many_names_are_solved_as_one_vector_is():
    """The same samples and the same arithmetic, but for the order of sums: the answers agree to rounding."""
    count = 300
    places, shifts = np.arange(count) % WIDTH, 0.01 * np.arange(count, dtype=np.float32)
    named = {
        f"c{i}": lx.AtMost(lambda x, row, i=i: row[i % WIDTH] ** 2 * x[i % WIDTH] + shifts[i] * row[0], 0.3)
        for i in range(count)
    }
    vector = {"all": lx.AtMost(lambda x, row: row[places] ** 2 * x[places] + shifts * row[0], 0.3)}
    answers = []
    for constraints in (named, vector):
        problem = lx.Problem(lambda x, row: jnp.sum((x - 1) ** 2), samples=lx.Dataset(ROWS), constraints=constraints)
        result = lx.solve(problem, jnp.zeros(WIDTH), lx.TrackedLagrangian(), iterations=50, batch_size=4)
        certificate = lx.certify(problem, result.x, result.multipliers)
        values = np.concatenate([np.ravel(report.value) for report in certificate.constraints.values()])
        answers.append((result, certificate, values))
    (one, its, mine), (other, theirs, yours) = answers
    np.testing.assert_allclose(one.x, other.x, rtol=1e-3, atol=1e-4)
    assert list(one.multipliers) == list(named)
    assert set(one.history["constraints"]) == set(named)
    np.testing.assert_allclose(mine, yours, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(its.stationarity.estimate, theirs.stationarity.estimate, rtol=1e-2, atol=1e-3)
    assert one.draws == other.draws


def test_a_function_is_traced_once_to_be_checked_and_put_into_a_family():
    calls = []

    def counted(i):
        return lambda x, row: (calls.append(i), row[i % WIDTH] * x[0])[1]

    oracle = oracle_of([counted(i) for i in range(NAMES)])
    assert len(oracle.functions[0].families) == 1
    assert calls == list(range(NAMES))


def test_a_packed_problem_is_its_arrays_to_jax():
    """And comes back the same after it was taken apart, by JAX and by equinox."""
    oracle = oracle_of([by_places(i) for i in range(NAMES)])
    problem, leaves = oracle.problem, jax.tree.leaves(oracle.packed)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    again = jax.tree.map(lambda leaf: leaf + 1, oracle.packed).tree
    assert again.objective is problem.objective
    assert again.constraints["c3"].fun is problem.constraints["c3"].fun
    assert float(again.constraints["c3"].bound) == pytest.approx(1.3)
    dynamic, static = eqx.partition(oracle.packed, eqx.is_array)
    joined = eqx.combine(dynamic, static).tree
    assert float(joined.constraints["c3"].bound) == pytest.approx(0.3)
    assert jax.tree.structure(joined) == jax.tree.structure(problem)
