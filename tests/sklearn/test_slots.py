"""A row of weight 2 is two rows, for networks too, whose batches are drawn."""

import numpy as np
import pytest
from sklearn.datasets import make_classification

import lariax.sklearn as ls
from lariax.sklearn._slots import slots


def test_a_row_of_weight_2_is_two_rows_for_a_network():
    x, y = make_classification(90, n_features=4, random_state=0)
    sex, weight = np.tile(["f", "m"], 45), np.tile([1, 3, 2], 30)
    repeated = np.random.default_rng(0).permutation(np.repeat(np.arange(90), weight))
    limits = {"recall": ls.at_least(0.8), "selection_rate": ls.gap(0.2, by="sex")}
    weighted, plain = (
        ls.ConstrainedClassifier(limits, hidden=(8,), promise="training", random_state=0).fit(
            x[some], y[some], sample_weight=own, sensitive_features={"sex": sex[some]}
        )
        for some, own in ((np.arange(90), weight), (repeated, None))
    )
    assert weighted.status_ == plain.status_ == "met"
    np.testing.assert_allclose(weighted.decision_function(x), plain.decision_function(x), rtol=1e-9)


@pytest.mark.parametrize("most", [1.0, 7.0])
def test_slots_hold_every_row_with_its_weight(most):
    random = np.random.default_rng(0)
    x, weight = random.integers(0, 3, (200, 2)) * 1.0, random.uniform(0.5, most, 200)
    found = slots(weight, x)
    kinds = {tuple(row) for row in x}
    assert {tuple(row) for row in x[found.index]} == kinds
    own = found.weights(weight)
    assert own.max() <= weight.sum() / len(kinds) * (1 + 1e-9)
    for kind in kinds:
        assert own[np.all(x[found.index] == kind, axis=1)].sum() == pytest.approx(
            weight[np.all(x == kind, axis=1)].sum()
        )
    order = random.permutation(200)
    np.testing.assert_array_equal(x[order][slots(weight[order], x[order]).index], x[found.index])
