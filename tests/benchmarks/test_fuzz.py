"""Random problems whose truth is known: fresh ones each time, from `python -m benchmarks.fuzz`.

A failure names the seed and the case; LARIAX_FUZZ_SEED=... tries the same ones again.
"""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fuzz.draw import TOGETHER, Draw, case_of, linear, shape_of
from benchmarks.fuzz.judge import judged, kkt, solved_exactly
from benchmarks.fuzz.problems import look
from benchmarks.fuzz.run import ended, told

SEED = int(os.environ.get("LARIAX_FUZZ_SEED", time.time_ns() // 1000 % 1_000_000_000))
SHAPES, CASES, DRAWS = 3, 8, 20_000


@pytest.mark.long
def test_answers_and_verdicts_are_right():
    """Of 504 that the project has seen with the present rule none fails. By chance a rate of one in a hundred has more
    than two failures here once in 600 runs."""
    ends = [ended(SEED, shape * TOGETHER + i, DRAWS) for shape in range(SHAPES) for i in range(CASES)]
    failures = [end for end in ends if end.fails]
    words = "\n".join([f"LARIAX_FUZZ_SEED={SEED}", *(told(end, SEED, DRAWS) for end in failures)])
    assert len(failures) <= 2, words


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "number"),
    [(1, 252), (20, 302), (31, 111), (32, 142), (77, 71)],
    ids=[
        "a circle on a simplex",
        "rows across a face",
        "a radius of rounding",
        "a corner",
        "a long valley",
    ],
)
def test_once_wrong_now_right(seed, number):
    end = ended(seed, number)
    assert end.verdict.word == "right", told(end, seed, DRAWS)


@pytest.mark.long
@pytest.mark.parametrize("number", [142, 306])
def test_once_quietly_wrong_now_said(number):
    """One was called infeasible besides, which it is not."""
    end = ended(20, number)
    assert end.verdict.word in ("right", "said not"), told(end, 20, DRAWS)


# --- the judge


@pytest.fixture(scope="module")
def cases():
    """Of two shapes, those whose solution is known."""
    return [case for case in (case_of(3, number) for number in range(2 * TOGETHER)) if case.solution is not None]


def test_known_solutions_are_those_of_slsqp(cases):
    rng, found = np.random.default_rng(0), 0
    for case in cases:
        (stationary, violated), _ = kkt(look(case, case.solution))
        assert max(stationary, violated) < 1e-9
        other = solved_exactly(case, case.solution + 0.3 * rng.standard_normal(case.shape.d))
        if other is not None:  # it does not always come to an end, least of all where rows are degenerate
            found += 1
            np.testing.assert_allclose(other, case.solution, atol=1e-4)
    assert found > len(cases) / 2


def test_linear_programs_end_in_a_corner():
    """Where the rows that bind, and the sides of the set, span the space: a solution that noisy costs do not move."""
    shape = linear(shape_of(np.random.default_rng([3, 0])))
    for number in range(4):
        case = Draw(shape, np.random.default_rng(number), "convex").case()
        here = look(case, case.solution)
        assert np.linalg.matrix_rank(here.jacobian[here.residuals > -1e-9]) == shape.d
        found = solved_exactly(case, case.start)
        np.testing.assert_allclose(found, case.solution, atol=1e-6)


def test_linear_programs_without_end_fall_along_their_direction():
    shape = linear(shape_of(np.random.default_rng([3, 0])))._replace(within="everything")
    draw = Draw(shape, np.random.default_rng(0), "unbounded")
    case, far = draw.case(), draw.v + 1e6 * draw.direction
    assert look(case, far).value < look(case, draw.v).value - 1e5
    assert np.all(look(case, far).residuals <= 1e-6)


def test_judge_knows_right_from_wrong(cases):
    for case in cases[::4]:
        far = case.solution + 1.0
        assert judged(case, "budget", case.solution, 20_000, 0).word == "right"
        assert judged(case, "budget", far, 20_000, 0).word == "WRONG"
        assert judged(case, "infeasible_stationary", far, 20_000, 0).word == "false infeasible"
        assert judged(case, "diverged", far, 20_000, 0).word == "said not"
        assert judged(case, "budget", far, 20_000, 0, doubt="no solution yet").word == "said not"
        assert judged(case, "budget", case.solution, 20_000, 0, doubt="no solution yet").word == "right"


def test_judge_of_points_whose_solution_is_unknown(cases):
    """A nonconvex problem is judged by its KKT conditions: they hold at the solution of a convex one."""
    for case in cases[::4]:
        unknown = replace(case, truth="nonconvex", solution=None)
        assert judged(unknown, "budget", case.solution, 20_000, 0).word == "right"
        assert judged(unknown, "budget", case.solution + 1.0, 20_000, 0).word == "WRONG"


@pytest.mark.parametrize("truth", ["infeasible", "unbounded"])
def test_a_spent_budget_misses_what_has_no_solution(cases, truth):
    hopeless = replace(cases[0], truth=truth, solution=None)
    assert judged(hopeless, "budget", hopeless.start, 20_000, 0).word == "missed"


def test_a_case_depends_on_its_number_alone(cases):
    again = case_of(3, 17)
    np.testing.assert_array_equal(case_of(3, 17).objective.slope, again.objective.slope)
    assert again.shape == case_of(3, 12).shape != case_of(3, 11).shape
