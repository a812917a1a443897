"""On a GPU the rows of a batch are turned over by torch, in a compiled program, elsewhere by NumPy: the same steps.

Here both on the CPU, and traced only: nothing is compiled.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import lariax.torch as lt
from lariax.torch import _device, _kernels, _tracked
from lariax.torch._tuned import Rules


def trained(monkeypatch, on_device, constraints, population):
    """Parameters after 30 calls, some of which measure."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    lay_out = Rules.lay_out

    def as_on_a_device(self, inequality, random):
        return replace(lay_out(self, inequality, random), xp=_device, inequality=inequality, random=random)

    with monkeypatch.context() as patch:
        patch.setattr(_tracked, "interval_at", lambda xp, k: 1 if k < 4 else 8)
        if on_device:
            patch.setattr(Rules, "lay_out", as_on_a_device)
            patch.setattr(_kernels, "own_kernels", lambda device: SimpleNamespace(sums=_kernels.sums))
            patch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
        opt = lt.TrackedLagrangian(model, constraints, population=population)

        def closure(batch):
            x, y = batch
            out = model(x)
            values = {
                "low": out[:, 0],
                "high": out[:, 0],
                "many": torch.tanh(x[:, :1] * out[:, :1] + torch.arange(300)),
            }
            return ((out - y) ** 2).mean(dim=1), {name: values[name] for name in constraints}

        for i in range(30):
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            opt.step(closure, (x, x[:, :2] ** 2))
    assert (opt.near is not opt.rules) == on_device
    return [p.detach() for p in model.parameters()]


BOUNDS = {"low": lt.AtLeast(0.4), "high": lt.AtMost(0.6)}  # with opposite gradients
MANY = {"low": lt.Equal(0.5), "many": lt.AtMost([0.2] * 300)}  # whose shape is a diagonal


@pytest.mark.parametrize(("constraints", "population"), [(BOUNDS, None), (BOUNDS, 400), (MANY, None)])
def test_the_same_steps(monkeypatch, constraints, population):
    here, there = (trained(monkeypatch, flag, constraints, population) for flag in (False, True))
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
