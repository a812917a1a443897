"""Wrong input is refused before anything is compiled, and the text says what was found and what to do."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds

import lariax as lx
from conftest import normal

X = jnp.zeros(2)
PLANE = normal(2)


def fine(x, z):
    return jnp.sum((x - z) ** 2)


def problem(objective=fine, samples=PLANE, **more):
    return lx.Problem(objective, samples=samples, **more)


def solve(p=None, x0=X, **more):
    return lx.solve(p or problem(), x0, **({"iterations": 5} | more))


WRONG = {
    "objective is no function": (lambda: problem(3.0), TypeError, "must be a function"),
    "objective is a vector": (lambda: solve(problem(lambda x, z: x)), ValueError, r"one number.*float64\(2,\)"),
    "objective is an integer": (lambda: solve(problem(lambda x, z: 1)), ValueError, "one number"),
    "bare array as samples": (lambda: problem(samples=np.ones(3)), TypeError, "Wrap arrays in lx.Dataset"),
    "bare array as heldout": (lambda: problem(heldout=np.ones(3)), TypeError, "heldout= takes a source"),
    "sampler is no function": (lambda: lx.Distribution(3), TypeError, "random key"),
    "stream of nothing": (lambda: lx.Stream(3), TypeError, "iterable of batches"),
    "empty stream": (lambda: solve(problem(samples=lx.Stream([]))), ValueError, "ended before its first row"),
    "rows of unequal length": (lambda: lx.Dataset({"a": np.ones(3), "b": np.ones(4)}), ValueError, r"\['a'\] \(3,\)"),
    "no rows": (lambda: lx.Dataset(np.ones((0, 3))), ValueError, "at least one row"),
    "NaN in the data": (lambda: lx.Dataset({"a": np.array([1.0, np.nan])}), ValueError, r"nan in \['a'\] at row 1"),
    "text in the data": (lambda: lx.Dataset(np.array(["a", "b"])), TypeError, "arrays of numbers"),
    "labels of the wrong length": (lambda: lx.Stratified(np.ones(3), by=[1, 2]), ValueError, r"shape \(3,\)"),
    "constraint without a name": (
        lambda: problem(constraints={1: lx.Equal(fine)}),
        TypeError,
        "named by strings",
    ),
    "bare function as constraint": (lambda: problem(constraints={"c": fine}), TypeError, r"lx.Equal\(fun\)"),
    "bound in the function's place": (lambda: lx.AtMost(0.5), TypeError, r"AtMost\(fun, bound\)"),
    "constraint without a function": (lambda: problem(constraints={"c": lx.Equal()}), ValueError, "Problem.joint"),
    "constraint samples of the wrong type": (lambda: lx.Equal(fine, samples=3), TypeError, "takes a source"),
    "shared samples that are not there": (
        lambda: lx.Problem(lambda x: x @ x, constraints={"c": lx.Equal(fine)}),
        ValueError,
        "samples=None",
    ),
    "constraint is a matrix": (
        lambda: solve(problem(constraints={"c": lx.Equal(lambda x, z: jnp.ones((2, 2)))})),
        ValueError,
        r"a number or a vector.*float64\(2, 2\)",
    ),
    "bound of the wrong length": (
        lambda: solve(problem(constraints={"c": lx.AtMost(lambda x, z: x, jnp.zeros(3))})),
        ValueError,
        r"returns shape \(2,\), but its bound has shape \(3,\)",
    ),
    "infinite bound": (
        lambda: solve(problem(constraints={"c": lx.AtMost(lambda x, z: x, np.inf)})),
        ValueError,
        "bound of constraint 'c' holds inf",
    ),
    "joint function without a dictionary": (
        lambda: solve(lx.Problem.joint(fine, samples=normal(2), constraints={"c": lx.Equal()})),
        TypeError,
        r"return \(loss, \{name: value",
    ),
    "joint function with other names": (
        lambda: solve(
            lx.Problem.joint(
                lambda x, z: (fine(x, z), {"gpa": x[0]}), samples=normal(2), constraints={"gap": lx.Equal()}
            )
        ),
        ValueError,
        r"no value for the constraints \['gap'\]; it returns \['gpa'\]",
    ),
    "joint constraint with its own samples": (
        lambda: lx.Problem.joint(
            lambda x, z: (fine(x, z), {"c": x[0]}), samples=normal(2), constraints={"c": lx.Equal(samples=normal(2))}
        ),
        ValueError,
        "cannot have samples= of its own",
    ),
    "set is not a set": (lambda: problem(within=(0, 1)), TypeError, "lariax.sets"),
    "a dict of sets": (lambda: problem(within={"x": lx.sets.Box(0, 1)}), TypeError, "found dict.*sets.Product"),
    "set and regulariser": (
        lambda: problem(within=lx.sets.Simplex(), regularizer=lx.prox.L1(0.1)),
        ValueError,
        "no proximal map",
    ),
    "set that does not fit": (lambda: solve(problem(within=lx.sets.PSDCone())), ValueError, "does not fit"),
    "integers as x0": (lambda: solve(x0=jnp.zeros(2, int)), TypeError, r"x0 must be of floating point, found int"),
    "integer leaf": (lambda: solve(x0={"a": 0.0, "b": 1}), TypeError, r"x0\['b'\] must be of floating point"),
    "no numbers": (lambda: solve(x0={}), ValueError, "holds no numbers"),
    "NaN in x0": (lambda: solve(x0=np.array([0.0, np.nan])), ValueError, r"nan at index \(1,\)"),
    "NaN objective at x0": (
        lambda: solve(problem(lambda x, z: jnp.log(x[0] - 1.0) + z[0])),
        ValueError,
        "the objective is not finite at x0",
    ),
    "NaN constraint at x0": (
        lambda: solve(problem(constraints={"ratio": lx.Equal(lambda x, z: z[0] / x[0])})),
        ValueError,
        "constraint 'ratio' is not finite at x0",
    ),
    "NaN gradient at x0": (
        lambda: solve(problem(lambda x, z: jnp.linalg.norm(x) + z[0])),
        ValueError,
        "a gradient is not finite at x0",
    ),
    "no budget": (lambda: lx.solve(problem(), X), ValueError, "iterations=, draws= or seconds="),
    "negative budget": (lambda: solve(iterations=-5), ValueError, "positive integer below 2\\^31, found -5"),
    "fractional budget": (lambda: solve(iterations=1.5), ValueError, "positive integer"),
    "no time": (lambda: solve(seconds=0), ValueError, "seconds must be positive"),
    "unknown option": (lambda: solve(iteratons=5), TypeError, "Did you mean 'iterations'"),
    "unknown option of resume": (lambda: lx.resume("runs/a", secnds=5), TypeError, "resume.*Did you mean 'seconds'"),
    "draws for less than a start": (
        lambda: solve(draws=3),
        ValueError,
        "before its first iteration: the start of Tracked",
    ),
    "draws for less than a look": (
        lambda: solve(method=lx.QuadraticPenalty(), draws=500, tolerance=0.1),
        ValueError,
        "leaves 499 after the start.* take 2,049",
    ),
    "unknown output": (lambda: solve(output="mean"), ValueError, "'last', 'random'"),
    "unknown method": (lambda: solve(method="sgd"), TypeError, "TrackedLagrangian"),
    "no problem": (lambda: lx.solve(fine, X, iterations=5), TypeError, "takes an lx.Problem first"),
    "batch of nothing": (lambda: solve(batch_size=0), ValueError, "batch_size must be a positive integer, found 0"),
    "batch too small for pairs": (
        lambda: solve(problem(constraints={"c": lx.Equal(lambda x, z: z[0])}), method=lx.QuadraticPenalty(pairs=True)),
        ValueError,
        "batch_size >= 2, found 1",
    ),
    "batch larger than an epoch": (
        lambda: solve(problem(samples=lx.Dataset(np.ones((3, 2)), epochs=True)), batch_size=4),
        ValueError,
        "found a Dataset of 3 rows",
    ),
    "negative penalty": (lambda: lx.QuadraticPenalty(penalty=-1.0), ValueError, "penalty must be positive"),
    "a step in words": (lambda: lx.QuadraticPenalty(step_size="0.1"), TypeError, "found the text '0.1'"),
    "no step": (lambda: lx.QuadraticPenalty(step_size=0.0), ValueError, "step_size must be positive"),
}


@pytest.mark.parametrize("case", WRONG)
def test_is_refused(case):
    action, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        action()


def test_errors_of_the_user_s_function_keep_their_type_and_gain_the_circumstances():
    with pytest.raises(TypeError) as caught:
        solve(problem(lambda x, z: x @ jnp.ones(5)))
    assert any("Lariax called the objective as (x, sample)" in note for note in caught.value.__notes__)


def test_a_start_outside_the_set_is_projected_and_said():
    p = lx.Problem(lambda x: x @ x, within=lx.sets.Box(1.0, 2.0))
    with pytest.warns(lx.LariaxWarning, match="outside within=Box"):
        result = lx.solve(p, jnp.array([0.0, 5.0]), iterations=1)
    assert bool(p.within.contains(result.x))


class TestContinuation:
    @pytest.fixture(scope="class")
    @staticmethod
    def part():
        return solve(problem(constraints={"c": lx.Equal(lambda x, z: x[0])}), batch_size=2, seed=3)

    @pytest.mark.parametrize(
        ("more", "text"),
        [
            ({"batch_size": 4}, "keeps its batch_size=2, found 4"),
            ({"output": "random"}, "keeps its output='last'"),
            ({"seed": 4}, "keeps its seed"),
            ({"method": lx.QuadraticPenalty(0.2)}, "keeps its method"),
        ],
    )
    def test_keeps_its_settings(self, part, more, text):
        with pytest.raises(ValueError, match=text):
            lx.solve(part.continuation.oracle.problem, part, iterations=5, **more)

    def test_the_same_settings_may_be_said_again(self, part):
        p, said = part.continuation.oracle.problem, {"batch_size": 2, "seed": 3, "output": "last"}
        again = lx.solve(p, part, method=lx.TrackedLagrangian(), iterations=5, **said)
        np.testing.assert_array_equal(again.x, lx.solve(p, part, iterations=5).x)

    def test_belongs_to_its_problem(self, part):
        other = problem(constraints={"c": lx.Equal(lambda x, z: x)})
        with pytest.raises(ValueError, match=r"\{'c': 1\}, found \{'c': 2\}"):
            lx.solve(other, part, iterations=5)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"tol": 1e-3}, "solve has no option 'tol'. Write tolerance= for the accuracy to stop at"),
        ({"options": {}}, "no option 'options'. Each has a name of its own here: iterations=, tolerance=, progress="),
        ({"args": (1,)}, "no option 'args'. Close over what the functions need"),
        ({"maxiter": 5}, "no option 'maxiter'. Write iterations= for the budget"),
        ({"learning_rate": 0.1}, "A method has its settings in its constructor; the default has none"),
        ({"bounds": [(0, 1)]}, r"within=lx.sets.Box\(lower, upper\)"),
        ({"random_state": 0}, "Write seed= for it"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(option, words):
    with pytest.raises(TypeError, match=words):
        solve(**option)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"bounds": [(0, 1)]}, r"Problem has no option 'bounds'. .*within=lx.sets.Box\(lower, upper\)"),
        ({"sample": PLANE}, r"Did you mean 'samples'\? It takes objective, samples, constraints, within, .*heldout\."),
        ({"within": Bounds(0, 1)}, r"found Bounds. Bounds are lx.sets.Box\(lower, upper\)"),
    ],
)
def test_a_problem_answers_such_names_too(option, words):
    with pytest.raises(TypeError, match=words) as found:
        lx.Problem(fine, **({"samples": PLANE} | option))
    assert found.value.__notes__ == ["Help: docs/api/problem.md"]
