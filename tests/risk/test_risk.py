"""Measures of risk against closed forms of normal losses, and against a linear program on the same scenarios."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

import lariax as lx
from lariax.risk import _lift, lift_of

LEVEL = 0.9
AT, TAIL = norm.ppf(LEVEL), norm.pdf(norm.ppf(LEVEL)) / (1 - LEVEL)
NORMAL = lx.Distribution(lambda key: jax.random.normal(key, (2,)))


def loss(x, z):
    """Normal, with mean 1 and standard deviation 2, and mean -1 and standard deviation 3."""
    return x + jnp.array([1.0, -1.0]) + jnp.array([2.0, 3.0]) * z


MEANS, SPREADS = np.array([1.0, -1.0]), np.array([2.0, 3.0])
EXPECTED = {
    "CVaR": (lx.risk.CVaR(loss, LEVEL), MEANS + TAIL * SPREADS),
    "MeanDeviation": (lx.risk.MeanDeviation(loss, 0.5), MEANS + 0.5 * SPREADS),
    "Entropic": (lx.risk.Entropic(loss, 0.3), MEANS + 0.3 * SPREADS**2 / 2),
}


def numbers_of(risk, draws=200_000):
    lift = lift_of(lx.Problem(lambda x, z: 0.0, samples=NORMAL, constraints={"r": lx.AtMost(risk, 1.0)}))
    point = lift.point(jnp.zeros(2), draws)
    return lift, point["risk"]["r"]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_mean_at_the_right_numbers_is_the_risk_and_least(name):
    """Numbers from 200,000 draws; means from as many others, to 2 %."""
    risk, expected = EXPECTED[name]
    _, numbers = numbers_of(risk)
    z = jax.random.normal(jax.random.key(1), (200_000, 2))
    fun = risk.as_objective().fun
    value = lambda at: jnp.mean(jax.vmap(fun, (None, None, 0))(jnp.zeros(2), at, z), axis=0)  # noqa: E731
    assert value(numbers) == pytest.approx(expected, rel=0.02)
    slope = jax.grad(lambda at: value(at).sum())(numbers)
    assert all(np.all(np.abs(part) < 0.03) for part in jax.tree.leaves(slope))
    for key, number in numbers.items():
        assert np.all(value(numbers | {key: number + 0.5}) > value(numbers))


def test_the_numbers_are_told_in_the_users_words():
    lift, numbers = numbers_of(lx.risk.MeanDeviation(loss))
    told = lift.told({"risk": {"r": numbers}})["r"]
    assert told["mean"] == pytest.approx(MEANS, abs=0.03)
    assert told["deviation"] == pytest.approx(SPREADS, rel=0.02)


# --- solved


def portfolio(constraint):
    """Two assets, normal; one share each way, so that everything has a formula."""
    return lx.Problem(
        lambda x, z: -(0.1 * x),
        samples=lx.Distribution(jax.random.normal),
        constraints={"risk": constraint},
    )


def asset(x, z):
    return -x * (0.1 + z)  # normal, with mean -0.1 x and standard deviation |x|


@pytest.mark.long_but("CVaR", "Quantile", "Chance")
@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (lx.AtMost(lx.risk.CVaR(asset, LEVEL), 1.0), 1 / (TAIL - 0.1)),
        (lx.AtMost(lx.risk.Quantile(asset, LEVEL), 1.0), 1 / (AT - 0.1)),
        (lx.risk.Chance(lambda x, z: asset(x, z) - 1.0, 1 - LEVEL), 1 / (AT - 0.1)),
        (lx.AtMost(lx.risk.MeanDeviation(asset, 1.0), 1.0), 1 / 0.9),
    ],
    ids=["CVaR", "Quantile", "Chance", "MeanDeviation"],
)
def test_bounded_risks_of_a_normal_loss(constraint, expected):
    result = lx.solve(portfolio(constraint), jnp.asarray(0.5), iterations=2500, batch_size=32)
    assert float(result.x) == pytest.approx(expected, rel=0.05)
    assert result.x.shape == ()
    report = lx.certify(portfolio(constraint), result.x, draws=20_000).constraints["risk"]
    assert report.holds != "violated"


def test_a_bounded_quantile_comes_right_from_every_seed():
    """With curvature from single steps one of these seeds met a jump over a short step, and stood still 7 % off."""
    problem, expected = portfolio(lx.AtMost(lx.risk.Quantile(asset, LEVEL), 1.0)), 1 / (AT - 0.1)
    for seed in range(8):
        found = lx.solve(problem, jnp.asarray(0.5), iterations=2500, batch_size=32, seed=seed).x
        assert float(found) == pytest.approx(expected, rel=0.05), seed


def test_an_objective_that_is_a_risk_and_what_is_told_of_it():
    """x + z + 1 in one direction, -x + z in the other: the worst mean is least at x = -0.5."""
    worst = lx.risk.WorstCase(lambda x, z: jnp.stack([x + 1 + z, -x + z]))
    result = lx.solve(
        lx.Problem(worst, samples=lx.Distribution(jax.random.normal)), jnp.asarray(2.0), iterations=1500, batch_size=16
    )
    assert float(result.x) == pytest.approx(-0.5, abs=0.1)
    assert float(result.risk["objective"]["worst"]) == pytest.approx(0.5, abs=0.1)


def test_a_run_goes_on_and_its_numbers_with_it(tmp_path):
    problem = portfolio(lx.AtMost(lx.risk.CVaR(asset, LEVEL), 1.0))
    seen = []

    def watch(now):
        seen.append(now.x)

    whole = lx.solve(problem, jnp.asarray(0.5), iterations=400, batch_size=8, callback=watch)
    half = lx.solve(problem, jnp.asarray(0.5), iterations=200, batch_size=8, checkpoint=tmp_path)
    before = len(seen)
    resumed = lx.resume(tmp_path, problem, iterations=200, callback=watch)
    assert len(seen) > before
    for rest in (lx.solve(problem, half, iterations=200), resumed):
        assert np.array_equal(whole.x, rest.x)
        assert np.array_equal(whole.risk["risk"]["value at risk"], rest.risk["risk"]["value at risk"])
    assert all(isinstance(x, jax.Array) and x.shape == () for x in seen)  # without the risk's own numbers


def test_least_cvar_equals_the_linear_program_on_the_same_scenarios():
    """300 scenarios of four assets on a simplex: Rockafellar and Uryasev's program, by HiGHS."""
    rows = np.random.default_rng(0).standard_normal((300, 4)) * [0.1, 0.2, 0.3, 0.4] + [0.01, 0.03, 0.05, 0.08]
    n, d = rows.shape
    cost = np.concatenate([np.zeros(d), [1.0], np.full(n, 1 / (n * (1 - LEVEL)))])
    tail = np.hstack([-rows, -np.ones((n, 1)), -np.eye(n)])
    total = np.concatenate([np.ones(d), np.zeros(n + 1)])[None]
    bounds = [(0, None)] * d + [(None, None)] + [(0, None)] * n
    program = linprog(cost, A_ub=tail, b_ub=np.zeros(n), A_eq=total, b_eq=[1.0], bounds=bounds, method="highs")
    problem = lx.Problem(
        lx.risk.CVaR(lambda x, row: -(row @ x), LEVEL), samples=lx.Dataset(jnp.asarray(rows)), within=lx.sets.Simplex()
    )
    result = lx.solve(problem, jnp.full(4, 0.25), iterations=6000, batch_size=32)

    def cvar(x):
        losses = np.sort(-(rows @ np.asarray(x, float)))[::-1]
        return losses[: round(n * (1 - LEVEL))].mean()

    assert cvar(result.x) == pytest.approx(program.fun, abs=0.02 * abs(program.fun))
    assert cvar(jnp.full(4, 0.25)) > 1.1 * program.fun


def test_shuffled_passes_over_fewer_rows_than_a_start_takes():
    rows = jnp.arange(5.0)
    problem = lx.Problem(lx.risk.CVaR(lambda x, z: (x - z) ** 2, 0.6), samples=lx.Dataset(rows, epochs=True))
    result = lx.solve(problem, jnp.zeros(()), iterations=2000, batch_size=2)
    np.testing.assert_allclose(result.x, 2.0, atol=0.05)  # the mean of the farthest two squares is least in the middle


# --- complaints


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lx.risk.CVaR(loss, 1.5), "between 0 and 1, found 1.5"),
        (lambda: lx.risk.CVaR(0.9, loss), "takes a function"),
        (lambda: lx.risk.Chance(loss, 2.0), "probability of Chance"),
        (lambda: solved({"r": lx.AtLeast(lx.risk.CVaR(loss, 0.9), 1.0)}), "bounded from above"),
        (lambda: solved({"r": lx.AtMost(lx.risk.CVaR(loss, 0.9), 1.0, samples=None)}), "has samples=None"),
        (lambda: lx.solve(lx.Problem(lx.risk.CVaR(loss, 0.9)), jnp.zeros(2), iterations=1), "has samples=None"),
    ],
)
def test_what_is_no_risk_is_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def solved(constraints):
    return lx.solve(lx.Problem(loss, samples=NORMAL, constraints=constraints), jnp.zeros(2), iterations=1)


# --- weights, and samples that depend on x


def test_weights_stand_for_the_distribution_that_is_meant():
    """P(z > 3) = 0.00135, from samples around 3, as a mean and as a chance: both weighted, neither by hand."""
    shifted = lx.Distribution(lambda key: 3 + jax.random.normal(key), weight=lambda z: jnp.exp(4.5 - 3 * z))
    constraints = {
        "rare": lx.risk.Chance(lambda x, z: z - 3, 0.01),
        "mean": lx.AtMost(lambda x, z: 1.0 * (z > 3), 0.01),
    }
    problem = lx.Problem(lambda x, z: x**2, samples=shifted, constraints=constraints)
    found = lx.certify(problem, jnp.asarray(1.0), {"rare": 0.0, "mean": 0.0}, draws=20_000).constraints
    for name in constraints:
        assert found[name].value == pytest.approx(norm.sf(3), rel=0.05)
    lift = lift_of(lx.Problem(lx.risk.CVaR(lambda x, z: z, 0.99), samples=shifted))
    at = lift.point(jnp.asarray(0.0), 20_000)["risk"]["objective"]["value at risk"]
    assert float(at) == pytest.approx(norm.ppf(0.99), rel=0.02)


def test_a_mean_over_samples_that_weigh_next_to_nothing_is_doubted():
    """Weights exp(6.125 - 3.5 z) of a z around 3.5 are right for an event beyond 3.5, and ruin the mean of x**2."""
    often = lx.Distribution(lambda key: 3.5 + jax.random.normal(key), weight=lambda z: jnp.exp(6.125 - 3.5 * z))
    event = lambda x, z: z - x  # noqa: E731
    everywhere = lx.Problem(lambda x, z: x**2, samples=often, constraints={"rare": lx.risk.Chance(event, 3e-4)})
    alone = lx.Problem(lambda x: x**2, constraints={"rare": lx.risk.Chance(event, 3e-4, samples=often)})
    ends = [lx.solve(each, jnp.asarray(3.0), iterations=20, batch_size=8).message for each in (everywhere, alone)]
    assert "the objective vary so much" in ends[0]
    assert "vary so much" not in ends[1]


def test_a_weighted_event_that_was_not_seen_may_have_any_chance():
    often = lx.Distribution(lambda key: jax.random.normal(key), weight=lambda z: jnp.exp(0.5 * z - 0.125))
    problem = lx.Problem(lambda x: x, constraints={"rare": lx.risk.Chance(lambda x, z: z - x, 0.1, samples=often)})
    found = lx.certify(problem, jnp.asarray(20.0), {"rare": 0.0}, draws=2_000).constraints["rare"]
    assert (found.value, found.low, found.high, found.holds) == (0, 0, 1, "probably")


def test_a_run_is_judged_by_its_true_risk():
    """Its own certificate speaks of the CVaR, 1.755, not of the mean at the number beside x; `jac` is of x alone."""
    problem = lx.Problem(lx.risk.CVaR(lambda x, z: x[0] ** 2 + z[0], LEVEL), samples=NORMAL)
    result = lx.solve(problem, jnp.ones(1), iterations=20, batch_size=8)
    beside = lx.certify(problem, result.x).objective
    value = float(result.x[0] ** 2) + TAIL
    assert result.certificate.objective.low < value < result.certificate.objective.high
    assert result.certificate.objective.high - result.certificate.objective.low < 2 * (beside.high - beside.low)
    assert 0.2 < float(result.jac[0] / (2 * result.x[0])) < 5  # the number beside x is still on its way


def bernoulli(x):
    return lx.Distribution(
        lambda key, x: jax.random.bernoulli(key, jax.nn.sigmoid(x)).astype(float),
        log_density=lambda x, a: jax.nn.log_sigmoid(jnp.where(a > 0, x, -x)),
    )


def test_score_function_gradients_are_unbiased_and_have_a_baseline():
    """E[7 + a^2 x] for a of probability p = sigmoid(x): gradient p + x p (1 - p). 40,000 draws, to 4 errors (6e-5)."""
    lift = lift_of(lx.Problem(lambda x, a: 7 + a**2 * x, samples=bernoulli(0)))
    source, x = lift.problem.samples, 0.4
    drawn = source.fetch(jax.tree.map(lambda t: t[0], source.draw(jax.random.key(1), jnp.arange(1), 40_000)))
    value, slope = jax.vmap(jax.value_and_grad(lambda x, d: lift.problem.objective({"x": x}, d)), (None, 0))(x, drawn)
    p = 1 / (1 + np.exp(-x))
    for seen, expected in ((value, 7 + p * x), (slope, p + x * p * (1 - p))):
        assert float(jnp.mean(seen)) == pytest.approx(expected, abs=4 * float(jnp.std(seen)) / 200)
    assert float(jnp.std(slope)) < 1  # the 7 is taken off: without a baseline it would be 3.5


def test_what_a_score_function_needs_is_said():
    with pytest.raises(TypeError, match="a random key and x"):
        lx.Distribution(lambda key: 0.0, log_density=lambda x, a: 0.0)
    with pytest.raises(TypeError, match="give log_density="):
        lx.Distribution(lambda key, x: x)
    with pytest.raises(NotImplementedError, match=r"for lx\.solve"):
        lx.inference(lx.Problem(lambda x, a: a * x, samples=bernoulli(0)), jnp.asarray(0.3), {})


@pytest.mark.long
def test_an_unbounded_plan_with_a_chance_comes_back():
    """Minimise x with P(z > x) <= 0.1: 1.28 for six seeds. Rounded steps that are flat far away let x run off."""
    problem = lx.Problem(
        lambda x, z: x,
        samples=lx.Distribution(jax.random.normal),
        constraints={"short": lx.risk.Chance(lambda x, z: z - x, 0.1)},
    )
    run = lambda seed: lx.solve(problem, jnp.asarray(0.0), iterations=1000, batch_size=32, seed=seed)  # noqa: E731
    x = np.asarray(jax.jit(jax.vmap(lambda seed: run(seed).x))(jnp.arange(6)))
    assert np.all(np.abs(x - norm.ppf(0.9)) < 0.15)


def test_a_joint_chance_of_two_needs_and_two_plants():
    """Minimise x1 + x2 where either falls short with 10 % at most: both are the root of 0.9."""
    problem = lx.Problem(
        lambda x, z: jnp.sum(x), samples=NORMAL, constraints={"short": lx.risk.Chance(lambda x, z: z - x, 0.1)}
    )
    result = lx.solve(problem, jnp.zeros(2), iterations=2000, batch_size=32)
    assert np.all(np.abs(result.x - norm.ppf(0.9**0.5)) < 0.1)


def test_rounding_narrows_as_a_run_goes_on():
    lift = lift_of(lx.Problem(lambda x, z: x, samples=NORMAL, constraints={"c": lx.risk.Chance(lambda x, z: x, 0.1)}))
    source, fun = lift.problem.samples, lift.problem.constraints["c"].fun
    tickets = source.draw(jax.random.key(0), jnp.array([0, 10_000]), 1)
    point = {"x": jnp.asarray(0.3), "risk": {"c": {"width": jnp.asarray(0.2)}}}
    slopes = [
        float(jax.grad(lambda p, d: fun(p, d))(point, jax.tree.map(lambda t, k=k: t[k, 0], tickets))["x"])
        for k in (0, 1)
    ]
    assert slopes[1] < 0.2 * slopes[0]


def test_a_second_certificate_compiles_nothing_and_a_problem_that_is_gone_leaves_nothing(caplog):
    risk = lx.risk.CVaR(lambda x, z: x * z[0], 0.9)
    problem = lx.Problem(lambda x, z: x**2, samples=NORMAL, constraints={"r": lx.AtMost(risk, 1.0)})
    lx.certify(problem, jnp.asarray(0.5), draws=2_000)
    with jax.log_compiles():
        lx.certify(problem, jnp.asarray(0.4), draws=2_000, seed=1)
    assert not [record for record in caplog.records if "Compiling" in record.message]
    key = id(problem)
    assert key in _lift.LOWERED
    del problem
    gc.collect()
    assert key not in _lift.LOWERED
