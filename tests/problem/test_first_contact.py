"""What people write in the first five minutes, and the words that they get."""

import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from conftest import normal

PLANE = normal(2)


def with_sample(x, z):
    return jnp.sum((x - z) ** 2)


def alone(x):
    return x @ x


def problem(objective=with_sample, samples=PLANE, **more):
    return lx.Problem(objective, samples=samples, **more)


def by_name(source):
    return lx.solve(problem(lambda x, row: x[0] * row["income"], source), jnp.zeros(2), iterations=5)


WORDS = {
    "constraints in a list": (
        lambda: problem(constraints=[lx.Equal(with_sample), lx.AtMost(with_sample)]),
        r'constraints= takes a dictionary, found list.* constraints=\{"c0": lx.Equal\(...\), "c1": lx.AtMost\(...\)\}',
    ),
    "a bare constraint": (
        lambda: problem(constraints=lx.Equal(with_sample)),
        r'takes a dictionary, found Equal.* constraints=\{"c0": lx.Equal\(...\)\}',
    ),
    "a constraint of x alone": (
        lambda: problem(constraints={"sphere": lx.Equal(alone, 1.0)}),
        r"'sphere' is a function of x alone.* Write lx.Equal\(fun, ..., samples=None\) if it is deterministic",
    ),
    "a constraint of a sample that is not there": (
        lambda: problem(constraints={"gap": lx.AtMost(with_sample, samples=None)}),
        r"'gap' is a function of two arguments, but it has samples=None.* Leave samples=None out",
    ),
    "an objective of x alone": (lambda: problem(alone), r"of x alone.* Write lambda x, sample"),
    "an objective without samples": (
        lambda: problem(samples=None),
        r"the objective is a function of two arguments.* Say where samples come from: samples=lx.Dataset\(arrays\)",
    ),
    "samples that depend on x": (
        lambda: lx.Distribution(lambda key, x: x),
        r"a sample cannot depend on x where it is drawn. Draw what does not.* z = g\(x, noise\).*log_density=",
    ),
    "an array indexed by a name": (
        lambda: by_name(lx.Dataset(np.ones((3, 2)))),
        r"A sample has no names here. Give the source a dictionary of columns, lx.Dataset\(\{'income'",
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_words(case):
    action, text = WORDS[case]
    with pytest.raises(TypeError, match=text):
        action()


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (lambda x, z: x[0] if x[0] > 0 else z[0], r"Write jnp.where\(condition, a, b\) for if"),
        (lambda x, z: np.exp(x[0]), r"NumPy cannot look at x or a sample. Write jax.numpy's functions"),
    ],
)
def test_words_beside_those_of_jax(objective, text):
    with pytest.raises(TypeError) as caught:
        lx.solve(problem(objective), jnp.zeros(2), iterations=5)
    assert any(re.match(f".*{text}", note) for note in caught.value.__notes__)
    assert any("Lariax called the objective as (x, sample)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("objective", [lambda x, row: x @ row, lambda x, row: x[0] * row[0], lambda x, row: row["sex"]])
def test_words_of_a_row_that_is_a_dictionary(objective):
    """Taken for a vector, by place, by a name that is not there."""
    rows = lx.Dataset({"age": np.ones(3), "income": np.ones(3)})
    with pytest.raises((TypeError, KeyError)) as caught:
        lx.solve(problem(objective, rows), jnp.zeros(2), iterations=5)
    words = r"A sample is a dictionary of 'age', 'income' here. .*one array, lx.Dataset\(frame.to_numpy\(\)\)"
    assert any(re.match(words, note) for note in caught.value.__notes__)


def test_words_of_a_start_that_is_a_list():
    with pytest.raises(TypeError) as caught:
        lx.solve(problem(), [0.0, 0.0], iterations=5)
    assert "x0 is a list, and so is x. For a vector write jnp.array([...])." in caught.value.__notes__


def test_what_can_be_called_either_way_is_taken():
    """Functions with defaults, and those that Python cannot look into."""
    problem(lambda x, z=None: jnp.sum(x), constraints={"total": lx.Equal(jnp.sum, samples=None)})
    lx.Distribution(lambda key, scale=2.0: scale)


@pytest.mark.parametrize(
    "action",
    [
        lambda: lx.solve(lx.Problem(alone, within=lx.sets.Box(1.0, 2.0)), jnp.zeros(2), iterations=1),
        lambda: lx.minimize(alone, [0.0, 0.0], bounds=[(1.0, 2.0)] * 2, iterations=1),
        lambda: lx.Multipliers({"gap": lx.AtMost(bound=1.0)}).update({"gap": float("nan")}),
    ],
)
def test_warnings_point_at_the_caller(action):
    with pytest.warns((lx.LariaxWarning, RuntimeWarning), match="outside within|not finite") as caught:
        action()
    assert caught[0].filename == __file__
    assert caught[0].lineno == inspect.getsourcelines(action)[1]
