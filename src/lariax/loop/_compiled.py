"""The one compiled loop. It knows of no method, no clock and no file.

    blocks            samples for T iterations are drawn at once; finiteness is judged at the end of a block, and if it
                      is lost, the block is gone through again to find where
      segments        up to the next iteration that is to be recorded or picked
        iterations    method.step, and nothing else; now and then method.measuring_step

T is fixed by the problem (`block_layout`), and blocks begin at multiples of T: where the host cuts the run into calls,
what it records and where it resumes changes no bit.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from lariax.compilation import Program, compiled, on_cpu
from lariax.loop._finite import all_finite, finite_functions
from lariax.loop._pieces import Cutter
from lariax.loop._programs import BlockLayout, LoopState, Packed, Programs, on_pieces, traced_programs
from lariax.loop._randomness import NEVER, Randomness
from lariax.methods import AbstractMethod, State
from lariax.oracle import Batch, Layout, Oracle, counting

LONGEST_BLOCK = 256
BLOCK_BYTES = 4 * 2**20
FED_BYTES = 32 * 2**20  # a block from the host is a call of the compiled loop, which takes a millisecond or two


class Records(NamedTuple):
    """Rows of history, the first `filled` of them in use, and the evaluations made meanwhile."""

    evaluations: Int[Array, ""]
    filled: Int[Array, ""]
    rows: dict[str, Any]

    def named(self, layout: Layout) -> "Records":
        """With the columns of constraints and multipliers by name: the compiled loop knows vectors alone."""

        def columns(vectors: Array) -> dict[str, Array]:
            return layout.named(vectors if isinstance(vectors, jax.core.Tracer) else np.asarray(vectors))

        named = {kind: columns(self.rows[kind]) for kind in ("constraints", "multipliers")}
        return self._replace(rows=self.rows | named)

    @classmethod
    def empty(cls, row: PyTree, capacity: int) -> Self:
        rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
        return cls(jnp.int32(0), jnp.int32(0), rows)

    def with_row(self, row: PyTree) -> "Records":
        rows = jax.tree.map(lambda column, value: column.at[self.filled].set(value), self.rows, row)
        return self._replace(filled=self.filled + 1, rows=rows)


def block_layout(oracle: Oracle, method: AbstractMethod, samples: tuple[PyTree | None, ...]) -> BlockLayout:
    """As many places a block as fit `BLOCK_BYTES` (`FED_BYTES` from the host), a power of two. `samples`: one sample of
    each source, in shape."""
    size, needs = 0.0, method.needs
    for i, source in enumerate(oracle.sources):
        if source is None:
            continue
        count = oracle.samples_from(i)
        if source.from_host:
            size += count * _bytes(samples[i]) * BLOCK_BYTES / FED_BYTES
        else:
            size += _bytes(jax.eval_shape(lambda s=source, n=count: s.draw(jax.random.key(0), jnp.arange(1), n)))
    length = _power_of_two(int(min(LONGEST_BLOCK, BLOCK_BYTES // max(size, 1))))
    start = min(length, -(-needs.start_samples // oracle.batch_size))
    window = needs.refresh_samples and min(length, _power_of_two(needs.refresh_samples // oracle.batch_size))
    return BlockLayout(length, start, window)


def _power_of_two(limit: int) -> int:
    """The largest one up to the limit, and at least 1."""
    return 1 << (max(limit, 1).bit_length() - 1)


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# --- the start


@compiled(once=True)
def begin(
    oracle: Oracle, method: AbstractMethod, x: PyTree, key: Key[Array, ""], fed: PyTree, blocks: BlockLayout, pick: bool
) -> tuple[LoopState, dict[str, Bool[Array, ""]], Int[Array, ""]]:
    """The run before iteration 1, which of the user's functions are finite there, and the evaluations it took."""
    with counting() as tally:
        tickets = oracle.draw(key, jnp.arange(blocks.start), fed)
        batches = jax.vmap(oracle.fetch, axis_size=blocks.start)(tickets)
        point = oracle.start(x, batches.first)
        state = method.init(oracle, point, batches)
    finite = {**finite_functions(oracle, point, batches.first), "a gradient": all_finite(state)}
    answer = method.answer(oracle, state, jnp.ones((), oracle.dtype))
    loop = LoopState(
        key=key,
        iteration=jnp.int32(0),
        state=state,
        finite=jnp.asarray(True),
        picked=answer if pick else None,
        next_pick=jnp.int32(1 if pick else NEVER),
        next_refresh=blocks.next_refresh(jnp.int32(0)),
    )
    return oracle.settled(loop), finite, jnp.int32(round(sum(tally)))


# --- iterations


@compiled()
def advance(
    oracle: Oracle,
    method: AbstractMethod,
    loop: LoopState,
    stop: Int[Array, ""],
    every: Int[Array, ""],
    fed: PyTree,
    blocks: BlockLayout,
    capacity: int,
) -> tuple[LoopState, Records]:
    """Iterations loop.iteration + 1 .. stop, or up to the last one whose state is finite.

    Also returns the rows recorded on the way: every iteration that `every` divides; at most `capacity`.
    """
    any_block, empty = _any_block(oracle, method, loop, every, fed, blocks, capacity)

    def one_block(carry: tuple[LoopState, Records]) -> tuple[LoopState, Records]:
        block, last = any_block.after(carry[0], stop, fed)
        return block.run(*carry, last)

    going = lambda carry: (carry[0].iteration < stop) & carry[0].finite  # noqa: E731
    loop, records = jax.lax.while_loop(going, one_block, (loop, empty))
    return oracle.settled(loop), records


@compiled()
def sweep(
    oracle: Oracle, method: AbstractMethod, loop: LoopState, last: int, every: int, blocks: BlockLayout
) -> tuple[LoopState, Records]:
    """The whole of a run that is traced, up to iteration `last`: for many at once, by `vmap`.

    All of them share the calendar of records, measurements and refreshes, so that these are made when they are due; a
    condition that differs between runs would have them made in every iteration of all. Therefore a run that leaves the
    range of floating point is not left alone, but put back to where it was before the block, again and again.
    """
    stop, nothing = jnp.int32(last), (None,) * len(oracle.sources)
    any_block, empty = _any_block(oracle, method, loop, jnp.int32(every), nothing, blocks, max(1, last // every))

    def one_block(carry: tuple[LoopState, Records, Array]) -> tuple[LoopState, Records, Array]:
        before, records, ended = carry
        block, end = any_block.after(before, stop, nothing)
        after, rows, _ = jax.lax.while_loop(lambda c: c[0].iteration < end, block.segment, (before, records, end))
        sound = before.finite & all_finite(after.state)

        def kept(new: PyTree, old: PyTree) -> PyTree:
            return jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, old)

        state, picked = kept((after.state, after.picked), (before.state, before.picked))
        rows = rows._replace(rows=kept(rows.rows, records.rows))
        return after._replace(state=state, picked=picked, finite=sound), rows, jnp.where(sound, end, ended)

    loop, records, ended = jax.lax.while_loop(
        lambda carry: carry[0].iteration < stop, one_block, (loop, empty, jnp.int32(0))
    )
    return loop._replace(iteration=ended), records


def _any_block(
    oracle: Oracle,
    method: AbstractMethod,
    loop: LoopState,
    every: Int[Array, ""],
    fed: PyTree,
    blocks: BlockLayout,
    capacity: int,
) -> tuple["_Block", Records]:
    """A block without samples, and room for records."""
    programs = traced_programs(oracle, method, loop, fed, blocks)
    return _Block(oracle, method, blocks, every, programs), Records.empty(programs.row.output, capacity)


@dataclass(frozen=True)
class _Block:
    """Iterations on the samples of one block."""

    oracle: Oracle
    method: AbstractMethod
    blocks: BlockLayout
    every: Int[Array, ""]  # iterations between two records
    programs: Programs
    tickets: PyTree = None
    first: Any = 0  # the iteration at its first place

    def after(self, loop: LoopState, stop: Array, fed: PyTree) -> tuple["_Block", Array]:
        """The block of the next iteration, with its samples, and the last iteration in it up to `stop`."""
        blocks, place = self.blocks, self.blocks.block_after(loop.iteration)
        first = place - (blocks.start - 1)  # the iteration at the first place of the block
        tickets = self.oracle.draw(loop.key, place + jnp.arange(blocks.length), fed)
        return replace(self, tickets=tickets, first=first), jnp.minimum(first + blocks.length - 1, stop)

    def run(self, before: LoopState, records: Records, last: Array) -> tuple[LoopState, Records]:
        """Up to iteration `last`, or to the last one that is finite: where the block loses that, the place is sought by
        bisection, and the block gone through once more up to there. Only the state before it is kept meanwhile."""

        def narrow(carry: tuple[LoopState, Records, Array, Array, Array]) -> tuple[Any, ...]:
            """From the start of the block up to `until`; then what is sound, what is not, and where to go next."""
            _, _, until, sound, bad = carry
            new, rows, _ = jax.lax.while_loop(lambda c: c[0].iteration < until, self.segment, (before, records, until))
            finite = all_finite(new.state)
            again = jnp.where(until > sound, sound, before.iteration)  # what was sound is so again, but for rounding
            sound, bad = jnp.where(finite, until, again), jnp.where(finite, bad, until)
            return new, rows, jnp.where(bad - sound > 1, (sound + bad) // 2, sound), sound, bad

        new, rows, *_ = jax.lax.while_loop(
            lambda c: (c[0].iteration != c[2]) | (c[4] - c[3] > 1),
            narrow,
            (before, records, last, before.iteration, last + 1),
        )
        return new._replace(finite=new.iteration == last), rows

    def segment(self, carry: tuple[LoopState, Records, Array]) -> tuple[LoopState, Records, Array]:
        """Up to the next event: a record, a pick, a refresh."""
        loop, records, until = carry
        next_record = (loop.iteration // self.every + 1) * self.every
        end = jnp.minimum(until, jnp.minimum(next_record, jnp.minimum(loop.next_pick, loop.next_refresh)))
        state, measurements = self._iterated(loop.state, loop.iteration + 1, end)
        evaluations = records.evaluations + self.programs.counts.step * (end - loop.iteration - measurements)
        evaluations += self.programs.counts.measuring_step * measurements
        if hasattr(state, "extra_evaluations"):
            evaluations += state.extra_evaluations - loop.state.extra_evaluations
        loop = loop._replace(iteration=end, state=state)
        if self.blocks.window:
            evaluations += jnp.where(end == loop.next_refresh, self.blocks.window * self.programs.counts.refresh, 0)
            loop = jax.lax.cond(end == loop.next_refresh, self._refreshed, lambda loop: loop, loop)
        if loop.picked is not None:
            loop = jax.lax.cond(end == loop.next_pick, self._picked, lambda loop: loop, loop)
        records = jax.lax.cond(
            end == next_record,
            lambda: records.with_row(self.programs.row(loop, self._batch_of(end))),
            lambda: records,
        )
        return loop, records._replace(evaluations=evaluations), until

    def _iterated(self, state: State, first: Array, last: Array) -> tuple[State, Array]:
        """Iterations first .. last, and how many of them measured. These are apart from the loop over the others, for
        which a choice in every iteration would cost as much as what it chooses."""
        cutter, interval_at = self._cutter, self.method.needs.measuring_interval
        state = state if cutter is None else cutter.cut_all(state)

        def until_measured(carry: tuple[Array, Array, State]) -> tuple[Array, Array, State]:
            k, count, state = carry
            assert interval_at
            interval = interval_at(k)
            at = -(-k // interval) * interval
            state = self._plain(state, k, jnp.minimum(at, last + 1))
            state = jax.lax.cond(at <= last, lambda: self._measure(at, state), lambda: state)
            return at + 1, count + (at <= last), state

        if interval_at is None:
            count, state = jnp.int32(0), self._plain(state, first, last + 1)
        else:
            _, count, state = jax.lax.while_loop(lambda c: c[0] <= last, until_measured, (first, jnp.int32(0), state))
        return state if cutter is None else cutter.whole(state), count

    @property
    def _cutter(self) -> Cutter | None:
        """For vectors that are large enough for copies of them to take time."""
        oracle = self.oracle
        return Cutter.of(oracle.coordinates.sizes, oracle.slacks) if oracle.is_large else None

    def _plain(self, state: State, first: Array, end: Array) -> State:
        """Iterations first .. end - 1 that do not measure. On a GPU two of them make a turn of the loop: a turn has to
        leave everything where it found it, and after a single iteration that is a copy of everything."""
        parts = self.programs.packing.packed(state)
        if self.oracle.is_large or not on_cpu():
            turns = jnp.maximum(end - first, 0) // 2
            start = first
            parts = jax.lax.fori_loop(
                0, turns, lambda i, p: self._iterate(start + 2 * i + 1, self._iterate(start + 2 * i, p)), parts
            )
            first = first + 2 * turns
        return self.programs.packing.unpacked(jax.lax.fori_loop(first, end, self._iterate, parts))

    def _iterate(self, iteration: Array, parts: Packed) -> Packed:
        packing = self.programs.packing
        return packing.packed(self._called(self.programs.step, iteration, packing.unpacked(parts)))

    def _measure(self, iteration: Array, state: State) -> State:
        assert self.programs.measuring_step
        return self._called(self.programs.measuring_step, iteration, state)

    def _called(self, program: Program, iteration: Array, state: State) -> State:
        args, cutter = (state, iteration.astype(self.oracle.dtype), self._batch_of(iteration)), self._cutter
        return program(*args) if cutter is None else on_pieces(program, cutter, *args)

    def _refreshed(self, loop: LoopState) -> LoopState:
        oracle, window = self.oracle, self.blocks.window
        back = loop.iteration - self.first - window + 1
        tickets = jax.tree.map(lambda t: jax.lax.dynamic_slice_in_dim(t, back, window), self.tickets)
        key = jax.random.fold_in(Randomness.REFRESHES.of(loop.key), loop.iteration)
        new = self.method.refresh(oracle, loop.state, jax.vmap(oracle.fetch, axis_size=window)(tickets), key)
        sound = all_finite(new)  # a sample in the window that the method refused would spoil it
        state = jax.lax.cond(sound, lambda: new, lambda: loop.state)
        return loop._replace(state=state, next_refresh=self.blocks.next_refresh(loop.iteration))

    def _picked(self, loop: LoopState) -> LoopState:
        """Keep this answer, and draw when it will be replaced: it is uniform over all completed, at any time.

        Reservoir sampling replaces at iteration n with probability 1/n, so the next replacement N after k obeys
        P(N > n) = k / n, that is N = floor(k / U) + 1 with U uniform in (0, 1).
        """
        k, dtype = loop.iteration, self.oracle.dtype
        uniform = jax.random.uniform(jax.random.fold_in(Randomness.PICKS.of(loop.key), k), dtype=dtype)
        ratio = jnp.minimum(k / jnp.maximum(uniform, jnp.finfo(dtype).tiny), 2.0**30)
        answer = self.method.answer(self.oracle, loop.state, k.astype(dtype))
        return loop._replace(picked=answer, next_pick=jnp.maximum(ratio.astype(jnp.int32), k) + 1)

    def _batch_of(self, iteration: Array) -> Batch:
        return self.oracle.fetch(jax.tree.map(lambda ticket: ticket[iteration - self.first], self.tickets))


# --- the answer


def conclude(oracle: Oracle, method: AbstractMethod, loop: LoopState) -> tuple[PyTree, dict[str, Array]]:
    """The user's x and multipliers, of the last iteration or of the picked one."""
    x, multipliers = _conclude(oracle, method, loop)
    if isinstance(multipliers, jax.core.Tracer) or not multipliers.is_fully_addressable:
        return x, oracle.layout.named(multipliers)
    named = oracle.layout.named(np.asarray(multipliers))  # on the host: there nothing has to be compiled
    return x, {name: jax.device_put(each, multipliers.sharding) for name, each in named.items()}


@compiled(once=True)
def _conclude(oracle: Oracle, method: AbstractMethod, loop: LoopState) -> tuple[PyTree, Array]:
    if loop.picked is None:
        answer = method.answer(oracle, loop.state, loop.iteration.astype(oracle.dtype))
    else:
        answer = loop.picked
    return oracle.x_of(answer.point), oracle.user_multipliers(answer.multipliers)
