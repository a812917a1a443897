"""Several processes with parts of a batch take the steps of one with the whole batch."""

import multiprocessing

import pytest
import torch
import torch.distributed as distributed

import lariax.torch as lt
from lariax.torch import _batch_looks, _tracked

ROWS = 16
ENTRIES = (0, 2**21)
METHODS = {
    "DualPenalty": lambda model, constraints: lt.DualPenalty(model, constraints, lr=0.05),
    "TrackedLagrangian": lt.TrackedLagrangian,
}


def seldom(xp, k):
    return 1 if k < 4 else 8


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()


def train(method, wrap, part):
    """Twelve steps: some that measure on halves of the whole batch, and some ordinary ones."""
    model = network()
    called = wrap(model)
    opt = METHODS[method](model, {"mean": lt.AtMost([0.1, 0.2]), "near": lt.AtMost(-0.1, indexed=160)})

    def closure(batch):
        x, y, index = batch
        out = called(x)
        return ((out - y) ** 2).mean(), {"mean": out - y, "near": lt.Indexed(out[:, 0], index)}

    for i in range(12):
        x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        opt.step(closure, [part(rows) for rows in (x, x[:, :2] ** 2, torch.arange(ROWS) + ROWS * (i % 10))])
    return torch.cat([*(p.detach().reshape(-1) for p in model.parameters()), opt.multipliers["near"]])


def train_noisy(part, entries):
    """Twelve steps on a problem in which the noise of the objective decides on the penalty, measured from single rows
    only if `entries` permits."""
    _batch_looks.ROW_ENTRIES = entries
    x = torch.arange(3, dtype=torch.float64, requires_grad=True)
    opt = lt.TrackedLagrangian([x], {"sum": lt.Equal()})
    for i in range(12):
        z = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        opt.step(
            lambda z: (((x - 3 * z) ** 2).sum(dim=1).mean(), {"sum": x.sum() - 1 + 2 * z[:, 0] * (x[0] - x[1])}),
            part(z),
        )
    return x.detach()


def work(rank, size, folder):
    torch.set_num_threads(1)
    _tracked.interval_at = seldom
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for method in METHODS:
        found = train(method, torch.nn.parallel.DistributedDataParallel, lambda rows: rows[own])
        if rank == size - 1:
            torch.save(found, f"{folder}/{method}.pt")
    found = [train_noisy(lambda rows: rows[own], entries) for entries in ENTRIES]
    if rank == size - 1:
        torch.save(found, f"{folder}/noisy.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.long_but("2")
@pytest.mark.parametrize("size", [2, 4])
def test_same_steps(size, tmp_path, monkeypatch):
    monkeypatch.setattr(_tracked, "interval_at", seldom)
    monkeypatch.setattr(_batch_looks, "ROW_ENTRIES", _batch_looks.ROW_ENTRIES)  # and back to it
    context = multiprocessing.get_context("forkserver")  # its server imports the libraries once
    context.set_forkserver_preload(["lariax.torch"])
    workers = [context.Process(target=work, args=(rank, size, str(tmp_path))) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
    assert [worker.exitcode for worker in workers] == [0] * size
    for method in METHODS:
        expected = train(method, lambda model: model, lambda rows: rows)
        torch.testing.assert_close(torch.load(tmp_path / f"{method}.pt"), expected, rtol=0, atol=1e-11)
    expected = [train_noisy(lambda rows: rows, entries) for entries in ENTRIES]
    torch.testing.assert_close(torch.load(tmp_path / "noisy.pt"), expected, rtol=0, atol=1e-10)
