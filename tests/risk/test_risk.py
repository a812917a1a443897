"""Measures of risk against closed forms of normal losses, and against a linear program on the same scenarios."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

import lariax as lx
from lariax.risk import lift_of

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
    whole = lx.solve(problem, jnp.asarray(0.5), iterations=400, batch_size=8, callback=lambda now: seen.append(now.x))
    half = lx.solve(problem, jnp.asarray(0.5), iterations=200, batch_size=8, checkpoint=tmp_path)
    for rest in (lx.solve(problem, half, iterations=200), lx.resume(tmp_path, problem, iterations=200)):
        assert np.array_equal(whole.x, rest.x)
        assert np.array_equal(whole.risk["risk"]["value at risk"], rest.risk["risk"]["value at risk"])
    assert np.shape(seen[-1]) == ()


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
