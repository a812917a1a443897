"""Error bars against closed forms and against statsmodels, on the same rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm

import lariax as lx

N, D = 400, 3
BETA = np.array([1.0, -0.5, 2.0])


def rows(seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(N, D)) + 0.5
    return {"a": a, "b": a @ BETA + (1 + 0.5 * np.abs(a[:, 0])) * rng.normal(size=N)}


ROWS = rows()
DATA = lx.Dataset({name: jnp.asarray(array) for name, array in ROWS.items()})


def squares(x, row):
    return 0.5 * (row["b"] - row["a"] @ x) ** 2


def poisson(x, row):
    return jnp.exp(row["a"] @ x) - row["count"] * (row["a"] @ x)


def regression(**options):
    return lx.Problem(squares, samples=DATA, **options)


def sandwich(hessian, noise, jacobian, n):
    """K^-1 Omega K^-1 / n, with exact rows."""
    d, a = hessian.shape[0], len(jacobian)
    inverse = np.linalg.inv(np.block([[hessian, jacobian.T], [jacobian, np.zeros((a, a))]]))
    wide = np.zeros((d + a, d + a))
    wide[:d, :d] = noise
    return inverse @ wide @ inverse / n


def test_least_squares_is_ols_with_hc0():
    expected = sm.OLS(ROWS["b"], ROWS["a"]).fit(cov_type="HC0")
    inference = lx.inference(regression(), jnp.zeros(D))
    np.testing.assert_allclose(inference.x.estimate, expected.params, rtol=1e-9)
    np.testing.assert_allclose(inference.x.standard_error, expected.bse, rtol=1e-9)
    np.testing.assert_allclose(np.stack([inference.x.low, inference.x.high]).T, expected.conf_int(), rtol=1e-6)
    np.testing.assert_allclose(inference.covariance, expected.cov_params(), rtol=1e-8)
    restriction = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    test = inference.wald(lambda x: restriction @ x - jnp.array([0.5, 2.0]))
    theirs = expected.wald_test((restriction, [0.5, 2.0]), scalar=True, use_f=False)
    np.testing.assert_allclose([test.statistic, test.p_value], [theirs.statistic, theirs.pvalue], rtol=1e-6)
    assert test.degrees_of_freedom == 2


def test_clusters_are_those_of_statsmodels():
    labels = np.arange(N) // 8
    options = {"groups": labels, "use_correction": False}
    expected = sm.OLS(ROWS["b"], ROWS["a"]).fit(cov_type="cluster", cov_kwds=options)
    inference = lx.inference(regression(), jnp.asarray(BETA), clusters=labels)
    count = labels[-1] + 1
    np.testing.assert_allclose(inference.x.standard_error, expected.bse * np.sqrt(count / (count - 1)), rtol=1e-9)


def test_weights_are_those_of_statsmodels():
    weights = np.random.default_rng(6).uniform(0.2, 3, N)
    expected = sm.WLS(ROWS["b"], ROWS["a"], weights=weights).fit(cov_type="HC0")
    rows = lx.Dataset(DATA.arrays | {"weight": jnp.asarray(weights)})
    inference = lx.inference(lx.Problem(lambda x, row: row["weight"] * squares(x, row), samples=rows), jnp.zeros(D))
    np.testing.assert_allclose(inference.x.estimate, expected.params, rtol=1e-9)
    np.testing.assert_allclose(inference.x.standard_error, expected.bse, rtol=1e-9)


def test_a_finite_population_takes_its_share_off():
    whole = lx.inference(regression(), jnp.asarray(BETA)).x.standard_error
    part = lx.inference(regression(), jnp.asarray(BETA), population_size=4 * N).x.standard_error
    np.testing.assert_allclose(part, whole * np.sqrt(3 / 4), rtol=1e-9)


def test_poisson_regression_is_glm_with_a_constraint():
    rng = np.random.default_rng(1)
    a = 0.5 * rng.normal(size=(2000, D))
    count = rng.poisson(np.exp(a @ BETA))
    model = sm.GLM(count, a, family=sm.families.Poisson())
    expected = model.fit_constrained((np.array([[1.0, 1.0, 0.0]]), [0.5]))
    problem = lx.Problem(
        poisson,
        samples=lx.Dataset({"a": jnp.asarray(a), "count": jnp.asarray(count, float)}),
        constraints={"sum": lx.Equal(lambda x: x[0] + x[1], 0.5, samples=None)},
    )
    inference = lx.inference(problem, jnp.asarray(BETA))
    np.testing.assert_allclose(inference.x.estimate, expected.params, rtol=1e-3)
    design = np.asarray(a)
    mean = np.exp(design @ inference.x.estimate)
    hessian = (mean[:, None] * design).T @ design / len(a)
    jacobian = np.array([[1.0, 1.0, 0.0]])
    model_based = np.sqrt(np.diag(sandwich(hessian, hessian, jacobian, len(a))))[:D]
    np.testing.assert_allclose(model_based, expected.bse, rtol=1e-3)  # theirs supposes that the model is right
    scores = (mean - count)[:, None] * design
    noise = scores.T @ scores / len(a) - np.outer(scores.mean(0), scores.mean(0))
    robust = np.sqrt(np.diag(sandwich(hessian, noise, jacobian, len(a))))
    np.testing.assert_allclose(inference.x.standard_error, robust[:D], rtol=1e-3)
    np.testing.assert_allclose(inference.multipliers["sum"].standard_error, robust[D], rtol=1e-3)


def test_constrained_least_squares_in_closed_form():
    """x = b - S^-1 w y with y = (w b - t) / (w S^-1 w), on the same rows; noise in the constraint too."""
    w = jnp.array([1.0, 2.0, -1.0])

    def weighted(x, row):
        return (w + 0.2 * row["a"]) @ x

    inference = lx.inference(regression(constraints={"c": lx.Equal(weighted, 1.0)}), jnp.asarray(BETA))
    a, b = ROWS["a"], ROWS["b"]
    row = np.asarray(w) + 0.2 * a
    hessian, mean = a.T @ a / N, row.mean(0)
    inverse = np.linalg.inv(np.block([[hessian, mean[:, None]], [mean[None], np.zeros((1, 1))]]))
    solution = inverse @ np.append(a.T @ b / N, 1.0)
    x, y = solution[:D], solution[D]
    np.testing.assert_allclose(inference.x.estimate, x, rtol=1e-9)
    np.testing.assert_allclose(inference.multipliers["c"].estimate, y, rtol=1e-9)
    scores = np.column_stack([(a @ x - b)[:, None] * a + y * row, row @ x - 1])
    noise = np.cov(scores.T, bias=True)
    expected = np.sqrt(np.diag(inverse @ noise @ inverse / N))
    np.testing.assert_allclose(inference.x.standard_error, expected[:D], rtol=1e-8)
    np.testing.assert_allclose(inference.multipliers["c"].standard_error, expected[D], rtol=1e-8)
    value = 0.5 * (b - a @ x) ** 2 + y * (row @ x - 1)  # by the envelope theorem
    np.testing.assert_allclose(inference.objective.standard_error, value.std() / np.sqrt(N), rtol=1e-8)
    assert inference.constraints["c"].law == "fixed"
    assert inference.constraints["c"].estimate == 1.0


def test_sources_of_their_own_are_independent():
    rng = np.random.default_rng(2)
    other = jnp.asarray(rng.normal(size=100) + 1)
    problem = lx.Problem(
        lambda x, z: 0.5 * (x - z) ** 2,
        samples=lx.Dataset(jnp.asarray(rng.normal(size=300))),
        constraints={"c": lx.Equal(lambda x, z: x - z, samples=lx.Dataset(other))},
    )
    inference = lx.inference(problem, jnp.asarray(0.0))
    own = np.asarray(problem.samples.arrays)
    np.testing.assert_allclose(inference.x.standard_error, np.std(other) / 10, rtol=1e-9)
    expected = np.sqrt(np.var(other) / 100 + np.var(own) / 300)  # y = mean z - mean of the other
    np.testing.assert_allclose(inference.multipliers["c"].standard_error, expected, rtol=1e-9)


def test_signs_are_those_of_the_result():
    least = lx.inference(regression(constraints={"c": lx.AtLeast(jnp.sum, 4.0, samples=None)}), jnp.asarray(BETA))
    most = lx.inference(
        regression(constraints={"c": lx.AtMost(lambda x: -x.sum(), -4.0, samples=None)}), jnp.asarray(BETA)
    )
    a, b = least.multipliers["c"], most.multipliers["c"]
    assert a.high < 0 < b.low
    np.testing.assert_allclose([a.estimate, a.low, a.high], [-b.estimate, -b.high, -b.low])
    np.testing.assert_allclose(least.x.standard_error, most.x.standard_error)


def test_functions_of_the_solution():
    inference = lx.inference(
        regression(constraints={"c": lx.Equal(lambda x: x[0] + x[1], 1.0, samples=None)}), jnp.asarray(BETA)
    )
    both = inference.of(lambda x, y: jnp.stack([x[0] * x[2], y["c"]]))
    x, covariance = inference.x.estimate, inference.covariance
    gradient = np.array([x[2], 0, x[0]])
    np.testing.assert_allclose(both.standard_error[0], np.sqrt(gradient @ covariance @ gradient), rtol=1e-8)
    np.testing.assert_allclose(both.standard_error[1], inference.multipliers["c"].standard_error, rtol=1e-8)
    assert inference.of(lambda x: x[0] + x[1]).standard_error < 1e-9
    with pytest.raises(ValueError, match="rank 0"):
        inference.wald(lambda x: x[0] + x[1] - 1)


def test_draws_of_a_run_do_not_shorten_the_bars_of_its_rows():
    result = lx.solve(regression(), jnp.zeros(D), iterations=20_000)
    expected = sm.OLS(ROWS["b"], ROWS["a"]).fit(cov_type="HC0")
    inference = result.inference()
    np.testing.assert_allclose(inference.x.standard_error, expected.bse, rtol=1e-6)
    np.testing.assert_allclose(result.x - inference.run_error, expected.params, rtol=1e-5)
    assert inference.draws == N
    assert inference.off < 1


def test_structure_names_and_frame():
    problem = lx.Problem(
        lambda x, row: 0.5 * (row["b"] - row["a"] @ x["w"] - x["c"]) ** 2,
        samples=DATA,
        constraints={"both": lx.AtMost(lambda x: x["w"][:2], jnp.array([0.5, 5.0]), samples=None)},
    )
    inference = lx.inference(problem, {"w": jnp.asarray(BETA), "c": jnp.asarray(0.0)})
    assert inference.x.low["w"].shape == (D,)
    assert inference.x.law["w"].tolist() == ["fixed", "normal", "normal"]
    frame = inference.to_frame()
    assert frame.index.tolist()[:2] == [("x", "x['c']"), ("x", "x['w'][0]")]
    assert frame.loc[("multipliers", "both[1]"), "estimate"] == 0
    assert "x['w'][2]" in str(inference)
    assert "<table>" in inference._repr_html_()


def test_single_precision():
    data = jax.tree.map(lambda array: array.astype(jnp.float32), DATA.arrays)
    with jax.enable_x64(False):
        inference = lx.inference(lx.Problem(squares, samples=lx.Dataset(data)), jnp.asarray(BETA, jnp.float32))
    expected = sm.OLS(ROWS["b"], ROWS["a"]).fit(cov_type="HC0")
    np.testing.assert_allclose(inference.x.standard_error, expected.bse, rtol=1e-3)
    np.testing.assert_allclose(inference.x.estimate, expected.params, atol=1e-2 * expected.bse.max())
