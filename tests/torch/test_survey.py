"""Looks at the Hessian: the same whether directions are taken at once or one by one."""

import numpy as np
import pytest
import torch

import lariax.torch as lt
from lariax.torch import _batch_looks, _passes, _survey


def looked_at(entries, monkeypatch, dropout=0.0, one_graph=2**16):
    """What a survey sees of a small model's Hessian, with so many entries held at a time."""
    monkeypatch.setattr(_passes, "ONE_GRAPH_ENTRIES", one_graph)
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
    monkeypatch.setattr(_batch_looks, "ROW_ENTRIES", entries)
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


@pytest.mark.parametrize(("one_graph", "passes"), [(2**16, 1), (0, 4)])
def test_directions_at_once_take_one_forward_pass(monkeypatch, one_graph, passes):
    """The graph of the first look serves the second: of all batches together, or of each."""
    calls = []
    original = _survey.Passes.call

    def counted(self, *arguments, **options):
        calls.append(1)
        return original(self, *arguments, **options)

    monkeypatch.setattr(_survey.Passes, "call", counted)
    monkeypatch.setattr(_survey, "probes", lambda count, own=_survey.probes: (calls.clear(), own(count))[1])
    looked_at(2**21, monkeypatch, one_graph=one_graph)
    assert len(calls) == passes
    looked_at(0, monkeypatch)
    assert len(calls) == 8


def test_batches_together_and_one_by_one_show_the_same(monkeypatch):
    together, one_by_one = (looked_at(2**21, monkeypatch, one_graph=entries) for entries in (2**16, 0))
    for name in ("diagonal", "slopes", "noise", "largest"):
        np.testing.assert_allclose(getattr(together, name), getattr(one_by_one, name), rtol=1e-9, atol=1e-12)


def trained(entries, monkeypatch, calls, **options):
    """A small model under every kind of constraint, after some calls; and how often its closure was called."""
    monkeypatch.setattr(_passes, "ONE_GRAPH_ENTRIES", entries)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    kinds = {
        "gap": lt.AtMost(0.1),
        "two": lt.Equal(torch.tensor([0.1, 0.2])),
        "size": lt.AtMost(1.0, samples=None),
        "each": lt.AtMost(2.0, indexed=40),
    }
    seen = []

    def closure(batch):
        rows, examples = batch
        seen.append(len(rows))
        score = model(rows)
        values = {"gap": torch.sigmoid(score[:, 0]), "two": score * rows[:, :2], "size": (model.weight**2).sum()}
        return (score**2).sum(dim=1), values | {"each": lt.Indexed(score[:, 1], examples)}

    optimizer = lt.TrackedLagrangian(model, kinds, **options)
    for _ in range(calls):
        optimizer.step(closure, (torch.randn(5, 3, dtype=torch.float64), torch.randint(40, (5,))))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), seen


@pytest.mark.parametrize("options", [{}, {"one_backward": True}, {"adaptive_metric": True}])
def test_halves_from_one_graph_and_cut_apart_are_the_same(monkeypatch, options):
    (one, seen), (cut, apart) = (trained(entries, monkeypatch, 60, **options) for entries in (2**16, 0))
    torch.testing.assert_close(one, cut, rtol=1e-7, atol=1e-9)
    assert len(seen) < 0.6 * len(apart)


def test_only_rows_that_fit_together_are_joined():
    a, b = torch.zeros(2, 3), torch.ones(4, 3)
    assert torch.equal(_passes.joined([a, b]), torch.cat([a, b]))
    assert _passes.joined([{"x": a}, {"x": b}])["x"].shape == (6, 3)
    for wrong in ([a, b[:, :2]], [{"x": a}, {"y": b}], [(a, 1), (b, 1)], [a, b.double()], [[a, "text"], [b, "text"]]):
        assert _passes.joined(wrong) is None
