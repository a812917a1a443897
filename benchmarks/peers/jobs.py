"""Methods on problems, one after the other or in processes of their own."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.problems import problems
from benchmarks.peers.run import Outcome, outcome
from benchmarks.peers.tasks import Task


class Plan(NamedTuple):
    """How much of the comparison is run."""

    data: Path | None
    scale: float  # of all budgets
    settings: int | None  # of each grid; None: all
    seeds: int

    @property
    def name(self) -> str:
        return f"scale-{self.scale:g}-settings-{self.settings or 'all'}-seeds-{self.seeds}"


@cache
def task_of(plan: Plan, problem: str) -> Task:
    return problems(plan.data, plan.scale)[0][problem]()


def job(plan: Plan, problem: str, method: str) -> Outcome:
    return outcome(task_of(plan, problem), problem, method, plan.settings, plan.seeds)


def outcomes(plan: Plan, pairs: list[tuple[str, str]], processes: int) -> Iterator[Outcome]:
    """Of (problem, method), as they are done."""
    if processes == 1:
        yield from (job(plan, *pair) for pair in pairs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(job, plan, *pair) for pair in pairs]):
            yield done.result()
