"""Where a run stands, and what it has been from its start on."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from lariax.loop._certifier import CertifiedPoint, Checks
from lariax.loop._compiled import Records, conclude
from lariax.loop._feed import Feeder
from lariax.loop._history import Recorded
from lariax.loop._programs import BlockLayout, LoopState
from lariax.methods import AbstractMethod
from lariax.oracle import Oracle
from lariax.problem import Home, at_home, closed

OUTPUTS = ("last", "random", "best")


def has_tracers(tree: PyTree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


@dataclass(frozen=True, eq=False)
class Setup:
    """What stays the same for the whole run, continued and resumed ones included."""

    oracle: Oracle
    method: AbstractMethod  # as it was prepared
    output: str  # one of `OUTPUTS`
    blocks: BlockLayout
    feeder: Feeder
    choice: str  # what was decided for the user, in words
    iterations: int | None  # the first budget of them, which the method was prepared for
    home: Home = ()  # where x0 is, on a mesh

    @property
    def row_numbers(self) -> int:
        """Numbers in a row of history, about."""
        return 2 * self.oracle.rows + 8

    @property
    def record_capacity(self) -> int:
        """How many records one compiled call can return."""
        return int(np.clip(2**21 // self.row_numbers, 1, 1024))


@dataclass(frozen=True, eq=False)
class RunState:
    """Where a run stands: all that changes on the way, but for the place in a `Stream`.

    `solve` makes it from a point or from an earlier result, `resume` from a file. It is replaced as a whole, when a
    call of the compiled loop and what belongs to it is done: whatever interrupts in between, it is sound.
    """

    setup: Setup
    loop: LoopState
    evaluations: Any  # without those of certificates
    history: Recorded
    iteration: int = 0
    seconds: float = 0.0  # until the clock of this call began
    checks: Checks = field(default_factory=Checks)
    certified: CertifiedPoint | None = None  # after this very iteration

    @property
    def oracle(self) -> Oracle:
        return self.setup.oracle

    @property
    def method(self) -> AbstractMethod:
        return self.setup.method

    @property
    def is_traced(self) -> bool:
        """Whether the run is inside jit or vmap."""
        return has_tracers((self.loop, self.method, self.oracle))

    @property
    def draws(self) -> int:
        """All of them, those of certificates included."""
        place = self.iteration + self.setup.blocks.start
        return place * self.oracle.draws_per_iteration + self.checks.draws_at(place, self.oracle.sample_counts)

    def conclude(self) -> tuple[PyTree, dict[str, Array]]:
        """The answer: x and multipliers."""
        return conclude(self.oracle, self.method, self.loop)

    def closed(self, x: PyTree[Array]) -> PyTree:
        """The whole of x as the user has it, where x0 is."""
        return closed(self.oracle.problem, at_home(x, self.setup.home) if self.setup.home else x)

    def recorded(self, records: Records, last: int, began: float, ended: float) -> Recorded:
        """The history after a call that was to take the run to iteration `last`, from second `began` to `ended`."""
        count = int(records.filled)
        if not count:
            return self.history
        rows = jax.tree.map(lambda column: np.asarray(column)[:count], records.named(self.oracle.layout).rows)
        iteration = rows["iteration"].astype(np.int64)
        share = (iteration - self.iteration) / max(last - self.iteration, 1)
        rows["iteration"] = iteration
        rows["draws"] = (iteration + self.setup.blocks.start) * self.oracle.draws_per_iteration + self.checks.draws
        rows["seconds"] = self.seconds + began + share * (ended - began)
        return self.history.added(rows, self.setup.row_numbers)
