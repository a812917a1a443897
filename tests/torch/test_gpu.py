"""Where there is a GPU: its update and its steps are those of a CPU."""

import itertools

import pytest
import torch

import lariax.torch as lt
from lariax.torch import _kernels, _tracked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SHAPES = ((8, 3), (8,), (130, 77), (2, 8), (1,), (3, 4, 5, 5))


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("kind", ["double", "low", "same", "strided", "channels last"])
def test_the_update(good, scaled, summed, kind):
    torch.manual_seed(0)
    exact = torch.float32 if kind == "low" else torch.float64

    def vector():
        return [torch.randn(shape, dtype=exact, device="cuda") for shape in SHAPES]

    targets, previous, estimate, fresh, stale, scaling = (vector() for _ in range(6))
    if kind == "same":
        stale = fresh
    if kind == "strided":
        fresh = [part.mT.contiguous().mT if part.ndim > 1 else part for part in fresh]
    if kind == "channels last":
        targets, previous, estimate, fresh, stale, scaling = (
            [part.to(memory_format=torch.channels_last) if part.ndim == 4 else part for part in each]
            for each in (targets, previous, estimate, fresh, stale, scaling)
        )
    low = [part.bfloat16() for part in targets] if kind == "low" else None
    previous = [part.bfloat16() for part in previous] if low else previous
    numbers = torch.linspace(0.1, 0.9, 1 + 2 * len(SHAPES), dtype=exact, device="cuda")

    def updated(update):
        kept = [[part.clone() for part in each] for each in (low or targets, targets, previous, estimate)]
        if not low:
            kept[0] = kept[1]
        sure = torch.tensor(good).cuda()
        sums = update(_kernels.Update(*kept, fresh, stale, scaling if scaled else None, sure, numbers), summed)
        return kept, sums if good else sums[2:]  # the others are of no use then

    found, sums = updated(_kernels.update_on(torch.device("cuda")))
    expected, sums_expected = updated(_kernels.advance)
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 if low else 1e-14)
    torch.testing.assert_close(sums, sums_expected, rtol=2e-6 if low else 1e-12, atol=0)
    assert len(sums) == (0 if not summed else 3 if good else 1)


OPTIMIZERS = {
    "quadratic": lambda m, c: lt.QuadraticPenalty(m, c, lr=0.05),
    "dual": lambda m, c: lt.DualPenalty(m, c, lr=0.05),
    "tracked": lambda m, c: lt.TrackedLagrangian(m, c),
    "metric": lambda m, c: lt.TrackedLagrangian(m, c, adaptive_metric=True),
    "one backward": lambda m, c: lt.TrackedLagrangian(m, c, one_backward=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name, monkeypatch):
    monkeypatch.setattr(_tracked, "interval_at", lambda xp, k: 1 if k < 4 else 8)
    constraints = {"mean": lt.AtMost([0.1, 0.2]), "norm": lt.AtLeast(0.5, samples=None)}

    def trained(device):
        torch.manual_seed(0)
        layers = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        model = torch.nn.Sequential(*layers).to(device, torch.float64)
        opt = OPTIMIZERS[name](model, constraints)

        def closure(batch):
            x, y = batch
            out = model(x)
            return ((out - y) ** 2).mean(dim=1), {"mean": out - y, "norm": (model[0].weight ** 2).mean()}

        for i in range(40):
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            opt.step(closure, (x.to(device), (x[:, :2] ** 2).to(device)))
        return [p.detach().cpu() for p in model.parameters()]

    for ours, theirs in zip(trained("cuda"), trained("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_autocast_leaves_losses_and_values_in_their_precision():
    """Products are what autocast rounds: of a loss of 1000.4 it left 1000."""
    x = torch.ones(2, device="cuda", requires_grad=True)
    found = []
    for enabled in (True, False):
        multipliers = lt.Multipliers({"both": lt.AtMost(0.0)}, steps=100, parameters=[x])
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            for k in range(60):
                values = x * torch.linspace(1.0, 1.01, 16, device="cuda")[:, None] + 0.001 * k
                total = multipliers.lagrangian(x.sum() + torch.full((16,), 1000.4, device="cuda"), {"both": values})
        assert total.dtype == torch.float32
        found.append([total.item(), *multipliers["both"]])
    assert found[0] == found[1]


def test_multipliers_move_as_on_a_cpu():
    """Values get to the rule a call later, so that one more call is made there; examples' tables stay on the device."""

    def trained(device):
        torch.manual_seed(0)
        x, sides = torch.zeros(2, dtype=torch.float64), torch.eye(4, 2, dtype=torch.float64)
        z = torch.randn(200, 16, dtype=torch.float64)
        x, sides, z = x.to(device).requires_grad_(), sides.to(device), z.to(device)
        adam = torch.optim.Adam([x], lr=0.02)
        constraints = {"line": lt.AtMost(1.0), "side": lt.AtMost(0.9, indexed=4), "size": lt.AtMost(3.0, samples=None)}
        multipliers = lt.Multipliers(constraints, steps=200, parameters=[x])
        for own in z:
            losses, rows = ((x - 2) ** 2).sum() + 0.1 * own, x.sum() + 0.1 * own
            values = {"line": rows, "side": lt.Indexed(sides @ x, torch.arange(4)), "size": (x**2).sum()}
            adam.zero_grad()
            multipliers.lagrangian(losses, values).backward()
            adam.step()
        return x.detach().cpu(), multipliers

    (x, one), (y, other) = trained("cpu"), trained("cuda")
    torch.testing.assert_close(x, y, rtol=0, atol=0.02)
    assert other["side"].shape == (4,)
    assert abs(one["line"] - other["line"]) < 0.1 * abs(one["line"]) + 0.05
