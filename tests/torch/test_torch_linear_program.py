"""Without curvature anywhere, in torch: as in the core."""

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
