"""Several processes have the same multipliers, and those of one process with the whole batch."""

import multiprocessing

import torch
import torch.distributed as distributed

import lariax.torch as lt

ROWS, SIZE, STEPS = 16, 2, 120


def train(part, noise, average=lambda gradient: gradient):
    """min (x1 - 1)^2 + (x2 - 1)^2 with x1 + x2 <= 1 and x1 - x2 = 0.2; `noise` of the objective's gradient."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([x], lr=0.05)
    constraints = {"sum": lt.AtMost(1.0), "difference": lt.Equal(torch.tensor([0.2, -0.2]))}
    multipliers = lt.Multipliers(constraints, steps=STEPS, parameters=[x])
    found = []
    for i in range(STEPS):
        z = part(0.1 * torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64))
        losses = ((x - 1) ** 2).sum() + noise * z @ x
        apart = (x[0] - x[1] + z[:, 1])[:, None] * torch.tensor([1.0, -1.0])
        sgd.zero_grad()
        multipliers.lagrangian(losses, {"sum": x.sum() + z[:, 0], "difference": apart}).backward()
        x.grad = average(x.grad)
        sgd.step()
        found.append([multipliers["sum"], *multipliers["difference"].tolist(), *x.tolist()])
    return torch.tensor(found)


def mean_over_processes(gradient):
    distributed.all_reduce(gradient)
    return gradient / SIZE


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=SIZE)
    for noise in (0, 1):
        torch.save(train(lambda rows: rows[rank::SIZE], noise, mean_over_processes), f"{folder}/{rank}-{noise}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def test_all_processes_agree(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lariax.torch"])
    workers = [context.Process(target=work, args=(rank, str(tmp_path))) for rank in range(SIZE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
    assert [worker.exitcode for worker in workers] == [0] * SIZE
    quiet, noisy = ([torch.load(tmp_path / f"{rank}-{noise}.pt") for rank in range(SIZE)] for noise in (0, 1))
    assert (quiet[0] == quiet[1]).all()
    assert (noisy[0] == noisy[1]).all()
    assert float(quiet[0][STEPS // 2 :, 0].mean()) > 0.1
    # lengths of gradients come from halves of a process's own rows: only where those are alike is one process the same
    torch.testing.assert_close(quiet[0], train(lambda rows: rows, 0), rtol=1e-6, atol=1e-6)
