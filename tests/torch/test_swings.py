"""Multipliers that do not settle and constraints that stay violated are told of, and others are not."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lariax.torch as lt
from lariax import LariaxWarning
from lariax.oracle import Block, Layout
from lariax.torch._swings import LOOKS, TURNS, SwingWatch, turns

CALLS = 8 * 4 * LOOKS  # until looks are 16 calls apart
K = np.arange(1, CALLS + 1)
LAYOUT = Layout((Block("other", (), 0, 1.0, "=", 0), Block("rate", (), 1, -1.0, ">=", 0)))
SWINGING = {
    "from 0 to 37": np.where(K // 8 % 2, 37.0, 0.0),
    "slowly": 20 + 18 * np.sin(2 * np.pi * K / 100),
    "out of step with the refreshes": 20 + 18 * np.sin(1.7 * K),
}
SETTLED = {
    "to a limit": 3 * (1 - 0.99**K),
    "around a limit": 3 + 0.3 * (-1.0) ** (K // 8),
    "after a swing": np.where(K < CALLS // 8, 3 + 3 * np.sin(K / 8), 3.0),
    "to nothing": np.zeros(CALLS),
    "about nothing": 1e-3 * (K // 8 % 2),  # without a part in the gradient
}


def watched(multipliers=0 * K, values=0 * K, calls=K):
    """Of the second row; both have gradients as long as the objective's."""
    watch = SwingWatch()
    for k, y, c in zip(calls, multipliers, values, strict=True):
        state = SimpleNamespace(
            multipliers=np.array([1.0, y]),
            constraints=np.array([0.0, c]),
            shape=SimpleNamespace(gram=np.eye(2)),
            max_gradient=1.0,
            constraint_filter=SimpleNamespace(error=np.full(2, 1e-4)),
        )
        watch.look(int(k), state, LAYOUT)


@pytest.mark.parametrize("name", SWINGING)
def test_swings_are_told_of_once(name):
    with pytest.warns(
        LariaxWarning, match=r"'rate' swings: its multiplier goes between -3[78] .*lt\.Multipliers"
    ) as told:
        watched(SWINGING[name])
    assert len(told) == 1


@pytest.mark.parametrize("name", SETTLED)
def test_multipliers_that_settle_are_left_alone(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(SETTLED[name])


def test_a_violation_that_stays_is_told_of():
    calls = 8 * K
    with pytest.warns(LariaxWarning, match="'rate' stays violated, by 0.04 .*whether all constraints can hold at once"):
        watched(4.0 + 0 * K, 0.04 + 0.01 * np.sin(K), calls)


def test_a_multiplier_that_grows_in_vain_is_told_of():
    """By a violation of 1.5 standard errors, which alone would be in doubt."""
    with pytest.warns(LariaxWarning, match="'rate' stays violated, by 0.015"):
        watched(1.0 + K / 100, 0.015 + 0 * K, 8 * K)


@pytest.mark.parametrize("values", [0.04 * 0.995**K, 0.02 + 0 * K, -0.04 + 0 * K], ids=["falling", "in doubt", "slack"])
def test_a_violation_that_does_not_is_not(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(np.zeros(CALLS), values, 8 * K)


def test_turns_are_counted():
    assert turns(np.array([0.0, 1.0, 2.0, 3.0])) == 1  # the way out
    assert turns(np.array([0.0, 3.0, 0.0, 3.0, 0.0])) == TURNS
    assert turns(np.array([1.5, 0.1, 3.0, 0.1, 3.0, 0.1])) == TURNS  # to both sides of where it was at first
    assert turns(np.array([1.5, 1.6, 1.4, 1.6, 2.2, 1.6, 2.1])) == 0


def test_the_warning_names_the_line_that_called(monkeypatch):
    """A surrogate that answers the wrong way: the multiplier rises to its limit, and the constraint is not met."""
    monkeypatch.setattr("lariax.torch._swings.STAYS_FROM", 8)  # so soon that the test is quick
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.zeros(1))
    optimizer = lt.TrackedLagrangian([x], {"rate": lt.AtLeast(1.0)})

    def closure(batch):
        return (x - batch) ** 2, {"rate": lt.Proxy((x + 0 * batch).detach(), -x + 0 * batch)}

    def train():
        for _ in range(300):
            optimizer.step(closure, torch.randn(4))

    with pytest.warns(LariaxWarning, match="'rate' stays violated") as told:
        train()
    assert told[0].filename == __file__
