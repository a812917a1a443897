"""Looks at the Hessian: the same whether directions are taken at once or one by one."""

import numpy as np
import pytest
import torch

import lariax.torch as lt
from lariax.torch import _survey


def looked_at(entries, monkeypatch, dropout=0.0):
    """What a survey sees of a small model's Hessian, with so many entries held at a time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1)
    )
    model.double()
    optimizer = lt.TrackedLagrangian(model, {"gap": lt.AtMost(0.1)})

    def closure(rows):
        score = model(rows)[:, 0]
        return score**2, {"gap": torch.sigmoid(score)}

    for _ in range(3):
        optimizer.step(closure, torch.randn(8, 3, dtype=torch.float64))
    monkeypatch.setattr(_survey, "ROW_ENTRIES", entries)
    size = optimizer.space.size
    batches = [torch.randn(8, 3, dtype=torch.float64) for _ in range(4)]
    survey = _survey.Survey(optimizer.passes, closure, batches, np.linspace(1, 2, size), 0)
    random = torch.get_rng_state()
    seen = survey.hessian(np.array([0.7]), np.arange(size))
    assert torch.equal(random, torch.get_rng_state())
    return seen


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_directions_at_once_and_one_by_one_see_the_same(monkeypatch, dropout):
    at_once = looked_at(2**21, monkeypatch, dropout)
    one_by_one = looked_at(0, monkeypatch, dropout)
    for name in ("diagonal", "slopes", "noise", "largest"):
        np.testing.assert_allclose(getattr(at_once, name), getattr(one_by_one, name), rtol=1e-9, atol=1e-12)
    assert np.abs(at_once.diagonal).max() > 0


def test_directions_at_once_take_one_forward_pass_a_batch(monkeypatch):
    """The graph of the first look serves the second."""
    calls = []
    original = _survey.Passes.call

    def counted(self, *arguments, **options):
        calls.append(1)
        return original(self, *arguments, **options)

    monkeypatch.setattr(_survey.Passes, "call", counted)
    monkeypatch.setattr(_survey, "probes", lambda count, own=_survey.probes: (calls.clear(), own(count))[1])
    looked_at(2**21, monkeypatch)
    assert len(calls) == 4
    looked_at(0, monkeypatch)
    assert len(calls) == 8
