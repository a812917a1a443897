"""`certify`: what it is about, which draws it takes, what it says."""

import time
from io import StringIO

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.optimize import lsq_linear, nnls

import lariax as lx
from lariax.certificate import _estimates, _samples
from lariax.certificate._draws import SampledPoint
from lariax.certificate._report import _holds

RNG = np.random.default_rng(0)
ROWS = {"a": RNG.normal(size=(200, 4)), "b": RNG.normal(size=200)}
X = jnp.array([0.1, -0.2, 0.3, 0.4])


def loss(x, row):
    return 0.5 * (row["a"] @ x - row["b"]) ** 2


def moment(x, row):
    return row["a"][:2] * (x @ x) + row["b"]


def exact_terms(rows):
    """Gradient, residual of `moment <= 0.1` and its Jacobian, over all rows, in NumPy."""
    a, b, x = rows["a"], rows["b"], np.asarray(X)
    slope = a.T @ (a @ x - b) / len(b)
    residual = a[:, :2].mean(0) * (x @ x) + b.mean() - 0.1
    return slope, residual, np.outer(a[:, :2].mean(0), 2 * x)


@pytest.fixture(scope="module")
def fit_problem():
    return lx.Problem(loss, samples=lx.Dataset(ROWS), constraints={"q": lx.AtMost(moment, 0.1)})


def test_all_rows_of_a_data_set_are_exact(fit_problem):
    y = np.array([0.3, 0.0])
    certificate = lx.certify(fit_problem, X, {"q": y})
    slope, residual, jacobian = exact_terms(ROWS)
    assert certificate.exact
    assert not certificate.population
    assert certificate.draws == 200
    assert "about all 200 rows of the data, no sampling error" in certificate.verdict
    for found, truth in (
        (certificate.stationarity, np.linalg.norm(slope + y @ jacobian)),
        (certificate.feasibility, np.linalg.norm(np.maximum(residual, 0))),
        (certificate.complementarity, np.linalg.norm(y * residual)),
        (certificate.objective, 0.5 * np.mean((ROWS["a"] @ np.asarray(X) - ROWS["b"]) ** 2)),
    ):
        assert found.low == found.high == found.estimate
        np.testing.assert_allclose(found.estimate, truth, rtol=1e-10)
    np.testing.assert_allclose(certificate.constraints["q"].value, residual + 0.1, rtol=1e-10)


def test_fitted_multipliers_are_least_squares_over_the_signs(fit_problem):
    slope, residual, jacobian = exact_terms(ROWS)
    system = np.vstack([jacobian.T, np.diag(residual)])
    free = (residual >= 0) | (np.abs(residual) <= np.linalg.norm(jacobian, axis=1))
    best = lsq_linear(system[:, free], np.concatenate([-slope, np.zeros(2)]), bounds=(0, np.inf), tol=1e-14)
    expected = np.zeros(2)
    expected[free] = best.x
    np.testing.assert_allclose(lx.certify(fit_problem, X).multipliers["q"], expected, atol=1e-7)


def test_many_constraints_need_no_jacobian():
    """40 rows: beyond what is formed. Some are redundant; the best multipliers leave what lstsq leaves."""
    matrix = RNG.normal(size=(40, 50)) / 7
    matrix[1] = matrix[0]
    target = RNG.normal(size=50)
    problem = lx.Problem(
        lambda x: 0.5 * jnp.sum((x - target) ** 2),
        constraints={"flow": lx.Equal(lambda x: matrix @ x, samples=None)},
    )
    certificate = lx.certify(problem, jnp.zeros(50))
    y = np.linalg.lstsq(matrix.T, target, rcond=None)[0]
    left = np.linalg.norm(matrix.T @ y - target)
    np.testing.assert_allclose(certificate.stationarity.estimate, left, rtol=0.02)


def test_many_random_rows_need_no_jacobian_either():
    """33 inequalities, all active: what is left of the gradient is what non-negative least squares leaves."""
    a = RNG.normal(size=(33, 60)) / 8
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - 1) ** 2) + z[0] * x[0],
        samples=lx.Distribution(lambda key: 0.1 * jax.random.normal(key, (2,))),
        constraints={"q": lx.AtMost(lambda x, z: (a @ x - a @ jnp.full(60, 0.5)) * (1 + z[1]))},
    )
    certificate = lx.certify(problem, jnp.full(60, 0.5), draws=1024)
    _, left = nnls(a.T, np.full(60, 0.5))
    np.testing.assert_allclose(certificate.stationarity.estimate, left, rtol=0.02)
    assert np.all(certificate.multipliers["q"] >= 0)


def test_the_sign_convention_of_all_kinds():
    """min x^2 with x = 1, x >= 1 or -x <= -1: the multiplier is -2 for the first two and 2 for the third."""
    kinds = {
        "equal": lx.Equal(lambda x: x, 1.0, samples=None),
        "least": lx.AtLeast(lambda x: x, 1.0, samples=None),
        "most": lx.AtMost(lambda x: -x, -1.0, samples=None),
    }
    for name, multiplier in (("equal", -2.0), ("least", -2.0), ("most", 2.0)):
        problem = lx.Problem(lambda x: x**2, constraints={name: kinds[name]})
        certificate = lx.certify(problem, jnp.array(1.0))
        np.testing.assert_allclose(certificate.multipliers[name], multiplier, rtol=1e-6)
        assert certificate.stationarity.estimate < 1e-6
        given = lx.certify(problem, jnp.array(1.0), {name: multiplier})
        assert given.stationarity.estimate < 1e-12
        assert not given.warnings
        assert given.constraints[name].holds == "surely"


def test_multipliers_of_the_wrong_sign_count_as_none():
    problem = lx.Problem(lambda x: x**2, constraints={"q": lx.AtMost(lambda x: x, 1.0, samples=None)})
    certificate = lx.certify(problem, jnp.array(1.0), {"q": -2.0})
    np.testing.assert_allclose(certificate.stationarity.estimate, 2.0)
    assert "does not allow" in certificate.warnings[0]


def test_a_large_data_set_is_sampled(fit_problem):
    certificate = lx.certify(fit_problem, X, draws=150)
    assert not certificate.exact
    assert not certificate.population
    assert "200 rows of the data, by a sample" in certificate.verdict
    assert certificate.draws <= 150
    assert certificate.stationarity.high > certificate.stationarity.low
    assert lx.certify(fit_problem, X, draws=None).exact


def test_heldout_rows_stand_beside_and_for_the_distribution():
    other = {"a": RNG.normal(size=(300, 4)), "b": 1 + RNG.normal(size=300)}
    problem = lx.Problem(
        loss, samples=lx.Dataset(ROWS), constraints={"q": lx.AtMost(moment, 0.1)}, heldout=lx.Dataset(other)
    )
    both = lx.certify(problem, X)
    assert both.exact
    assert both.heldout.population
    assert not both.heldout.exact
    np.testing.assert_array_equal(both.multipliers["q"], both.heldout.multipliers["q"])
    value, low, high = (getattr(both.heldout.constraints["q"], part) for part in ("value", "low", "high"))
    assert np.all((low < value) & (value < high))
    assert np.all(low > 0.7)
    assert both.constraints["q"].holds != "violated"
    assert both.heldout.constraints["q"].holds == "violated"
    alone = lx.certify(problem, X, on="heldout")
    assert alone.heldout is None
    np.testing.assert_allclose(alone.stationarity.estimate, both.heldout.stationarity.estimate)
    assert "held out" in str(both)


def apart(x, z):
    return (x - z) ** 2


def shift(x, z):
    return z + 0 * x


def test_a_constraint_with_rows_of_its_own_has_held_out_rows_of_its_own():
    """Its gap is 0 on the rows that it was trained on and 1 on those kept for it; the objective keeps its rows."""
    own, kept = lx.Dataset(np.zeros(100)), lx.Dataset(1 + 0.1 * RNG.normal(size=200))

    def judged(beside=None, kept=None):
        limit = lx.AtMost(shift, 0.5, samples=own, heldout=kept)
        rows = lx.Dataset(np.zeros(50))
        return lx.certify(
            lx.Problem(apart, samples=rows, constraints={"q": limit}, heldout=beside), 0.0, multipliers={"q": 0.0}
        )

    certificate = judged(kept=kept)
    np.testing.assert_allclose(certificate.constraints["q"].value, 0, atol=1e-12)
    assert certificate.heldout.population
    found = certificate.heldout.constraints["q"]
    np.testing.assert_allclose(found.value, 1, atol=0.05)
    assert found.high - found.low < 0.04  # all 200 rows are used, though the objective has only 50
    assert found.holds == "violated"
    assert judged().heldout is None
    beside = judged(lx.Dataset(np.ones(50)))
    assert "judged on the rows that they were trained on" in beside.heldout.warnings[0]


def test_multipliers_of_symmetric_dependent_rows_are_found():
    """On a grid the vector of ones has no part in the largest eigenvector: a power method must not start from it."""
    side, edges = 6, []
    for i in range(side * side):
        edges += [(i, i + 1)] * (i % side < side - 1) + [(i, i + side)] * (i < side * (side - 1))
    tail, head = np.asarray(edges).T
    aim = np.random.default_rng(1).normal(size=side * side)  # whatever tests came before
    agree = lx.Linear(lambda x: x[tail] - x[head], 0.0, shape=(len(edges), side * side))
    problem = lx.Problem(lambda x: 0.5 * jnp.sum((x - aim) ** 2), constraints={"agree": agree})
    assert lx.certify(problem, jnp.full(side * side, aim.mean())).stationarity.high < 1e-3


def test_groups_and_streams():
    grouped = lx.Stratified({"v": jnp.arange(10.0)}, by=[0] * 5 + [1] * 5)
    problem = lx.Problem(
        lambda x, s: x * (s["v"][1] - s["v"][0]), samples=grouped, constraints={"q": lx.AtMost(lambda x, s: x)}
    )
    certificate = lx.certify(problem, jnp.array(0.0), {"q": 0.0}, draws=4000)
    assert not certificate.population
    assert certificate.stationarity.low < 5.0 < certificate.stationarity.high
    assert certificate.draws % 2 == 0
    stream = lx.Stream({"v": RNG.normal(2.0, 1.0, size=7)} for _ in range(1000))
    problem = lx.Problem(lambda x, s: x * s["v"], samples=stream)
    certificate = lx.certify(problem, jnp.array(0.0), draws=2000)
    assert certificate.population
    assert certificate.stationarity.low < 2.0 < certificate.stationarity.high


@pytest.mark.parametrize(
    ("value", "error", "inequality", "equality"),
    [
        (-3.0, 1.0, "surely", "violated"),
        (-0.5, 1.0, "probably", "probably"),
        (0.5, 1.0, "undecided", "probably"),
        (1.5, 1.0, "undecided", "undecided"),
        (3.0, 1.0, "violated", "violated"),
        (0.0, 0.0, "surely", "surely"),
        (np.nan, 1.0, "violated", "violated"),
    ],
)
def test_holds_in_four_words(value, error, inequality, equality):
    """Intervals of two standard errors to either side."""
    ends = [np.array([end]) for end in (value, value - 2 * error, value + 2 * error, error)]
    assert _holds(*ends, True, 1e-9) == inequality
    assert _holds(*ends, False, 1e-9) == equality


def test_a_name_holds_as_well_as_the_worst_of_its_entries():
    value, error = np.array([-9.0, 0.5, -9.0]), np.ones(3)
    assert _holds(value, value - 2 * error, value + 2 * error, error, True, 0.0) == "undecided"


def test_a_regulariser_and_a_nested_point():
    """min E (x - z)^2 / 2 + |x|_1: at 0 the gradient -E z may be as large as 1."""
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x["w"] - z) ** 2),
        samples=lx.Distribution(lambda key: jnp.array([0.5, 1.5]) + 0.1 * jax.random.normal(key, (2,))),
        regularizer=lx.prox.L1(1.0),
    )
    there = lx.certify(problem, {"w": jnp.array([0.0, 0.5])})
    assert there.stationarity.low == 0
    assert there.stationarity.high < 0.01
    away = lx.certify(problem, {"w": jnp.array([0.0, 0.0])})
    assert away.stationarity.low < 0.5 < away.stationarity.high
    assert away.feasibility.high == 0


def test_sets_without_a_derivative_somewhere():
    """The nuclear ball at a matrix of low rank: derivatives of singular vectors do not exist there."""
    x = jnp.diag(jnp.array([1.0, 0.0, 0.0]))
    problem = lx.Problem(
        lambda x, z: -x[0, 0] + 0.1 * jnp.sum(x * z),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (3, 3))),
        within=lx.sets.NuclearBall(1.0),
    )
    certificate = lx.certify(problem, x)
    assert certificate.stationarity.low == 0
    assert certificate.stationarity.high < 0.02


def test_float32_stays_float32():
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (3,), jnp.float32)),
    )
    certificate = lx.certify(problem, jnp.zeros(3, jnp.float32))
    assert certificate.stationarity.low == 0
    assert 0 < certificate.stationarity.high < 0.2


def test_the_same_seed_gives_the_same_certificate(fit_problem):
    one, two, other = (lx.certify(fit_problem, X, draws=150, seed=seed) for seed in (1, 1, 2))
    assert one.stationarity == two.stationarity != other.stationarity


def test_nothing_in_it_changes(fit_problem):
    certificate = lx.certify(fit_problem, X)
    with pytest.raises(AttributeError):
        certificate.draws = 0


def test_a_table_for_every_reader(fit_problem):
    certificate = lx.certify(fit_problem, X)
    html = certificate._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;= 0.1" in html
    console = Console(width=120, record=True, file=StringIO())
    console.print(certificate)
    text = console.export_text()
    for word in (
        "stationarity",
        "feasibility",
        "complementarity",
        "natural residual",
        "relative",
        "holds",
        "<= 0.1, of 2",
    ):
        assert word in text
        assert word in str(certificate)


def test_not_finite_is_not_a_solution():
    problem = lx.Problem(lambda x: jnp.sqrt(x))
    certificate = lx.certify(problem, jnp.array(0.0))
    assert "not finite" in certificate.verdict
    assert not certificate.within(1e9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be a positive integer"),
        ({"draws": 10}, "needs at least 16"),
        ({"confidence": 95}, "confidence must be"),
        ({"on": "test"}, "on must be one of"),
        ({"on": "heldout"}, "needs a problem with heldout="),
        ({"multipliers": {"p": 1.0}}, "names"),
        ({"multipliers": {"q": np.ones(3)}}, "shape"),
    ],
)
def test_wrong_options_are_refused(fit_problem, options, message):
    with pytest.raises(ValueError, match=message):
        lx.certify(fit_problem, X, **options)


def test_all_rows_need_rows():
    problem = lx.Problem(lambda x, z: x * z, samples=lx.Distribution(lambda key: jax.random.normal(key, ())))
    with pytest.raises(ValueError, match="needs a Dataset, found Distribution"):
        lx.certify(problem, jnp.array(1.0), draws=None)


def test_cost_is_linear_and_compiled_once():
    """100,000 draws of the 50-variable problem within 2 seconds of CPU time; other draws do not compile again."""
    traced = []
    a = jnp.linspace(1.0, 2.0, 50)

    def objective(x, xi):
        traced.append(1)
        return jnp.sum(1 - jnp.exp(-((x - a - 0.3 * xi) ** 2) / 4))

    problem = lx.Problem(
        objective,
        samples=lx.Distribution(lambda key: jax.random.normal(key, (50,))),
        constraints={
            "c": lx.Equal(
                lambda x, z: jnp.stack([x @ x - 4 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]]),
                samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
            )
        },
    )
    x = jnp.full(50, 0.3)
    lx.certify(problem, x, draws=100_000)
    began, count = time.process_time(), len(traced)
    lx.certify(problem, x, draws=100_000, seed=1, confidence=0.99)
    assert time.process_time() - began < 2.0
    again = len(traced) - count
    lx.certify(problem, x, draws=80_000, seed=2)
    assert len(traced) - count == 2 * again  # only the shapes of the outputs are looked at anew


def test_memory_is_a_few_copies_of_x():
    """As the compiler accounts for it: 1 + 7/2 copies for the batch means; a gradient, their sum and little else."""
    side = 750
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x.reshape(side, side) @ z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (side,), jnp.float32)),
        within=lx.sets.Box(-1.0, 1.0),
    )
    x, key = jnp.zeros(side * side, jnp.float32), jax.random.key(0)
    case = _samples.samples_for(problem, x, 10_000, key)
    y, at = jnp.zeros(0, jnp.float32), _estimates.levels_for(case.oracle, case.plan.batches, case.plan.batches, 0.95)

    def copies(program, *arguments):
        memory = program.lower(*arguments).compile().compiled.memory_analysis()
        return (memory.temp_size_in_bytes + memory.output_size_in_bytes) / x.nbytes

    draws = (_estimates.means_of, SampledPoint(case.oracle, case.feeds, x, key, case.plan), y)
    assert case.plan.count == 16
    assert copies(*draws) < 8
    shapes = eqx.filter_eval_shape(*draws).gradient
    spread = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    assert sum(leaf.nbytes for leaf in spread) < 4.6 * x.nbytes
    assert copies(_estimates.stationarity, case.oracle, spread, x, at.lengths, True, x, None) < 7
    wide = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Distribution(lambda key: x + jax.random.uniform(key))
    )
    assert _samples.samples_for(wide, x, 10_000, key).plan.count == 1


def test_single_precision_stays_single_where_double_is_on():
    problem = lx.Problem(
        lambda x, z: jnp.sum((x - z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (2,), jnp.float32)),
        constraints={"q": lx.AtMost(lambda x, z: jnp.sum(x * z), 0.1)},
        within=lx.sets.Box(-1.0, 1.0),
    )
    certificate = lx.certify(problem, jnp.zeros(2, jnp.float32), draws=512)
    assert certificate.stationarity.low == 0.0
    assert 0 < certificate.stationarity.high < 1
    assert certificate.multipliers["q"].dtype == np.float32
