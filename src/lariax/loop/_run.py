"""The one compiled loop. It knows of no method, no clock and no file.

    blocks            samples for T iterations are drawn at once; finiteness is judged at the end of a block, and if it
                      is lost, the block is gone through again to find where
      segments        up to the next iteration that is to be recorded or picked
        iterations    method.step, and nothing else; now and then method.measuring_step

T is fixed by the problem (`rhythm`), and blocks begin at multiples of T: where the host cuts the run into calls,
what it records and where it resumes changes no bit.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from lariax.loop._randomness import NEVER, Randomness
from lariax.methods import AbstractMethod, Answer, State
from lariax.oracle import Batch, Oracle, Vector, counting
from lariax.tuned.rates import next_refresh

LONGEST_BLOCK = 256
BLOCK_BYTES = 4 * 2**20
FEW = 8  # parts of an array that the compiler makes by one command

Packed = tuple[list[Array], State]


class Run(NamedTuple):
    """All that the next iteration needs, and the answers kept so far."""

    key: Key[Array, ""]
    iteration: Int[Array, ""]  # the last one completed
    state: State
    finite: Bool[Array, ""]  # False: the next iteration leaves the range of floating point
    picked: Answer | None  # the answer after an iteration drawn uniformly from those completed; None: not wanted
    next_pick: Int[Array, ""]
    next_refresh: Int[Array, ""]


class Rhythm(NamedTuple):
    """How a problem and a method keep time, for the whole run. Iteration k uses the samples at place k + start - 1."""

    block: int  # places drawn at once
    start: int  # places that the start takes
    window: int  # places that a refresh looks back on; 0: there are no refreshes

    @property
    def shift(self) -> int:
        return self.start - 1

    def next_refresh(self, iteration: Array) -> Array:
        """A quarter further on, at the end of a window, which then lies within a block."""
        if not self.window:
            return jnp.int32(NEVER)
        return next_refresh(jnp, iteration, self.start, self.window).astype(jnp.int32)


class Records(NamedTuple):
    """Rows of history, the first `filled` of them in use, and the evaluations made meanwhile."""

    evaluations: Int[Array, ""]
    filled: Int[Array, ""]
    rows: PyTree


def rhythm(oracle: Oracle, method: AbstractMethod, structures: tuple[PyTree | None, ...]) -> Rhythm:
    """As many places a block as fit `BLOCK_BYTES`, a power of two. `structures`: one sample of each source."""
    size = 0
    for i, source in enumerate(oracle.sources):
        if source is None:
            continue
        count = oracle.samples_from(i)
        if source.from_host:
            size += count * _bytes(structures[i])
        else:
            size += _bytes(jax.eval_shape(lambda s=source, n=count: s.draw(jax.random.key(0), jnp.arange(1), n)))
    block = _power_of_two(min(LONGEST_BLOCK, BLOCK_BYTES // max(size, 1)))
    start = min(block, -(-method.start_samples // oracle.batch_size))
    window = method.refresh_samples and min(block, _power_of_two(method.refresh_samples // oracle.batch_size))
    return Rhythm(block, start, window)


def _power_of_two(limit: int) -> int:
    """The largest one up to the limit, and at least 1."""
    return 1 << (max(limit, 1).bit_length() - 1)


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _begin(
    oracle: Oracle, method: AbstractMethod, x: PyTree, key: Key[Array, ""], fed: PyTree, rhythm: Rhythm, pick: bool
) -> tuple[Run, dict[str, Bool[Array, ""]], Int[Array, ""]]:
    """The run before iteration 1, which of the user's functions are finite there, and the evaluations it took."""
    with counting() as tally:
        tickets = oracle.draw(key, jnp.arange(rhythm.start), fed)
        batches = jax.vmap(oracle.fetch, axis_size=rhythm.start)(tickets)
        point = oracle.start(x, batches.first)
        state = method.init(oracle, point, batches)
    finite = {**_finite_functions(oracle, point, batches.first), "a gradient": _all_finite(state)}
    answer = method.answer(oracle, state, jnp.ones((), oracle.dtype))
    run = Run(
        key=key,
        iteration=jnp.int32(0),
        state=state,
        finite=jnp.asarray(True),
        picked=answer if pick else None,
        next_pick=jnp.int32(1 if pick else NEVER),
        next_refresh=rhythm.next_refresh(jnp.int32(0)),
    )
    return run, finite, jnp.int32(round(sum(tally)))


def _finite_functions(oracle: Oracle, point: Vector, batch: Batch) -> dict[str, Bool[Array, ""]]:
    """Which of the user's functions are finite on a batch, in words."""
    look = oracle.look(point, batch)
    others = range(1, oracle.copies) if oracle.has_random_constraints else ()
    residuals = oracle.join(look.residuals) + sum(oracle.join(oracle.residuals(point, batch, copy)) for copy in others)
    finite = {f"constraint {block.name!r}": _all_finite(residuals[block.rows]) for block in oracle.blocks}
    return {"the objective": _all_finite(look.objective), **finite}


@eqx.filter_jit
def finite_next(
    oracle: Oracle, method: AbstractMethod, run: Run, place: Int[Array, ""], fed: PyTree
) -> dict[str, Bool[Array, ""]]:
    """Which of the user's functions are finite at the last sound point, on the samples of the iteration after it, those
    at `place`."""
    tickets = oracle.draw(run.key, place[None], fed)
    batch = oracle.fetch(jax.tree.map(lambda ticket: ticket[0], tickets))
    point = method.answer(oracle, run.state, run.iteration.astype(oracle.dtype)).point
    return _finite_functions(oracle, point, batch)


begin_traced = eqx.filter_jit(_begin)
_filter_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit
begin = _filter_jit(_begin, compiler_options={"xla_backend_optimization_level": 0})
"""It runs once, so the time goes into compiling: half of it without optimisation. Not for use within another jit."""


@eqx.filter_jit
def advance(
    oracle: Oracle,
    method: AbstractMethod,
    run: Run,
    stop: Int[Array, ""],
    every: Int[Array, ""],
    fed: PyTree,
    rhythm: Rhythm,
    capacity: int,
) -> tuple[Run, Records]:
    """Iterations run.iteration + 1 .. stop, or up to the last one whose state is finite.

    Also returns the rows recorded on the way: every iteration that `every` divides; at most `capacity`.
    """
    tickets = oracle.draw(run.key, jnp.arange(1), jax.tree.map(lambda rows: rows[:1], fed))
    batches = jax.vmap(oracle.fetch, axis_size=1)(tickets)
    with counting() as per_iteration:
        step = jax.make_jaxpr(lambda state: method.step(oracle, state, jnp.ones((), oracle.dtype), batches.first))
        traced = step(run.state).jaxpr
    with counting() as per_measurement:
        jax.eval_shape(lambda: method.measuring_step(oracle, run.state, jnp.ones((), oracle.dtype), batches.first))
    with counting() as per_refresh:
        if rhythm.window:
            jax.eval_shape(lambda: method.refresh(oracle, run.state, batches, run.key))

    def append(records: Records, row: PyTree) -> Records:
        rows = jax.tree.map(lambda column, value: column.at[records.filled].set(value), records.rows, row)
        return records._replace(filled=records.filled + 1, rows=rows)

    changes = [
        _is_number(leaf) and old is not new
        for leaf, old, new in zip(jax.tree.leaves(run.state), traced.invars, traced.outvars, strict=True)
    ]
    turning = jax.tree.unflatten(jax.tree.structure(run.state), changes)
    structure = jax.tree.structure(eqx.filter(run.state, turning))

    def packed(state: State) -> Packed:
        """The numbers that a step changes in a few arrays: each array that a loop carries is copied by a command of its
        own, and one of few parts is made by one."""
        numbers, rest = eqx.partition(state, turning)
        each = jax.tree.leaves(numbers)
        return [jnp.stack(each[i : i + FEW]) for i in range(0, len(each), FEW)], rest

    def unpacked(parts: Packed) -> State:
        arrays, rest = parts
        return eqx.combine(jax.tree.unflatten(structure, [number for array in arrays for number in array]), rest)

    def k_of(iteration: Array) -> Array:
        return iteration.astype(oracle.dtype)

    def one_block(carry: tuple[Run, Records]) -> tuple[Run, Records]:
        run, records = carry
        place = (run.iteration + rhythm.start) // rhythm.block * rhythm.block
        first = place - rhythm.shift  # the iteration at the first place of the block
        last = jnp.minimum(first + rhythm.block - 1, stop)
        tickets = oracle.draw(run.key, place + jnp.arange(rhythm.block), fed)

        def batch_of(iteration: Array) -> Batch:
            return oracle.fetch(jax.tree.map(lambda ticket: ticket[iteration - first], tickets))

        def refreshed(run: Run) -> Run:
            back = run.iteration - first - rhythm.window + 1
            window = jax.tree.map(lambda t: jax.lax.dynamic_slice_in_dim(t, back, rhythm.window), tickets)
            key = jax.random.fold_in(Randomness.REFRESHES.of(run.key), run.iteration)
            new = method.refresh(oracle, run.state, jax.vmap(oracle.fetch, axis_size=rhythm.window)(window), key)
            sound = _all_finite(new)  # a sample in the window that the method refused would spoil it
            state = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, run.state)
            return run._replace(state=state, next_refresh=rhythm.next_refresh(run.iteration))

        def iterate(iteration: Array, parts: Packed) -> Packed:
            return packed(method.step(oracle, unpacked(parts), k_of(iteration), batch_of(iteration)))

        def measure(iteration: Array, state: State) -> State:
            return method.measuring_step(oracle, state, k_of(iteration), batch_of(iteration))

        def iterated(state: State, first: Array, last: Array) -> tuple[State, Array]:
            """Iterations first .. last, and how many of them measured. These are apart from the loop over the others,
            for which a choice in every iteration would cost as much as what it chooses."""
            if not method.has_measurements:
                return unpacked(jax.lax.fori_loop(first, last + 1, iterate, packed(state))), jnp.int32(0)

            def until_measured(carry: tuple[Array, Array, State]) -> tuple[Array, Array, State]:
                k, count, state = carry
                interval = method.interval(k)
                at = -(-k // interval) * interval
                state = unpacked(jax.lax.fori_loop(k, jnp.minimum(at, last + 1), iterate, packed(state)))
                state = jax.lax.cond(at <= last, lambda: measure(at, state), lambda: state)
                return at + 1, count + (at <= last), state

            _, count, state = jax.lax.while_loop(lambda c: c[0] <= last, until_measured, (first, jnp.int32(0), state))
            return state, count

        def segment(carry: tuple[Run, Records, Array]) -> tuple[Run, Records, Array]:
            run, records, until = carry
            next_record = (run.iteration // every + 1) * every
            end = jnp.minimum(until, jnp.minimum(next_record, jnp.minimum(run.next_pick, run.next_refresh)))
            state, measurements = iterated(run.state, run.iteration + 1, end)
            evaluations = records.evaluations + round(sum(per_iteration)) * (end - run.iteration - measurements)
            evaluations += round(sum(per_measurement)) * measurements
            evaluations += method.counted(state) - method.counted(run.state)
            run = run._replace(iteration=end, state=state)
            if rhythm.window:
                evaluations += jnp.where(end == run.next_refresh, rhythm.window * round(sum(per_refresh)), 0)
                run = jax.lax.cond(end == run.next_refresh, refreshed, lambda run: run, run)
            if run.picked is not None:
                run = jax.lax.cond(end == run.next_pick, lambda run: _pick(oracle, method, run), lambda run: run, run)
            records = jax.lax.cond(
                end == next_record,
                lambda: append(records, _row(oracle, method, run, batch_of(end))),
                lambda: records,
            )
            return run, records._replace(evaluations=evaluations), until

        def narrow(carry: tuple[Run, Records, Array, Array]) -> tuple[Run, Records, Array, Array]:
            """From the start of the block up to `until`, kept if finite; if not, the end is sought by bisection."""
            sound, kept, bad, until = carry
            new, rows, _ = jax.lax.while_loop(lambda c: c[0].iteration < until, segment, (run, records, until))
            finite = _all_finite(new.state)
            sound, kept = jax.lax.cond(finite, lambda: (new, rows), lambda: (sound, kept))
            bad = jnp.where(finite, bad, until)
            return sound, kept, bad, (sound.iteration + bad) // 2

        sound, kept, _, _ = jax.lax.while_loop(
            lambda c: (c[0].iteration < last) & (c[2] - c[0].iteration > 1), narrow, (run, records, last + 1, last)
        )
        return sound._replace(finite=sound.iteration == last), kept

    row = jax.eval_shape(lambda: _row(oracle, method, run, batches.first))
    empty = Records(
        jnp.int32(0), jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    )
    return jax.lax.while_loop(lambda carry: (carry[0].iteration < stop) & carry[0].finite, one_block, (run, empty))


def conclude(oracle: Oracle, method: AbstractMethod, run: Run) -> tuple[PyTree, dict[str, Array]]:
    """The user's x and multipliers, of the last iteration or of the picked one."""
    x, multipliers = _conclude(oracle, method, run)
    return x, {block.name: multipliers[block.name] for block in oracle.blocks}  # jit has sorted the names


@eqx.filter_jit
def _conclude(oracle: Oracle, method: AbstractMethod, run: Run) -> tuple[PyTree, dict[str, Array]]:
    if run.picked is None:
        answer = method.answer(oracle, run.state, run.iteration.astype(oracle.dtype))
    else:
        answer = run.picked
    return oracle.x_of(answer.point), oracle.named_multipliers(answer.multipliers)


def _is_number(leaf: Array) -> bool:
    return leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.floating)


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]).all()


def _pick(oracle: Oracle, method: AbstractMethod, run: Run) -> Run:
    """Keep this answer, and draw when it will be replaced: the answer kept is uniform over all completed, at any time.

    Reservoir sampling replaces at iteration n with probability 1/n, so the next replacement N after k obeys
    P(N > n) = k / n, that is N = floor(k / U) + 1 with U uniform in (0, 1).
    """
    k = run.iteration
    uniform = jax.random.uniform(jax.random.fold_in(Randomness.PICKS.of(run.key), k), dtype=oracle.dtype)
    ratio = jnp.minimum(k / jnp.maximum(uniform, jnp.finfo(oracle.dtype).tiny), 2.0**30)
    answer = method.answer(oracle, run.state, k.astype(oracle.dtype))
    return run._replace(picked=answer, next_pick=jnp.maximum(ratio.astype(jnp.int32), k) + 1)


def _row(oracle: Oracle, method: AbstractMethod, run: Run, batch: Batch) -> PyTree:
    """One row of history. The objective is that of the iteration's own batch: noisy, but unbiased and free of draws."""
    k = run.iteration.astype(oracle.dtype)
    answer = method.answer(oracle, run.state, k)
    return {
        "iteration": run.iteration,
        "objective": oracle.objective(answer.point, batch),
        "constraints": oracle.named_values(answer.residuals, answer.point),
        "multipliers": oracle.named_multipliers(answer.multipliers),
        "feasibility": oracle.violation(answer.residuals, answer.point),
        **method.observe(oracle, run.state, k),
    }
