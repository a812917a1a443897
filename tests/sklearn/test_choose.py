"""Which model and threshold are taken, as far as the rows can tell them apart."""

import numpy as np

from lariax.sklearn._choose import Judged, Sweep


def sweep(shifts, costs):
    return Sweep(np.asarray(shifts), np.zeros((1, len(shifts))), np.asarray(costs, float))


def judged(sweeps, margins):
    """Rows are wrong one after another, so that two candidates differ by as many rows as their costs."""
    costs = [dict(zip(one.shifts, one.cost, strict=True)) for one in sweeps]

    def losses(model, shift):
        return (np.arange(1000) < costs[model][shift]).astype(float)

    return Judged(sweeps, [np.asarray(one, float) for one in margins], losses=losses)


def test_a_threshold_is_moved_to_the_side_on_which_it_is_cheapest():
    """Nearly everybody or nearly nobody keeps a gap; the nearer one of the two may cost much more."""
    plain = sweep([-1.0, 0.0, 1.2, 1.3], [404, 300, 401, 400])
    found = judged([plain], [[3, -5, 3, 3]]).at(2.0)
    assert found.shift == 1.2  # as good as 1.3, and nearer


def test_a_model_that_costs_clearly_less_is_taken():
    plain, trained = sweep([0.0, 1.0], [300, 500]), sweep([0.0], [400])
    assert judged([plain, trained], [[-5, 3], [3]]).at(2.0).model == 1
