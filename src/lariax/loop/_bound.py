"""A method's `init` and `step` for a loop of one's own."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int, Key, PyTree

from lariax.loop._compiled import block_layout
from lariax.loop._feed import Feeder
from lariax.loop._programs import BlockLayout
from lariax.loop._randomness import Randomness
from lariax.methods import AbstractMethod, State, fitted
from lariax.oracle import Batch, Oracle, as_point
from lariax.problem import Problem, as_key, automatic_axes, closed, mesh_of, on_mesh, opened
from lariax.utils import check_count


class Bound(eqx.Module):
    """A method on a problem, ready to be stepped; see `bind`. All is pure, and compiled when first called."""

    oracle: Oracle
    method: AbstractMethod
    key: Key[Array, ""]
    x0: PyTree[Array]
    blocks: BlockLayout = eqx.field(static=True)

    @property
    def window(self) -> int:
        """How many iterations `refresh` looks back on; 0: the method has nothing to refresh."""
        return self.blocks.window

    @eqx.filter_jit
    def init(self) -> State:
        """The state before iteration 1."""
        batches = self._batches(jnp.arange(self.blocks.start))
        return self.method.init(self.oracle, self.oracle.start(self.x0, batches.first), batches)

    def step(self, state: State, k: ArrayLike) -> State:
        """Iteration k = 1, 2, ..., on samples of its own: the same as those of `solve` with this seed. The method takes
        the closer look that `solve` lets it take now and then, every time."""
        return self._step(state, jnp.asarray(k, jnp.int32))

    @eqx.filter_jit
    def _step(self, state: State, k: Int[Array, ""]) -> State:
        batch = self._batches(self.blocks.place_of(k)[None]).first
        return self.method.measuring_step(self.oracle, state, k.astype(self.oracle.dtype), batch)

    def refresh(self, state: State, k: ArrayLike) -> State:
        """After iteration k, on its samples and those before it; now and then, further and further apart."""
        return self._refresh(state, jnp.asarray(k, jnp.int32))

    @eqx.filter_jit
    def _refresh(self, state: State, k: Int[Array, ""]) -> State:
        batches = self._batches(self.blocks.place_of(k) - jnp.arange(self.window)[::-1])
        key = jax.random.fold_in(Randomness.REFRESHES.of(self.key), k)
        return self.method.refresh(self.oracle, state, batches, key)

    def answer(self, state: State, k: ArrayLike) -> tuple[PyTree[Array], dict[str, Array]]:
        """x and the multipliers after iteration k."""
        point, _, multipliers = self.method.answer(self.oracle, state, jnp.asarray(k, self.oracle.dtype))
        x = closed(self.oracle.problem, self.oracle.x_of(point))
        return x, self.oracle.named_multipliers(multipliers)

    def _batches(self, places: Array) -> Batch:
        tickets = self.oracle.draw(self.key, places, (None,) * len(self.oracle.sources))
        return jax.vmap(self.oracle.fetch, axis_size=len(places))(tickets)


@automatic_axes
def bind(problem: Problem, x0: PyTree, method: AbstractMethod, batch_size: int = 1, seed: Any = 0) -> Bound:
    """A method on a problem, for a loop of one's own; `solve` is that loop compiled, with budgets, history and so on.

    Sources that feed rows from the host (`Stream`) need `solve`.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=lx.Distribution(jax.random.normal))
    >>> bound = lx.bind(problem, jnp.zeros(2), lx.TrackedLagrangian(), batch_size=4)
    >>> state = bound.init()
    >>> for k in range(1, 101):
    ...     state = bound.step(state, k)
    >>> x, multipliers = bound.answer(state, 100)
    >>> bool(jnp.abs(x).max() < 0.5)
    True
    """
    if not isinstance(method, AbstractMethod):
        raise TypeError(f"method must be a method such as lx.TrackedLagrangian(), found {method!r}.")
    check_count("batch_size", batch_size)
    if any(source is not None and source.from_host for source in problem.sources):
        raise ValueError("a Stream is fed by lx.solve, not by lx.bind. Use lx.solve, or a lx.Dataset of its rows.")
    problem, start = opened(problem, x0)
    x = on_mesh(as_point(problem, start), mesh_of((start, problem.sources)))
    structures = Feeder(problem.sources, None).structures()
    oracle, method, _ = fitted(problem, x, structures, method, int(batch_size))
    return Bound(oracle, method, as_key(seed), x, block_layout(oracle, method, structures))
