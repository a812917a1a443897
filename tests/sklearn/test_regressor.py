"""The regressor as scikit-learn's users meet it."""

import numpy as np
import pandas as pd
import pytest
from readable import ReadableConstraint
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, nnls
from scipy.stats import binom
from sklearn.utils.estimator_checks import parametrize_with_checks

import lariax.sklearn as ls


@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning", "ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        ls.ConstrainedRegressor(),
        ls.ConstrainedRegressor({"coverage": ls.at_least(0.6)}),
        ls.ConstrainedRegressor({"coef": ls.between(-10.0, 10.0)}),
    ]
)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


def lateness(y, prediction):
    return np.maximum(y - prediction, 0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning", "ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        ls.ConstrainedRegressor({"squared_error": ls.at_most(1e4), "mean_error": ls.at_most(100.0)}),
        ls.ConstrainedRegressor({"coverage": ls.at_least(0.6)}, promise="training"),
        ls.ConstrainedRegressor({"late": ReadableConstraint(lateness, -np.inf, 1e3)}),
        ls.ConstrainedRegressor(hidden=(8,)),
        ls.ConstrainedRegressor({"coverage": ls.at_least(0.6)}, hidden=(8,)),
    ]
)
def test_scikit_learn_agrees_on_more(estimator, check):
    check(estimator)


def homes(rows=2000, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 4))
    group = (random.random(rows) < 0.4).astype(int)
    noise = random.standard_normal(rows) * np.where(group, 1.5, 0.5)
    return x, x @ [1.0, 0.5, -0.3, 0.0] + 0.6 * group + noise, group


def test_coefficients_hold_exactly():
    x, y, _ = homes()
    frame = pd.DataFrame(x, columns=["size", "rooms", "noise", "age"])
    limits = {"monotone": ls.increasing(("noise",)), "coef_sum": ls.between(1.2, 1.2), "coef": ls.between(high=0.8)}
    model = ls.ConstrainedRegressor(limits).fit(frame, y)
    assert model.status_ == "met"
    assert model.coef_[2] >= -1e-12
    assert model.coef_.sum() == pytest.approx(1.2)
    assert model.coef_.max() <= 0.8 + 1e-12
    with pytest.raises(ValueError, match="Did you mean 'noise'"):
        ls.ConstrainedRegressor({"monotone": ls.increasing(("nois",))}).fit(frame, y)


def test_non_negative_least_squares_is_a_special_case():
    x, y, _ = homes()
    x, y = x - x.mean(axis=0), y - y.mean()
    model = ls.ConstrainedRegressor({"coef": ls.between(low=0.0)}, alpha=0.0).fit(x, y)
    np.testing.assert_allclose(model.coef_, nnls(x, y)[0], atol=1e-6)


def test_constraints_of_scipy():
    x, y, _ = homes()
    limits = {
        "box": Bounds(-0.2, 0.9),
        "sum": LinearConstraint(np.ones((1, 4)), 1.0, 1.0),
        "ball": NonlinearConstraint(lambda coef: coef @ coef, -np.inf, 0.7),
    }
    coef = ls.ConstrainedRegressor(limits).fit(x, y).coef_
    assert coef.sum() == pytest.approx(1.0, abs=1e-8)
    assert coef @ coef <= 0.7 + 1e-6
    assert -0.2 - 1e-9 <= coef.min() <= coef.max() <= 0.9 + 1e-9
    with pytest.warns(ls.LariaxWarning, match="loosen"):
        ls.ConstrainedRegressor({**limits, "sum": LinearConstraint(np.ones((1, 4)), 10.0, 10.0)}).fit(x, y)


@pytest.mark.parametrize(
    "limits",
    [
        {"mean_error": ls.each(ls.at_most(0.05), by="g"), "coverage": ls.at_least(0.3)},
        {"mean_error": ls.gap(0.1, by="g")},
        {"squared_error": ls.each(ls.at_most(2.5), by="g")},
        {"absolute_error": ls.at_most(1.2)},
        {"coverage": ls.each(ls.at_least(0.8), by="g")},
    ],
    ids=str,
)
def test_on_the_training_rows_every_bound_is_met(limits):
    x, y, group = homes()
    x = np.column_stack([x, group])
    model = ls.ConstrainedRegressor(limits, promise="training").fit(x, y, sensitive_features={"g": group})
    assert model.status_ == "met"
    r = model.predict(x) - y
    means = {"mean_error": r, "squared_error": r**2, "absolute_error": np.abs(r), "coverage": r >= 0}
    for name, limit in limits.items():
        parts = [means[name][group == g].mean() for g in (0, 1)] if hasattr(limit, "by") else [means[name].mean()]
        inner = limit.limit if isinstance(limit, ls.each) else limit
        if isinstance(inner, ls.gap):
            assert max(parts) - min(parts) <= inner.bound + 1e-6
        elif isinstance(inner, ls.at_most):
            assert max(parts) <= inner.bound + 1e-6
        else:
            assert min(parts) >= inner.bound


def test_a_promised_quantile_is_kept():
    """30 fits, 400 rows each, against the truth on 50,000 rows. False alarm: 1e-3."""
    x, y, _ = homes(50_000, seed=99)
    broken = 0
    for seed in range(30):
        model = ls.ConstrainedRegressor({"coverage": ls.at_least(0.9)}, random_state=seed)
        model.fit(*homes(400, seed=seed)[:2])
        assert model.status_ == "promised"
        broken += np.mean(y <= model.predict(x)) < 0.9
    assert broken <= binom.ppf(0.999, 30, 0.05)


@pytest.mark.parametrize("limits", [{"mean_error": ls.gap(1.0, by="g")}, {"coverage": ls.gap(0.02, by="g")}])
@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning")
def test_groups_are_not_made_alike_by_useless_predictions(limits):
    """To predict too much by the same for all changes no difference of means, and too much by far no coverage."""
    x, y, group = homes(1000)
    free = np.mean((ls.ConstrainedRegressor().fit(x, y).predict(x) - y) ** 2)
    model = ls.ConstrainedRegressor(limits, random_state=0).fit(x, y, sensitive_features={"g": group})
    assert np.mean((model.predict(x) - y) ** 2) < 2.5 * free


def test_means_are_promised_or_not():
    x, y, group = homes(3000)
    x = np.column_stack([x, group])
    limits = {"squared_error": ls.each(ls.at_most(2.8), by="g")}
    model = ls.ConstrainedRegressor(limits, random_state=0).fit(x, y, sensitive_features={"g": group})
    assert model.status_ == "promised"
    assert list(model.certificate_.by_group.index) == ["g=0", "g=1"]
    model = ls.ConstrainedRegressor({"mean_error": ls.gap(0.02, by="g")}, random_state=0)
    with pytest.warns(ls.LariaxWarning, match="rows would show it"):
        model.fit(x, y, sensitive_features={"g": group})
    assert model.rows_needed_ > 3000
    with pytest.raises(ValueError, match="mean_error"):
        ls.ConstrainedRegressor({"mean_eror": ls.at_most(0.1)}).fit(x, y)


def test_a_function_of_two_arguments_is_a_mean_over_rows():
    """What falls short of y, on average at most 0.3; counted on new rows."""
    x, y, _ = homes(3000)
    model = ls.ConstrainedRegressor({"late": NonlinearConstraint(lateness, -np.inf, 0.3)}, random_state=0).fit(x, y)
    assert model.status_ == "promised"
    new, truth, _ = homes(50_000, seed=9)
    assert lateness(truth, ls.ConstrainedRegressor().fit(x, y).predict(new)).mean() > 0.35
    assert lateness(truth, model.predict(new)).mean() < 0.3
    with pytest.raises(ValueError, match="one number a row"):
        ls.ConstrainedRegressor({"late": NonlinearConstraint(lambda y, p: 1.0, -np.inf, 0.3)}).fit(x, y)


def test_batches_are_one_fit():
    x, y, group = homes()
    limits = {"coverage": ls.each(ls.at_least(0.8), by="g")}
    whole = ls.ConstrainedRegressor(limits, random_state=0).fit(x, y, sensitive_features={"g": group})
    parts = ls.ConstrainedRegressor(limits, random_state=0)
    for part in (slice(0, 800), slice(800, None)):
        parts.partial_fit(x[part], y[part], sensitive_features={"g": group[part]})
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    assert parts.intercept_ == whole.intercept_


def test_the_price_of_a_bound():
    x, y, group = homes()
    model = ls.ConstrainedRegressor({"coverage": ls.at_least(0.8)}, random_state=0).fit(x, y)
    frame = model.tradeoff()
    assert frame["objective"].is_monotonic_increasing
    assert ((frame["low"] < frame["objective"]) & (frame["objective"] < frame["high"])).all()
    assert model.plot_tradeoff([0.7, 0.8]).get_ylabel() == "mean squared error"
    model = ls.ConstrainedRegressor({"squared_error": ls.at_most(3.5, given={"g": 1})}, random_state=0)
    model.fit(x, y, sensitive_features={"g": group})
    prices = model.tradeoff([2.5, 5.0])["multiplier"]
    assert prices.iloc[0] > 0.05
    assert prices.iloc[1] < 1e-6


@pytest.mark.long
def test_a_network_bends_and_keeps_its_quantile():
    """A wave that no line follows; nine of ten rows below the prediction, on new rows."""
    random = np.random.default_rng(0)
    x = random.uniform(-3, 3, (6000, 1))
    y = 10 * np.sin(2 * x[:, 0]) + random.standard_normal(6000)
    limits = {"coverage": ls.at_least(0.9)}
    model = ls.ConstrainedRegressor(limits, hidden=(32, 32), random_state=0).fit(x[:3000], y[:3000])
    assert model.status_ == "promised"
    assert np.mean(model.predict(x[3000:]) >= y[3000:]) >= 0.88
    line = ls.ConstrainedRegressor(limits, random_state=0).fit(x[:3000], y[:3000])
    errors = [np.mean((one.predict(x[3000:]) - y[3000:]) ** 2) for one in (model, line)]
    assert errors[0] < 0.2 * errors[1]
    assert not hasattr(model, "coef_")
    with pytest.raises(ValueError, match="linear models"):
        ls.ConstrainedRegressor({"coef": ls.between(0, 1)}, hidden=(8,)).fit(x, y)
