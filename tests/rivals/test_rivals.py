"""The methods of other papers: each owes what every method owes, and converges on a problem of its class."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import batches_of, normal
from lariax import rivals
from test_conformance import conforms

ROWS = np.random.default_rng(1).normal(size=(64, 8))
ROWS -= ROWS.mean(axis=0)  # so that the data have the solution of the distribution
NOISE = normal(8)
SOURCES = itertools.cycle([lambda: NOISE, lambda: lx.Dataset(ROWS), lambda: lx.Dataset(ROWS, epochs=True)])
PRECISIONS = itertools.cycle([jnp.float64, jnp.float32])
TERMS = itertools.cycle([{}, {"within": lx.sets.Box(-3.0, 3.0)}])

TARGET = jnp.array([1.0, -0.5, 2.0, 0.5, 0.0, 1.5, -1.0, 1.0])
AGREE = jnp.asarray(np.kron(np.eye(4)[1:] - np.eye(4)[:-1], np.eye(2)))
MEAN = jnp.tile(TARGET.reshape(4, 2).mean(axis=0), 4)
LENGTH = float(jnp.linalg.norm(TARGET))


def distance(x, z):
    return 0.5 * jnp.sum((x - TARGET - 0.3 * z) ** 2)


def sphere(x):
    return jnp.sum(x**2) - 1


def total(x, z):
    return jnp.sum(x) - 1 + 0.3 * z[0] + 0.3 * z[1] * (x[0] - x[1])


CASES = {
    # four agents on a path agree on two numbers
    "linear": ({"agree": lx.Linear(AGREE, 0.0)}, MEAN),
    # the point of a sphere that is nearest to a target: t / |t|, multiplier (|t| - 1) / 2
    "deterministic": ({"sphere": lx.Equal(sphere, samples=None)}, TARGET / LENGTH),
    # a noisy budget: t - y with y = (sum t - 1) / 8
    "random": ({"total": lx.AtMost(total)}, TARGET - (TARGET.sum() - 1) / 8),
}
MULTIPLIERS = {
    "linear": jnp.cumsum((MEAN - TARGET).reshape(4, 2), axis=0)[:3].ravel(),
    "deterministic": jnp.array((LENGTH - 1) / 2),
    "random": (TARGET.sum() - 1) / 8,
}

RIVALS = {
    # name: case, method, iterations after which x and y are how near
    "ProxPDA": ("linear", rivals.ProxPDA(step_size=0.02, penalty=0.5), 4000, 0.1, 0.4),
    "SpiderADMM": ("linear", rivals.SpiderADMM(0.05, 0.5, refresh_batches=64, epoch=64), 8000, 0.1, 0.2),
    "GradientTracking": ("linear", rivals.GradientTracking(step_size=0.3, momentum=1.0), 8000, 0.1, 0.2),
    "SmoothedPrimalDual": ("linear", rivals.SmoothedPrimalDual(step_size=0.3), 8000, 0.1, 0.2),
    "SmoothedPrimalDual STORM": (
        "linear",
        rivals.SmoothedPrimalDual(step_size=0.3, variance_reduced=True),
        8000,
        0.1,
        0.2,
    ),
    "MomentumALM": ("deterministic", rivals.MomentumALM(0.01, 5.0, 0.05, 0.02), 8000, 0.1, 0.2),
    "MomentumALM feasible first": (
        "deterministic",
        rivals.MomentumALM(0.01, 5.0, 0.05, 0.02, feasibility_steps=20),
        8000,
        0.1,
        0.2,
    ),
    "RecursiveMomentumPenalty": (
        "deterministic",
        rivals.RecursiveMomentumPenalty(0.1, 2.0, radius=20.0),
        8000,
        0.1,
        0.2,
    ),
    "StochasticIALM": (
        "random",
        rivals.StochasticIALM(step_size=0.05, penalty=1.0, growth=1.2, inner_iterations=1000),
        8000,
        0.1,
        0.2,
    ),
    "ConstraintExtrapolation": (
        "random",
        rivals.ConstraintExtrapolation(0.2, 0.05, inner_iterations=500),
        8000,
        0.1,
        0.2,
    ),
    "RegularizedSubgradient": ("random", rivals.RegularizedSubgradient(0.2, inner_iterations=500), 8000, 0.1, 0.2),
    "SwitchingSubgradient": ("random", rivals.SwitchingSubgradient(step_size=0.3), 8000, 0.1, 0.2),
    "HingePenalty": ("random", rivals.HingePenalty(step_size=0.3, penalty=2.0), 8000, 0.1, 0.2),
    "SpiderPenalty": ("random", rivals.SpiderPenalty(step_size=0.3, penalty=2.0, width=0.1), 8000, 0.2, 0.2),
    "PenaltySGD": ("random", rivals.PenaltySGD(step_size=0.2, penalty=2.0), 8000, 0.2, 0.3),
    "PrimalDualSGD": ("random", rivals.PrimalDualSGD(step_size=0.3, dual_step=0.3), 8000, 0.1, 0.2),
    "SameBatchALM": ("random", rivals.SameBatchALM(step_size=0.3, penalty=0.3, dual_step=0.3), 8000, 0.3, 0.3),
    "StochasticSQP": ("deterministic", rivals.StochasticSQP("steps", decay=0.8), 8000, 0.1, 0.6),
}
SETTINGS = {name: (next(SOURCES), next(PRECISIONS), next(TERMS)) for name in RIVALS}
SETTINGS["StochasticSQP"] = (*SETTINGS["StochasticSQP"][:2], {})  # it knows no sets


def test_all_rivals_are_here():
    assert {type(method).__name__ for _, method, *_ in RIVALS.values()} == set(rivals.__all__)


@pytest.mark.long_but("StochasticSQP", "MomentumALM")
@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_conforms_and_converges(name):
    case, method, iterations, near, close = RIVALS[name]
    source, precision, term = SETTINGS[name]
    constraints, solution = CASES[case]
    problem = lx.Problem(distance, samples=source(), constraints=constraints, **term)
    x0 = jnp.zeros(8, precision).at[0].set(1.0)  # on the sphere, where its gradient is not 0
    result = conforms(lambda: lx.Problem(distance, samples=source(), constraints=constraints, **term), x0, method)
    result = lx.solve(problem, result, iterations=iterations)
    (y,) = result.multipliers.values()
    assert float(jnp.linalg.norm(result.x - solution)) < near
    assert float(jnp.linalg.norm(y - MULTIPLIERS[case])) < close


def test_gradient_tracking_is_the_sources_recursion():
    """x, v and the tracked gradient p, kept as such, with W = I - A^T A / ||A||^2."""
    case, method, *_ = RIVALS["GradientTracking"]
    problem = lx.Problem(distance, samples=NOISE, constraints=CASES[case][0])
    x = np.arange(8.0)
    result = lx.solve(problem, x, method, iterations=4)
    samples = [xi for xi, *_ in batches_of(result, 5)]
    mixing = np.eye(8) - AGREE.T @ AGREE / np.linalg.norm(AGREE, 2) ** 2

    def gradient(x, xi):
        return x - np.asarray(TARGET) - 0.3 * xi

    p = v = gradient(x, samples[0])
    for k, xi in enumerate(samples[1:], start=1):
        moved = mixing @ x - 0.3 * (k + 1) ** (-1 / 3) * p
        fresh = gradient(moved, xi) + (1 - (k + 1) ** (-2 / 3)) * (v - gradient(x, xi))
        x, p, v = moved, mixing @ p + fresh - v, fresh
    np.testing.assert_allclose(result.x, x, rtol=1e-12)
    state = result.continuation.loop.state
    np.testing.assert_allclose(state.gradient + AGREE.T @ state.multipliers, p, rtol=1e-10)


@pytest.mark.parametrize(
    ("method", "case", "says"),
    [
        (rivals.ProxPDA(), "random", "all lx.Linear, found others: 'total'"),
        (rivals.StochasticSQP(), "random", "deterministic constraints .* found random ones: 'total'"),
        (rivals.MomentumALM(), "random", "deterministic constraints .* found random ones: 'total'"),
    ],
)
def test_a_rival_refuses_what_is_not_its_class(method, case, says):
    problem = lx.Problem(distance, samples=NOISE, constraints=CASES[case][0])
    with pytest.raises(ValueError, match=says):
        lx.solve(problem, jnp.zeros(8), method, iterations=1)


@pytest.mark.parametrize("method", [rivals.MomentumALM(), rivals.StochasticIALM(), rivals.SwitchingSubgradient()])
def test_a_rival_without_constraints_says_so(method):
    with pytest.raises(ValueError, match="found no"):
        lx.solve(lx.Problem(distance, samples=NOISE), jnp.zeros(8), method, iterations=1)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="step_size must be positive"):
        rivals.PenaltySGD(step_size=-1.0)
    with pytest.raises(ValueError, match="epoch must be a positive integer, found 0"):
        rivals.SpiderADMM(epoch=0)


def test_spider_stands_still_while_it_refreshes():
    """The start is the first batch of the first refresh; then epochs of 2 steps and refreshes of 3 batches in turn."""
    problem = lx.Problem(distance, samples=NOISE, constraints=CASES["linear"][0])
    method = rivals.SpiderADMM(0.05, 0.5, refresh_batches=3, epoch=2)
    points, result = [np.arange(8.0)], np.arange(8.0)
    for _ in range(9):
        result = lx.solve(problem, result, method, iterations=1)
        points.append(np.asarray(result.x))
    moved = [bool((a != b).any()) for a, b in itertools.pairwise(points)]
    assert moved == [False, False, True, True, False, False, False, True, True]
    state, samples = result.continuation.loop.state, [xi for xi, *_ in batches_of(result, 10)]
    refreshed = points[7] - np.asarray(TARGET) - 0.3 * np.mean(samples[5:8], axis=0)
    np.testing.assert_allclose(state.gradient, refreshed + points[9] - points[7], rtol=1e-12)


def test_inner_loops_end_when_they_should():
    """Of 100, 200, 400 iterations; then penalty and length double, and the multiplier moves."""
    problem = lx.Problem(distance, samples=NOISE, constraints=CASES["random"][0])
    method = rivals.StochasticIALM(step_size=0.2, penalty=1.0, inner_iterations=100.0)
    result = lx.solve(problem, jnp.zeros(8), method, iterations=700, record_every=50)
    history = result.history
    assert list(history["outer"]) == [0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3]
    np.testing.assert_allclose(history["penalty"], 2.0 ** history["outer"])
    assert float(result.continuation.loop.state.multipliers[0]) > 0
