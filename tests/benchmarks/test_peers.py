"""The comparison with peers: everybody is told the same problem, and a time means what it says."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cooper")
pytest.importorskip("humancompatible.train")

from benchmarks.peers.methods import JAX, RIVALS, TORCH, with_alm, with_cooper, with_lariax  # noqa: E402 (only where they are)
from benchmarks.peers.problems import problems  # noqa: E402
from benchmarks.peers.report import first, for_good, front, problem_table  # noqa: E402
from benchmarks.peers.run import Outcome, Trace, outcome  # noqa: E402
from benchmarks.peers.tasks import Look, Rows, Shape, Stratum  # noqa: E402

import lariax.torch as lt  # noqa: E402


@pytest.fixture(scope="module")
def rows():
    """Two strata of 40 rows, three classes, a network: small, with all that the real ones have."""
    generator = torch.Generator().manual_seed(0)
    strata = [
        Stratum(torch.randn(40, 5, generator=generator), torch.randint(3, (40,), generator=generator)) for _ in range(4)
    ]
    shape = Shape("small", 2, False, 4, 2, 10, 0.02, 0.01)
    shares, matrix = torch.tensor([0.3, 0.7]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    return Rows(shape, tuple(strata[:2]), tuple(strata[2:]), shares, matrix, torch.full((2,), 0.1), (5, 4, 3))


@pytest.fixture(scope="module")
def biased():
    return problems(None)[0]["bias2"]()


def test_every_grid_has_thirty_settings():
    for name, rival in RIVALS.items():
        assert len({repr(setting) for setting in rival.grid}) >= 30, name


@pytest.mark.parametrize("method", [*RIVALS, TORCH])
def test_everybody_takes_steps_on_inequalities_and_equations(method, rows, biased, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.run.ROUNDS", ((None, 1 / 12, 3), (2, 1 / 3, 3)))
    monkeypatch.setattr("benchmarks.peers.run.LOOKS", 3)
    for task in (rows, replace(biased, shape=replace(biased.shape, seconds=0.02))):
        found = outcome(task, "here", method, 2, 1)
        assert len(found.tuning) == (4 if method in RIVALS else 0)
        assert found.traces[0].draws[-1] > 0
        assert np.isfinite(found.traces[0].table).all()


def test_torch_and_jax_mean_the_same_numbers(rows):
    model = rows.model(3)
    x = rows.point(model)
    samples = rows.problem.samples.arrays
    both = jax.tree.map(lambda part: jnp.stack([part[:40], part[40:]], axis=1), samples)  # 40 samples of a row each
    losses, values = jax.vmap(rows.problem.objective, (None, 0))(x, both)
    look = rows.look(model)
    np.testing.assert_allclose(jnp.mean(losses), look.loss, rtol=1e-5)
    excess = jnp.mean(values["c"], axis=0) - rows.problem.constraints["c"].bound
    np.testing.assert_allclose(jnp.max(excess), look.excess, atol=1e-6)
    batch = next(rows.batches(0))
    torch_losses, torch_values = rows.closure(model)(batch)
    told = {"input": jnp.asarray(batch[0].numpy()), "label": jnp.asarray(batch[1].numpy())}
    jax_losses, jax_values = jax.vmap(rows.problem.objective, (None, 0))(x, told)
    np.testing.assert_allclose(torch_losses.detach(), jax_losses, rtol=1e-5)
    np.testing.assert_allclose(torch_values["c"].detach(), jax_values["c"] - 0.1, atol=1e-6)
    other = rows.model(4)
    rows.load(other, x)
    assert rows.look(other) == look


@pytest.mark.parametrize("key", ["bias2", "toy50"])
def test_known_problems_are_told_alike(key):
    task = problems(None)[0][key]()
    model = task.model(0)
    with torch.no_grad():
        model.x.add_(0.1 * torch.arange(len(model.x)))
    many = torch.randn((50_000, task.noise), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        losses, values = task.closure(model)((many,))
    x = jnp.asarray(model.x.detach().numpy())
    for part, exact in ((losses[:, None], task.case.objective(x)[None]), (values["c"], task.case.constraints(x))):
        error = part.std(dim=0).numpy() / np.sqrt(len(many))  # five of them: one failure in a million
        assert np.all(np.abs(part.mean(dim=0).numpy() - np.asarray(exact)) <= 5 * error + 1e-5)


def test_the_solution_is_where_it_is(biased):
    model = biased.model(0)
    biased.load(model, jnp.array([-0.5, 1.5]))
    assert biased.look(model) == Look(0.25, 0.0, 0.0)


def test_back_propagated_penalties_end_elsewhere(biased):
    """With a penalty of 10 on the batch's own values; the solution is (-0.5, 1.5)."""
    setting = {"lr": 0.02, "dual_lr": 0.05, "penalty": 10.0}
    for build in (with_cooper, with_alm):
        np.testing.assert_allclose(_mean_after(biased, build, setting, 400, 1200), [0.42, 0.6], atol=0.05)
    assert np.linalg.norm(_mean_after(biased, with_lariax(lt.TrackedLagrangian), {}, 200, 400) - [-0.5, 1.5]) < 0.15


def _mean_after(task, build, setting, start, end):
    """The mean of the iterates from `start` to `end`."""
    model = task.model(0)
    step, total = build(task, model, setting), torch.zeros(2)
    for i, batch in enumerate(itertools.islice(task.batches(0), end)):
        step(batch)
        total += model.x.detach() * (i >= start)
    return (total / (end - start)).numpy()


@pytest.fixture
def trace():
    """Outside the bound at the third of five looks; the AUC rises."""
    looks = [
        Look(1.0, excess, quality) for excess, quality in ((-1, 0.8), (-1, 0.82), (1, 0.85), (-1, 0.85), (-1, 0.86))
    ]
    return Trace([0.1, 0.2, 0.3, 0.4, 1.0], [10, 20, 30, 40, 100], looks)


def test_first_and_for_good(trace):
    good = trace.table[:, 1] <= 0
    assert first(trace, good) == 0.1
    assert for_good(trace, good) == 0.4
    assert for_good(trace, np.array([True] * 4 + [False])) == np.inf
    assert first(trace, np.zeros(5, bool)) == np.inf
    assert trace.merit == 1.0


def test_the_front_compares_at_the_same_auc(trace):
    slower = trace._replace(seconds=[4 * t for t in trace.seconds])
    slowest = trace._replace(seconds=[8 * t for t in trace.seconds])
    table = front([("slow", [slower]), ("slowest", [slowest])], [trace], (0.5, 0.0), first)
    assert [row[0] for row in table] == ["0.80", "0.81", "0.82", "0.83", "0.84", "0.85", "0.86"]
    assert {row[-1] for row in table} == {"0.25"}
    assert table[3][1] == "1.60 s, slow"  # an AUC of 0.83 within the bound: at the fourth look
    later = front([("slow", [slower])], [trace], (0.5, 0.0), for_good)
    assert later[0] == ["0.80", "1.60 s, slow", "0.4 s [0.4, 0.4]", "0.25"]


def test_ours_comes_first_in_the_table(trace):
    rival = Outcome("p", "hc ALM", {"lr": 1.0}, [], [trace], [None], 0.0, 1.0)
    ours = Outcome("p", JAX, {}, [], [trace], [None], 0.0, 1.0)
    lines = problem_table(Shape("p", 1, False, 1, 1, 1, 1.0, 0.0), "distance", [rival, ours])
    assert lines[2].startswith(f"| {JAX} |")
