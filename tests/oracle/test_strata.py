"""Pairs of samples from strata of their own have no bias: expectations over all batches that can be drawn."""

from itertools import permutations, product

import numpy as np
import pytest

from lariax.formulas import leave_one_out, repelled, same_stratum

LEFT = np.array([[1.0, 4.0, -2.0], [10.0, 11.0, 15.0]])  # two strata of three rows whose means differ
RIGHT = np.array([[3.0, -1.0, 0.5], [-7.0, 2.0, -4.0]])
EXACT = LEFT.mean() * RIGHT.mean()


def batches(count, replacement):
    """All batches with `count` rows of each stratum, one stratum after the other."""
    each = product(range(3), repeat=count) if replacement else permutations(range(3), count)
    each = list(each)
    for first, second in product(each, each):
        rows = [*((0, i) for i in first), *((1, i) for i in second)]
        yield np.array([LEFT[row] for row in rows]), np.array([RIGHT[row] for row in rows])


def mean_product(count, replacement, partners):
    return np.mean([np.mean(left * partners(right)) for left, right in batches(count, replacement)])


@pytest.mark.parametrize("count", [2, 3])
def test_pairs_with_replacement(count):
    assert mean_product(count, True, lambda own: leave_one_out(own, 2)) == pytest.approx(EXACT, rel=1e-12)
    assert abs(mean_product(count, True, leave_one_out) - EXACT) > 1  # the pairs of one batch without strata


@pytest.mark.parametrize("count", [2, 3])
def test_pairs_without_replacement(count):
    def partners(own):
        return repelled(leave_one_out(own, 2), own, 6, same_stratum(own, 2, without_own=True))

    assert mean_product(count, False, partners) == pytest.approx(EXACT, rel=1e-12)
    assert abs(mean_product(count, False, lambda own: leave_one_out(own, 2)) - EXACT) > 0.1


def test_two_copies_without_replacement():
    """The first row of each stratum, with the mean of the others as partner."""
    found = []
    for left, right in batches(3, False):
        own, other = right[[0, 3]], right[[1, 2, 4, 5]]
        mean = np.full(2, other.mean())
        found.append(np.mean(left[[0, 3]] * repelled(mean, own, 6, same_stratum(other, 2, without_own=False)[[0, 2]])))
    assert np.mean(found) == pytest.approx(EXACT, rel=1e-12)
    assert leave_one_out(RIGHT[0]) == pytest.approx(leave_one_out(RIGHT[0], 1))
