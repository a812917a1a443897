"""Several processes have the same multipliers."""

import multiprocessing

import torch
import torch.distributed as distributed

import lariax.torch as lt

ROWS, SIZE = 16, 2


def train(part):
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    multipliers = lt.Multipliers({"sum": lt.AtMost(-1.0), "each": lt.Equal(0.1)}, steps=40, parameters=[x])
    found = []
    for i in range(40):
        z = part(torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64))
        multipliers.lagrangian(((x - z - 1) ** 2).sum(dim=1), {"sum": (x + z).sum(dim=1), "each": x + z})
        found.append([float(multipliers["sum"]), *map(float, multipliers["each"])])
    return torch.tensor(found), multipliers.values["sum"].level


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=SIZE)
    torch.save(train(lambda rows: rows[rank::SIZE]), f"{folder}/{rank}.pt")
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
    (first, level), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(SIZE))
    assert (first == second).all()
    assert float(first[-1, 0]) > 0
    alone, _ = train(lambda rows: rows)
    torch.testing.assert_close(first[-1], alone[-1], rtol=0.5, atol=0.3)  # noise is measured in parts of a batch
    assert abs(level) < 1
