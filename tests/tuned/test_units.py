"""The answer does not depend on the units in which x, the rows and the objective are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from benchmarks.suite.problems import by_name
from benchmarks.suite.units import Units, in_units

import lariax as lx
import lariax.torch as lt
from lariax.problem import probes, units
from lariax.tuned.shape import ShapeInputs, average_jacobian, whitened
from lariax.tuned.units import (
    HessianEstimate,
    average_diagonal,
    balanced,
    diagonal_of,
    first_scales,
    growth,
    most_growth,
    unit_change,
)

TARGET = jnp.array([2.0, 3.0])


def in_scales(scales):
    """Minimise .5 ||x/S - (2, 3)||^2 with sum x/S <= 4: x/S = (1.5, 2.5), multiplier 0.5."""
    scales = jnp.asarray(scales)
    return lx.Problem(
        lambda x, z: 0.5 * jnp.sum((x / scales - TARGET - 0.1 * z) ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
        constraints={"sum": lx.AtMost(lambda x, z: jnp.sum(x / scales) + 0.1 * z[0], 4.0)},
    )


@pytest.mark.long_but("scales0")
@pytest.mark.parametrize("scales", [(1e-2, 1e2), (1e3, 1e-3)])
def test_unequal_units(scales):
    """The error's deviation is 0.001 here: ten of them."""
    result = lx.solve(in_scales(scales), jnp.zeros(2), iterations=10_000)
    np.testing.assert_allclose(result.x / jnp.asarray(scales), [1.5, 2.5], atol=0.01)
    assert float(result.multipliers["sum"]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.long
def test_units_that_are_powers_of_two_change_no_bit():
    first, second = (
        lx.solve(in_scales(scales), jnp.zeros(2), iterations=300).x / jnp.asarray(scales)
        for scales in ((1.0, 1.0), (2.0**12, 2.0**-9))
    )
    np.testing.assert_allclose(first, second, rtol=1e-12)


def test_unequal_units_in_torch():
    torch.manual_seed(0)
    scales = torch.tensor([1e-2, 1e2], dtype=torch.float64)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(z):
        loss = 0.5 * ((x / scales - torch.tensor([2.0, 3.0]) - 0.1 * z) ** 2).sum(dim=1)
        return loss, {"sum": (x / scales).sum() + 0.1 * z[:, 0]}

    opt = lt.TrackedLagrangian([x], {"sum": lt.AtMost(4.0)})
    for _ in range(1500):
        opt.step(closure, torch.randn(8, 2, dtype=torch.float64))
    np.testing.assert_allclose((x.detach() / scales).numpy(), [1.5, 2.5], atol=0.02)


@pytest.mark.long
def test_a_problem_of_the_suite_in_other_units():
    """Objective, rows and 50 variables multiplied by powers of ten between 1e-6 and 1e6."""
    case = by_name("toy50")
    drawn = Units.drawn(case, seed=3)
    errors = []
    for problem, scales in ((case, 1.0), (in_units(case, drawn), drawn.x)):
        result = lx.solve(problem.problem, problem.x0, lx.TrackedLagrangian(), iterations=2_000, batch_size=2)
        errors.append(float(jnp.linalg.norm(case.constraints(result.x / scales))))
    assert max(errors) < 0.03  # ten times the limit


# --- the formulas


def hessian(size, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size))
    return root @ root.T / size + np.eye(size)


@pytest.mark.parametrize("size", [3, 40])
def test_scales_undo_any_units(size):
    matrix, factors = hessian(size), 10.0 ** np.random.default_rng(1).uniform(-3, 3, size)

    def scales_for(bent):
        scales = first_scales(np, np.diag(bent))
        for _ in range(4):
            now = scales[:, None] * bent * scales
            seen = diagonal_of(np, probes(size), probes(size) @ now, np.linalg.norm(now, ord=2))
            scales = balanced(
                np, scales, HessianEstimate(seen, scales**2 * np.diag(bent), scales**2 * np.diag(bent) / 2, 0.0)
            )
        return scales

    plain, other = scales_for(matrix), scales_for(matrix / factors[:, None] / factors)
    ratio = other / plain / factors
    np.testing.assert_allclose(ratio / ratio[0], 1, rtol=1e-6)
    bent = plain[:, None] * matrix * plain
    assert np.diag(bent).max() < 4 * np.diag(bent).min()


def test_an_axis_that_leans_on_all_others_is_not_slowed_down_for_it():
    """As an intercept beside features that are 0 or 1: its row is long, its own curvature is not."""
    matrix = np.eye(41)
    matrix[0, 1:] = matrix[1:, 0] = 0.15
    probe = probes(41)
    seen = diagonal_of(np, probe, probe @ matrix, np.linalg.norm(matrix, ord=2))
    assert np.linalg.norm(matrix[0]) > 1.35
    np.testing.assert_allclose(seen, 1, atol=0.3)
    np.testing.assert_allclose(diagonal_of(np, np.eye(41), matrix, np.linalg.norm(matrix, ord=2)), 1)


def test_curvature_that_is_rounding_is_none():
    scales = balanced(np, np.ones(4), HessianEstimate(np.array([1.0, 1.0, 1e-18, 0.0]), np.ones(4), np.ones(4), 1.0))
    np.testing.assert_allclose(scales, 1)
    noise = np.array([0.1, 1e-30, 1e-31, 1e-32])
    few = balanced(np, np.ones(4), HessianEstimate(np.ones(4), np.ones(4), noise, 1.0))
    np.testing.assert_allclose(few, 1, err_msg="noise that is rounding is none either")


def test_scales_change_only_where_they_are_far_off():
    free = np.zeros(5, bool)
    np.testing.assert_array_equal(unit_change(np, np.array([1.0, 2.0, 0.5, 0.0, 1.0]), free), 1)
    changed = unit_change(np, np.array([1.0, 1.0, 1.0, 1.0, 1e-8]), free)
    assert changed[4] == 2
    assert np.all(changed[:4] <= 1)
    assert unit_change(np, np.array([1.0, 1.0, 1.0, 1.0, 1e8]), free)[4] < 1 / 16


def test_at_kinks_scales_follow_more_closely_and_not_at_once():
    free, kinked = np.zeros(5, bool), np.array(True)
    changed = unit_change(np, np.array([1.0, 1.0, 1.0, 3.0, 1.0]), free, kinked)
    np.testing.assert_allclose(changed, [1, 1, 1, 2**-0.5, 1])
    assert unit_change(np, np.array([1.0, 1.0, 1.0, 1.0, 1e8]), free, kinked)[4] == 0.5
    steep = np.array([1.0, 1.0, 1.0, 1.0, 1e8])
    np.testing.assert_array_equal(unit_change(np, steep, free, ~kinked), unit_change(np, steep, free))


def test_a_bound_that_holds_an_entry_limits_its_scale():
    """A constraint pulls 1e3 times as much at the last entry, which is held, as at all others: as much is left, rounded
    to a power of 2, whatever its curvature; and it does not count for what is usual."""
    held, rows = np.array([False, False, True]), np.array([[3.0, 4.0, 5e3], [0.0, 0.0, 7.0]])
    np.testing.assert_array_equal(most_growth(np, rows, held), [np.inf, np.inf, 2.0**-10])
    np.testing.assert_array_equal(most_growth(np, rows, ~held & False), np.inf)
    np.testing.assert_array_equal(unit_change(np, np.array([1.0, 1.0, 1e-8]), held), [1, 1, 2])
    np.testing.assert_array_equal(unit_change(np, np.ones(3), ~held | held), 1)


FLAT, STEEP_IN = 1e-4, 3.0


def test_a_flat_variable_at_its_bound_holds_nothing_up():
    """min (x0 - 10)^2 / 2 + 1e-4 x1^2 / 2 + 1e-3 x1 with x0 + 3 x1 <= 1 and x >= 0 ends at (1, 0), multiplier 9. In
    units of its curvature the second variable is what the constraint is about, and it cannot move."""
    problem = lx.Problem(
        lambda x, z: 0.5 * (x[0] - 10 - 0.1 * z[0]) ** 2 + 0.5 * FLAT * x[1] ** 2 + 1e-3 * x[1],
        samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
        constraints={"row": lx.AtMost(lambda x, z: x[0] + STEEP_IN * x[1] + 0.1 * z[1], 1.0)},
        within=lx.sets.Box(jnp.zeros(2), jnp.full(2, 20.0)),
    )
    result = lx.solve(problem, jnp.zeros(2), iterations=2_000, batch_size=2)
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=0.02)
    assert float(result.multipliers["row"]) == pytest.approx(9, abs=0.02)


def test_a_flat_variable_at_its_bound_in_torch():
    torch.manual_seed(0)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(z):
        loss = 0.5 * (x[0] - 10 - 0.1 * z[:, 0]) ** 2 + 0.5 * FLAT * x[1] ** 2 + 1e-3 * x[1]
        return loss, {"row": x[0] + STEEP_IN * x[1] + 0.1 * z[:, 1]}

    opt = lt.TrackedLagrangian([{"params": [x], "within": lx.sets.Box(0.0, 20.0)}], {"row": lt.AtMost(1.0)})
    for _ in range(600):
        opt.step(closure, torch.randn(8, 2, dtype=torch.float64))
    np.testing.assert_allclose(x.detach().numpy(), [1.0, 0.0], atol=0.02)


def test_an_entry_that_no_look_shows_keeps_its_scale():
    """A feature that is always 0, or was in all of the looks: its scale does not grow, nor do errors with it."""
    before, seen = np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 0.0])
    diagonal = before
    for _ in range(100):
        diagonal = average_diagonal(np, diagonal, seen)
    np.testing.assert_allclose(diagonal, [1.0, 2.0, 1.0], rtol=1e-4)
    noise, curvature = growth(np, np.array([1.0, 1.0, 1e6]), HessianEstimate(seen, seen, 0 * seen, 2.0))
    assert noise == curvature == 1


def test_whose_unit_is_whose():
    free, tied = np.full(3, -1), np.array([0, 0])
    np.testing.assert_array_equal(units([(3,)], [free]), [0, 1, 2])
    assert len(set(units([(3,), (2,)], [free, tied]))) == 4
    assert units([(2,)], [tied]) is None
    assert units([(3,), (2, 2)], [free, np.full((2, 2), -1)]) is None, "weights of a model have one unit"
    assert units([(5000,)], [np.full(5000, -1)]) is None
    assert units([(1, 3)], [free[None]]) is not None, "a matrix with one row is a vector"


def test_a_product_ties_the_parts_that_its_sets_tie():
    x = {"mix": np.zeros(2), "rest": np.zeros(2), "whole": np.zeros(2)}
    sets = {"mix": lx.sets.Simplex(), "rest": lx.sets.NonNegative(), "whole": lx.sets.Simplex()}
    tied = lx.sets.Product(sets).tied(x)
    assert np.all(tied["rest"] == -1)
    assert len({int(tied["mix"][0]), int(tied["whole"][0])}) == 2


def test_a_row_that_few_samples_show_is_not_lost():
    """A look without a sample of a rare class, and then looks that are as noisy as a few of them are."""
    inputs = ShapeInputs.at_start(np.array([True]), 1.0, 1.0, 0.1, np.array([0.1]), 8, False)
    shape = whitened(np, np.ones((1, 3)), np.array([0.5]), np.array([4.0]), inputs)
    kept, error = average_jacobian(np, shape, np.zeros((1, 3)), np.zeros(1))
    np.testing.assert_array_equal(kept, shape.jacobian)
    assert error == shape.variance
    nothing = shape._replace(jacobian=np.zeros((1, 3)), variance=np.zeros(1))
    np.testing.assert_array_equal(average_jacobian(np, nothing, np.ones((1, 3)), np.full(1, 5.0))[0], 1)


def test_an_entry_that_only_constraints_pull_at_has_the_smallest_unit():
    """Without slope, noise and curvature of its own, beside one that is curved: there is nothing to divide by."""
    seen = HessianEstimate(
        diagonal=np.array([4.0, 0.0]),
        slopes=np.array([1.0, 0.0]),
        noise=np.array([0.1, 0.0]),
        largest=4.0,
        pull=np.array([0.5, 0.5]),
    )
    np.testing.assert_array_equal(balanced(np, np.ones(2), seen), [1.0, 1.0])


def test_a_variable_that_the_objective_does_not_know_is_found_through_a_constraint():
    """min ||s||^2 / 2 with E[b - 2 + z] = s, as in the method of moments: b = 2, s = 0."""
    problem = lx.Problem(
        lambda x, z: 0.5 * jnp.sum(x["s"] ** 2),
        samples=lx.Distribution(lambda key: jax.random.normal(key, ())),
        constraints={"moment": lx.Equal(lambda x, z: x["b"] - 2 + 0.1 * z - x["s"])},
    )
    result = lx.solve(problem, {"b": jnp.array(0.0), "s": jnp.array(1.0)}, iterations=3_000)
    assert abs(float(result.x["b"]) - 2) < 0.02
    assert abs(float(result.x["s"])) < 0.02
