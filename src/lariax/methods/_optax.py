"""Any optax optimizer takes the steps; the multipliers are those of `lx.Multipliers`."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lariax.methods._base import AbstractMethod, Answer, Diagnosis, Needs
from lariax.methods._multiplier_rule import Ruled, started, turned, weighed
from lariax.oracle import Batch, Look, Oracle, Vector
from lariax.prox import Zero
from lariax.sets import Everything
from lariax.tuned.pressure import Kind, looked, unit_of

Rule = tuple[Ruled, ...]
"""One entry a constraint."""


def _measuring_interval(k: Int[Array, ""]) -> Int[Array, ""]:
    return jnp.where(k < 8, 1, jnp.where(k < 64, 8, 64))


class OptaxState(NamedTuple):
    x: Vector
    inner: PyTree  # the optimizer's own state
    rule: Rule
    multipliers: Float[Array, " m"]  # from batches until now, for the next one
    gradient: Vector  # of the Lagrangian, on the last batch


class Optax(AbstractMethod):
    """An optimizer of optax on the Lagrangian, with the multipliers of `lx.Multipliers`: for networks from scratch.

        x+ = x + optimizer's update for  grad f(x, B) + J(x, B)^T y,      y from batches before B

    `TrackedLagrangian` finds its own steps and the solution; where those steps are hopeless, as on networks that want
    Adam and a schedule, this one goes where the optimizer goes, with multipliers that make the constraints hold at the
    end.

    A set is projected onto after a step if it is separable (a box), which is right whatever the optimizer's metric;
    other sets and regularisers are refused.

    Arguments:
        optimizer: such as `optax.adamw(3e-4)`, its schedule included.
        steps: how many iterations there will be; None: those of the first `solve`, if it has a budget of iterations.

    >>> import jax, jax.numpy as jnp, optax, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
    ...     samples=lx.Distribution(jax.random.normal),
    ...     constraints={"line": lx.AtMost(lambda x, z: x[0] + x[1] - 1 + 0.1 * z)},
    ... )
    >>> method = lx.Optax(optax.adam(optax.cosine_decay_schedule(0.05, 2000)))
    >>> result = lx.solve(problem, jnp.zeros(2), method=method, iterations=2000, batch_size=8)
    >>> [round(float(value), 1) for value in result.x]
    [-0.5, 1.5]
    """

    optimizer: Any = eqx.field(static=True)  # an optax.GradientTransformation
    steps: Any = None

    needs: ClassVar[Needs] = Needs(smallest_batch=2, start_samples=2, measuring_interval=_measuring_interval)

    def __check_init__(self) -> None:
        if not (hasattr(self.optimizer, "init") and hasattr(self.optimizer, "update")):
            raise TypeError(f"lx.Optax takes an optimizer such as optax.adamw(3e-4), found {self.optimizer!r}.")

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "Optax":
        problem = oracle.problem
        if not isinstance(problem.regularizer, Zero | None):
            raise ValueError(
                f"lx.Optax does not know the metric of its optimizer, which the proximal step of "
                f"{problem.regularizer!r} needs. Write the regulariser into the objective, or use "
                "lx.TrackedLagrangian()."
            )
        if not isinstance(problem.within, Everything) and not problem.simple.separable:
            raise ValueError(
                f"lx.Optax projects onto boxes only, since it does not know the metric of its optimizer, found "
                f"{problem.within!r}. Use lx.TrackedLagrangian(), or state the set as constraints."
            )
        return self if self.steps is not None or iterations is None else Optax(self.optimizer, float(iterations))

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> OptaxState:
        seen = oracle.look(point, batches.first)
        rule = tuple(started(jnp.zeros(block.size, oracle.dtype)) for block in oracle.blocks)
        inner = self.optimizer.init(oracle.coordinates.unravel(point, cast=False))
        return OptaxState(point, inner, rule, jnp.zeros(oracle.rows, oracle.dtype), seen.gradient())

    def step(self, oracle: Oracle, state: OptaxState, k: Float[Array, ""], batch: Batch) -> OptaxState:
        return self._step(oracle, state, batch, state.rule)

    def measuring_step(self, oracle: Oracle, state: OptaxState, k: Float[Array, ""], batch: Batch) -> OptaxState:
        """With a look at the gradients of objective and constraints apart, on two halves of the batch."""
        halves = oracle.look_at_parts(state.x, batch, 2)
        objective = _sizes([half.gradient() for half in halves])
        rule = []
        for i, (each, kind) in enumerate(zip(state.rule, _kinds(oracle), strict=True)):
            own = _sizes([_of_entry(oracle, half, i, each.sizes.looks) for half in halves])
            products, squares = zip(objective, own, strict=True)
            rule.append(each._replace(sizes=looked(jnp, each.sizes, kind, each.pool.calls + 1, products, squares)))
        return self._step(oracle, state, batch, tuple(rule))

    def _step(self, oracle: Oracle, state: OptaxState, batch: Batch, rule: Rule) -> OptaxState:
        seen = oracle.look(state.x, batch)
        residuals = oracle.join(seen.residuals)
        means = [residuals[block.rows] for block in oracle.blocks]
        weights = [weighed(*parts) for parts in zip(state.rule, _kinds(oracle), means, strict=True)]
        gradient = seen.gradient(oracle.split(_joined(weights, oracle)))
        slope, x = (oracle.coordinates.unravel(vector, cast=False) for vector in (gradient, state.x))
        moves, inner = self.optimizer.update(slope, state.inner, x)
        point = oracle.coordinates.ravel(jax.tree.map(lambda entry, move: entry + move.astype(entry.dtype), x, moves))
        if not oracle.is_free:
            point = oracle.prox(point, 1.0)
        rule = tuple(
            turned(each, mean, jnp.zeros_like(mean) if kind.exact else jnp.nan, kind, self.steps)
            for each, kind, mean in zip(rule, _kinds(oracle), means, strict=True)
        )
        weights = [weighed(each, kind) for each, kind in zip(rule, _kinds(oracle), strict=True)]
        return OptaxState(point, inner, rule, _joined(weights, oracle), gradient)

    def answer(self, oracle: Oracle, state: OptaxState, k: Float[Array, ""]) -> Answer:
        levels = _joined([each.pressure.level for each in state.rule], oracle)
        return Answer(state.x, levels, state.multipliers)

    def diagnose(self, oracle: Oracle, state: OptaxState, k: Float[Array, ""]) -> Diagnosis:
        found = jnp.asarray(False)
        for block, each in zip(oracle.blocks, state.rule, strict=True):
            level = each.pressure.level if block.inequality else jnp.abs(each.pressure.level)
            found = found | jnp.any(level > 3 * each.pressure.deviation)
        return Diagnosis(violated=found)

    def observe(self, oracle: Oracle, state: OptaxState, k: Float[Array, ""]) -> dict[str, Array]:
        units = [unit_of(jnp, each.sizes, jnp.max(each.pressure.widest)) for each in state.rule]
        return {f"unit/{block.name}": unit for block, unit in zip(oracle.blocks, units, strict=True)}


def _kinds(oracle: Oracle) -> list[Kind]:
    return [Kind(block.inequality, block.source is None) for block in oracle.blocks]


def _joined(parts: Sequence[Array], oracle: Oracle) -> Float[Array, " m"]:
    return jnp.concatenate(parts) if parts else jnp.zeros(0, oracle.dtype)


def _of_entry(oracle: Oracle, half: Look, which: int, looks: Any) -> Vector:
    """The gradient of one entry of a constraint, each in its turn."""
    block = oracle.blocks[which]
    weights = jnp.zeros(oracle.rows, oracle.dtype).at[block.start + looks.astype(int) % block.size].set(1.0)
    return half.gradient(oracle.split(weights), objective=0.0)


def _sizes(halves: Sequence[Vector]) -> tuple[Array, Array]:
    """(product of the gradients of two halves, square of the whole's)"""
    first, second = halves
    return first @ second, jnp.sum(((first + second) / 2) ** 2)
