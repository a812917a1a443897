"""What an iteration does, as programs that are traced once."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from lariax.compilation import Program
from lariax.loop._pieces import Cutter, is_cut
from lariax.loop._randomness import NEVER
from lariax.methods import AbstractMethod, Answer, State
from lariax.oracle import Batch, Oracle, counting
from lariax.tuned.rates import next_refresh

FEW = 8  # parts of an array that the compiler makes by one command

Packed = tuple[list[Array], State]


class LoopState(NamedTuple):
    """All that the next iteration needs, and the answers kept so far."""

    key: Key[Array, ""]
    iteration: Int[Array, ""]  # the last one completed
    state: State  # of the method
    finite: Bool[Array, ""]  # False: the next iteration leaves the range of floating point
    picked: Answer | None  # the answer after an iteration drawn uniformly from those completed; None: not wanted
    next_pick: Int[Array, ""]
    next_refresh: Int[Array, ""]


class BlockLayout(NamedTuple):
    """Which samples belong to which iteration: iteration k uses those at place k + start - 1."""

    length: int  # places drawn at once
    start: int  # places that the start takes
    window: int  # places that a refresh looks back on; 0: there are no refreshes

    def place_of(self, iteration: Any) -> Any:
        return iteration + self.start - 1

    def block_after(self, iteration: Any) -> Any:
        """The first place of the block that the next iteration is in."""
        return (iteration + self.start) // self.length * self.length

    def next_refresh(self, iteration: Array) -> Array:
        """A quarter further on, at the end of a window, which then lies within a block."""
        if not self.window:
            return jnp.int32(NEVER)
        return next_refresh(jnp, iteration, self.start, self.window).astype(jnp.int32)


class Counts(NamedTuple):
    """Evaluations of an iteration of either kind, and of a refresh for each of its places."""

    step: int
    measuring_step: int
    refresh: int


class Packing(NamedTuple):
    """The numbers in a state that a step changes travel in a few arrays: each array that a loop carries is copied by a
    command of its own, and one of few parts is made by one."""

    changing: PyTree  # which leaves are such numbers
    structure: Any

    def packed(self, state: State) -> Packed:
        numbers, rest = eqx.partition(state, self.changing)
        each = jax.tree.leaves(numbers)
        return [jnp.stack(each[i : i + FEW]) for i in range(0, len(each), FEW)], rest

    def unpacked(self, parts: Packed) -> State:
        arrays, rest = parts
        return eqx.combine(jax.tree.unflatten(self.structure, [number for array in arrays for number in array]), rest)


def on_pieces(program: Program, cutter: Cutter, *args: PyTree) -> PyTree:
    """A program with vectors that are cut, here and in what comes out."""
    outputs = cutter.run(program.program, jax.tree.leaves(args, is_leaf=is_cut))
    return jax.tree.unflatten(jax.tree.structure(program.output), outputs)


class Programs(NamedTuple):
    """Of an iteration of either kind, of a row of history, and what a look at them tells."""

    step: Program
    measuring_step: Program | None
    row: Program
    counts: Counts
    packing: Packing


def traced_programs(
    oracle: Oracle, method: AbstractMethod, loop: LoopState, fed: PyTree, blocks: BlockLayout
) -> Programs:
    def one_place(fed: PyTree) -> Batch:
        tickets = oracle.draw(loop.key, jnp.arange(1), jax.tree.map(lambda rows: rows[:1], fed))
        return jax.vmap(oracle.fetch, axis_size=1)(tickets)

    batches = jax.eval_shape(one_place, fed)
    batch, k = jax.eval_shape(lambda batches: batches.first, batches), jnp.ones((), oracle.dtype)
    with counting() as per_step:
        step = Program(partial(method.step, oracle), loop.state, k, batch)
    measuring_step = None
    with counting() as per_measurement:
        if method.needs.measuring_interval is not None:
            measuring_step = Program(partial(method.measuring_step, oracle), loop.state, k, batch)
    with counting() as per_refresh:
        if blocks.window:
            jax.eval_shape(lambda batches: method.refresh(oracle, loop.state, batches, loop.key), batches)
    jaxpr = step.program.jaxpr
    changes = [
        leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.floating) and old is not new
        for leaf, old, new in zip(jax.tree.leaves(loop.state), jaxpr.invars, jaxpr.outvars, strict=False)  # k and batch
    ]
    changing = jax.tree.unflatten(jax.tree.structure(loop.state), changes)
    structure = jax.tree.structure(eqx.filter(loop.state, changing))
    counts = Counts(*(round(sum(tally)) for tally in (per_step, per_measurement, per_refresh)))
    row = Program(partial(_row, oracle, method), loop, batch)
    return Programs(step, measuring_step, row, counts, Packing(changing, structure))


def _row(oracle: Oracle, method: AbstractMethod, loop: LoopState, batch: Batch) -> PyTree:
    """One row of history. The objective is that of the iteration's own batch: noisy, but unbiased and free of draws."""
    k = loop.iteration.astype(oracle.dtype)
    answer = method.answer(oracle, loop.state, k)
    return {
        "iteration": loop.iteration,
        "objective": oracle.objective(answer.point, batch),
        "constraints": oracle.values(answer.residuals, answer.point),
        "multipliers": oracle.user_multipliers(answer.multipliers),
        "feasibility": oracle.violation(answer.residuals, answer.point),
        **method.observe(oracle, loop.state, k),
    }
