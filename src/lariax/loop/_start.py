"""The start of a run: from a point, or from where another run stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lariax.loop._budget import Budget, is_number
from lariax.loop._feed import Feeder
from lariax.loop._looks import Looks
from lariax.loop._result import Result, Settings
from lariax.loop._run import Run, begin, begin_traced, nonfinite, rhythm
from lariax.methods import AbstractMethod, TangentNormal, TrackedLagrangian
from lariax.oracle import Oracle, as_point, bind
from lariax.problem import Problem, as_key

OUTPUTS = ("last", "random", "best")
DIVERGED = "a diverged run cannot go on. Start a new run from result.x with a smaller step size."


class Start(NamedTuple):
    """A run that is ready to go on."""

    oracle: Oracle
    method: AbstractMethod
    run: Run
    settings: Settings
    feeder: Feeder
    evaluations: Any  # made until now
    traced: bool
    choice: str
    earlier: Result | None


def fresh(
    problem: Problem,
    x0: PyTree,
    method: Any,
    batch_size: int | None,
    seed: Any,
    output: str | None,
    budget: Budget,
) -> Start:
    """A run from a point."""
    batch_size = 1 if batch_size is None else batch_size
    seed = 0 if seed is None else seed
    output = "last" if output is None else output
    if not is_number(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, found {batch_size!r}.")
    if not isinstance(output, str) or output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, found {output!r}.")
    x = as_point(problem, x0)
    method, choice = _choose(method, problem)
    method = method.told(budget.iterations)
    feeder = Feeder(problem.sources, budget.seconds)
    structures = feeder.structures()
    wanted, batch_size = int(batch_size), max(int(batch_size), method.smallest_batch)
    oracle = bind(problem, x, structures, batch_size=batch_size, copies=method.copies, has_slacks=method.wants_slacks)
    if choice:
        method, choice = _reconsidered(method, choice, oracle)
    method = in_precision(method.prepare(oracle, x), oracle.dtype)
    beat = rhythm(oracle, method, structures)
    _check_draws(budget, beat.start * oracle.draws_per_iteration, oracle, method)
    if batch_size != wanted and oracle.draws_per_iteration:
        remark = f"Batches are of {batch_size} samples, the fewest that {type(method).__name__} takes."
        choice = f"{choice} {remark}".lstrip()
    fed = feeder.start(beat.start, beat.block, oracle.sample_counts)
    key = as_key(seed)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, key, method, oracle)))
    compiled = begin_traced if traced else begin
    with explaining_memory():
        run, finite, evaluations = compiled(oracle, method, x, key, fed, beat, output == "random")
    if not traced:
        _check_finite(nonfinite(oracle, finite))
        evaluations = int(evaluations)
    settings = Settings(batch_size, output, beat)
    return Start(oracle, method, run, settings, feeder, evaluations, traced, choice, earlier=None)


def continued(
    problem: Problem, earlier: Result, method: Any, batch_size: int | None, seed: Any, output: str | None
) -> Start:
    before = earlier.continuation
    if before is None:
        raise ValueError("a run that was traced (jit, vmap) cannot be continued. Start a new run from result.x.")
    if earlier.status == "diverged":
        raise ValueError(DIVERGED)
    settings = before.settings
    if batch_size is not None and max(int(batch_size), before.method.smallest_batch) != settings.batch_size:
        raise ValueError(_keeps("batch_size", settings.batch_size, batch_size))
    if output not in (None, settings.output):
        raise ValueError(_keeps("output", settings.output, output))
    oracle = bind(
        problem,
        earlier.x,
        before.feeder.structures(),
        batch_size=before.settings.batch_size,
        copies=before.method.copies,
        has_slacks=before.method.wants_slacks,
    )
    if seed is not None and not eqx.tree_equal(jax.random.key_data(as_key(seed)), jax.random.key_data(before.run.key)):
        raise ValueError("a continued run keeps its seed. Start a new run from result.x to change it.")
    if not isinstance(method, str):
        given = _choose(method, problem)[0].told(getattr(before.method, "steps", None))
        if not eqx.tree_equal(in_precision(given.prepare(oracle, earlier.x), oracle.dtype), before.method):
            raise ValueError("a continued run keeps its method. Start a new run from result.x to change it.")
    if (oracle.blocks, oracle.coordinates) != (before.oracle.blocks, before.oracle.coordinates):
        raise ValueError(
            f"this result belongs to a problem with constraints {_lengths(before.oracle)}, found {_lengths(oracle)}. "
            "Names, order and lengths must stay; start a new run from result.x otherwise."
        )
    return Start(
        oracle,
        before.method,
        before.run,
        before.settings,
        before.feeder,
        earlier.evaluations - before.looked.evaluations,
        traced=False,
        choice=earlier.choice,
        earlier=earlier,
    )


def _check_draws(budget: Budget, taken: int, oracle: Oracle, method: AbstractMethod) -> None:
    """Refuse a budget in which there is no iteration; `taken`: by the start."""
    each = oracle.draws_per_iteration
    if budget.draws is not None and budget.draws < taken + each:
        start = f"the start of {type(method).__name__} takes {taken:,} and an iteration {each:,}"
        raise ValueError(
            f"draws={budget.draws:,} would end the run before its first iteration: "
            f"{start if taken else f'an iteration takes {each:,}'}. Give more, or start with a smaller batch_size."
        )


def _keeps(name: str, kept: Any, found: Any) -> str:
    return f"a continued run keeps its {name}={kept!r}, found {found!r}. Start a new run from result.x."


def _lengths(oracle: Oracle) -> dict[str, int]:
    return {block.name: block.size for block in oracle.blocks}


def _choose(method: Any, problem: Problem) -> tuple[AbstractMethod, str]:
    """The method, and a word on the choice if it was ours."""
    if isinstance(method, AbstractMethod):
        return method, ""
    if not (isinstance(method, str) and method == "auto"):
        raise TypeError(f'method must be "auto" or a method such as lx.TrackedLagrangian(), found {method!r}.')
    if not problem.constraints:
        return TrackedLagrangian(), _took("there are no constraints, and its momentum tunes itself")
    misfit = TangentNormal.unfit(problem)
    if misfit is None:
        return TangentNormal(), _took("all constraints are deterministic, and it keeps to them", "TangentNormal")
    return TrackedLagrangian(), _took(f"{misfit}, and it is unbiased without a step size or penalty to choose")


def _reconsidered(method: AbstractMethod, choice: str, oracle: Oracle) -> tuple[AbstractMethod, str]:
    """Our choice, now that the number of rows is known. (Both methods need the same oracle.)"""
    if isinstance(method, TangentNormal) and method.has_many_rows(oracle):
        why = f"{oracle.rows:,} constraint rows on {oracle.dimension:,} entries of x are many for TangentNormal"
        return TrackedLagrangian(), _took(why)
    return method, choice


def _took(why: str, name: str = "TrackedLagrangian") -> str:
    return f'method="auto" took {name}: {why}.'


def in_precision(method: AbstractMethod, dtype: Any) -> AbstractMethod:
    """Hyperparameters as arrays: they are traced, so other values do not compile again."""

    def convert(leaf: Any) -> Any:
        numeric = isinstance(leaf, float | int | np.ndarray | np.generic | jax.Array) and not isinstance(leaf, bool)
        return jnp.asarray(leaf, dtype) if numeric else leaf

    return jax.tree.map(convert, method)


def last_iteration(start: Start, budget: Budget, first: int, taken: int, looks: Looks | None) -> int | None:
    """The last iteration that the budgets of iterations and draws allow to a run now at iteration `first` that has
    `taken` draws of this budget; None: they do not limit it."""
    last = budget.last_iteration(first, start.oracle.draws_per_iteration, taken)
    if last is None and budget.seconds is None:
        raise ValueError(
            "nothing in this problem is random, so a budget of draws never ends. Say iterations= or seconds=."
        )
    _check_draws(budget, taken, start.oracle, start.method)
    if looks and last is not None and budget.draws is not None:
        left, needed = budget.draws - taken, start.oracle.draws_per_iteration + looks.most_draws(first, first + 1)
        if left < needed:
            raise ValueError(
                f"draws={budget.draws:,} leaves {left:,} after the start, and one iteration and the certificate of "
                f'tolerance= or output="best" take {needed:,}. Give more.'
            )
        last = looks.last_iteration(first, last, left)
    return last


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
