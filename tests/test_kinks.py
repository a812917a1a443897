"""Functions of a sample whose gradients jump: seen before a run and on the way, and iterates are averaged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax.oracle._traced import traced
from lariax.tuned import host
from lariax.tuned.averaging import Averaging, averaged, is_kinked, mixing_theta, with_look, with_spread, with_travel

LIMIT = (
    2.58  # of the newsvendors: sqrt(draws) times the rms distance of a sample-average solution (benchmarks/kinks.py)
)


def newsvendors(positive=lambda u: jnp.maximum(u, 0)):
    return lx.Problem(
        lambda x, z: jnp.sum(0.5 * positive(x - z[:5]) + 1.5 * positive(z[:5] - x)),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (6,))),
        constraints={"budget": lx.Equal(lambda x, z: jnp.sum(x) - 2 + 0.5 * z[5])},
    )


# --- the rule


def average_of(points, spread=0.0):
    state, mean = Averaging.first(host, np.float64(10.0), np.zeros(1))._replace(spread=np.float64(spread)), 0.0
    for point in points:
        state, share = averaged(np, state, np.array([point]), np.array([2 * point]))
        mean = mean + share * (point - mean)
    return state, mean


@pytest.mark.parametrize(("spread", "power"), [(0.0, 0.5), (0.5, 2.5), (7.0, 4.5)])
def test_an_average_weighs_iterates_by_a_power_of_their_number(spread, power):
    points = np.random.default_rng(0).standard_normal(200)
    state, mean = average_of(points, spread)
    number = np.arange(1, 201)
    weights = number ** (1 + power) - (number - 1) ** (1 + power)
    expected = weights @ points / weights.sum()
    assert mean == pytest.approx(expected)
    assert (state.constraints[0], state.weights[0]) == pytest.approx((expected, 2 * expected))
    assert state.count == 200


def test_without_kinks_the_average_is_the_last_iterate():
    state = Averaging.first(host, np.float64(2.0), np.zeros(1))
    assert not is_kinked(state)
    state, share = averaged(np, state, np.array([3.0]), np.array([4.0]))
    assert (share, state.count, state.constraints[0]) == (1, 0, 3)


def test_kinks_are_forgotten_when_none_are_seen():
    state, looks = Averaging.first(host, np.float64(1000.0), np.zeros(1)), 0
    while is_kinked(state):
        state, looks = with_look(host, state, np.float64(0.0)), looks + 1
    assert 5 <= looks <= 12


@pytest.mark.parametrize(("curvature", "longer"), [(0.0, True), (1.0, False)])
def test_steps_grow_at_random_and_shrink_where_they_are_called_back(curvature, longer):
    """x+ = (1 - eta h) x + eta noise: 4,000 steps with eta h k = 0, or 400 times the 1 / eta that mixing takes."""
    noise, eta = np.random.default_rng(1).standard_normal((4000, 20)), 0.1
    x = mean = np.zeros(20)
    state = Averaging.first(host, np.float64(10.0), np.zeros(0))
    for k, each in enumerate(noise, 1):
        new = (1 - eta * curvature) * x + eta * each
        state = with_travel(state, k, np.sum((new - x) ** 2))
        state, share = averaged(np, state, np.zeros(0), np.zeros(0))
        x, mean = new, mean + share * (new - mean)
        state = with_spread(state, np.sum((x - mean) ** 2), 1e-300)
    assert (mixing_theta(np, state, 0.5, 4000) > 0.5) == longer


# --- what is seen


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.sum(x**2) + jnp.tanh(x[0]), False),
        (lambda x: jnp.sum(jax.nn.softplus(x)), False),
        (lambda x: jnp.sum(x[jnp.array([0, 1])]), False),
        (lambda x: jnp.sum(jax.nn.relu(x)), True),
        (lambda x: jax.lax.scan(lambda c, v: (c + jnp.abs(v), None), 0.0, x)[0], True),
        (lambda x: jnp.where(x[0] > 0, x[1], x[2]), True),
        (lambda x: jnp.sort(x)[0], True),
        (lambda x: x[0] * jnp.asarray(x[1] > 0, float), True),
        (lambda x: jax.lax.scan(lambda c, v: (jnp.maximum(c, v), None), x[0], jnp.ones(2))[0], True),
        (lambda x: x[0] * jnp.maximum(jnp.ones(2), 3.0)[0] * jnp.asarray(jnp.arange(2) > 0, float)[0], False),
    ],
)
def test_whether_a_gradient_may_jump_shows_without_a_run(function, expected):
    assert traced(function, jnp.ones(3)).may_jump == expected


def test_the_gradient_of_a_maximum_is_compiled_to_be_right():
    """XLA without optimisation rounds the entries differently where they are compared with their maximum: then the
    gradient is not finite at x0 for most seeds, and in `jac` it is 0."""
    problem = lx.Problem(
        lambda x, z: jnp.max(jnp.abs(z - x)),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (5,))),
        constraints={"sum": lx.AtMost(lambda x, z: z[0] - jnp.sum(x), -2.0)},
    )
    for seed in range(4):
        result = lx.solve(problem, jnp.zeros(5), iterations=50, batch_size=16, seed=seed)
        assert result.history["backed_off"][-1] == 0
    assert result.continuation.oracle.has_maxima
    z = jax.random.normal(jax.random.key(1), (20_000, 5))
    slope = jax.jit(jax.grad(lambda x: jnp.mean(jax.vmap(problem.objective, (None, 0))(x, z))))(result.x)
    np.testing.assert_allclose(result.jac, slope, atol=0.03)  # 4,096 and 20,000 samples


# --- the method


@pytest.fixture(scope="module")
def many():
    run = lambda seed: lx.solve(newsvendors(), jnp.zeros(5), iterations=2500, batch_size=4, seed=seed)  # noqa: E731
    return jax.jit(jax.vmap(run))(jnp.arange(8))


def test_newsvendors_come_to_the_statistical_limit(many):
    """Eight seeds, 10,000 draws. Gradients tracked through the jumps, as smooth ones are, ended at 5 limits."""
    error = np.linalg.norm(np.asarray(many.x) - 0.4, axis=1) * np.sqrt(10_000) / LIMIT
    assert np.sqrt(np.mean(error**2)) < 2
    assert np.all(error < 4)
    assert np.all(np.asarray(many.history["averaged"])[:, -1] > 2000)


def test_multipliers_are_averages_too(many):
    """1.5 - 2 P(z <= 0.4) = 0.189 is the price of the budget."""
    prices = np.asarray(many.multipliers["budget"])
    assert np.sqrt(np.mean((prices - 0.189) ** 2)) < 0.05


def test_a_run_with_kinks_continues_to_the_same_bits():
    whole = lx.solve(newsvendors(), jnp.zeros(5), iterations=600, batch_size=4)
    half = lx.solve(newsvendors(), jnp.zeros(5), iterations=300, batch_size=4)
    rest = lx.solve(newsvendors(), half, iterations=300)
    assert np.array_equal(whole.x, rest.x)
    assert np.array_equal(whole.multipliers["budget"], rest.multipliers["budget"])
    assert not np.array_equal(half.x, rest.x)


def test_smooth_problems_keep_no_average():
    result = lx.solve(newsvendors(jax.nn.softplus), jnp.zeros(5), iterations=300, batch_size=4)
    assert np.all(np.asarray(result.history["averaged"]) == 0)
    assert not result.continuation.oracle.may_jump


def test_an_average_is_on_the_face_that_holds_the_solution():
    """Medians of 1, 0.5 and -1 among numbers that are not negative; and with a budget, on a simplex."""
    centre = jnp.array([1.0, 0.5, -1.0])
    source = lx.Distribution(lambda key: centre + jax.random.normal(key, (3,)))
    for within, expected in ((lx.sets.NonNegative(), [1.0, 0.5, 0.0]), (lx.sets.Simplex(), [0.75, 0.25, 0.0])):
        problem = lx.Problem(lambda x, z: jnp.sum(jnp.abs(x - z)), samples=source, within=within)
        result = lx.solve(problem, jnp.full(3, 1 / 3), iterations=1500, batch_size=8)
        assert result.x == pytest.approx(np.array(expected), abs=0.1)
        assert result.x[2] == 0
        assert float(jnp.max(result.history["averaged"])) > 1000
