"""The default method against known solutions, and its parts against what they promise.

Problems and batch sizes are shared between tests where they can be: compiling is what takes time here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.kinks import quantile
from benchmarks.suite.problems import by_name

import lariax as lx
from conftest import lasso_with_sum_one, normal
from lariax.oracle import Oracle
from lariax.tuned.filter import Filter, clipped_innovation, gain, updated

TRACKED = lx.TrackedLagrangian()


def biased(samples):
    """min (x_0^2 + (x_1 - 2)^2) / 2 with E [x_0 + x_1 - 1 + 2 z (x_0 - x_1)] = 0: x = (-0.5, 1.5), y = 0.5."""
    return lx.Problem(
        lambda x: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
        constraints={"line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]), samples=samples)},
    )


BIASED = biased(normal())


def test_the_biased_problem():
    """Where methods that weight a sample's gradient with its own value settle 1.28 away."""
    for seed in range(10):
        result = lx.solve(BIASED, jnp.zeros(2), TRACKED, iterations=20_000, batch_size=8, seed=seed)
        assert np.linalg.norm(result.x - np.array([-0.5, 1.5])) < 0.05


@pytest.mark.long
def test_single_precision_and_batches_of_two():
    """The statistical limit of the distance is here 4 / sqrt(80,000) = 0.014. A batch of one draws two."""
    one, two = (
        lx.solve(BIASED, jnp.zeros(2, jnp.float32), TRACKED, iterations=40_000, batch_size=size) for size in (1, 2)
    )
    assert two.x.dtype == two.multipliers["line"].dtype == jnp.float32
    np.testing.assert_allclose(two.x, [-0.5, 1.5], atol=0.08)
    np.testing.assert_allclose(two.multipliers["line"], 0.5, atol=0.08)
    assert one.draws == two.draws
    np.testing.assert_array_equal(one.x, two.x)


def test_rows_without_replacement():
    """Reshuffled passes over 1,001 rows, in batches of 3 that do not divide them.

    What an estimate has kept of the rows seen in a pass is not independent of those still to come. That leaves a bias
    of about 3 / N, here 0.003; the rows themselves are worth 4 / sqrt(N) = 0.13.
    """
    z = np.random.default_rng(0).normal(size=1_001)
    rows = lx.Dataset((z - z.mean()) / z.std(), epochs=True)
    result = lx.solve(biased(rows), jnp.zeros(2), TRACKED, iterations=12_000, batch_size=3)
    np.testing.assert_allclose(result.x, [-0.5, 1.5], atol=0.02)


# --- exact solutions, primal and dual


def bowl(target):
    return lambda x, z: 0.5 * jnp.sum((x - jnp.asarray(target) - 0.2 * z) ** 2)


def many_kinds():
    """Four bowls beside each other: an equality, the same in other units and stated twice, and inequalities."""
    return lx.Problem(
        bowl([0.0, 2.0, 0.0, 2.0, 2.0, 0.0]),
        samples=normal(6),
        constraints={
            "line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 0.2 * z * x[0], samples=normal()),
            "large": lx.Equal(lambda x, z: 1e4 * (x[2] + x[3] - 1 + 0.2 * z * x[2]), samples=normal()),
            "again": lx.Linear(jnp.array([[0.0, 0.0, 2.0, 2.0, 0.0, 0.0]]), 2.0),
            "above": lx.AtMost(lambda x, z: x[4:] + 0.2 * z, jnp.array([1.0, 5.0]), samples=normal(2)),
            "below": lx.AtLeast(lambda x, z: x[4] + 0.2 * z, -3.0, samples=normal()),
            "floor": lx.AtLeast(lambda x: x[5], 0.5, samples=None),
        },
    )


@pytest.mark.long
def test_constraints_of_many_kinds():
    """Errors are 0.2 / sqrt(40,000) = 0.001 in size: 0.008 are eight standard deviations.

    And the momentum falls like 1/k: the method averages.
    """
    result = lx.solve(many_kinds(), jnp.zeros(6), TRACKED, iterations=10_000, batch_size=4, record_every=1_000)
    assert result.status == "budget"
    np.testing.assert_allclose(result.x, [-0.5, 1.5, -0.5, 1.5, 1.0, 0.5], atol=0.008)
    y = result.multipliers
    np.testing.assert_allclose(y["line"], 0.5, atol=0.008)
    np.testing.assert_allclose(1e4 * y["large"] + 2 * y["again"][0], 0.5, atol=0.008)
    np.testing.assert_allclose(y["above"], [1.0, 0.0], atol=0.008)
    np.testing.assert_allclose(y["floor"], -0.5, atol=0.008)
    assert float(y["above"][1]) == float(y["below"]) == 0.0  # exactly
    gains = np.asarray(result.history["gain"]) * np.asarray(result.history["iteration"])
    assert np.all((gains > 0.7) & (gains < 1.5))


@pytest.mark.long
def test_within_a_simplex():
    problem = lx.Problem(
        bowl([0.9, 0.1, 0.5]),
        samples=normal(3),
        constraints={"same": lx.Equal(lambda x, z: (1 + 0.3 * z) * (x[0] - x[1]), samples=normal())},
        within=lx.sets.Simplex(),
    )
    result = lx.solve(problem, jnp.array([1.0, 0.0, 0.0]), TRACKED, iterations=10_000, batch_size=4)
    np.testing.assert_allclose(result.x, np.full(3, 1 / 3), atol=0.008)
    np.testing.assert_allclose(result.multipliers["same"], 0.4, atol=0.008)


@pytest.mark.long
def test_gradients_across_a_face_count_for_nothing():
    """Entry 0 is held at 0, where objective and constraint are a thousand times as steep as elsewhere: min c.x + x.x/2
    on a simplex with 1000 x0 + x1 <= 0.3 is (0, 0.3, 0.7, 0)."""
    costs = jnp.array([1000.0, 1.0, 2.0, 3.0])
    problem = lx.Problem(
        lambda x, z: (costs + 0.1 * z[:4]) @ x + 0.5 * x @ x,
        samples=normal(5),
        constraints={"row": lx.AtMost(lambda x, z: 1000 * x[0] + x[1] + 0.1 * z[4], 0.3)},
        within=lx.sets.Simplex(),
    )
    result = lx.solve(problem, jnp.full(4, 0.25), iterations=8000)
    np.testing.assert_allclose(result.x, [0, 0.3, 0.7, 0], atol=0.01)
    assert (result.status, result.doubt) == ("budget", "")


def test_with_a_regularizer_and_a_linear_constraint():
    target = np.array([2.0, 0.3, -0.1, 0.2])
    x, y = lasso_with_sum_one(target, 0.25)
    problem = lx.Problem(
        bowl(target),
        samples=normal(4),
        constraints={"sum": lx.Linear(jnp.ones((1, 4)), 1.0)},
        regularizer=lx.prox.L1(0.25),
    )
    result = lx.solve(problem, jnp.zeros(4), TRACKED, iterations=10_000, batch_size=4)
    np.testing.assert_allclose(result.x, x, atol=0.008)
    np.testing.assert_allclose(result.multipliers["sum"], [y], atol=0.008)


def test_a_start_at_the_minimum_of_a_deterministic_objective_is_left():
    """There is neither a gradient nor noise of one to measure the penalty by. The solution is the shortest x with
    a.x = 1, and y = -1 / a.a; the standard error of both is 0.2 / sqrt(2 x 4,000) / ||a|| = 0.001, and less."""
    a = jnp.array([1.0, 2.0])
    problem = lx.Problem(
        lambda x: 0.5 * x @ x,
        constraints={"c": lx.Equal(lambda x, z: (a + z[:2]) @ x + 0.2 * z[2], 1.0, samples=normal(3))},
    )
    result = lx.solve(problem, jnp.zeros(2), iterations=4000, batch_size=2, seed=1)
    np.testing.assert_allclose(result.x, a / 5, atol=0.03)
    np.testing.assert_allclose(result.multipliers["c"], -0.2, atol=0.03)


@pytest.mark.parametrize("objective", [lambda x: 0.0 * x[0], lambda x: jnp.sum(x**4)], ids=["nothing", "flat"])
def test_nothing_to_minimise_at_the_start(objective):
    """E [(A + 0.3 Z) x - b + 0.3 z] = 0 has one solution, (-0.2, 1.4), with a standard error of 0.3 sqrt(3) /
    sqrt(16,000) ||A^-1|| = 0.004."""
    matrix, b = jnp.array([[2.0, 1.0], [0.5, 1.5]]), jnp.array([1.0, 2.0])
    moments = lx.Equal(lambda x, z: (matrix + 0.3 * z[:4].reshape(2, 2)) @ x - b + 0.3 * z[4:], samples=normal(6))
    result = lx.solve(lx.Problem(objective, constraints={"moments": moments}), jnp.zeros(2), iterations=4000)
    assert result.status == "budget"
    np.testing.assert_allclose(result.x, [-0.2, 1.4], atol=0.03)


def test_without_constraints():
    result = lx.solve(lx.Problem(bowl([0.3, -0.4]), samples=normal(2)), jnp.ones(2), TRACKED, iterations=10_000)
    np.testing.assert_allclose(result.x, [0.3, -0.4], atol=0.012)


def test_nothing_random_is_solved_to_rounding():
    """From a start where the constraint has no gradient."""
    problem = lx.Problem(
        lambda x: jnp.sum((x - 2.0) ** 4) + 0.5 * x @ x,
        constraints={"sphere": lx.Equal(lambda x: x @ x - 1, samples=None)},
    )
    result = lx.solve(problem, jnp.zeros(2), TRACKED, iterations=2_000)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(result.x, [half, half], atol=1e-8)
    np.testing.assert_allclose(result.multipliers["sphere"], -0.5 - 2 * (half - 2) ** 3 / half, rtol=1e-7)


@pytest.mark.long
def test_many_rows_need_no_matrix():
    """300 noisy bounds on 20 variables, of which 20 are active with multiplier 1."""
    d, copies = 20, 15
    shifts = jnp.concatenate([jnp.zeros(d), jnp.linspace(0.5, 2.0, d * (copies - 1))])
    problem = lx.Problem(
        bowl(np.ones(d)),
        samples=normal(d),
        constraints={
            "rows": lx.AtMost(lambda x, z: jnp.tile(x, copies) - shifts + 0.1 * z, samples=normal(d * copies)),
        },
    )
    result = lx.solve(problem, jnp.full(d, 0.5), TRACKED, iterations=4_000, batch_size=2)
    np.testing.assert_allclose(result.x, 0.0, atol=0.05)
    np.testing.assert_allclose(result.multipliers["rows"][:d], 1.0, atol=0.1)
    assert float(jnp.max(jnp.abs(result.multipliers["rows"][d:]))) == 0.0


# --- the parts


def z_scores(monkeypatch, step, own_value):
    """Of mean zero if and only if the weight of each sample's gradient is independent of the sample.

    Given the state,  E [g+ - grad L(x+, w+)] = (1 - alpha) (g - grad L(x, w)):  over 40,000 batches from one state.
    """
    result = lx.solve(BIASED, jnp.zeros(2), TRACKED, iterations=20, batch_size=8)
    oracle, state, k = result.continuation.oracle, result.continuation.loop.state, jnp.array(21.0)
    if own_value:
        monkeypatch.setattr(Oracle, "partners", lambda self, own: own)

    def exact(z, w):
        """In the units in which the method moves."""
        return state.metric * (state.metric * z - jnp.array([0.0, 2.0]) + w[0])

    def deviation(key):
        tickets = oracle.draw(key, jnp.arange(1), (None,) * len(oracle.sources))
        batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
        new = step(oracle, state, k, batch)
        kept, w, w_new = 1 - gain(state.rule.gradient_filter), state.rule.weights, new.rule.weights
        return new.gradient - exact(new.x, w_new) - kept * (state.gradient - exact(state.x, w))

    found = jax.jit(jax.vmap(deviation))(jax.random.split(jax.random.key(1), 40_000))
    return np.asarray(jnp.mean(found, axis=0) / (jnp.std(found, axis=0) / np.sqrt(len(found))))


STEPS = {"ordinary": TRACKED.step, "measuring": TRACKED.measuring_step}


@pytest.mark.parametrize("kind", STEPS)
def test_cross_fitted_weights_bring_no_bias(monkeypatch, kind):
    """False alarms: 1e-4 each."""
    assert np.all(np.abs(z_scores(monkeypatch, STEPS[kind], own_value=False)) < 4)


@pytest.mark.parametrize("kind", STEPS)
def test_that_test_has_power(monkeypatch, kind):
    assert np.any(np.abs(z_scores(monkeypatch, STEPS[kind], own_value=True)) > 10)


def test_one_batch_does_not_reopen_a_gain():
    """A pair of outliers of the same sign looks like an estimate that is lost; it takes many of them to believe it."""
    filter = Filter(error=1e-6, noise=1.0, drift=0.0, innovation=1.0)

    def after(batches):
        now = filter
        for _ in range(batches):
            seen = clipped_innovation(jnp, now, jnp.asarray(1e4))
            now = updated(now, gain(now), 0.01, noise=1.0, drift=0.0, innovation=seen)
        return float(now.error)

    assert after(1) < 1e-5
    assert after(60) > 0.1


@pytest.mark.long
def test_drift_is_that_of_the_step_at_hand():
    """Also where nothing is measured: a mean over past steps would lag behind them, and theta would swing."""
    result = lx.solve(BIASED, jnp.zeros(2), TRACKED, iterations=20, batch_size=8)
    oracle, state, k = result.continuation.oracle, result.continuation.loop.state, jnp.array(21.0)
    tickets = oracle.draw(jax.random.key(1), jnp.arange(1), (None,) * len(oracle.sources))
    batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
    for factor in (1.0, 0.1):
        short = state._replace(rule=state.rule._replace(theta=factor * state.rule.theta))
        new = TRACKED.step(oracle, short, k, batch)
        moved = jnp.sum((new.x - short.x) ** 2)
        np.testing.assert_allclose(new.rule.gradient_filter.drift, state.rule.curvature.noise * moved, rtol=1e-9)
        assert new.rule.gradient_filter.drift > 0


def test_a_jump_of_the_gradient_is_an_error_of_the_estimate():
    """A sample whose kink the step crosses, in a run that has averaged for long: what it leaves in the estimate would
    be followed for thousands of iterations, if it passed for signal."""

    def kinked(x, z):
        return 0.5 * jnp.sum((x - z[:2]) ** 2) + jnp.where(z[3] > 9, 16 * jnp.abs(x[0] - z[2]), 0.0)

    problem = lx.Problem(kinked, samples=normal(4), constraints={"sum": lx.Equal(lambda x, z: jnp.sum(x) - 1 + z[0])})
    result = lx.solve(problem, jnp.zeros(2), TRACKED, iterations=4_000, batch_size=8)
    oracle, state, k = result.continuation.oracle, result.continuation.loop.state, jnp.array(4_001.0)
    tickets = oracle.draw(jax.random.key(1), jnp.arange(1), (None,) * len(oracle.sources))
    batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
    eta, _ = TRACKED.rule(oracle).lengths(state.rule)
    between = state.metric[0] * (state.x[0] - 0.5 * eta * state.gradient[0])
    jump = state.metric[0] * 2 * 16 / 8
    kink = jax.tree.map(lambda z: z.at[0, 2].set(between).at[0, 3].set(10.0), batch)
    plain, jumped = (TRACKED.step(oracle, state, k, each) for each in (batch, kink))
    np.testing.assert_allclose(jnp.linalg.norm(jumped.gradient - plain.gradient), jump, rtol=0.1)
    assert plain.rule.gradient_filter.error < 0.01
    np.testing.assert_allclose(jumped.rule.gradient_filter.error, jump**2, rtol=0.1)


def test_gains_steps_and_penalties_can_be_set():
    method = lx.TrackedLagrangian(step_size=0.03, penalty=0.5, gain_exponent=0.8)
    result = lx.solve(BIASED, jnp.zeros(2), method, iterations=1_000, batch_size=8, record_every=100)
    np.testing.assert_allclose(result.history["step_size"], 0.03)
    np.testing.assert_allclose(result.history["gain"], (np.asarray(result.history["iteration"]) + 1) ** -0.8)
    np.testing.assert_allclose(result.history["penalty"], 0.5 * np.asarray(result.history["curvature"]))
    np.testing.assert_allclose(result.x, [-0.5, 1.5], atol=0.3)


# --- trouble


@pytest.mark.long
def test_survives_curvature_that_changes_a_millionfold():
    """A quartic with sum x = 15, from far away and from its flat middle: x = (5, 5, 5), y = -125."""
    problem = lx.Problem(
        lambda x, z: jnp.sum(x**4) / 4 + z @ x,
        samples=normal(3),
        constraints={"plane": lx.Equal(lambda x, z: jnp.sum(x) - 15 + 0.1 * z, samples=normal())},
    )
    for size in (1e3, 1e-3):
        result = lx.solve(problem, size * jnp.array([1.0, 0.5, 2.0]), TRACKED, iterations=20_000)
        assert result.status == "budget"
        np.testing.assert_allclose(result.x, [5.0, 5.0, 5.0], atol=0.02)
        np.testing.assert_allclose(result.multipliers["plane"], -125.0, atol=1.0)


def test_backs_off_when_a_step_blows_up():
    """min E exp(x^2) - 2 x: nearly flat at the start, and a step by what is known there ends in overflow."""
    problem = lx.Problem(
        lambda x, z: jnp.sum(jnp.exp(x**2) - 2 * x) + 0.1 * z @ x,
        samples=normal(2),
        constraints={"far": lx.Equal(lambda x, z: 100 * (x[0] - x[1]) + z, samples=normal())},
    )
    result = lx.solve(problem, jnp.array([5.0, -4.0]), TRACKED, iterations=20_000)
    assert result.status == "budget"
    x = 0.5
    for _ in range(50):  # x exp(x^2) = 1
        x -= (x * np.exp(x**2) - 1) / ((1 + 2 * x**2) * np.exp(x**2))
    np.testing.assert_allclose(result.x, [x, x], atol=0.02)


@pytest.mark.long
def test_an_infeasible_problem_is_recognised():
    problem = lx.Problem(
        lambda x, xi: 0.5 * jnp.sum((x - xi) ** 2),
        samples=normal(3),
        constraints={
            "sphere": lx.Equal(lambda x, z: x @ x - 1 + 0.2 * z, samples=normal()),
            "plane": lx.Equal(lambda x, z: x[0] - 3 + 0.2 * z, samples=normal()),
        },
    )
    for seed in range(4):
        result = lx.solve(problem, jnp.full(3, 0.1), TRACKED, iterations=1_000, batch_size=2, seed=seed)
        assert result.status == "infeasible_stationary"
        assert not result.success
        assert np.isfinite(result.x).all()

    # dependent rows have large weights, and these curvature: a penalty that follows it would grow without end
    for seed in range(4):
        result = lx.solve(problem, jnp.full(3, 0.1), TRACKED, iterations=250, batch_size=2, seed=seed, record_every=10)
        assert result.status in ("infeasible_stationary", "stalled")  # x may still be on its way to the least violation
        assert not result.success
        assert result.history["curvature"].max() < 1e3


@pytest.mark.long
def test_a_start_far_from_settled_is_watched_closely():
    """Seeds that were thrown off between the 64th and the 256th step when curvature was measured in every 16th."""
    case = by_name("tanhB")
    for seed in (6, 9, 26, 35, 49):
        result = lx.solve(case.problem, case.x0, TRACKED, iterations=2_000, batch_size=2, seed=seed, record_every=500)
        assert result.history["backed_off"][-1] == 0
        assert np.linalg.norm(case.constraints(result.x)) < 2


@pytest.mark.long
def test_a_lower_and_an_upper_bound_do_not_press_against_each_other():
    """min E|x - (1, 2) - 0.3 z|^2 / 2 with |E[x_0 + noise]| <= 0.005: x_0 = 0.005, multipliers 0.995 and 0. Noise far
    larger than the band makes either bound look violated in turn."""

    def gap(x, z):
        return x[0] + 2 * z[2] * (1 + x[1])

    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x - jnp.array([1.0, 2.0]) - 0.3 * z[:2]) ** 2),
        samples=normal(3),
        constraints={"up": lx.AtMost(gap, 0.005), "down": lx.AtMost(lambda x, z: -gap(x, z), 0.005)},
    )
    result = lx.solve(problem, jnp.zeros(2), lx.TrackedLagrangian(), iterations=4000, batch_size=8, seed=1)
    assert result.multipliers["down"] == 0
    np.testing.assert_allclose(result.multipliers["up"], 0.995, atol=0.06)
    np.testing.assert_allclose(result.x, [0.005, 2.0], atol=0.06)


@pytest.mark.long
def test_kinks_are_averaged_over_and_not_remarked_on():
    """A quantile regression went far off (13, 21 and 773 for these seeds) when jumps were no curvature and steps as
    long as ever. Now an error is a few times 1 / sqrt(draws); the limit is 2.7 times that."""
    about = quantile()
    for seed in range(3):
        result = lx.solve(about.problem, jnp.zeros(about.solution.size), iterations=10_000, batch_size=2, seed=seed)
        assert np.linalg.norm(result.x - about.solution) < 11 / np.sqrt(20_000)
        assert "kinks" not in result.message
