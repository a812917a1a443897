"""Which closures may have kinks, and who averages."""

import pytest
import torch

import lariax.torch as lt
from lariax.torch._kinks import may_jump


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x**2).sum(), False),
        (lambda x: torch.nn.functional.softplus(x).mean(), False),
        (lambda x: torch.logsumexp(x, 0), False),
        (lambda x: torch.relu(x).sum(), True),
        (lambda x: torch.clamp(x, min=0).sum(), True),
        (lambda x: torch.nn.functional.l1_loss(x, torch.zeros(3)), True),
        (lambda x: torch.maximum(x, 2 * x).sum() ** 2, True),
        (lambda x: x.max(), True),
        (lambda x: torch.where(x > 0, x, -x).sum(), True),
        (lambda x: x.sort()[0][0], True),
        (lambda x: x[0] + torch.relu(x[1] - x[0]) / 0.1, True),
        (lambda x: (x[2] * torch.relu(x[0])) ** 2, False),  # inside of a network
        (lambda x: torch.nn.functional.linear(torch.relu(x)[None], x[None], x[:1]).sum(), False),  # a layer with a bias
        (lambda x: torch.relu(torch.nn.functional.softplus(x[:2]) @ x[1:]), True),
    ],
)
def test_whether_a_gradient_may_jump_shows_in_the_graph(function, expected):
    assert may_jump([function(torch.ones(3, requires_grad=True))]) is expected


@pytest.mark.parametrize(
    ("loss", "options", "averages"),
    [
        (lambda x, z: torch.abs(x - z).sum(dim=1), {}, True),
        (lambda x, z: torch.abs(x - z).sum(dim=1), {"one_backward": True}, False),
        (lambda x, z: torch.abs(x - z).sum(dim=1), {"step_size": 0.01}, False),
        (lambda x, z: torch.abs(x - z).sum(dim=1).mean(), {}, False),  # rows are not to be told apart
        (lambda x, z: ((x - z) ** 2).sum(dim=1), {}, False),
    ],
)
def test_who_averages(loss, options, averages):
    torch.manual_seed(0)
    x = torch.zeros(2, requires_grad=True)
    opt = lt.TrackedLagrangian([x], {"sum": lt.AtMost(1.0)}, **options)
    for batch in torch.randn(60, 8, 2):
        opt.step(lambda z: (loss(x, z), {"sum": x.sum() + 0 * z[:, 0]}), batch)
    assert (opt.observe()["averaged"] > 0) is averages
    assert bool(opt.average.point) is averages


@pytest.mark.parametrize(
    "layers",
    [
        (torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)),
        (torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1), torch.nn.ReLU()),
    ],
    ids=["hidden rectifiers", "buffers"],
)
def test_models_that_keep_their_iterates(layers):
    """Weights behind rectifiers do not act on the average as they do one by one; buffers are about the iterates."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*layers)
    opt = lt.TrackedLagrangian(model, {"mean": lt.AtMost(1.0)})
    for batch in torch.randn(20, 8, 3):
        opt.step(lambda z: (model(z).squeeze(1) ** 2, {"mean": model(z).squeeze(1)}), batch)
    assert opt.observe()["averaged"] == 0
