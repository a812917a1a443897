"""The self-tuned rule against closed forms, on plain numbers; and the same numbers from every array library."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lariax.formulas import least_weights, leave_one_out
from lariax.torch import _device
from lariax.tuned import host
from lariax.tuned.averaging import Averaging
from lariax.tuned.constants import LEAST_THETA, MULTIPLIER_LIMIT, REFUSED_THETA
from lariax.tuned.curvature import Curvature, Measurement, is_kinked, measured, secant_bound, within_eigenvalue
from lariax.tuned.filter import Filter, gain, running_mean, updated, variance_of_mean
from lariax.tuned.rates import interval_at, next_refresh, rate_at
from lariax.tuned.rule import Rule, RuleState, Step, row_state
from lariax.tuned.shape import PenaltyShape, ShapeInputs, shape_at, whitened
from lariax.tuned.units import HessianEstimate

JACOBIAN = np.array([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
C0 = np.array([[0.5, -0.2], [0.1, 0.4], [-0.3, 0.1]])
C1 = C0 + np.array([[0.1, 0.0], [0.05, -0.1], [0.1, 0.02]])


def rule_for(inequality, xp=host, array=np.asarray, **choices):
    rows = array(np.asarray(inequality))
    return Rule(
        xp=xp,
        eps=2.0**-52,
        tiny=1e-300,
        inequality=rows,
        least_weights=least_weights(torch if xp is _device else xp, rows),
        has_inequalities=any(inequality),
        partners=leave_one_out,
        **choices,
    )


def state_for(inequality, multipliers=(0.5, 0.3), noise=0.01):
    inputs = ShapeInputs.at_start(np.asarray(inequality), 1.0, 1.0, 0.0, np.zeros(2), 3, False)
    shape = whitened(np, JACOBIAN, np.zeros(2), np.zeros(2), inputs)
    return RuleState(
        constraints=np.array([0.2, -0.1]),
        multipliers=np.asarray(multipliers),
        weights=np.array([0.7, 0.2]),
        gradient_filter=Filter.first(np.float64(noise)),
        constraint_filter=Filter.first(np.full(2, noise)),
        curvature=Curvature.first(np.float64(2.0)),
        theta=np.float64(0.5),
        max_gradient=np.float64(100.0),
        shape=shape,
        coupled=np.float64(1.0),
        diagonal=None,
        backed_off=0.0,
        jumps=0.0,
    )


# --- filters


@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.5])
def test_the_gain_of_a_filter_that_averages(kappa):
    """With Q = kappa alpha^2 R the gain falls as 1 / ((1 - kappa) k)."""
    filter, alpha = Filter.first(4.0), 1.0
    for _ in range(3000):
        filter = filter._replace(drift=kappa * alpha**2 * 4.0)
        alpha = gain(filter)
        filter = updated(filter, alpha, 0.1, noise=4.0, drift=filter.drift, innovation=4.0)
    assert alpha * 3000 * (1 - kappa) == pytest.approx(1.0, rel=0.01)


def test_an_estimate_that_is_lost_is_opened_again():
    filter = Filter(error=1e-6, noise=1.0, drift=0.0, innovation=20.0)
    alpha = gain(filter)
    after = updated(filter, alpha, 0.5, noise=1.0, drift=0.0, innovation=20.0)
    assert after.error == pytest.approx((1 - alpha) ** 2 * 17.0 + alpha**2)  # S - 3 R


def test_rates_are_those_of_a_mean_at_first_and_of_a_window_later():
    assert (rate_at(host, 0), rate_at(host, 40)) == (0.5, 0.1)
    assert rate_at(host, 10_000) == 0.01
    assert [interval_at(host, k) for k in (1, 255, 256, 1024, 4096, 16384)] == [1, 1, 4, 16, 64, 256]
    refreshes = [int(next_refresh(np, k, 4, 8)) for k in (0, 4, 12, 100)]
    assert all((k + 4) % 8 == 0 for k in refreshes)  # at the end of a window
    assert refreshes[-1] == pytest.approx(125, abs=8)


# --- curvature


def seen(dx, difference, noise=0.0):
    length = dx @ dx
    return Measurement(1.0, length, 1.0, difference @ difference, dx @ difference, difference @ difference, noise)


def test_the_curvature_of_a_quadratic():
    """D = H dx along an eigenvector with eigenvalue 3: all running means go there, and the secant bound to 1/3."""
    curvature, dx = Curvature.first(1.0), np.array([0.1, 0.0])
    for _ in range(500):
        curvature = measured(host, curvature, seen(dx, 3 * dx, noise=0.5 * dx @ dx), 0.1, 2.0**-52, 1e-300)
    assert curvature.square == pytest.approx(9.0)
    assert secant_bound(host, curvature, 1e-300) == pytest.approx(1 / 3)
    assert curvature.noise == pytest.approx(0.5)


def test_a_step_that_is_rounding_shows_no_curvature():
    before, dx = Curvature.first(1.0), np.array([1e-14, 0.0])
    assert measured(host, before, seen(dx, 1e6 * dx), 0.1, 2.0**-52, 1e-300) == before


def test_a_jump_is_no_measurement_where_jumps_are_known():
    before = Curvature.first(1.0)._replace(jumps=5.0, path=1.0)
    assert is_kinked(host, before)
    dx = np.array([0.1, 0.0])
    assert measured(host, before, seen(dx, 100 * dx), 0.1, 2.0**-52, 1e-300).square == before.square


def test_the_curvature_is_kept_near_the_largest_eigenvalue():
    met = Curvature.first(1.0)
    assert within_eigenvalue(host, met, 8.0, 1e-300).largest == 4.0
    assert within_eigenvalue(host, met._replace(largest=1e6), 8.0, 1e-300).largest == 80.0
    assert within_eigenvalue(host, met._replace(largest=1e6), 0.0, 1e-300).largest == 1e6


# --- the shape


def test_the_shape_is_the_inverse_of_the_gram_matrix():
    shape = state_for([False, False]).shape
    exact = np.linalg.inv(JACOBIAN @ JACOBIAN.T)
    np.testing.assert_allclose(shape.penalty, exact, rtol=1e-12)
    np.testing.assert_allclose(shape.dual, exact, rtol=1e-12)


def test_no_multiplier_acts_along_dependent_rows():
    rows = np.array([[1.0, 0.0], [1.0, 0.0]])
    inputs = ShapeInputs.at_start(np.zeros(2, bool), 1.0, 1.0, 0.0, np.zeros(2), 2, False)
    shape = whitened(np, rows, np.zeros(2), np.zeros(2), inputs)
    np.testing.assert_allclose(shape.dual @ [1.0, -1.0], 0, atol=1e-12)
    np.testing.assert_allclose(shape.dual @ [1.0, 1.0], [0.5, 0.5], rtol=1e-12)


class Known:
    """A Jacobian that is known exactly, of more rows than are whitened."""

    def __init__(self, matrix):
        self.matrix = matrix

    def empty(self):
        return np.zeros((0, self.matrix.shape[1]))

    def along(self):
        return (self.matrix @ np.random.default_rng(0).normal(size=(self.matrix.shape[1], 8))).T[None]

    def products(self):
        return (lambda v: self.matrix @ v), (lambda w: self.matrix.T @ w)

    def repeat(self, function, vector, times):
        for _ in range(times):
            vector = function(vector)
        return vector


def test_a_shape_from_products_alone_is_stable():
    """M J J^T has no eigenvalue far above 1: each row's size is rather too large than too small."""
    matrix = np.random.default_rng(1).normal(size=(300, 40)) * np.logspace(-3, 3, 300)[:, None]
    inputs = ShapeInputs.at_start(np.zeros(300, bool), 1.0, 1.0, 0.0, np.zeros(300), 2, False)
    shape = shape_at(host, Known(matrix), 300, inputs, None)
    assert shape.penalty.ndim == 1
    root = np.sqrt(shape.penalty)
    assert 0.05 < np.linalg.norm(root[:, None] * matrix, 2) ** 2 < 3


class Rows(Known):
    """A look at a single row: its mean, and how it scatters over 64 samples."""

    def __init__(self, matrix, scatter):
        super().__init__(matrix)
        self.scatter = scatter

    def on_face(self, rows):
        return None

    def jacobian(self):
        return self.matrix, np.array([self.scatter]), 64


def test_a_look_that_misses_the_tail_does_not_make_rows_certain():
    """Where gradients jump, 64 samples may all be on one side: neither the ridge nor the Jacobian goes with them."""
    first, inputs = np.array([[0.3, 0.4]]), ShapeInputs.at_start(np.zeros(1, bool), 1.0, 1.0, 0.1, np.ones(1), 4, True)
    before = shape_at(np, Rows(first, 4.0), 1, inputs, None)
    smooth, kinked = (
        shape_at(np, Rows(0.01 * first, 0.0), 1, inputs._replace(kinked=np.array(it)), before) for it in (False, True)
    )
    np.testing.assert_allclose(smooth.jacobian, 0.01 * first)
    assert np.all(kinked.jacobian > 0.4 * first)
    assert before.penalty[0, 0] < kinked.penalty[0, 0] < 0.1 * smooth.penalty[0, 0]


def test_at_kinks_curvature_comes_from_looks_alone():
    """Jumps over short steps, and single measurements, leave L as it is; a fifth of it goes with each look."""
    rule, s = rule_for([False, False], xp=np, averages=True), state_for([False, False])
    s = s._replace(diagonal=np.ones(3), averaging=Averaging.first(np, np.float64(16.0), s.multipliers))
    curvature = s.curvature._replace(square=1e6, jumps=1e6, path=1.0)
    s = s._replace(curvature=curvature)
    turned = rule.turn(
        s, 50.0, rule.gains(s, 50.0), rule.weigh(row_state(s, np.ones(2), 1.0), C0, C1), Step(1.0, 0.01, 1.0), None
    )
    assert turned.state.curvature.largest == s.curvature.largest
    seen = HessianEstimate(np.ones(3), np.ones(3), np.ones(3), np.float64(11.0))
    looked, _ = rule.rescaled(s, np.ones(3), seen)
    assert looked.curvature.largest == pytest.approx(0.8 * s.curvature.largest + 0.2 * 11.0)


def test_at_kinks_steps_grow_while_averages_are_off_the_constraints():
    """x may come back to its average, and multipliers still be on their way: a chance stood still 15 limits off."""
    rule, s = rule_for([False, True], xp=np, averages=True), state_for([False, True])
    for values, longer in (([0.2, 0.0], True), ([0.0, 0.2], True), ([0.0, -0.2], False), ([1e-3, 0.0], False)):
        found = Averaging(np.float64(16.0), 100.0, 1.0, 0.0, np.array(values), np.zeros(2))
        assert bool(turned(rule, s._replace(averaging=found), k=50.0).state.theta > 0.5) is longer, values


# --- an iteration


def test_weights_come_from_the_other_rows():
    """With alpha = 1 a weight is y + rho (1 + theta) M times the mean of the other values at x+."""
    rule, s = rule_for([False, False]), state_for([False, False])
    found = rule.weigh(row_state(s, np.ones(2), 3.0), C0, C1)
    exact = np.linalg.inv(JACOBIAN @ JACOBIAN.T)
    others = np.stack([C1[[1, 2]].mean(0), C1[[0, 2]].mean(0), C1[[0, 1]].mean(0)])
    np.testing.assert_allclose(found.constraints, C1.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.each_weights, s.multipliers + 3.0 * 1.5 * others @ exact, rtol=1e-12)
    np.testing.assert_allclose(found.multipliers, s.multipliers + 0.5 * 3.0 * exact @ C1.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.noise, C0.var(0, ddof=1) / 3, rtol=1e-12)
    np.testing.assert_allclose(found.drift, (C1 - C0).var(0, ddof=1) / 3, rtol=1e-12)


def test_multipliers_are_bounded_by_the_gradient_of_the_objective():
    rule, s = rule_for([False, False]), state_for([False, False], multipliers=(500.0, 300.0))
    found = rule.weigh(row_state(s, np.ones(2), 3.0), C0, C1)
    assert np.linalg.norm(JACOBIAN.T @ found.multipliers) == pytest.approx(MULTIPLIER_LIMIT * 10.0)


def test_an_inequality_that_does_not_bind_has_no_weight():
    rule = rule_for([True, False])
    s = state_for([True, False], multipliers=(0.0, 0.3))._replace(weights=np.array([0.0, 0.2]))
    row = row_state(s, np.ones(2), 1.0)
    found = rule.weigh(row, C0 - [9.0, 0.0], C1 - [9.0, 0.0])
    assert np.all(found.each_weights[:, 0] == 0)
    assert found.multipliers[0] == 0
    followed, moved = rule.expected_weights(row, C0, C1)
    assert followed[0] == moved[0] == 0
    assert followed[1] != 0.2


def test_lengths():
    """rho = L unless the penalty would press harder than twice the gradient; eta = theta / (L + rho)."""
    rule, s = rule_for([False, False]), state_for([False, False])
    assert rule.lengths(s) == pytest.approx((0.5 / 4.0, 2.0))
    weak = rule.lengths(s._replace(max_gradient=np.float64(1e-4)))
    pressed = np.linalg.norm(JACOBIAN.T @ s.shape.penalty @ s.constraints)
    assert weak.rho == pytest.approx(0.02 / pressed)
    assert rule.lengths(s._replace(max_gradient=np.float64(0.0))).rho == pytest.approx(0.02 * 2.0)
    steep = s._replace(curvature=s.curvature._replace(secant=np.float64(0.0), secant_square=np.float64(1e6)))
    assert rule.lengths(steep).eta == pytest.approx(0.1 / 1e3)
    assert replace(rule, step_size=0.3, penalty=2.0).lengths(s) == (0.3, 4.0)


def test_couplings_that_are_lost_stay_so_until_a_refresh():
    rule, s = rule_for([True, True]), state_for([True, True])
    coupled = s.shape._replace(coupled=np.array([True, True]), penalty=np.full((2, 2), 7.0))
    s = s._replace(shape=coupled)
    assert rule.in_force(s).shape.penalty is coupled.penalty
    rows = rule.weigh(row_state(s, np.ones(2), 1.0), C0, C1)._replace(multipliers=np.array([0.0, 1.0]))
    turned = rule.turn(s, 10, rule.gains(s, 10), rows, Step(1.0, 0.01, 1.0), None)
    learned = rule.learn(s, turned, 0.01, 0.0)
    assert learned.coupled == 0
    assert learned.shape is coupled
    assert rule.in_force(learned).shape.penalty is coupled.uncoupled[0]
    assert rule.refreshed(learned, coupled, 0.0).coupled == 1


def turned(rule, s, k=10, signal=1.0, gradient=1.0, length=1e-4, measurement=None):
    gains = rule.gains(s, k)
    rows = rule.weigh(row_state(s, gains.constraints, 1.0), C0, C1)
    return rule.turn(s, k, gains, rows, Step(gradient, length, signal), measurement)


def test_theta_falls_when_steps_are_noisier_than_what_averaging_leaves():
    rule, s = rule_for([False, False]), state_for([False, False])
    s = s._replace(curvature=s.curvature._replace(noise=np.float64(1e6)))
    calm = s._replace(curvature=s.curvature._replace(noise=np.float64(0.0)))
    quiet = calm._replace(constraint_filter=Filter.first(np.full(2, 1e3)))
    assert turned(rule, s).state.theta == pytest.approx(0.5 * 0.98)
    assert turned(rule, quiet).state.theta == pytest.approx(0.5 * 1.02)
    assert turned(rule, s._replace(theta=np.float64(LEAST_THETA))).state.theta == LEAST_THETA


def test_a_gradient_beyond_reason_and_numbers_that_are_not_finite():
    rule, s = rule_for([False, False]), state_for([False, False])
    found = turned(rule, s, gradient=4.0)
    swing = np.linalg.norm(JACOBIAN.T @ (found.state.weights - s.weights))
    assert found.limit == pytest.approx(10 * (2.0 + 0.1 + swing))
    assert found.explained == pytest.approx(2.0 * 0.01 + swing)
    assert turned(rule, s, gradient=np.nan).limit == -1
    with np.errstate(all="ignore"):
        assert turned(rule, s._replace(constraints=np.array([np.inf, 0.0]))).limit == -1


def test_a_jump_is_an_error_of_the_estimate():
    rule, s = rule_for([False, False]), state_for([False, False], noise=1e-4)
    found = turned(rule, s)
    plain, jumped = (rule.learn(s, found, 1e-4, change) for change in (0.0, (11 * found.explained) ** 2))
    kept = 1 - found.gain
    more = jumped.gradient_filter.error - plain.gradient_filter.error
    assert more == pytest.approx(kept**2 * (11 * found.explained) ** 2)
    assert (plain.jumps, jumped.jumps) == (0, 1)
    assert jumped.curvature.jumps == pytest.approx(11 * found.explained)


def test_a_refused_step_makes_the_next_one_shorter():
    rule, s = rule_for([False, False]), state_for([False, False])
    after = rule.back_off(s)
    assert after.theta == 0.125
    assert after.backed_off == 1
    assert rule.back_off(s._replace(theta=np.float64(2e-8))).theta == REFUSED_THETA


def test_with_one_backward_pass_the_mean_does_not_lag():
    rule, s = rule_for([False, False], one_backward=True), state_for([False, False])
    s = s._replace(gradient_filter=s.gradient_filter._replace(error=1e-9))
    assert rule.gains(s._replace(theta=np.float64(0.1)), 10).gradient == pytest.approx(0.4)
    assert turned(rule, s, k=10**6).state.theta == pytest.approx((1 + 10**4) ** (-2 / 3))


# --- the same numbers everywhere


@pytest.mark.parametrize("inequality", [(False, False), (True, False)])
def test_every_array_library_gives_the_same(inequality):
    s = state_for(inequality)
    rule = rule_for(inequality)
    exact = rule.weigh(row_state(s, np.full(2, 0.3), 3.0), C0, C1)
    for xp, array in ((jnp, jnp.asarray), (_device, lambda part: torch.tensor(np.array(part)))):
        other = rule_for(inequality, xp, array)
        shape = PenaltyShape(*(array(part) if isinstance(part, np.ndarray) else part for part in s.shape))
        row = row_state(s._replace(shape=shape), np.full(2, 0.3), 3.0)
        row = type(row)(*(array(part) if not isinstance(part, tuple) else part for part in row))
        for a, b in zip(other.weigh(row, array(C0), array(C1)), exact, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12, atol=1e-15)


def test_the_numbers_of_a_state_are_turned_alike_in_jax():
    s, measurement = state_for([True, False]), Measurement(0.02, 1e-4, 1.0, 3e-4, 1e-4, 2e-4, 1e-5)
    here = turned(rule_for([True, False]), s, measurement=measurement)
    there = turned(rule_for([True, False], jnp, jnp.asarray), s, k=jnp.asarray(10.0), measurement=measurement)
    for a, b in ((here.limit, there.limit), (here.explained, there.explained), (here.gain, there.gain)):
        assert float(b) == pytest.approx(float(a), rel=1e-12)
    for name in ("theta", "weights", "multipliers", "constraint_filter", "gradient_filter", "curvature"):
        a, b = getattr(here.state, name), getattr(there.state, name)
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-12)


def test_running_mean_and_variance():
    assert running_mean(1.0, 3.0, 0.25) == 1.5
    np.testing.assert_allclose(variance_of_mean(np, C0), C0.var(0, ddof=1) / 3)
