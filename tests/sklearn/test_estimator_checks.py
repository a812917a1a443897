"""What scikit-learn asks of its classifiers."""

import numpy as np
import pytest
from readable import ReadableConstraint
from sklearn.datasets import make_blobs
from sklearn.utils.estimator_checks import parametrize_with_checks

import lariax.sklearn as ls

QUICK = [
    ls.ConstrainedClassifier(),
    ls.ConstrainedClassifier({"error": ls.at_most(0.7)}),
    ls.NeymanPearsonClassifier(0.2),
]


def dear_misses(y, decision):
    return np.where(y == decision, 0.0, 1.0)


SLOW = [
    ls.ConstrainedClassifier({"error": ls.at_most(0.8)}, kept=0.5),
    ls.ConstrainedClassifier({"accuracy": ls.at_least(0.2)}, promise="training"),
    ls.ConstrainedClassifier({"cost": ReadableConstraint(dear_misses, -np.inf, 0.8)}),
    ls.NeymanPearsonClassifier(promise="training"),
    ls.ConstrainedClassifier(hidden=(8,)),
    ls.ConstrainedClassifier({"error": ls.at_most(0.7)}, hidden=(8,)),
    ls.NeymanPearsonClassifier(0.2, hidden=(8,)),
]


@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning", "ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(QUICK)
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning", "ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(SLOW)
def test_scikit_learn_agrees_on_more(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::lariax.LariaxWarning")
def test_a_constraint_goes_before_class_weights():
    """One of scikit-learn's checks wants nearly all rows in a class of great weight. A bound on the recall of the other
    class says the opposite, and is kept; without it the weights are followed."""
    x, y = make_blobs(centers=2, random_state=0, cluster_std=20)
    weights = {0: 1000, 1: 0.0001}
    free = ls.ConstrainedClassifier(class_weight=weights).fit(x, y)
    assert np.mean(free.predict(x) == 0) > 0.87
    bound = ls.ConstrainedClassifier({"recall": ls.at_least(0.6)}, promise="training", class_weight=weights).fit(x, y)
    assert np.mean(bound.predict(x)[y == 1]) >= 0.6
