"""What constraints can be: biased when done carelessly, many, indexed, behind a proxy; and sets per group."""

import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt
from lariax.torch import _batch_looks


def test_the_biased_problem_ends_at_the_solution():
    """min (x1^2 + (x2 - 2)^2) / 2 with E[x1 + x2 - 1 + 2 z (x1 - x2)] = 0 ends at (-1/2, 3/2) with multiplier 1/2; a
    penalty on the mean of the batch, back-propagated, ends near (0.4, 0.6). 2,400 batches of 8: the limit is 0.03."""
    torch.manual_seed(0)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(z):
        return 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2), {"line": x[0] + x[1] - 1 + 2 * z * (x[0] - x[1])}

    opt = lt.TrackedLagrangian([x], {"line": lt.Equal()})
    for _ in range(2400):
        opt.step(closure, torch.randn(8, dtype=torch.float64))
    assert np.linalg.norm(x.detach().numpy() - [-0.5, 1.5]) < 0.15
    assert abs(opt.multipliers["line"].item() - 0.5) < 0.1
    assert abs(opt.values["line"].item()) < 0.1


@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.TrackedLagrangian])
def test_many_constraints_need_no_jacobian(method):
    """10,000 constraints x_i >= a_i z with E z = 1: one vjp a pass, never a matrix of rows by parameters."""
    m = 10_000
    x = torch.full((m,), 0.1, requires_grad=True)
    a = torch.linspace(-1, 1, m)
    torch.manual_seed(0)
    options = {"lr": 0.02, "penalty": 20.0} if method is lt.QuadraticPenalty else {}
    opt = method([x], {"above": lt.AtLeast()}, **options)

    def closure(z):
        return 0.5 * (x**2).sum(), {"above": x - a * z[:, None]}

    for _ in range(60 if method is lt.QuadraticPenalty else 150):
        opt.step(closure, 1 + 0.1 * torch.randn(4))
    solution = a.clamp(min=0)
    assert (x.detach() - solution).norm() < 0.25 * solution.norm()
    assert opt.multipliers["above"].shape == (m,)
    assert (opt.multipliers["above"] <= 0).all()


@pytest.mark.parametrize("method", ["quadratic", "tracked"])
def test_a_multiplier_for_each_example(method):
    """min ||x||^2 / 2 with x . a_i >= 1 for each of four examples: a hard margin, whose multipliers are known.

    With a = e1, e2, 2 e1, e1 + e2 the solution is x = (1, 1); only the first two bind, with 1/N y_i = -1."""
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    x = torch.full((2,), 0.1, dtype=torch.float64, requires_grad=True)
    constraints = {"margin": lt.AtLeast(1.0, indexed=4)}
    if method == "tracked":
        opt = lt.TrackedLagrangian([x], constraints)
    else:
        opt = lt.QuadraticPenalty([x], constraints, lr=0.05, penalty=10.0)
    torch.manual_seed(0)

    def closure(batch):
        rows, index = batch
        return 0.5 * (x**2).sum(), {"margin": lt.Indexed(rows @ x, index)}

    for _ in range(1000):
        index = torch.randperm(4)[:2]
        opt.step(closure, (a[index], index))
    np.testing.assert_allclose(x.detach(), [1, 1], atol=0.1)
    np.testing.assert_allclose(opt.multipliers["margin"], [-4, -4, 0, 0], atol=0.4)


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("size", [2, 16])
def test_examples_with_equal_gradients(size, cheap, monkeypatch):
    """x_1 >= t_i for 30 examples, from 0 to 1/2. Random signs cancel in the sum of their gradients, of which the size
    that the penalty is made for must not depend."""
    monkeypatch.setattr(_batch_looks, "ROW_ENTRIES", 2**21 if cheap else 0)
    torch.manual_seed(0)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0, 0.5, 30, dtype=torch.float64)
    opt = lt.TrackedLagrangian([x], {"above": lt.AtLeast(indexed=30)})

    def closure(i):
        return 0.5 * ((x + 1) ** 2).sum(), {"above": lt.Indexed(x[0] - t[i], i)}

    for _ in range(200):
        opt.step(closure, torch.randperm(30)[:size])
    assert 0.1 < x[0] < 0.7
    assert opt.observe()["backed_off"] == 0
    length = float(opt.metric[0][0]) ** 2  # of a gradient, squared, in the method's units
    assert opt.indexed.size == length if cheap else 0.5 < opt.indexed.size / length < 10 * size


@pytest.mark.parametrize("method", [lt.QuadraticPenalty, lt.TrackedLagrangian])
@pytest.mark.parametrize("rows", [2, 8])
def test_values_that_are_a_matrix(method, rows):
    """X'X - I = 1, a constraint of the parameters alone."""
    torch.manual_seed(0)
    x = torch.eye(2, dtype=torch.float64, requires_grad=True)
    bound = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    opt = method([x], {"sizes": lt.Equal(1.0, samples=None)}, lr=0.05 if method is lt.QuadraticPenalty else 1.0)

    def closure(z):
        return 0.05 * ((x - z[:, None, None]) ** 2).sum((1, 2)), {"sizes": x.T @ x - torch.eye(2)}

    for _ in range(200):
        opt.step(closure, torch.randn(rows, dtype=torch.float64))
    assert opt.multipliers["sizes"].shape == (2, 2)
    torch.testing.assert_close((x.T @ x).detach(), bound, rtol=0, atol=0.2)


def test_a_start_at_a_minimum_of_the_objective_is_left():
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = lt.TrackedLagrangian([x], {"c": lt.AtLeast(1.0)})
    torch.manual_seed(0)
    for _ in range(200):
        opt.step(lambda z: (0.5 * (x**2).sum(), {"c": x[0] + 0.1 * z}), torch.randn(16, dtype=torch.float64))
    np.testing.assert_allclose(x.detach(), [1, 0], atol=0.05)


def test_a_proxy_moves_the_parameters_and_the_values_move_the_multipliers():
    """The share of positives, P(z < x) <= 0.3, for z uniform in (0, 1): the indicator has no gradient, its smooth
    version has, and is biased: with the sigmoid as the constraint x would end at 0.19.

    Differences of an indicator are of the order of the root of a step, so x goes on moving, by 0.035. Its mean over so
    many calls has a deviation of 0.004.
    """
    torch.manual_seed(0)
    x = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)

    def closure(z):
        return 0.5 * ((x - 1) ** 2).sum(), {"share": lt.Proxy((z < x).double(), torch.sigmoid((x - z) / 0.3))}

    opt = lt.TrackedLagrangian([x], {"share": lt.AtMost(0.3)})
    path = []
    for _ in range(1200):
        opt.step(closure, torch.rand(32, dtype=torch.float64))
        path.append(x.item())
    assert abs(np.mean(path[400:]) - 0.3) < 0.015


SETS = {
    "Box": lx.sets.Box(-0.3, 0.2),
    "NonNegative": lx.sets.NonNegative(),
    "LInfBall": lx.sets.LInfBall(0.25),
    "L2Ball": lx.sets.L2Ball(0.7),
    "Simplex": lx.sets.Simplex(),
    "L1Ball": lx.sets.L1Ball(0.5),
    "L1": lx.prox.L1(0.1),
    "ElasticNet": lx.prox.ElasticNet(0.1, 0.3),
    "Indicator": lx.prox.Indicator(lx.sets.Box(-0.3, 0.2)),
}


@pytest.mark.long_but("dtype0-Box", "dtype0-Simplex", "dtype0-L1", "dtype1-Box")
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sets_and_proxes_are_those_of_the_core(name, dtype):
    from lariax.torch._proximal import proximal_of

    torch.manual_seed(0)
    params = [torch.randn(3, 2, dtype=dtype), torch.randn(4, dtype=dtype)]
    key = "regularizer" if name in ("L1", "ElasticNet", "Indicator") else "within"
    found = proximal_of({"params": params, key: SETS[name]})(params, 0.5)
    expected = SETS[name].prox([p.numpy() for p in params], 0.5)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-15)


def test_sets_per_group():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    groups = [
        {"params": [net.weight], "within": lx.sets.Box(-0.1, 0.1)},
        {"params": [net.bias], "regularizer": lx.prox.L1(10.0)},
    ]
    opt = lt.TrackedLagrangian(groups, {"up": lt.AtLeast(0.01)}, model=net)

    def closure(x):
        return ((net(x) - 1) ** 2).mean(), {"up": net(x)[:, 0]}

    for _ in range(20):
        opt.step(closure, torch.randn(16, 3))
    assert net.weight.abs().max() <= 0.1
    assert (net.bias == 0).all()


def test_rows_without_replacement_are_corrected():
    """All rows at once, as a batch of N from N without replacement: nothing is random, and the corrected product is
    the mean gradient times the mean value."""
    torch.manual_seed(0)
    z = torch.randn(6, dtype=torch.float64)
    x = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    opt = lt.QuadraticPenalty([x], {"c": lt.Equal()}, lr=1e-9, penalty=2.0, population=6)
    opt.step(lambda z: (0 * x.sum(), {"c": z * x**2}), z)
    mean = z.mean()
    torch.testing.assert_close(opt.estimate[0], 2.0 * (mean * 2 * x.detach()) * (mean * x.detach() ** 2))


def test_products_come_from_all_ordered_pairs():
    """The mean over i != j of  c_i'(x) rho c_j(x),  which no row has both sides of."""
    torch.manual_seed(0)
    z = torch.randn(5, dtype=torch.float64)
    x = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    opt = lt.QuadraticPenalty([x], {"c": lt.Equal()}, lr=1e-9, penalty=2.0)
    opt.step(lambda z: (0 * x.sum(), {"c": z * x**2 + z**2}), z)
    slope, value = 3.0 * z, z * 1.5**2 + z**2
    pairs = [2.0 * slope[i] * value[j] for i in range(5) for j in range(5) if i != j]
    torch.testing.assert_close(opt.estimate[0][0], torch.stack(pairs).mean())


def test_more_inequalities_than_parameters():
    """The point of a 12-gon nearest to (2, 2) is its corner at 45 degrees. Noise of the bounds of two sides moves it by
    about 0.1 / sqrt(12,000) * sqrt(2) / sin(30 degrees) = 0.003: 0.02 is six times that."""
    torch.manual_seed(0)
    angles = 2 * torch.pi * torch.arange(12, dtype=torch.float64) / 12
    sides = torch.stack([angles.cos(), angles.sin()], dim=1)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(z):
        return 0.5 * ((x - 2) ** 2).sum() + 0 * z[:, 0], {"sides": sides @ x + 0.1 * z}

    opt = lt.TrackedLagrangian([x], {"sides": lt.AtMost(1.0)})
    for _ in range(1500):
        opt.step(closure, torch.randn(8, 12, dtype=torch.float64))
    np.testing.assert_allclose(x.detach().numpy(), 3**0.5 - 1, atol=0.02)
    multipliers = opt.multipliers["sides"]
    assert multipliers[[0, *range(3, 12)]].max() < 0.05  # those of rows with slack


def test_an_exact_phase_starts_from_given_multipliers():
    """At the solution, with its multiplier, TrackedLagrangian stays; without it, it has to find that first."""

    def first_moves(**given):
        torch.manual_seed(0)
        x = torch.tensor([-0.5, 1.5], requires_grad=True)
        opt = lt.TrackedLagrangian([x], {"line": lt.Equal(1.0)}, **given)
        seen = []
        for _ in range(40):
            z = torch.randn(32)
            opt.step(lambda z, x=x: (0.5 * (x[0] ** 2 + (x[1] - 2) ** 2) + 0 * z, {"line": x[0] + x[1] + 0.3 * z}), z)
            seen.append(float(opt.multipliers["line"]) if opt.known is not None else 0.5)
        return np.abs(np.array(seen) - 0.5).max(), x.detach()

    off, x = first_moves(multipliers={"line": 0.5})
    assert off < 0.2
    assert off < 0.5 * first_moves()[0]
    np.testing.assert_allclose(x, [-0.5, 1.5], atol=0.1)
    with pytest.raises(ValueError, match="multipliers= has the unknown"):
        lt.TrackedLagrangian([torch.zeros(2, requires_grad=True)], {"c": lt.Equal()}, multipliers={"d": 1.0})
