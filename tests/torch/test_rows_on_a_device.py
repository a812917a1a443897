"""On a GPU the rows of a batch are turned over by torch, in a compiled program, elsewhere by NumPy: the same steps.

Here both on the CPU, and traced only: nothing is compiled.
"""

from functools import partial

import pytest
import torch

import lariax.torch as lt
from lariax.torch import _kernels, _rows, _tracked


def trained(monkeypatch, on_device, constraints, population):
    """Parameters after 30 calls, some of which measure."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    with monkeypatch.context() as patch:
        patch.setattr(_tracked, "interval_at", lambda xp, k: 1 if k < 4 else 8)
        if on_device:
            patch.setattr(_rows, "is_host", lambda device: False)
            patch.setattr(_kernels, "own_kernels", lambda device: _kernels)
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
    assert (opt.rules.at_rows is not opt.rules.on_host) == on_device
    return [p.detach() for p in model.parameters()]


BOUNDS = {"low": lt.AtLeast(0.4), "high": lt.AtMost(0.6)}  # with opposite gradients
MANY = {"low": lt.Equal(0.5), "many": lt.AtMost([0.2] * 300)}  # whose shape is a diagonal


@pytest.mark.long_but("constraints1-400")
@pytest.mark.parametrize(("constraints", "population"), [(BOUNDS, None), (BOUNDS, 400), (MANY, None)])
def test_the_same_steps(monkeypatch, constraints, population):
    here, there = (trained(monkeypatch, flag, constraints, population) for flag in (False, True))
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def rushed(scattered, resumed):
    """Parameters and numbers after 42 calls at changing rates, one of them on a batch that is not finite."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()

    def optimizer():
        opt = lt.TrackedLagrangian(model, {"low": lt.AtLeast(0.4)}, population=400)
        opt.space.flat = not scattered  # one tensor a parameter, as on a GPU
        return opt

    def closure(batch):
        out = model(batch)
        return (out**2).mean(dim=1), {"low": out[:, 0]}

    opt, told, waited = optimizer(), [], []
    opt.has_warned = True
    for i in range(42):
        opt.param_groups[0]["lr"] = (1.0, 0.03)[i % 2]
        batch = torch.randn(16, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        opt.step(closure, batch * (torch.nan if i == 20 else 1))
        waited.append(opt.pending is None)
        if resumed and i == 25:
            saved, opt = opt.state_dict(), optimizer()
            opt.load_state_dict(saved)
        if i % 7 == 0:
            told.append(opt.observe())
    opt.param_groups[0]["lr"] = 1.0  # that of the next move
    told.append({**opt.observe(), "reach": opt.moved.reach})
    assert told[-1]["backed_off"] == 1
    assert waited[-1] is not scattered
    return [p.detach() for p in model.parameters()], told


@pytest.mark.parametrize("resumed", [False, True])
def test_a_step_under_way_is_the_same_step(resumed):
    """The host goes on before it knows whether the last step was good."""
    (here, told_here), (there, told_there) = rushed(False, False), rushed(True, resumed)
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    for a, b in zip(told_here, told_there, strict=True):
        assert a == pytest.approx(b, rel=1e-8)


def test_a_step_under_way_in_groups_of_their_own():
    """Where steps are not multiples of the estimate, its length is not theirs."""

    def trained(scattered):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).double()
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}]
        opt = lt.TrackedLagrangian(groups, {"low": lt.AtLeast(0.4)}, model=model)
        opt.space.flat = not scattered

        def closure(batch):
            out = model(batch)
            return (out**2).mean(dim=1), {"low": out[:, 0]}

        for i in range(40):
            opt.step(closure, torch.randn(16, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64))
        return [p.detach() for p in model.parameters()], opt.observe()

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-9, atol=1e-11)
