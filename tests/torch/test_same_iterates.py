"""JAX and torch take the same steps on the same samples, to rounding."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lariax as lx
import lariax.torch as lt
from lariax.loop import _drive

A = np.linspace(1.0, 2.0, 5)
BOX = lx.sets.Box(-1.5, 1.2)


@pytest.fixture(autouse=True, scope="module")
def _compiled_in_a_hurry():
    """A program runs for a moment here, so the time goes into compiling: less of it without optimisation."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    hurried = eqx.filter_jit(_drive.advance.__wrapped__, compiler_options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_drive, "advance", hurried)
        yield


def objective(x, z):
    return jnp.sum(1 - jnp.exp(-((x - A - 0.3 * z[:5]) ** 2) / 4))


def pair(x, z):
    return jnp.stack([x @ x + 0.5 * z[5] * x[0], x[0] - x[1] + 0.1 * z[6]])


def level(x, z):
    return jnp.tanh(x[2] + x[3] + 0.3 * z[6])


def closure_for(x):
    def closure(z):
        loss = (1 - torch.exp(-((x - torch.tensor(A) - 0.3 * z[:, :5]) ** 2) / 4)).sum(dim=1)
        both = torch.stack([x @ x + 0.5 * z[:, 5] * x[0], x[0] - x[1] + 0.1 * z[:, 6]], dim=1)
        level = torch.tanh(x[2] + x[3] + 0.3 * z[:, 6])
        return loss, {"pair": both, "level": level, "last": x[4], "sum": x.sum()}

    return closure


def make_problem(within=BOX):
    """Equalities and inequalities, scalars and vectors, with samples and without. No random one starts with a slack,
    which would make the sign of its first residual one of rounding."""
    return lx.Problem(
        objective,
        samples=lx.Distribution(lambda key: jax.random.normal(key, (7,))),
        constraints={
            "pair": lx.Equal(pair, [4.0, 0.0]),
            "level": lx.AtLeast(level, 0.5),
            "last": lx.AtMost(lambda x: x[4], 0.7, samples=None),
            "sum": lx.AtMost(jnp.sum, 50.0, samples=None),
        },
        within=within,
    )


@pytest.fixture(scope="module")
def problem():
    return make_problem()


CONSTRAINTS = {
    "pair": lt.Equal([4.0, 0.0]),
    "level": lt.AtLeast(0.5),
    "last": lt.AtMost(0.7, samples=None),
    "sum": lt.AtMost(50.0, samples=None),
}


def samples_of(result, places):
    oracle, key = result.continuation.oracle, result.continuation.loop.key
    tickets = oracle.draw(key, jnp.arange(places), (None,))
    return [
        torch.tensor(np.asarray(oracle.fetch(jax.tree.map(lambda t, i=i: t[i], tickets)).samples[0]))
        for i in range(places)
    ]


def tracked(**options):
    return (
        lx.TrackedLagrangian(**options),
        lambda x: lt.TrackedLagrangian([{"params": [x], "within": BOX}], CONSTRAINTS, **options),
    )


METHODS = {
    "QuadraticPenalty": (
        lx.QuadraticPenalty(step_size=0.05, penalty=1.5, pairs=True),
        lambda x: lt.QuadraticPenalty([{"params": [x], "within": BOX}], CONSTRAINTS, lr=0.05, penalty=1.5),
    ),
    "DualPenalty": (
        lx.DualPenalty(step_size=0.05, penalty=1.5, dual_step=0.3, pairs=True),
        lambda x: lt.DualPenalty([{"params": [x], "within": BOX}], CONSTRAINTS, lr=0.05, penalty=1.5, dual_step=0.3),
    ),
    "TrackedLagrangian": tracked(),
    "TrackedLagrangian with a metric": tracked(adaptive_metric=True),
    "TrackedLagrangian with one backward pass": tracked(one_backward=True),
}


@pytest.mark.long_but("TrackedLagrangian-5", "QuadraticPenalty-2", "DualPenalty-3")
@pytest.mark.parametrize(("name", "rows"), [*zip(METHODS, (2, 5, 5, 8, 2), strict=True), ("DualPenalty", 3)])
def test_same_iterates(problem, name, rows):
    """Batches of two, of an even and of an odd number of rows; long enough for steps that measure and ordinary ones."""
    method, optimizer = METHODS[name]
    start, x0 = -(-method.needs.start_samples // rows), np.full(5, 0.2)
    result = lx.solve(problem, jnp.asarray(x0), method=method, iterations=1, batch_size=rows)
    batches = samples_of(result, 300 + start)
    x = torch.tensor(x0, requires_grad=True)
    opt, closure = optimizer(x), closure_for(x)
    seen = {}
    for call, batch in enumerate(batches):
        if call >= start:
            seen[call - start + 1] = x.detach().numpy().copy()  # x_{k+1}, where iteration k ends
        opt.step(closure, batch)
    for iterations in (1, 2, 10, 100, 300):
        result = lx.solve(problem, jnp.asarray(x0), method=method, iterations=iterations, batch_size=rows)
        np.testing.assert_allclose(seen[iterations], result.x, rtol=0, atol=1e-11, err_msg=str(iterations))
    assert np.linalg.norm(seen[300] - x0) > 0.5
    for constraint, multiplier in opt.multipliers.items():
        np.testing.assert_allclose(multiplier, result.multipliers[constraint], atol=1e-10, err_msg=constraint)


@pytest.mark.long
def test_same_iterates_on_a_face():
    """Of a ball: torch takes differences of the projection, which are exact to the root of rounding."""
    ball, x0 = lx.sets.L2Ball(1.9), np.full(5, 0.2)
    problem, method = make_problem(ball), lx.TrackedLagrangian()
    start = -(-method.needs.start_samples // 4)
    result = lx.solve(problem, jnp.asarray(x0), method=method, iterations=300, batch_size=4)
    x = torch.tensor(x0, requires_grad=True)
    opt, closure = lt.TrackedLagrangian([{"params": [x], "within": ball}], CONSTRAINTS), closure_for(x)
    for batch in samples_of(result, 300 + start):
        opt.step(closure, batch)
    assert opt.face(opt.estimate, 0.1, opt._scaling()) is not None
    assert abs(np.linalg.norm(result.x) - 1.9) < 1e-6
    np.testing.assert_allclose(opt.previous[0], result.x, atol=1e-5)


def test_same_iterates_of_a_linear_program():
    """Where the constraints, with noisy gradients, give the units."""
    costs, rows = np.array([-1.0, -2.0, 1e-3]), np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    problem = lx.Problem(
        lambda x, z: (costs + 0.1 * z[:3]) @ x,
        samples=lx.Distribution(lambda key: jax.random.normal(key, (5,))),
        constraints={"rows": lx.AtMost(lambda x, z: rows @ x + 0.1 * z[3:] * (1 + x[2]), 1.0)},
        within=BOX,
    )
    x0, seen = np.full(3, 0.2), {}
    result = lx.solve(problem, jnp.asarray(x0), iterations=1, batch_size=4)
    x = torch.tensor(x0, requires_grad=True)

    def closure(z):
        values = torch.tensor(rows) @ x + 0.1 * z[:, 3:] * (1 + x[2])
        return (torch.tensor(costs) + 0.1 * z[:, :3]) @ x, {"rows": values}

    opt = lt.TrackedLagrangian([{"params": [x], "within": BOX}], {"rows": lt.AtMost(1.0)})
    for call, batch in enumerate(samples_of(result, 104)):
        seen[call - 3] = x.detach().numpy().copy()
        opt.step(closure, batch)
    for iterations in (1, 100):
        result = lx.solve(problem, jnp.asarray(x0), iterations=iterations, batch_size=4)
        np.testing.assert_allclose(seen[iterations], result.x, rtol=0, atol=1e-11)


def newsvendors(x):
    """A closure: three of them with a common budget of 1, known on average only; each should have a third."""

    def closure(z):
        loss = 0.5 * torch.clamp(x - z[:, :3], min=0) + 1.5 * torch.clamp(z[:, :3] - x, min=0)
        return loss.sum(dim=1), {"budget": x.sum() - 1 + 0.5 * z[:, 3]}

    return closure


@pytest.mark.parametrize("within", [None, lx.sets.Box(-1.5, 0.5)], ids=["free", "box"])
def test_same_averages_at_kinks(within):
    """Newsvendors with a common budget: between calls the parameters are the average that `solve` returns, or with a
    set its step to the faces."""
    options = {} if within is None else {"within": within}
    problem = lx.Problem(
        lambda x, z: jnp.sum(0.5 * jnp.maximum(x - z[:3], 0) + 1.5 * jnp.maximum(z[:3] - x, 0)),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (4,))),
        constraints={"budget": lx.Equal(lambda x, z: jnp.sum(x) - 1 + 0.5 * z[3])},
        **options,
    )
    x0, x = np.full(3, 0.2), torch.full((3,), 0.2, dtype=torch.float64, requires_grad=True)
    closure = newsvendors(x)
    opt, seen = lt.TrackedLagrangian([{"params": [x], **options}], {"budget": lt.Equal()}), {}
    result = lx.solve(problem, jnp.asarray(x0), iterations=1, batch_size=4)
    for call, batch in enumerate(samples_of(result, 304)):
        opt.step(closure, batch)
        seen[call - 3] = x.detach().numpy().copy()
    for iterations in (1, 10, 300):
        result = lx.solve(problem, jnp.asarray(x0), iterations=iterations, batch_size=4)
        np.testing.assert_allclose(seen[iterations], result.x, rtol=0, atol=1e-9, err_msg=str(iterations))
    np.testing.assert_allclose(opt.multipliers["budget"], result.multipliers["budget"], atol=1e-8)
    assert opt.observe()["averaged"] == 300


def test_averages_are_saved_and_near_the_limit():
    """A run of 10,000 draws that was saved and loaded on the way ends at the same bits as one that was not, and within
    four statistical limits of the solution: rms 1.8 / sqrt(draws), from the sandwich at the solution."""
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn((2500, 4, 4), generator=generator, dtype=torch.float64)

    def made():
        x = torch.full((3,), 0.2, dtype=torch.float64, requires_grad=True)
        return x, lt.TrackedLagrangian([x], {"budget": lt.Equal()}), newsvendors(x)

    (x, opt, closure), (other, again, anew) = made(), made()
    for call, batch in enumerate(batches):
        opt.step(closure, batch)
        if call == 1000:
            again.load_state_dict(opt.state_dict())
            other.data.copy_(x.data)
        elif call > 1000:
            again.step(anew, batch)
    assert opt.observe()["averaged"] > 2400
    torch.testing.assert_close(other, x, rtol=0, atol=0)
    assert float(torch.linalg.vector_norm(x.detach() - 1 / 3)) < 4 * 1.8 / 100
