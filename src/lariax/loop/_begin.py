"""The state of a run before its first iteration: from a point, or from where another run stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from lariax.certificate import Tolerance
from lariax.loop._budget import Budget, record_interval
from lariax.loop._certifier import Certifier
from lariax.loop._compiled import begin, block_layout
from lariax.loop._feed import Feeder
from lariax.loop._finite import nonfinite
from lariax.loop._history import Recorded
from lariax.loop._state import OUTPUTS, RunState, Setup, has_tracers
from lariax.methods import fitted, oracle_for, prepared
from lariax.oracle import Oracle, as_point
from lariax.problem import Problem, Stream, arrays_of, as_key, home_of, mesh_of, on_mesh, opened
from lariax.utils import check_among, check_count

DIVERGED = "a diverged run cannot go on. Start a new run from result.x with a smaller step size."


class RunChoices(NamedTuple):
    """What of a run its user may choose once; None: the default, or what an earlier run has."""

    method: Any
    batch_size: int | None
    seed: Any
    output: str | None


def from_point(problem: Problem, x0: PyTree, asked: RunChoices, budget: Budget) -> RunState:
    """A run from a point; its arrays are traced if x0, the seed or the method are."""
    batch_size = 1 if asked.batch_size is None else asked.batch_size
    output = "last" if asked.output is None else asked.output
    check_count("batch_size", batch_size)
    check_among("output", output, OUTPUTS)
    problem, start = opened(problem, x0)
    x = on_mesh(as_point(problem, start), mesh_of((start, problem.sources)))
    feeder = Feeder(problem.sources, budget.seconds)
    samples = feeder.structures()
    oracle, method, choice = fitted(problem, x, samples, asked.method, int(batch_size), budget.iterations)
    _check_dealing(oracle)
    blocks = block_layout(oracle, method, samples)
    home = home_of(arrays_of(x0)) if oracle.placement else ()
    setup = Setup(oracle, method, output, blocks, feeder, choice, budget.iterations, home)
    _check_draws(budget, blocks.start * oracle.draws_per_iteration, setup)
    fed = feeder.start(blocks.start, blocks.length, oracle.sample_counts)
    key = as_key(0 if asked.seed is None else asked.seed)
    with explaining_memory():
        loop, finite, evaluations = begin(oracle, method, x, key, fed, blocks, output == "random")
    traced = has_tracers((x, key, method, oracle, finite))  # the last: what functions close over
    if not traced:
        _check_finite(nonfinite(oracle, finite))
    return RunState(setup, loop, evaluations if traced else int(evaluations), Recorded(every=1))


def from_earlier(problem: Problem, x: PyTree, before: RunState | None, asked: RunChoices) -> RunState:
    """A run from the end of another, whose answer is x. What it has in common with that one is compared with what is
    asked for."""
    if before is None:
        raise ValueError("a run that was traced (jit, vmap) cannot be continued. Start a new run from result.x.")
    if not before.loop.finite:
        raise ValueError(DIVERGED)
    problem, x = opened(problem, x)
    x = on_mesh(x, mesh_of((x, problem.sources)))
    setup, kept = before.setup, before.oracle.batch_size
    if asked.batch_size is not None and max(int(asked.batch_size), setup.method.needs.smallest_batch) != kept:
        raise ValueError(_keeps(f"batch_size={kept!r}, found {asked.batch_size!r}"))
    if asked.output not in (None, setup.output):
        raise ValueError(_keeps(f"output={setup.output!r}, found {asked.output!r}"))
    if asked.seed is not None and not eqx.tree_equal(*map(jax.random.key_data, (as_key(asked.seed), before.loop.key))):
        raise ValueError(_keeps("seed"))
    oracle = oracle_for(setup.method, problem, x, setup.feeder.structures(), kept)
    if not isinstance(asked.method, str) and not eqx.tree_equal(
        prepared(asked.method, oracle, x, setup.iterations), setup.method
    ):
        raise ValueError(_keeps("method"))
    if (oracle.blocks, oracle.coordinates) != (before.oracle.blocks, before.oracle.coordinates):
        raise ValueError(
            f"this result belongs to a problem with constraints {_lengths(before.oracle)}, found {_lengths(oracle)}. "
            "Names, order and lengths must stay; start a new run from result.x otherwise."
        )
    return replace(before, setup=replace(setup, oracle=oracle), certified=None)


def _check_dealing(oracle: Oracle) -> None:
    """Rows that the host brings to several devices cannot be dealt out otherwise, as drawn ones can."""
    brought = any(isinstance(source, Stream) and source.mesh is not None for source in oracle.sources)
    devices = oracle.placement.count if oracle.placement else 1
    if brought and (oracle.batch_size % devices or oracle.batch_size < 2 * devices):
        raise ValueError(
            f"with Stream.local every device takes as many rows of a batch, and two at least: batch_size must be a "
            f"multiple of the {devices} devices, and {2 * devices} at least, found {oracle.batch_size}."
        )


def _keeps(what: str) -> str:
    return f"a continued run keeps its {what}. Start a new run from result.x to change it."


def _lengths(oracle: Oracle) -> dict[str, int]:
    return {block.name: block.size for block in oracle.blocks}


def certifier_for(run: RunState, tolerance: Tolerance | None, confidence: float) -> Certifier | None:
    """Who checks the run; None: nobody need."""
    if tolerance is None and run.setup.output != "best":
        return None
    return Certifier(run.oracle, run.setup.feeder, tolerance, confidence, run.loop.key)


def last_iteration(run: RunState, budget: Budget, certifier: Certifier | None, taken: int = 0) -> int | None:
    """The last iteration that the budgets of iterations and draws allow from here on; None: they do not limit it.
    `taken`: draws of this budget that the start has taken."""
    first, each = run.iteration, run.oracle.draws_per_iteration
    last = budget.last_iteration(first, each, taken)
    if last is None and budget.seconds is None:
        raise ValueError(
            "nothing in this problem is random, so a budget of draws never ends. Say iterations= or seconds=."
        )
    _check_draws(budget, taken, run.setup)
    if certifier and last is not None and budget.draws is not None:
        left, needed = budget.draws - taken, each + certifier.most_draws(first, first + 1)
        if left < needed:
            raise ValueError(
                f"draws={budget.draws:,} leaves {left:,} after the start, and one iteration and the certificate of "
                f'tolerance= or output="best" take {needed:,}. Give more.'
            )
        last = certifier.last_iteration(first, last, left)
    return last


def recording(run: RunState, every: int | None, last: int | None) -> RunState:
    """The run with rows of history as often as asked for."""
    return replace(run, history=run.history.continued(every or record_interval(last, run.iteration)))


def _check_draws(budget: Budget, taken: int, setup: Setup) -> None:
    """Refuse a budget in which there is no iteration; `taken`: by the start."""
    each = setup.oracle.draws_per_iteration
    if budget.draws is not None and budget.draws < taken + each:
        start = f"the start of {type(setup.method).__name__} takes {taken:,} and an iteration {each:,}"
        raise ValueError(
            f"draws={budget.draws:,} would end the run before its first iteration: "
            f"{start if taken else f'an iteration takes {each:,}'}. Give more, or start with a smaller batch_size."
        )


@contextmanager
def explaining_memory() -> Iterator[None]:
    """Out of memory: say what can be done about it."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        if not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()):
            raise
        raise MemoryError(
            f"there is not enough memory for an iteration of this problem ({text.partition(chr(10))[0]}). "
            "Lower batch_size=, give x0 in float32, or let the functions need less at a time. A checkpoint, if the run "
            "has one, is intact."
        ) from error


def _check_finite(bad: list[str]) -> None:
    bad.sort(key=lambda what: what == "a gradient")  # blame a value first, if there is one to blame
    if bad:
        raise ValueError(
            f"{bad[0]} is not finite at x0 on the first batch of samples. Start from a point where every function is "
            "defined, and look for log, sqrt or division at 0 (also in gradients: sqrt and norm at 0)."
        )
