"""The classifiers as scikit-learn's users meet them."""

import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from scipy.optimize import NonlinearConstraint
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import lariax.sklearn as ls


def table(rows=3000, seed=0):
    """People of two groups as a frame, and who is to be found."""
    random = np.random.default_rng(seed)
    sex = np.where(random.random(rows) < 0.4, "f", "m")
    area = random.choice(["north", "south", "west"], rows)
    age, income = random.integers(18, 80, rows), random.gamma(2.0, 1.0, rows)
    score = 0.05 * (age - 50) + income + 0.8 * (sex == "m") + (area == "west") - 1.5
    y = np.where(score + 0.8 * random.standard_normal(rows) > 0.5, "yes", "no")
    return pd.DataFrame({"age": age, "income": income, "area": area}), y, pd.DataFrame({"sex": sex, "area": area})


@pytest.fixture(scope="module")
def numbers():
    frame, y, people = table()
    return np.column_stack([frame["age"], frame["income"], frame["area"] == "west"]), y, people


def test_a_promise_in_one_fit(numbers):
    x, y, people = numbers
    limits = {"recall": ls.at_least(0.8), "selection_rate": ls.gap(0.3, by="sex")}
    model = ls.ConstrainedClassifier(limits, random_state=0).fit(x, y, sensitive_features=people)
    assert model.status_ == "promised"
    frame = model.certificate_.to_frame()
    assert {"estimate", "low", "high", "rows"} <= set(frame.columns)
    assert frame.loc["recall", "low"].iloc[0] > 0.78
    assert list(model.certificate_.by_group.index) == ["sex=f", "sex=m"]
    assert model.certificate_.difference["selection_rate"] <= 0.3
    assert set(model.multipliers_) == set(limits)
    new, truth, _ = table(20_000, seed=1)
    new = np.column_stack([new["age"], new["income"], new["area"] == "west"])
    assert np.mean(model.predict(new)[truth == "yes"] == "yes") > 0.8
    assert np.array_equal(model.predict_proba(new)[:, 1] > 0.5, model.decision_function(new) > 0)


def test_without_constraints_it_is_logistic_regression(numbers):
    x, y, _ = numbers
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    ours = ls.ConstrainedClassifier().fit(x, y)
    theirs = LogisticRegression(tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4)
    assert ours.status_ == "unconstrained"


@pytest.mark.parametrize(
    "limits",
    [
        {"precision": ls.at_least(0.9)},
        {"false_alarm": ls.each(ls.at_most(0.1), by="sex")},
        {"miss": ls.gap(0.05, by="sex")},
        {"selection_rate": ls.ratio(0.8, by=("sex", "area"))},
        {"mean_score": ls.at_most(0.4), "error": ls.at_most(0.25)},
        {"selection_rate": [ls.at_most(0.5), ls.gap(0.1, by="sex", given={"y": "yes"})]},
        {"coverage": ls.at_most(0.3), "accuracy": ls.at_least(0.6)},
    ],
    ids=str,
)
def test_on_the_training_rows_every_bound_is_met(numbers, limits):
    """Counted here anew, not read off the certificate."""
    x, y, people = numbers
    model = ls.ConstrainedClassifier(limits, promise="training").fit(x, y, sensitive_features=people)
    assert model.status_ == "met"
    d, t = model.predict(x) == "yes", y == "yes"
    rates = {
        "precision": lambda m: (t & d)[m].sum() / d[m].sum(),
        "false_alarm": lambda m: d[m & ~t].mean(),
        "miss": lambda m: (~d)[m & t].mean(),
        "selection_rate": lambda m: d[m].mean(),
        "coverage": lambda m: d[m].mean(),
        "mean_score": lambda m: model.predict_proba(x[m])[:, 1].mean(),
        "error": lambda m: (d != t)[m].mean(),
        "accuracy": lambda m: (d == t)[m].mean(),
    }
    for rate, listed in limits.items():
        for limit in listed if isinstance(listed, list) else [listed]:
            check_limit(rates[rate], limit, people, t)


def check_limit(rate, limit, people, truth):
    everyone = np.ones(len(truth), bool)
    given = truth if getattr(limit, "given", None) else everyone
    if isinstance(limit, ls.at_least | ls.at_most):
        value = rate(given)
        assert value >= limit.bound - 1e-9 if isinstance(limit, ls.at_least) else value <= limit.bound + 1e-9
        return
    by = [limit.by] if isinstance(limit.by, str) else list(limit.by)
    groups = [(people[by] == value).all(axis=1).to_numpy() for value in people[by].drop_duplicates().to_numpy()]
    values = [rate(group & given) for group in groups]
    if isinstance(limit, ls.each):
        assert max(values) <= limit.limit.bound + 1e-9
    elif isinstance(limit, ls.gap):
        assert max(values) - min(values) <= limit.bound + 1e-9
    else:
        assert min(values) >= limit.bound * max(values) - 1e-9


def test_training_pays_where_a_threshold_does_not(numbers):
    """A gap that thresholds alone can only close by selecting next to nobody."""
    x, y, people = numbers
    limits = {"selection_rate": ls.gap(0.02, by="sex")}
    x = np.column_stack([x, people["sex"] == "m"])
    ours = ls.ConstrainedClassifier(limits, promise="training").fit(x, y, sensitive_features=people)
    plain = LogisticRegression().fit(StandardScaler().fit_transform(x), y)
    scores = plain.decision_function(StandardScaler().fit_transform(x))
    best = 0.0
    for threshold in np.quantile(scores, np.linspace(0, 1, 300)):
        d = scores > threshold
        if abs(d[people["sex"] == "m"].mean() - d[people["sex"] == "f"].mean()) <= 0.02:
            best = max(best, np.mean(d == (y == "yes")))
    assert ours.score(x, y) > best + 0.1


def test_several_classes():
    x, y = load_iris(return_X_y=True)
    limits = {"recall": ls.at_least(0.98, label=1)}
    model = ls.ConstrainedClassifier(limits, promise="training").fit(x, y)
    assert model.status_ == "met"
    assert np.mean(model.predict(x)[y == 1] == 1) >= 0.98
    assert model.coef_.shape == (3, 4)
    model = ls.ConstrainedClassifier({"recall": ls.at_least(0.9)}, promise="training").fit(x, y)  # of each class
    assert all(np.mean(model.predict(x)[y == k] == k) >= 0.9 for k in range(3))


def test_each_class_has_its_own_rate_in_the_certificate():
    x, y = load_iris(return_X_y=True)
    group = np.arange(150) % 2
    model = ls.ConstrainedClassifier({"recall": ls.gap(0.3, by="g")}, promise="training")
    certificate = model.fit(x, y, sensitive_features={"g": group}).certificate_
    assert list(certificate.by_group.columns) == ["recall of 0", "recall of 1", "recall of 2"]
    found = certificate.by_group.loc["g=1", "recall of 2"]
    assert found == np.mean(model.predict(x)[(y == 2) & (group == 1)] == 2)
    assert certificate.difference.max() == pytest.approx(certificate.differences["recall"][0])
    assert str(certificate).startswith("Met, on 150 training rows:\n  recall of 0 [g=0]: 1.0000")


@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning")
def test_a_certificate_of_nothing():
    certificate = ls.ConstrainedClassifier().fit(*load_iris(return_X_y=True)).certificate_
    assert certificate.by_group.empty
    assert str(certificate) == "No rates are bounded."


def test_neyman_pearson_is_the_order_statistic_of_its_rows():
    """With one feature the model is a threshold, and the test is that of Tong, Feng and Li (2018)."""
    random = np.random.default_rng(0)
    y = (random.random(4000) < 0.5).astype(int)
    x = random.standard_normal((4000, 1)) + 2 * y[:, None]
    model = ls.NeymanPearsonClassifier(0.1, random_state=0).fit(x, y)
    assert model.status_ == "promised"
    threshold = -model.intercept_[0] / model.coef_[0, 0]
    assert 1.2816 < threshold < 1.55  # 1.2816 keeps the bound exactly


@pytest.mark.long
def test_a_network_keeps_a_bound_too(numbers):
    x, y, people = numbers
    limits = {"recall": ls.at_least(0.7)}
    model = ls.ConstrainedClassifier(limits, hidden=(16,), random_state=0).fit(x, y, sensitive_features=people)
    assert model.status_ == "promised"
    assert [weights.shape for weights in model.coefs_] == [(3, 16), (16, 1)]
    assert not hasattr(model, "coef_")
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))


# --- functions of the user's


def test_a_function_of_two_arguments_is_a_rate(numbers):
    """Said as a function, the share of errors is the same constraint, and gives the same model."""
    x, y, _ = numbers
    own = {"wrong": NonlinearConstraint(lambda y, decision: (y != decision) * 1.0, -np.inf, 0.2)}
    one = ls.ConstrainedClassifier(own, random_state=0).fit(x, y)
    two = ls.ConstrainedClassifier({"error": ls.at_most(0.2)}, random_state=0).fit(x, y)
    assert one.status_ == two.status_ == "promised"
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-6)


@pytest.mark.parametrize("dict_of_scipy", [False, True])
def test_costs_are_promised_in_their_own_units(numbers, dict_of_scipy):
    """A miss costs 5, a false alarm 1; at most 0.7 a row, counted here anew on new rows."""
    x, y, _ = numbers

    def cost(y, decision):
        return np.where((y == "yes") & (decision == "no"), 5.0, np.where(y == decision, 0.0, 1.0))

    limit = NonlinearConstraint(cost, -np.inf, 0.7)
    if dict_of_scipy:
        limit = {"type": "ineq", "fun": lambda y, decision: 0.7 - cost(y, decision)}
    model = ls.ConstrainedClassifier({"cost": limit}, random_state=0).fit(x, y)
    assert model.status_ == "promised"
    new, truth, _ = table(20_000, seed=1)
    new = np.column_stack([new["age"], new["income"], new["area"] == "west"])
    assert cost(truth, model.predict(new)).mean() < 0.7
    shown = model.certificate_.to_frame()["estimate"].iloc[0]
    assert abs((0.7 - shown if dict_of_scipy else shown) - cost(y, model.predict(x)).mean()) < 0.1


def test_wrong_functions(numbers):
    x, y, _ = numbers
    for fun, high, words in [
        (lambda y, d: 3.0, 1.0, "one finite number a row"),
        (lambda y, d: (y != d) * 1.0, -0.5, "nothing can meet"),
        (lambda coef: coef, 1.0, r"fun\(y, decision\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            ls.ConstrainedClassifier({"own": NonlinearConstraint(fun, -np.inf, high)}).fit(x, y)
    with pytest.raises(ValueError, match="one lower and one upper"):
        ls.ConstrainedClassifier({"own": NonlinearConstraint(lambda y, d: y, 1.0, 0.0)}).fit(x, y)


# --- rows in batches, and the price of a bound


def test_batches_are_one_fit(numbers):
    x, y, people = numbers
    limits = {"selection_rate": ls.gap(0.3, by="sex")}
    whole = ls.ConstrainedClassifier(limits, random_state=0).fit(x, y, sensitive_features=people)
    parts = ls.ConstrainedClassifier(limits, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ls.LariaxWarning)
        for part in (slice(0, 500), slice(500, None)):
            parts.partial_fit(x[part], y[part], classes=["no", "yes"], sensitive_features=people[part])
    assert parts.status_ == whole.status_ == "promised"
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    parts = pickle.loads(pickle.dumps(parts))  # its rows travel with it
    assert parts.partial_fit(x[:10], y[:10], sensitive_features=people[:10]).certificate_.rows == len(y) + 10
    assert parts.fit(x, y, sensitive_features=people).certificate_.rows == len(y)  # and a fit forgets them
    with pytest.raises(ValueError, match="features"):
        whole.partial_fit(x, y, sensitive_features=people).partial_fit(x[:, :2], y, sensitive_features=people)


def test_there_is_no_model_before_each_class_has_come(numbers):
    x, y, _ = numbers
    model = ls.ConstrainedClassifier()
    with pytest.warns(ls.LariaxWarning, match="no row of class no"):
        model.partial_fit(x[y == "yes"], y[y == "yes"], classes=["no", "yes"])
    with pytest.raises(NotFittedError):
        model.predict(x)
    assert model.partial_fit(x[y == "no"], y[y == "no"]).status_ == "unconstrained"
    with pytest.raises(ValueError, match="not among classes"):
        model.partial_fit(x, y, classes=["yes"])


def test_the_price_of_a_bound(numbers):
    """A curve that falls as the bound is loosened, and says what a fit for that bound would come to."""
    x, y, people = numbers
    x = np.column_stack([x, people["sex"] == "m"])
    model = ls.ConstrainedClassifier({"selection_rate": ls.gap(0.1, by="sex")}, random_state=0)
    model.fit(x, y, sensitive_features=people)
    frame = model.tradeoff([0.3, 0.06, 0.15, 0.9])
    assert frame["bound"].tolist() == [0.06, 0.15, 0.3, 0.9]
    assert (np.diff(frame["objective"]) < 0.005).all()
    assert frame["objective"].iloc[0] > frame["objective"].iloc[-1]
    assert (np.diff(frame["multiplier"]) <= 0).all()
    assert frame["multiplier"].iloc[-1] == 0  # a bound that nothing presses on has no price
    assert frame["shown"].all()
    fitted = ls.ConstrainedClassifier({"selection_rate": ls.gap(0.15, by="sex")}, random_state=0)
    fitted.fit(x, y, sensitive_features=people)
    new, truth, others = table(20_000, seed=1)
    new = np.column_stack([new["age"], new["income"], new["area"] == "west", others["sex"] == "m"])
    assert frame["low"].iloc[1] - 0.01 < 1 - fitted.score(new, truth) < frame["high"].iloc[1] + 0.01
    with pytest.raises(ValueError, match="Did you mean 'selection_rate'"):
        model.tradeoff([0.1], "selection_rat")
    with pytest.raises(ValueError, match="pickled"):
        pickle.loads(pickle.dumps(model)).tradeoff()
    with pytest.raises(ValueError, match="no constraints"):
        ls.ConstrainedClassifier().fit(x, y).tradeoff()


def test_the_price_is_drawn(numbers):
    import matplotlib as mpl

    mpl.use("Agg")
    x, y, _ = numbers
    axes = ls.NeymanPearsonClassifier(0.1, random_state=0).fit(x, y).plot_tradeoff()
    assert axes.get_ylabel() == "share of misses"
    (line, *_), (band, *_) = axes.lines, axes.collections
    assert len(line.get_xdata()) == 9
    assert band.get_paths()
    mpl.pyplot.close(axes.figure)


# --- the ways data arrive


def test_sparse_frames_and_weights(numbers):
    x, y, people = numbers
    limits = {"recall": ls.each(ls.at_least(0.7), by="sex")}
    dense = ls.ConstrainedClassifier(limits, random_state=0).fit(x, y, sensitive_features=people)
    sparse = ls.ConstrainedClassifier(limits, random_state=0)
    sparse.fit(scipy.sparse.csr_array(x), y, sensitive_features=people)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-6)
    frame = pl.DataFrame(x, schema=["age", "income", "west"])
    polars = ls.ConstrainedClassifier(limits, random_state=0)
    polars.fit(frame, y, sensitive_features=pl.DataFrame({"sex": people["sex"].to_list()}))
    assert list(polars.feature_names_in_) == ["age", "income", "west"]
    np.testing.assert_allclose(polars.coef_, dense.coef_)
    in_x = ls.ConstrainedClassifier({"recall": ls.each(ls.at_least(0.7), by="west")}, random_state=0)
    assert "west=1.0" in str(in_x.fit(pd.DataFrame(x, columns=frame.columns), y).certificate_)


def test_pipelines_searches_clones_and_pickles():
    frame, y, people = table(1500)
    words = make_column_transformer((OneHotEncoder(), ["area"]), (StandardScaler(), ["age", "income"]))
    with config_context(enable_metadata_routing=True):
        limits = {"recall": ls.gap(0.5, by="sex")}
        model = ls.ConstrainedClassifier(limits, random_state=0).set_fit_request(sensitive_features=True)
        pipe = make_pipeline(words, model)
        search = GridSearchCV(pipe, {"constrainedclassifier__C": [0.1, 1.0]}, cv=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ls.LariaxWarning)
            search.fit(frame, y, sensitive_features=people)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(again.predict(frame), search.predict(frame))
    assert clone(model).get_params()["constraints"] == limits
    words.set_output(transform="pandas")


def test_the_same_seed_gives_the_same_model(numbers):
    x, y, _ = numbers
    limits = {"recall": ls.at_least(0.8)}
    one, two, three = (ls.ConstrainedClassifier(limits, kept=0.5, random_state=s).fit(x, y) for s in (0, 0, 1))
    assert np.array_equal(one.coef_, two.coef_)
    assert not np.array_equal(one.coef_, three.coef_)


# --- what cannot be promised, and wrong input


def test_too_few_rows_say_how_many(numbers):
    x, y, _ = numbers
    with pytest.warns(ls.LariaxWarning, match=r"About [\d,]+ rows"):
        model = ls.ConstrainedClassifier({"recall": ls.at_least(0.99)}, random_state=0).fit(x[:200], y[:200])
    assert model.status_ == "not_shown"
    assert model.rows_needed_ > 299  # positives that it takes if not one is missed
    assert not model.certificate_.holds
    with pytest.raises(ls.PromiseError, match="rows"):
        ls.ConstrainedClassifier({"recall": ls.at_least(0.99)}, raise_on_failure=True).fit(x[:200], y[:200])


@pytest.mark.parametrize("limits", [{"recall": ls.at_least(1.0)}, {"selection_rate": ls.gap(0.0, by=["sex", "area"])}])
def test_what_no_number_of_rows_shows(numbers, limits):
    x, y, people = numbers
    with pytest.warns(ls.LariaxWarning, match="any number of rows"):
        model = ls.ConstrainedClassifier(limits, random_state=0).fit(x, y, sensitive_features=people)
    assert (model.status_, model.rows_needed_) == ("not_shown", None)


def test_out_of_reach(numbers):
    x, y, _ = numbers
    limits = {"recall": ls.at_least(0.99), "false_alarm": ls.at_most(0.01)}
    with pytest.warns(ls.LariaxWarning, match="No model"):
        model = ls.ConstrainedClassifier(limits, random_state=0).fit(x, y)
    assert model.status_ == "out_of_reach"


WRONG = {
    "unknown rate": ({"recal": ls.at_least(0.9)}, {}, "Did you mean 'recall'"),
    "unknown column": ({"recall": ls.gap(0.1, by="sx")}, {}, "Did you mean 'sex'"),
    "bound above 1": ({"recall": ls.at_least(1.2)}, {}, "between 0 and 1"),
    "contradiction": ({"recall": ls.at_least(0.9), "miss": ls.at_least(0.2)}, {}, "contradict"),
    "no positives": ({"recall": ls.each(ls.at_least(0.5), by="lucky")}, {}, "no rows of the group lucky=1"),
    "label": ({"recall": ls.at_least(0.5, label="maybe")}, {}, "none of the classes"),
    "promise": ({}, {"promise": "always"}, "promise must be one of"),
    "confidence": ({}, {"confidence": 95}, "confidence must be"),
    "kept": ({}, {"kept": 0}, "kept is a share"),
    "one group": ({"recall": ls.gap(0.1, by="one")}, {}, "one group"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_told_at_once(numbers, case):
    x, y, people = numbers
    limits, options, words = WRONG[case]
    people = people.assign(lucky=((y == "no") & (x[:, 0] > 60)).astype(int), one=1)
    with pytest.raises(ValueError, match=words):
        ls.ConstrainedClassifier(limits, **options).fit(x, y, sensitive_features=people)


def test_wrong_data(numbers):
    x, y, people = numbers
    model = ls.ConstrainedClassifier({"recall": ls.gap(0.1, by="sex")})
    with pytest.raises(ValueError, match="one class"):
        model.fit(x, np.full(len(y), "yes"), sensitive_features=people)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(x > 70, np.nan, x), y, sensitive_features=people)
    with pytest.raises(ValueError, match="missing values"):
        model.fit(x, y, sensitive_features=people.where(people != "f"))
    with pytest.raises(ValueError, match="one value a row"):
        model.fit(x, y, sensitive_features=people[:10])
    with pytest.raises(TypeError, match="dict"):
        ls.ConstrainedClassifier([ls.at_least(0.9)]).fit(x, y)
    with pytest.raises(TypeError, match="at_least, at_most"):
        ls.ConstrainedClassifier({"recall": 0.9}).fit(x, y)
    for limit in (ls.gap(0.1, by="area"), ls.ratio(0.8, by="area")):
        with pytest.raises(TypeError, match="each of at_least or at_most"):
            ls.ConstrainedClassifier({"recall": ls.each(limit, by="sex")}).fit(x, y, sensitive_features=people)
