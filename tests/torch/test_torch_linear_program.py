"""Without curvature anywhere, with nothing to minimise, and with more rows than entries, in torch: as in the core."""

import torch

import lariax.torch as lt


def test_a_linear_program_is_solved():
    """min sum x over x >= -10, rows with noise of 0.1: an error of 0.05 is ten times the statistical limit."""
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = lt.TrackedLagrangian([x], {"floor": lt.AtLeast(-10.0)})

    def closure(z):
        return (1 + 0.1 * z[:, 0]) * x.sum(), {"floor": x + 0.1 * z[:, 1:]}

    for _ in range(1500):
        optimizer.step(closure, torch.randn(4, 4, dtype=torch.float64))
    torch.testing.assert_close(x.detach(), torch.full((3,), -10.0, dtype=torch.float64), atol=0.05, rtol=0)


def test_a_polygon_of_more_sides_than_entries():
    """The nearest point to (2, 2) in one of 12 noisy sides: both are 0.732, to a few times the error of 8,000 draws."""
    torch.manual_seed(0)
    angles = torch.arange(12, dtype=torch.float64) * torch.pi / 6
    sides, x = torch.stack([angles.cos(), angles.sin()], dim=1), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = lt.TrackedLagrangian([x], {"sides": lt.AtMost(1.0)})

    def closure(z):
        return 0.5 * ((x - 2) ** 2).sum() + 0 * z[:, 0], {"sides": sides @ x + 0.1 * z}

    for _ in range(2000):
        optimizer.step(closure, torch.randn(4, 12, dtype=torch.float64))
    torch.testing.assert_close(x.detach(), torch.full((2,), 3**0.5 - 1, dtype=torch.float64), atol=0.01, rtol=0)


def test_nothing_to_minimise():
    """E [(A + 0.3 Z) x - b + 0.3 z] = 0: the error is 0.3 sqrt(3) / sqrt(8,000) ||A^-1|| = 0.006."""
    torch.manual_seed(0)
    matrix, b = torch.tensor([[2.0, 1.0], [0.5, 1.5]], dtype=torch.float64), torch.tensor([1.0, 2.0])
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = lt.TrackedLagrangian([x], {"moments": lt.Equal()})

    def closure(z):
        return 0 * z[:, 0] * x.sum(), {"moments": (matrix + 0.3 * z[:, :4].reshape(-1, 2, 2)) @ x - b + 0.3 * z[:, 4:]}

    for _ in range(2000):
        optimizer.step(closure, torch.randn(4, 6, dtype=torch.float64))
    torch.testing.assert_close(x.detach(), torch.tensor([-0.2, 1.4], dtype=torch.float64), atol=0.04, rtol=0)
