"""What cannot be met or shown is said before anything is trained."""

import warnings

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint

import lariax.sklearn as ls
from lariax.sklearn._constraints import checked
from lariax.sklearn._foreseen import unreachable
from lariax.sklearn._groups import Columns
from lariax.sklearn._linear import LinearTrainer
from lariax.sklearn._rates import planned
from lariax.sklearn._regression import Regression


def rows(n=400):
    """A third is positive: half of one group, a sixth of the other."""
    group = np.arange(n) % 2
    y = (np.arange(n) // 2 % 6 < np.where(group, 3, 1)).astype(int)
    return y, group


def is_unreachable(limits, classes=(0, 1), y=None):
    truth, group = rows()
    y = truth if y is None else y
    plan = planned(checked(limits), Columns({"g": group}, None, y), y, list(classes))
    return unreachable(plan, y, np.ones(len(y)))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"recall": ls.at_least(0.9), "selection_rate": ls.at_most(0.29)}, True),  # 0.9 of a third are 0.3
        ({"recall": ls.at_least(0.9), "selection_rate": ls.at_most(0.31)}, False),
        ({"precision": ls.at_least(0.9), "selection_rate": ls.at_least(0.38)}, True),
        ({"precision": ls.at_least(0.9), "selection_rate": ls.at_least(0.36)}, False),
        ({"selection_rate": ls.gap(0.1, by="g"), "error": ls.at_most(0.1)}, True),  # base rates differ by 0.33
        ({"selection_rate": ls.gap(0.1, by="g"), "error": ls.at_most(0.12)}, False),
        ({"selection_rate": ls.ratio(0.8, by="g"), "accuracy": ls.at_least(0.9)}, True),
        ({"selection_rate": ls.ratio(0.8, by="g"), "accuracy": ls.at_least(0.85)}, False),
        ({"recall": ls.at_least(0.99), "false_alarm": ls.at_most(0.01)}, False),  # whoever knows y can
        ({"recall": ls.at_least(0.9), "mean_score": ls.at_most(0.01)}, False),  # scores are no decisions
    ],
    ids=str,
)
def test_what_no_decisions_meet(limits, expected):
    assert is_unreachable(limits) is expected


def test_what_no_decisions_among_several_classes_meet():
    y = np.arange(400) % 4
    recall = ls.at_least(0.9)  # of each class
    assert is_unreachable({"recall": recall, "selection_rate": ls.at_most(0.2, label=1)}, range(4), y)
    assert not is_unreachable({"recall": recall, "selection_rate": ls.at_most(0.25, label=1)}, range(4), y)


def data(n=300):
    random = np.random.default_rng(0)
    x = random.standard_normal((n, 3))
    return x, (x[:, 0] + 0.5 * random.standard_normal(n) > 0).astype(int)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("promise", ["population", "training"])
@pytest.mark.parametrize("raises", [True, False])
def test_a_bound_that_nothing_meets_is_told_before_training(monkeypatch, promise, raises):
    monkeypatch.setattr(LinearTrainer, "path", lambda *_: pytest.fail("trained"))
    limits = {"recall": ls.at_least(0.9), "selection_rate": ls.at_most(0.1)}
    model = ls.ConstrainedClassifier(limits, promise=promise, raise_on_failure=raises)
    with pytest.raises((ls.PromiseError, ls.LariaxWarning), match="No decisions meet"):
        model.fit(*data())


def test_it_is_the_status_of_the_model_that_is_trained_all_the_same():
    limits = {"recall": ls.at_least(0.9), "selection_rate": ls.at_most(0.1)}
    with pytest.warns(ls.LariaxWarning) as told:
        model = ls.ConstrainedClassifier(limits).fit(*data())
    assert len(told) == 1
    assert (model.status_, model.rows_needed_) == ("out_of_reach", None)
    assert not model.certificate_.holds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("raises", [True, False])
def test_rows_that_are_too_few_are_told_before_training(monkeypatch, raises):
    monkeypatch.setattr(LinearTrainer, "path", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(Regression, "path", lambda *_: pytest.fail("trained"))
    x, y = data()
    for model in (
        ls.ConstrainedClassifier({"recall": ls.at_least(0.99)}, raise_on_failure=raises),
        ls.NeymanPearsonClassifier(0.001, raise_on_failure=raises),
        ls.ConstrainedRegressor({"coverage": ls.at_least(0.99)}, raise_on_failure=raises),
    ):
        with pytest.raises((ls.PromiseError, ls.LariaxWarning), match=r"About [\d,]+ rows"):
            model.fit(x, y)


def test_a_regressor_says_how_many_rows_and_what_no_number_shows():
    x, y = data()
    with pytest.warns(ls.LariaxWarning, match="598 rows"):  # 0.99^299 < 0.05, twice as many as are kept back
        model = ls.ConstrainedRegressor({"coverage": ls.at_least(0.99)}, random_state=0).fit(x, y)
    assert (model.status_, model.rows_needed_) == ("not_shown", 598)
    with pytest.warns(ls.LariaxWarning, match="any number of rows"):
        model = ls.ConstrainedRegressor({"coverage": ls.at_least(1.0)}, random_state=0).fit(x, y)
    assert (model.status_, model.rows_needed_) == ("not_shown", None)


@pytest.mark.parametrize(
    "limits",
    [
        {"recall": [ls.each(ls.at_least(0.9), by="g"), ls.at_most(0.5)]},
        {"recall": ls.each(ls.at_least(0.9), by="g"), "miss": ls.each(ls.at_least(0.2), by="g")},
    ],
    ids=str,
)
def test_bounds_of_groups_contradict_each_other_too(limits):
    x, y = data()
    with pytest.raises(ValueError, match="contradict"):
        ls.ConstrainedClassifier(limits).fit(x, y, sensitive_features={"g": x[:, 1] > 0})


def test_means_that_are_no_shares_have_no_ends():
    """A prediction that is too low on average by 0.2, and one that is far off, are no contradictions."""
    x, y = data()
    for limits in ({"mean_error": ls.at_most(-0.2)}, {"squared_error": ls.at_least(1.5)}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ls.LariaxWarning)
            model = ls.ConstrainedRegressor(limits, promise="training").fit(x, y)
        assert model.status_ in ("met", "out_of_reach")
    assert ls.ConstrainedRegressor({"mean_error": ls.at_most(-0.2)}, promise="training").fit(x, y).status_ == "met"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"squared_error": ls.at_most(-1.0)}, "nothing can meet"),
        ({"mean_error": ls.gap(-0.1, by="g")}, "nothing can meet"),
        ({"coeff": ls.between(0, 1)}, "Did you mean 'coef'"),
        ({"box": Bounds([0, 0], [1, 1])}, "on 2 coefficients, and X has 3 features"),
        ({"sum": LinearConstraint(np.ones((1, 4)), 0, 1)}, "on 4 coefficients, and X has 3 features"),
    ],
    ids=["square", "gap", "name", "box", "sum"],
)
def test_wrong_constraints_of_a_regressor(limits, words):
    x, y = data()
    with pytest.raises(ValueError, match=words):
        ls.ConstrainedRegressor(limits).fit(x, y, sensitive_features={"g": y})


def test_one_row_is_too_few():
    """None of it is kept back."""
    with pytest.warns(ls.LariaxWarning, match="1 were given"):
        model = ls.ConstrainedRegressor({"coverage": ls.at_least(0.6)}).fit([[1.0]], [1.0])
    assert model.status_ == "not_shown"
