"""Many noisy inequalities: the answer is as near to the exact solution as the samples permit, and no verdict is false.

A few of `python -m benchmarks.polytopes`, and what that benchmark stands on: exact solutions and statistical limits.
"""

import numpy as np
import pytest
from benchmarks.polytopes.cases import CASES
from benchmarks.polytopes.reference import limit, looked, solve
from benchmarks.polytopes.run import WORST, scored
from scipy.optimize import minimize

DRAWS, SEEDS = 20_000, 3


@pytest.mark.long_but("12-gon, corner")
@pytest.mark.parametrize(
    "name",
    [
        "12-gon, corner",
        "12-gon, side",
        "12-gon, target on a side",
        "random 40x10a",
        "vertex, 20 of 40 rows meet in 10",
        "rows twice",
        "pairs tilted by 0.1",
        "bands of 0.05 in one constraint",
        "scales 1e-3 to 1e3, 40 rows",
        "variables in units 0.01 to 100, 40 rows",
    ],
)
def test_is_as_near_as_samples_permit(name):
    """The rms distance of three seeds from the solution is at most 2 limits. A method at the limit exceeds that with
    probability 5e-4 in 2 dimensions (chi-square of 6 degrees of freedom above 24), and 1e-7 in 5 and more."""
    score = scored(CASES[name](), [DRAWS], SEEDS)
    assert not score.wrong
    assert score.rms(DRAWS) <= 2
    assert score.worst(DRAWS) <= WORST


# --- the reference


def some(*names):
    return pytest.mark.parametrize("case", [CASES[name]() for name in names], ids=names)


@some(
    "12-gon, corner", "random 25x10a", "simplex, 10 rows", "box, 25 rows", "3 equalities, 25 rows", "log cosh, 25 rows"
)
def test_exact_solution_is_that_of_slsqp(case):
    rows, bound, equal = case.system()
    found = minimize(
        lambda x: looked(case, x)[0],
        np.asarray(case.x0),
        jac=lambda x: looked(case, x)[1],
        constraints=[
            {"type": "eq", "fun": lambda x: (rows @ x - bound)[equal], "jac": lambda x: rows[equal]},
            {"type": "ineq", "fun": lambda x: (bound - rows @ x)[~equal], "jac": lambda x: -rows[~equal]},
        ][not equal.any() :],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(solve(case).x, found.x, atol=1e-6)


def test_limit_is_known_in_the_open_and_at_a_corner():
    """Inside, averages err by the noise of the gradient alone; at a corner, by that of the two rows. A limit of 200
    averages in 2 dimensions has a standard error of 4 %; 20 % are five: a false alarm in 1e6."""
    inside, corner = CASES["12-gon, inside"](), CASES["12-gon, corner"]()
    assert limit(inside, solve(inside), 1e4) == pytest.approx(0.1 * np.sqrt(2) / 100, rel=0.2)
    rows = corner.blocks[0].matrix[1:3]  # at 30 and 60 degrees
    known = 0.1 * np.sqrt(np.trace(np.linalg.inv(rows.T @ rows))) / 100
    assert limit(corner, solve(corner), 1e4) == pytest.approx(known, rel=0.2)


def test_limit_at_a_weak_side_is_that_of_a_half_line():
    """Where the target is on a side, an average's solution is min(gradient noise, row noise) across it: no linearised
    limit knows that."""
    case = CASES["12-gon, target on a side"]()
    rng = np.random.default_rng(0)
    across = np.minimum(*(0.1 * rng.standard_normal((2, 100_000))))
    known = np.sqrt(np.mean(across**2) + 0.1**2) / 100
    assert limit(case, solve(case), 1e4) == pytest.approx(known, rel=0.2)
