"""Running the experiments, in one process or in several."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lariax.rates._experiments import LONGEST, Experiment, Measured, experiments
from lariax.rates._report import Report

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def measure(
    cases: Sequence[str] | None = None,
    *,
    seeds: int = 64,
    longest: int = LONGEST,
    variants: Sequence[str] | None = None,
    processes: int = 1,
    progress: bool = False,
) -> Report:
    """Run the rate laboratory: `lx.rates.measure(["I"], seeds=8, longest=10_000).markdown()`.

    Arguments:
        cases: of "I", "II", "III", "III+"; by default all. seeds: problems and runs for each experiment, all in one
        program. longest: the largest K. variants: which ablations; by default all. processes: experiments run side by
        side in so many processes. With more than one, each works in double precision. progress: show a progress bar.

    >>> import lariax as lx
    >>> report = lx.rates.measure(["I"], seeds=8, longest=10_000)  # doctest: +SKIP
    >>> print(report.markdown())  # doctest: +SKIP
    """
    plan = [
        experiment
        for experiment in experiments()
        if (cases is None or experiment.case in cases) and (variants is None or experiment.variant in variants)
    ]
    if not plan:
        raise ValueError(f"no experiment has a case of {cases} and a variant of {variants}.")
    began = time.monotonic()
    found: dict[str, Measured] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("experiments", total=len(plan))
        for name, measured in _results(plan, seeds, longest, processes):
            found[name] = measured
            bar.update(task, advance=1, description=f"{name:<30}")
    return Report([found[experiment.name] for experiment in plan], time.monotonic() - began)


def _results(plan: list[Experiment], seeds: int, longest: int, processes: int) -> Iterator[tuple[str, Measured]]:
    if processes == 1:
        for experiment in plan:
            yield experiment.name, experiment.run(seeds, longest)
        return
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()  # for the processes to come: one core each
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context, initializer=_in_double_precision) as pool:
            longest_first = sorted(plan, key=lambda e: e.marks(longest)[-1], reverse=True)
            jobs = {pool.submit(_run, e.name, seeds, longest): e.name for e in longest_first}
            for job in as_completed(jobs):
                yield jobs[job], job.result()
    finally:
        os.environ["XLA_FLAGS"] = flags


def _in_double_precision() -> None:
    jax.config.update("jax_enable_x64", True)


def _run(name: str, seeds: int, longest: int) -> Measured:
    experiment = next(e for e in experiments() if e.name == name)
    return experiment.run(seeds, longest)
