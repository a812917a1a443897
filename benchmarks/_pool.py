"""Benchmarks side by side, in processes of one thread each."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import jax

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def side_by_side(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """function(*job) for each job, as they are done, in double precision. Give the longest jobs first."""
    if processes == 1:
        _in_double_precision()
        for job in jobs:
            yield function(*job)
        return
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_in_double_precision) as pool:
        for done in as_completed([pool.submit(function, *job) for job in jobs]):
            yield done.result()


def _in_double_precision() -> None:
    jax.config.update("jax_enable_x64", True)
