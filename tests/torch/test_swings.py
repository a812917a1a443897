"""Multipliers that do not settle are told of, and those that do are not."""

import warnings

import numpy as np
import pytest

from lariax import LariaxWarning
from lariax.torch._swings import LOOKS, TURNS, Watch, turns

STEPS = np.arange(LOOKS)
SWINGING = {
    "from 0 to -37": np.where(STEPS % 2, -37.0, 0.0),
    "slowly": -20 + 18 * np.sin(2 * np.pi * STEPS / 5),
}
SETTLED = {
    "to a limit": 3 * (1 - 0.5**STEPS),
    "around a limit": 3 + 0.3 * (-1.0) ** STEPS,
    "after one swing": np.array([0.0, 6.0, 2.0] + [3.0] * (LOOKS - 3)),
    "to nothing": np.zeros(LOOKS),
}


def watch(values):
    watch = Watch()
    for value in values:
        watch.look({"rate": np.array([1.0, value])})


@pytest.mark.parametrize("name", SWINGING)
def test_swings_are_told_of_once(name):
    with pytest.warns(LariaxWarning, match=r"the multiplier of 'rate' swings between .* lt\.Multipliers") as told:
        watch([*SWINGING[name], *SWINGING[name]])
    assert len(told) == 1


@pytest.mark.parametrize("name", SETTLED)
def test_multipliers_that_settle_are_left_alone(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(SETTLED[name])


def test_turns_are_counted():
    assert turns(np.array([0.0, 1.0, 2.0, 3.0])) == 1  # the way out
    assert turns(np.array([0.0, 3.0, 0.0, 3.0])) == TURNS
