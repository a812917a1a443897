"""How runs end: claims of infeasible, unbounded and stalled runs, and none where more iterations would do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.loop._fresh import MOST_VALUES, _half
from lariax.loop._verdict import KINKED, Around, _jumps, _least_slope, judged
from lariax.oracle import Batch, bind
from lariax.problem import LinearSystem
from lariax.tuned.constants import FACE_SHARE, SLOPE_SHARE
from lariax.tuned.filter import Filter
from lariax.tuned.shape import ShapeInputs, has_lost_coupling, slack_of, whitened

NORMAL = lx.Distribution(lambda key: jax.random.normal(key, (3,)))


def bowl(x, z):
    return 0.5 * jnp.sum((x - 1 - 0.1 * z) ** 2)


def falling(x, z):
    return jnp.sum(x * (1 + 0.1 * z))


def flat(x, z):
    return 0.1 * x @ x + 0 * z[0]


PROBLEMS = {
    "no such sphere": (bowl, lx.Equal(lambda x, z: x @ x + 1 + 0.1 * z[0]), 1.0, "infeasible_stationary"),
    "a sphere from its centre": (bowl, lx.Equal(lambda x, z: x @ x - 1 + 0.1 * z[0]), 0.0, "budget"),
    "contradiction": (
        bowl,
        lx.AtMost(lambda x, z: jnp.stack([x[0], -x[0]]) + 0.1 * z[:2], -1.0),
        1.0,
        "infeasible_stationary",
    ),
    "a comparison": (bowl, lx.AtMost(lambda x, z: jnp.where(x[0] + z[0] > 0, 1.0, 0.0), 0.1), 1.0, "stalled"),
    "unbounded": (falling, lx.AtMost(lambda x, z: x[0] + 0.1 * z[0], 1.0), 1.0, "unbounded"),
    "feasible": (bowl, lx.AtMost(lambda x, z: x[0] + 0.1 * z[0], -1.0), 1.0, "budget"),
}


@pytest.mark.long_but("no such sphere", "a comparison", "unbounded")
@pytest.mark.parametrize("name", PROBLEMS)
def test_verdict(name):
    objective, constraint, start, status = PROBLEMS[name]
    problem = lx.Problem(objective, samples=NORMAL, constraints={"limit": constraint})
    result = lx.solve(problem, jnp.full(3, start), iterations=3_000)
    assert result.status == status, result.message
    assert result.success == (status == "budget")  # then its certificate finds no fault
    assert not result.doubt
    if status == "stalled":
        assert "'limit'" in result.message
        assert "lx.Proxy" in result.message
    if status == "infeasible_stationary":
        assert "'limit'" in result.message
        assert np.max(np.abs(result.multipliers["limit"])) < 1e5  # also where its gradient vanishes, as at x.x = 0


def test_where_nothing_pulls_is_no_proof():
    """At the centre of a sphere, which is also the minimum of the objective: x stays, and the sphere is there."""
    problem = lx.Problem(flat, samples=NORMAL, constraints={"limit": lx.Equal(lambda x, z: x @ x - 1 + 0.1 * z[0])})
    result = lx.solve(problem, jnp.zeros(3), iterations=1000)
    assert result.status == "stalled"
    assert "Violated: 'limit'" in result.message


def test_a_run_that_is_on_its_way_has_spent_its_budget():
    constraint = lx.AtMost(lambda x, z: x[0] + 0.1 * z[0], -1.0)
    problem = lx.Problem(bowl, samples=NORMAL, constraints={"limit": constraint})
    result = lx.solve(problem, jnp.full(3, 100.0), iterations=30)
    assert result.status == "budget"
    assert "no solution yet" in result.doubt
    assert result.doubt in result.message
    assert not result.success


LINE = lx.Equal(lambda x, z: x[0] + 0.1 * z[0], -1.0)


@pytest.fixture(scope="module")
def line():
    """minimise |x - 1|^2 / 2 on x0 = -1: the solution is (-1, 1, 1), the multiplier 2."""
    problem, x = lx.Problem(bowl, samples=NORMAL, constraints={"line": LINE}), jnp.zeros(3)
    return bind(problem, x, (x,), batch_size=2, copies=1, has_slacks=False)


def verdict(oracle, x, known=None, multiplier=2.0, **history):
    known = known or lx.Diagnosis()
    rows = {name: np.asarray(values, float) for name, values in history.items()}
    return judged(oracle, known, jnp.asarray(x), {"line": jnp.asarray(multiplier)}, rows, jax.random.key(0))


def test_a_gradient_that_does_not_vanish_is_said(line):
    """At a solution nothing is said, whatever the run believes."""
    resting, restless = np.append(1.0, np.zeros(7)), np.ones(8)
    falling_off = np.linspace(1, 0.2, 8)
    assert verdict(line, [-1.0, 1.0, 1.0], stationarity=restless) == ("budget", (), 2048, "")
    assert verdict(line, [-1.0, 2.0, 1.0], stationarity=resting) == ("budget", (), 0, "")
    averages = lx.Diagnosis(averages=True)
    assert verdict(line, [-1.0, 2.0, 1.0], averages, stationarity=restless).status == "stalled"
    early = verdict(line, [-1.0, 2.0, 1.0], averages, stationarity=falling_off)
    noisy = verdict(line, [-1.0, 2.0, 1.0], stationarity=restless)  # steps of one length have noise of one size
    for found in (early, noisy):
        assert found.status == "budget"
        assert "gradient of the Lagrangian" in found.doubt


def test_a_point_far_away_is_looked_at(line):
    """Samples that are rare and large throw a run away, and nothing that it sees afterwards tells it."""
    resting = np.append(1.0, np.zeros(7))
    assert "gradient of the Lagrangian" in verdict(line, [-1.0, 1e4, 1.0], stationarity=resting).doubt


@pytest.mark.parametrize("constraints", [{}, {"limit": lx.AtMost(lambda x, z: x[0] * z, 1.0)}])
def test_rare_heavy_samples_that_throw_x_far_away_are_told(constraints):
    """One batch in 500 shows any gradient: the steps between are too long for it, and 2,048 samples hold two such."""
    events = lx.Distribution(lambda key: 1e3 * jax.random.bernoulli(key, 1e-3))
    problem = lx.Problem(lambda x, z: 0.5 * z * (x[0] - 2) ** 2, samples=events, constraints=constraints)
    result = lx.solve(problem, jnp.zeros(1), iterations=2500)
    assert abs(result.x[0]) > 1e3
    assert not result.success
    assert "larger batches" in result.doubt


@pytest.mark.parametrize("objective", [1.0, 0.0])
def test_a_solution_far_away_is_no_doubt(objective):
    """Of an objective, or of a constraint alone."""
    limit = lx.AtLeast(lambda x, z: x[0] + z[0], 9e3 if objective else 1e4)
    problem = lx.Problem(
        lambda x, z: objective * 0.5 * jnp.sum((x - 1e4 - z) ** 2), samples=NORMAL, constraints={"limit": limit}
    )
    result = lx.solve(problem, jnp.zeros(3), iterations=5000)
    assert result.x[0] == pytest.approx(1e4, rel=1e-3)
    assert not result.doubt
    assert result.success


def test_an_objective_that_falls_far_away_as_a_logarithm_does_is_told():
    """It does not fall like a line, so the run is not called unbounded; but x is no solution, though flat."""
    constraints = {"line": lx.Equal(lambda x, z: x[2] - 1 + 0.1 * z[1])}
    x = jnp.array([1e4, 0.0, 1.0])
    problem = lx.Problem(
        lambda x, z: -jnp.log1p(x[0] ** 2) + (x[1] - z[0]) ** 2, samples=NORMAL, constraints=constraints
    )
    oracle = bind(problem, x, (x,), batch_size=2, copies=1, has_slacks=False)
    found = verdict(oracle, x, multiplier=0.0, stationarity=np.append(1.0, np.zeros(7)))
    assert found.status == "budget"
    assert "as much again" in found.doubt


def test_multipliers_at_work_on_slack_constraints_are_told():
    """From a start very far away: x is at rest between the objective and a bound that is no longer near."""
    far = lx.AtMost(lambda x, z: x @ x + 0.1 * z[0], 3.0)
    problem = lx.Problem(lambda x, z: 0.5 * jnp.sum((x - 1 - z) ** 2), samples=NORMAL, constraints={"far": far})
    x = jnp.full(3, 0.25)
    oracle = bind(problem, x, (x,), batch_size=2, copies=1, has_slacks=False)
    known, history = lx.Diagnosis(averages=True, idle=True), {"stationarity": np.append(1.0, np.zeros(7))}
    found = judged(oracle, known, x, {"far": jnp.asarray(1.5)}, history, jax.random.key(0))
    assert found.status == "budget"
    assert "'far'" in found.doubt
    solution = jnp.ones(3) * (1 - 1e-3)  # with a little room, within the error of fresh samples
    assert not judged(oracle, known, solution, {"far": jnp.asarray(1e-4)}, history, jax.random.key(0)).doubt


@pytest.mark.long
def test_a_start_very_far_away_is_no_silent_answer():
    constraints = {
        "line": lx.AtMost(lambda x, z: x[0] + x[1] + 0.1 * z[2], 1.0),
        "ball": lx.AtMost(lambda x, z: x @ x + 0.1 * z[0], 3.0),
    }
    problem = lx.Problem(lambda x, z: 0.5 * jnp.sum((x - 1 - z[:2]) ** 2), samples=NORMAL, constraints=constraints)
    result = lx.solve(problem, jnp.array([1e6, -1e6]), iterations=5_000, batch_size=4)
    assert result.doubt or np.allclose(result.x, 0.5, atol=0.02)


def test_a_gradient_beyond_floating_point_is_no_spent_budget():
    """The gradient of -exp(x) is 1e25 there, and its square is more than single precision holds: no step is taken."""
    problem = lx.Problem(lambda x, z: -jnp.exp(x[0]) + (x[1] - z[0]) ** 2, samples=NORMAL)
    x = jnp.array([57.0, 0.0], jnp.float32)
    oracle = bind(problem, x, (x,), batch_size=2, copies=1, has_slacks=False)
    found = judged(oracle, lx.Diagnosis(), x, {}, {"stationarity": np.ones(8)}, jax.random.key(0))
    assert found.status == "stalled"
    assert "floating point" in found.remarks[0]


def test_halves_that_agree_by_chance_prove_nothing():
    """At the minimum in one variable the halves of a mean differ by less than half of it for one key in seven. False
    alarms by four standard errors: 1 in 400 for all keys together."""
    problem, x = lx.Problem(lambda x, z: 0.5 * (x[0] - z[0]) ** 2, samples=NORMAL), jnp.zeros(1)
    oracle = bind(problem, x, (x,), batch_size=2, copies=1, has_slacks=False)
    restless = {"stationarity": np.ones(8)}
    found = [judged(oracle, lx.Diagnosis(), x, {}, restless, jax.random.key(seed)) for seed in range(40)]
    assert not any(each.doubt for each in found)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_claims_do_not_depend_on_the_units_of_the_method(line, unit):
    """A violation that one step would remove, and the run is on its way to."""
    known = lx.Diagnosis(violated=True, scales=jnp.full(3, unit))
    found = verdict(line, [9.0, 1.0, 1.0], known, feasibility=np.linspace(20, 10, 8))
    assert found.status == "budget"
    assert "'line'" in found.doubt


def test_multipliers_at_their_limit_are_looked_into(line):
    """Though the run's own errors would explain the violation."""
    found = verdict(line, [0.0, 1.0, 1.0], lx.Diagnosis(pressed=True), feasibility=np.ones(8))
    assert found.status == "stalled"
    assert "'line'" in found.remarks[0]
    assert verdict(line, [-1.0, 1.0, 1.0], lx.Diagnosis(pressed=True)).status == "budget"


@pytest.mark.long
def test_a_proxy_is_solved():
    """The share of x0 + z > 0 at most 0.1: x0 = -1.2816."""

    def share(x, z):
        return lx.Proxy(x[0] + z[0] > 0, jax.nn.sigmoid(2 * (x[0] + z[0])))

    problem = lx.Problem(bowl, samples=NORMAL, constraints={"share": lx.AtMost(share, 0.1)})
    result = lx.solve(problem, jnp.ones(3), iterations=20_000, batch_size=4)
    assert float(jax.scipy.stats.norm.cdf(result.x[0])) == pytest.approx(0.1, abs=0.04)


def test_a_proxy_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="one shape"):
        lx.Proxy(jnp.zeros(2), jnp.zeros(3))


@pytest.mark.parametrize(("activation", "expected"), [(jnp.tanh, False), (jax.nn.relu, True)], ids=["tanh", "relu"])
def test_kinks_are_seen_where_there_are_some(activation, expected):
    """A smooth network has none, however much it bends: 40 units for each of 256 samples, and 256 chances to err."""
    inner = jax.random.normal(jax.random.key(0), (40, 3))
    problem = lx.Problem(lambda x, z: jnp.mean(activation(inner @ (x + z))), samples=NORMAL)
    x, batch = jnp.ones(3), Batch((jax.random.normal(jax.random.key(1), (256, 3)),))
    oracle = bind(problem, x, (x,), batch_size=256, copies=1, has_slacks=False)
    assert (int(_jumps(oracle, x, batch, jax.random.key(2))) >= KINKED) == expected


# --- inequalities that are coupled


def inputs(multipliers, slack, inequality=None):
    rows = len(multipliers)
    return ShapeInputs(
        np.ones(rows, bool) if inequality is None else np.asarray(inequality),
        np.asarray(multipliers, float),
        np.asarray(slack, float),
        curvature=1.0,
        max_gradient=1.0,
        gradient_error=1e-4,
        gradient_noise=1.0,
        value_noise=np.zeros(rows),
        batch_size=2,
    )


JACOBIAN = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
NOTHING = np.zeros(3)


def shaped(given):
    return whitened(np, JACOBIAN, NOTHING, NOTHING, given)


def test_inequalities_are_coupled_only_if_they_surely_bind():
    shape = shaped(inputs([1.0, 0.5, 0.0], [0.0, 0.0, 50.0]))
    np.testing.assert_array_equal(shape.coupled, [True, True, False])
    assert shape.penalty[0, 1] != 0
    assert shape.penalty[0, 2] == shape.penalty[1, 2] == 0
    for matrix in shape.uncoupled:
        np.testing.assert_array_equal(matrix, np.diag(np.diag(matrix)))


@pytest.mark.parametrize(
    ("multipliers", "slack"),
    [([1.0, 0.01, 0.0], [0, 0, 0]), ([1.0, 1.0, 0.0], [0, 10, 0]), ([0.0, 0.0, 0.0], [0, 0, 0])],
    ids=["within its error", "with slack", "none"],
)
def test_inequalities_in_doubt_go_by_themselves(multipliers, slack):
    shape = shaped(inputs(multipliers, slack))
    assert not shape.coupled[1:].any()
    np.testing.assert_array_equal(shape.penalty, np.diag(np.diag(shape.penalty)))


def test_dependent_inequalities_are_not_all_coupled():
    shape = shaped(inputs([1.0, 0.5, 0.7], [0.0, 0.0, 0.0]))
    np.testing.assert_array_equal(shape.coupled, [True, False, True])  # the two that press hardest span all


def test_equalities_are_always_coupled():
    shape = shaped(inputs([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], inequality=[False, False, True]))
    assert shape.penalty[0, 1] != 0
    assert not shape.coupled.any()


def test_the_coupling_ends_with_a_multiplier():
    shape = shaped(inputs([1.0, 0.5, 0.0], [0.0, 0.0, 50.0]))
    assert not has_lost_coupling(np, shape, np.array([1.0, 0.5, 0.0]))
    assert has_lost_coupling(np, shape, np.array([1.0, 0.0, 0.0]))


def test_a_row_whose_gradient_vanishes_keeps_a_length():
    """Penalty and multipliers are measured by it: 1 / ||J||^2 would run away. It is forgotten by and by."""
    loaded = inputs([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], inequality=[False] * 3)
    before, vanished = shaped(loaded), JACOBIAN * [[1e-9], [1.0], [1.0]]
    after = whitened(np, vanished, NOTHING, NOTHING, loaded, before)
    assert after.gram[0, 0] == pytest.approx(0.8 * SLOPE_SHARE**2)
    np.testing.assert_array_equal(np.diag(after.gram)[1:], np.diag(before.gram)[1:])
    assert after.penalty[0, 0] <= 1.01 / (0.8 * SLOPE_SHARE**2)
    assert whitened(np, vanished, NOTHING, NOTHING, loaded, after).gram[0, 0] == pytest.approx(0.64 * SLOPE_SHARE**2)


def test_rows_count_for_what_is_left_of_them_along_a_face():
    """One that points across it is pressed harder; not without end."""
    jacobian, nothing, one = np.array([[1.0, 1.0], [0.0, 2.0]]), np.zeros(2), np.float64(1)
    inputs = ShapeInputs(np.zeros(2, bool), nothing, nothing, one, one, one, one, nothing, 2)
    shape = whitened(np, jacobian, nothing, nothing, inputs, on_face=jacobian * [1, 0])
    np.testing.assert_allclose(shape.gram, np.diag([1 + 2 * FACE_SHARE, 4 * FACE_SHARE]))
    np.testing.assert_allclose(shape.penalty, np.linalg.inv(shape.gram), rtol=1e-6)


def test_a_verdict_takes_no_square_matrix_of_a_large_x():
    """Beside the Jacobian stand the gradients of the bounds that hold entries of x, and of no others."""
    d, one, held = 200_000, np.ones(1), np.zeros((2, 200_000))
    held[:, 0] = held[0, 1] = 1
    rows = np.zeros((1, d))
    rows[0, :2] = -1, 1
    seen = Around(one, 0 * one, one, np.ones((1, 1)), rows, held, one > 0)
    np.testing.assert_allclose(_least_slope(seen, np.array([True]), 0.05), 1)  # both entries of the row are held
    held[0, 1] = 0
    assert _least_slope(seen, np.array([True]), 0.05) is None  # the second is free to go down


def test_a_verdict_on_many_rows_takes_few_samples():
    """Agents that agree, each with many numbers: a value a sample and row would take gigabytes."""
    d = 300_000
    ring = lx.Linear(lambda x: x - jnp.roll(x, 1), 0.0, shape=(d, d), norm=2.0)
    problem = lx.Problem(lambda x, z: jnp.sum((x - z[0]) ** 2), samples=NORMAL, constraints={"agree": ring})
    small = lx.Problem(problem.objective, samples=NORMAL, constraints={"agree": lx.Linear(np.ones((1, d)), 0.0)})
    x, method = jnp.zeros(d), lx.LinearizedALM(lipschitz=2.0)
    halves = [_half(lx.bind(each, x, method).oracle) for each in (problem, small)]
    assert halves == [64, 1024]
    assert halves[0] * d <= MOST_VALUES


def test_a_face_makes_no_noise():
    """A penalty's noise comes from whole rows, whatever is left of them along a face. Where that alone was compared
    with the whole gradient, a noisy row was pressed the harder the more it points across the face."""
    jacobian, one = np.array([[10.0, 1.0]]), np.float64(1)
    inputs = ShapeInputs(np.zeros(1, bool), np.zeros(1), np.zeros(1), one, one, one, one, np.ones(1), 2)
    shapes = (
        whitened(np, jacobian, *2 * [np.full(1, 100.0)], inputs, on_face=face) for face in (None, jacobian * [0, 1])
    )
    ridges = [1 / shape.penalty[0, 0] - shape.gram[0, 0] for shape in shapes]
    assert ridges[0] == pytest.approx(ridges[1])


def test_an_exact_row_binds_while_its_multiplier_presses():
    """It is never quite at its bound; a noisy one is, within its errors."""
    values, reach, found = np.array([-1e-4, -1e-4, -1e-4, 1e-4]), np.array([1.0, 1e-5, 1.0, 1.0]), []
    for noise in (1e-20, 1e-10):
        filter = Filter.first(np.array([0.0, 0.0, noise, 0.0]))
        found.append(slack_of(np, values, filter, reach, 2.0**-52, 1e-300))
    assert found[0][0] == found[0][3] == 0  # pressed
    assert found[0][1] > 1e6  # below by more than the multiplier is worth
    np.testing.assert_allclose([slack[2] for slack in found], [1e6, 10])  # in standard errors


def test_a_system_whose_rows_differ_in_scale_has_a_solution():
    """Its least violation is rounding: entries of A x are sums of numbers that are larger than they are."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows, x = rng.normal(size=(3, 4)) * [[100.0], [1.0], [0.01]], 1e3 * rng.normal(size=4)
        x -= rows[0] * (rows[0] @ x) / (rows[0] @ rows[0])
        assert (
            LinearSystem([lx.Linear(jnp.asarray(rows), jnp.asarray(rows @ x))], jnp.asarray(x)).least_violation() == 0
        )
