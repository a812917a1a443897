"""Several processes that meet, for the tests that need them."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as distributed


def launch(work: Callable[..., Any], size: int, folder: Any, *args: Any) -> list[Any]:
    """What work(rank, size, folder, *args) returns in each of them."""
    context = multiprocessing.get_context("forkserver")  # its server imports the libraries once
    context.set_forkserver_preload(["lariax.torch"])
    workers = [context.Process(target=_met, args=(work, rank, size, str(folder), *args)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
    assert [worker.exitcode for worker in workers] == [0] * size
    return [torch.load(f"{folder}/{work.__name__}-{size}-{rank}.pt") for rank in range(size)]


def as_torchrun(rank: int, size: int) -> dict[str, str]:
    """What `torchrun` tells a process by its environment, for frameworks that look there."""
    own, all_ = {"RANK", "LOCAL_RANK"}, {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    numbers = {name: str(rank) for name in own} | {name: str(size) for name in all_}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # they have met already
    return numbers | meeting | {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none", "ACCELERATE_USE_CPU": "1"}


def _met(work: Callable[..., Any], rank: int, size: int, folder: str, *args: Any) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/{work.__name__}-{size}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    torch.save(work(rank, size, folder, *args), f"{folder}/{work.__name__}-{size}-{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
