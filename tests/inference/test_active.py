"""Rows that are active, surely or perhaps, and faces of sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx

MEAN = np.array([1.0, 0.7, -0.1])
ROWS = np.random.default_rng(0).normal(size=(300, 3)) + MEAN
DATA = lx.Dataset(jnp.asarray(ROWS))
ERROR = ROWS.std(axis=0) / np.sqrt(len(ROWS))


def distance(x, z):
    return 0.5 * jnp.sum((x - z) ** 2)


def infer(x=MEAN, data=DATA, **options):
    return lx.inference(lx.Problem(distance, samples=data, **options), jnp.asarray(x))


def numbers(estimate):
    return np.stack([estimate.estimate, estimate.standard_error, estimate.low, estimate.high])


@pytest.mark.parametrize("bound", [0.2, float(ROWS.mean(axis=0)[1]), 2.0], ids=["active", "ambiguous", "inactive"])
def test_a_bound_is_the_same_wherever_it_is_written(bound):
    high = np.array([np.inf, bound, np.inf])
    ways = [
        infer(within=lx.sets.Box(-np.inf, high)),
        infer(within=lx.sets.HalfSpace(jnp.array([0.0, 2.0, 0.0]), 2 * bound)),
        infer(constraints={"c": lx.AtMost(lambda x: x[1], bound, samples=None)}),
        infer(constraints={"c": lx.AtLeast(lambda x: -3 * x[1], -3 * bound, samples=None)}),
    ]
    for way in ways[1:]:
        np.testing.assert_allclose(numbers(way.x), numbers(ways[0].x), atol=1e-9)
        assert way.x.law.tolist() == ways[0].x.law.tolist()
        assert way.objective.high == pytest.approx(ways[0].objective.high)
    law = {0.2: "fixed", 2.0: "normal"}.get(bound, "conservative")
    assert ways[0].x.law.tolist() == ["normal", law, "normal"]


def test_entries_on_their_bounds_have_no_rounding():
    key = jax.random.key(1)
    inputs = jax.random.normal(key, (2000, 3))
    targets = inputs @ jnp.array([0.7, 0.5, -0.5]) + jax.random.normal(jax.random.fold_in(key, 1), (2000,))
    problem = lx.Problem(
        lambda b, row: 0.5 * (row["y"] - row["x"] @ b) ** 2,
        samples=lx.Dataset({"x": inputs, "y": targets}),
        constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)},
        within=lx.sets.NonNegative(),
    )
    last = lx.inference(problem, jnp.array([0.58, 0.42, 0.0])).x.estimate[2]
    assert last == 0
    assert not np.signbit(last)


def test_a_price_that_may_be_zero_has_an_interval_from_zero():
    bound = float(ROWS.mean(axis=0)[1]) - ERROR[1]
    inference = infer(constraints={"c": lx.AtMost(lambda x: x[1], bound, samples=None)})
    price = inference.multipliers["c"]
    assert price.law == "conservative"
    assert np.isnan(price.standard_error)
    assert price.low == 0
    assert price.high == pytest.approx(ERROR[1] * (1 + 1.959964), rel=1e-6)
    assert inference.x.low[1] == pytest.approx(bound + ERROR[1] * (1 - 1.959964), rel=1e-6)
    assert inference.x.high[1] == pytest.approx(bound + ERROR[1] * (1 + 1.959964), rel=1e-6)
    assert "cannot be told" in inference.warnings[0]
    with pytest.raises(ValueError, match="Wald test needs a normal law"):
        inference.wald(lambda x: x[0])


def test_a_face_of_a_simplex():
    """x = z - mean(z over the face) + share on the face, 0 beside it."""
    inference = infer(np.array([0.7, 0.3, 0.0]), within=lx.sets.Simplex())
    assert inference.x.law.tolist() == ["normal", "normal", "fixed"]
    apart = ROWS[:, 0] - ROWS[:, 1]
    np.testing.assert_allclose(inference.x.standard_error[:2], apart.std() / 2 / np.sqrt(len(ROWS)), rtol=1e-9)
    np.testing.assert_allclose(inference.x.estimate, [(1 + apart.mean()) / 2, (1 - apart.mean()) / 2, 0], atol=1e-12)


@pytest.mark.parametrize("written", ["set", "constraint"])
def test_a_ball_bends(written):
    """x = r z / |z|: its derivative is r (1 - u u^T) / |z|."""
    radius, mean = 0.5, ROWS.mean(axis=0)
    ball = {"within": lx.sets.L2Ball(radius)}
    row = {"constraints": {"c": lx.AtMost(lambda x: x @ x, radius**2, samples=None)}}
    unit = mean / np.linalg.norm(mean)
    inference = infer(radius * unit + 0.01, **(ball if written == "set" else row))
    derivative = radius * (np.eye(3) - np.outer(unit, unit)) / np.linalg.norm(mean)
    covariance = derivative @ np.cov(ROWS.T, bias=True) @ derivative.T / len(ROWS)
    np.testing.assert_allclose(inference.x.estimate, radius * unit, atol=1e-6)
    np.testing.assert_allclose(inference.x.standard_error, np.sqrt(np.diag(covariance)), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "x"),
    [
        ({"regularizer": lx.prox.L1(0.35)}, [0.65, 0.35, 0.0]),
        ({"within": lx.sets.L1Ball(0.7)}, [0.5, 0.2, 0.0]),
    ],
    ids=["l1", "l1 ball"],
)
def test_sets_and_terms_without_rows(options, x):
    """Soft-thresholding moves with the mean where it does not give 0."""
    inference = infer(np.array(x), **options)
    rows = ROWS.copy()
    if "within" in options:
        rows = np.column_stack([(ROWS[:, 0] - ROWS[:, 1]) / 2, (ROWS[:, 1] - ROWS[:, 0]) / 2, 0 * ROWS[:, 0]])
    expected = np.where(np.abs(inference.x.estimate) > 1e-9, rows.std(axis=0) / np.sqrt(len(rows)), 0)
    np.testing.assert_allclose(inference.x.standard_error, expected, rtol=1e-6, atol=1e-12)
    assert (inference.x.law == np.where(expected > 0, "normal", "fixed")).all()


def test_a_face_that_the_noise_can_change_is_refused():
    with pytest.raises(lx.InferenceError, match="another face of L1"):
        infer(regularizer=lx.prox.L1(float(ROWS.mean(axis=0)[1])))


def test_products_of_sets():
    within = lx.sets.Product({"a": lx.sets.Simplex(), "b": lx.sets.Everything()})

    def both(x, z):
        return distance(jnp.append(x["a"], x["b"]), z)

    problem = lx.Problem(both, samples=DATA, within=within)
    inference = lx.inference(problem, {"a": jnp.array([0.7, 0.3]), "b": jnp.asarray(-0.1)})
    apart = ROWS[:, 0] - ROWS[:, 1]
    np.testing.assert_allclose(inference.x.standard_error["a"], apart.std() / 2 / np.sqrt(len(ROWS)), rtol=1e-9)
    np.testing.assert_allclose(inference.x.standard_error["b"], ERROR[2], rtol=1e-9)


def test_rows_that_repeat_each_other_have_no_price_of_their_own():
    twice = {"c": lx.Equal(lambda x: jnp.stack([x[0], 2 * x[0]]), jnp.array([0.5, 1.0]), samples=None)}
    inference = infer(constraints=twice | {"d": lx.Equal(lambda x: x[1], 0.5, samples=None)})
    assert inference.multipliers["c"].law.tolist() == ["undetermined"] * 2
    assert np.isnan(inference.multipliers["c"].low).all()
    assert inference.multipliers["d"].standard_error == pytest.approx(ERROR[1])
    assert "depend on each other" in inference.warnings[0]


# --- refusals


@pytest.mark.parametrize("weight", [0.05, 0.5, 2.0])
def test_kinks_are_refused(weight):
    """The smaller the smooth part, the more curvature is hidden: Newton's method gets lost, or the check finds out."""
    kinked = lx.Problem(lambda x, z: jnp.sum(jnp.abs(x - z)) + weight * jnp.sum((x - z) ** 2), samples=DATA)
    with pytest.raises(lx.InferenceError, match="kinks"):
        lx.inference(kinked, jnp.asarray(ROWS.mean(axis=0)))


def test_a_saddle_is_refused():
    problem = lx.Problem(lambda x, z: x[0] ** 2 - x[1] ** 2 + x[2] ** 2 + z @ x, samples=DATA)
    with pytest.raises(lx.InferenceError, match="curve upwards"):
        lx.inference(problem, jnp.zeros(3))


def test_a_point_far_away_is_refused_and_one_that_is_off_is_warned_of():
    with pytest.raises(lx.InferenceError, match="standard errors away"):
        infer(MEAN + 50)
    assert "away from the estimate" in infer(MEAN + 1).warnings[0]


def test_a_run_that_is_not_at_the_limit_is_refused():
    short = lx.solve(lx.Problem(distance, samples=DATA), jnp.asarray(MEAN + 900), iterations=3)
    with pytest.raises(lx.InferenceError, match="standard errors away"):
        short.inference()
    falling = lx.solve(lx.Problem(lambda x, z: jnp.sum(x * (3 + z)), samples=DATA), jnp.zeros(3), iterations=5000)
    with pytest.raises(lx.InferenceError, match="ended as 'unbounded'"):
        falling.inference()


def test_wrong_input():
    problem = lx.Problem(distance, samples=DATA)
    with pytest.raises(TypeError, match=r"lx\.Problem first"):
        lx.inference(distance, MEAN)
    with pytest.raises(ValueError, match="confidence"):
        lx.inference(problem, jnp.asarray(MEAN), confidence=95)
    with pytest.raises(ValueError, match="at least 2"):
        lx.inference(problem, jnp.asarray(MEAN), draws=1)
    with pytest.raises(ValueError, match="one label for each row"):
        lx.inference(problem, jnp.asarray(MEAN), clusters=[1, 2])
    with pytest.raises(ValueError, match="population_size"):
        lx.inference(problem, jnp.asarray(MEAN), population_size=10)


def test_draws_choose_rows_without_replacement():
    inference = lx.inference(lx.Problem(distance, samples=DATA), jnp.asarray(MEAN), draws=100)
    assert inference.draws == 100
    assert np.all(np.abs(inference.x.standard_error / ERROR / np.sqrt(3) - 1) < 0.3)
    whole = lx.inference(lx.Problem(distance, samples=DATA), jnp.asarray(MEAN), draws=300)
    np.testing.assert_allclose(whole.x.estimate, ROWS.mean(axis=0), rtol=1e-9)


@pytest.mark.long
def test_random_scaling():
    """Widths beside the known error: the law's quantile is 6.75 / 1.96 times that of a normal one, V's mean 1 / 6."""
    problem = lx.Problem(
        distance, samples=lx.Distribution(lambda key: jnp.asarray(MEAN) + jax.random.normal(key, (3,)))
    )
    path = lx.RandomScaling()
    result = lx.solve(problem, jnp.zeros(3), iterations=20_000, callback=path)
    opinion = result.inference(method=path)
    np.testing.assert_allclose(opinion.x.estimate, result.x)
    assert np.all(opinion.x.low < MEAN)
    assert np.all(opinion.x.high > MEAN)
    assert 0.2 < np.mean(opinion.x.high - opinion.x.low) / (2 * 1.96 / np.sqrt(float(result.draws))) < 5
    with pytest.raises(ValueError, match="sandwich"):
        opinion.of(lambda x: x[0])
    with pytest.raises(lx.InferenceError, match="50 records"):
        lx.RandomScaling().inference()
    with pytest.raises(ValueError, match="table"):
        path.inference(0.93)
    with pytest.raises(ValueError, match="method must be"):
        result.inference(method="bootstrap")
