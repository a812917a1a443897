"""Which model and threshold are taken, as far as the rows can tell them apart."""

import numpy as np

from lariax.sklearn._choose import JudgedModels, Sweep
from lariax.sklearn._linear import LinearModel
from lariax.sklearn._pool import model_at, scores_at


def sweep(shifts, costs):
    return Sweep(np.asarray(shifts), np.zeros((1, len(shifts))), np.asarray(costs, float))


def judged(sweeps, margins, constants=()):
    """Rows are wrong one after another, so that two candidates differ by as many rows as their costs."""
    costs = [dict(zip(one.shifts, one.cost, strict=True)) for one in sweeps]

    def losses(model, shift):
        return (np.arange(1000) < costs[model][shift]).astype(float)

    return JudgedModels(sweeps, [np.asarray(one, float) for one in margins], losses=losses, constants=constants)


def test_a_threshold_is_moved_to_the_side_on_which_it_is_cheapest():
    """Nearly everybody or nearly nobody keeps a gap; the nearer one of the two may cost much more."""
    plain = sweep([-1.0, 0.0, 1.2, 1.3], [404, 300, 401, 400])
    found = judged([plain], [[3, -5, 3, 3]]).at(2.0)
    assert found.shift == 1.2  # as good as 1.3, and nearer


def test_a_model_that_costs_clearly_less_is_taken():
    plain, trained = sweep([0.0, 1.0], [300, 500]), sweep([0.0], [400])
    assert judged([plain, trained], [[-5, 3], [3]]).at(2.0).model == 1


def test_the_least_constrained_of_trained_models_is_taken():
    """A model that was trained for more, and by luck costs less, is no reason to leave the line."""
    plain = sweep([0.0], [300])
    trained = [sweep([0.0], [cost]) for cost in (400, 404, 402)]
    found = judged([plain, *trained], [[-5], [1.5], [2.5], [3.5]])
    assert [found.at(level).model for level in (1.0, 2.0, 3.0)] == [1, 2, 3]


def test_which_order_is_taken_does_not_depend_on_the_margin():
    """Where both keep the bounds the plain model is as good as the trained one; beyond, it costs a little more."""
    plain, trained = sweep([0.0, 1.0, 2.0], [300, 390, 480]), sweep([0.0, 0.5], [391, 440])
    found = judged([plain, trained], [[-5, 1, 2], [1, 2]])
    assert [found.at(level).model for level in (0.0, 1.0, 2.0)] == [0, 0, 0]


def test_between_two_models_is_another():
    one, two = (LinearModel(np.full((2, 1), k), np.full(1, k), np.zeros(1), np.zeros(1), 1.0, 5) for k in (1.0, 3.0))
    x = np.asarray([[1.0, 2.0], [0.0, -1.0]])
    model = model_at([one, two], 0.25)
    np.testing.assert_allclose(model.scores(x), scores_at([one.scores(x), two.scores(x)], 0.25))
    np.testing.assert_allclose(model.coef, 1.5)
    assert model_at([one, two], 1.0) is two


def test_a_model_that_keeps_the_bound_is_left_as_it_is():
    """However much more margin there is far away, where nearly everybody is let through."""
    plain = sweep([0.0, 1.0, 2.0, 3.0], [300, 310, 340, 500])
    assert judged([plain], [[2.2, 1.0, 1.5, 6.0]]).at(2.0).shift == 0.0


def test_a_bound_may_cost_several_times_as_much_where_the_plain_model_is_hardly_ever_wrong():
    """3 rows wrong without the bound and 20 with it; only what is as bad as a constant decision is of no use."""
    plain = sweep([0.0, 1.0, 2.0], [3, 20, 400])
    margins = [[-4, 2.5, 9.0]]
    assert judged([plain], margins, constants=(400, 600)).at(2.0).shift == 1.0
    assert judged([plain], margins, constants=(400, 600)).safest == 2.5
    assert judged([plain], margins, constants=(22, 600)).safest == -4.0
