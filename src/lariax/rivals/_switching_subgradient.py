"""Switching subgradient methods: alone, and in a proximal-point loop (Ma, Lin and Yang)."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from lariax.methods import Answer, Needs
from lariax.oracle import Batch, Oracle, Vector, either
from lariax.rivals._common import AbstractConstraintMethod, Averaged, InnerLoop, check_all_positive, decayed
from lariax.utils import check_count


class Switch(NamedTuple):
    """What a switching method keeps of constraints and steps."""

    values: Float[Array, " m"]  # a running mean of r
    steps: Float[Array, ""]  # share of the steps on the objective, later ones counting more
    turns: Float[Array, " m"]  # the same of the steps on each row, with their signs

    @classmethod
    def start(cls, values: Float[Array, " m"]) -> "Switch":
        return cls(values, jnp.ones((), values.dtype), 0 * values)

    @property
    def multipliers(self) -> Float[Array, " m"]:
        """At rest, steps on the objective and steps on the rows cancel."""
        return self.turns / jnp.maximum(self.steps, 1e-3)


def switched(
    oracle: Oracle, switch: Switch, x: Vector, bump: Array, batch: Batch, tolerance: Array, rates: tuple[Array, Array]
) -> tuple[Switch, Array, Vector]:
    """The switch after a look at x, whether the objective's turn has come, and the subgradient of whoever's turn it is.

    A row's turn comes when it is violated most, and by more than the tolerance. `bump` is added to every inequality,
    `rates` are those of the running means of values and of steps.
    """
    seen = oracle.join(oracle.residuals(x, batch, copy=1)) + jnp.where(oracle.inequality, bump, 0)
    values = switch.values + rates[0] * (seen - switch.values)
    violation = jnp.where(oracle.inequality, values, jnp.abs(values))
    worst = jnp.argmax(violation)
    feasible = violation[worst] <= tolerance
    turn = jnp.where(feasible, 0, jnp.where(oracle.inequality[worst], 1, jnp.sign(values[worst])))
    weights = jnp.zeros_like(values).at[worst].set(turn)
    slope = oracle.look(x, batch).gradient(oracle.split(weights), objective=feasible.astype(values.dtype))
    steps = switch.steps + rates[1] * (feasible - switch.steps)
    turns = switch.turns + rates[1] * (weights - switch.turns)
    return Switch(values, steps, turns), feasible, slope


class SwitchingState(NamedTuple):
    x: Vector
    switch: Switch
    average: Averaged  # of the points at which the objective had its turn


class SwitchingSubgradient(AbstractConstraintMethod):
    """The switching subgradient method: a step on the objective where the constraints hold, else one on the row that is
    violated most.

        x+ = P_X( x - eta_k grad f(x, B) )                  if  max r <= tolerance_k
        x+ = P_X( x - eta_k grad r_i(x, B) )                otherwise, i the row of the maximum

    with eta_k = step_size (k + 1)^(-1/2) and tolerance_k = tolerance (k + 1)^(-1/2). An equality counts as |r|. The
    point returned is the mean of those at which the objective had its turn, the k-th with weight k. Its multiplier for
    a row is the ratio of that row's turns to the objective's, weighted alike.

    Sources estimate max r by large batches. Chosen: the running mean of r along the run, with rate (k + 1)^(-1/2), from
    a batch that is independent of the gradients': the mean lags behind, but one sample an iteration is enough.

    Arguments:
        step_size, tolerance: as above.

    References: B. T. Polyak, "A general method for solving extremum problems", 1967; G. Lan, Z. Zhou, "Algorithms for
    stochastic optimization with function or expectation constraints", 2020. Written without them at hand.

    >>> import lariax as lx
    >>> method = lx.rivals.SwitchingSubgradient(step_size=0.05, tolerance=0.01)
    >>> method.tolerance
    0.01
    """

    step_size: float | Array = 0.1
    tolerance: float | Array = 0.1

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", or_zero=("tolerance",))

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> SwitchingState:
        values = oracle.join(oracle.residuals(point, batches.first, copy=1))
        return SwitchingState(point, Switch.start(values), Averaged.start(point))

    def step(self, oracle: Oracle, state: SwitchingState, k: Float[Array, ""], batch: Batch) -> SwitchingState:
        step_size, tolerance = decayed(self.step_size, k, 1 / 2), decayed(self.tolerance, k, 1 / 2)
        rates = decayed(1.0, k, 1 / 2), 2 / (k + 2)
        switch, feasible, slope = switched(
            oracle, state.switch, state.x, jnp.zeros((), oracle.dtype), batch, tolerance, rates
        )
        average = state.average.add(state.x, k * feasible)
        return SwitchingState(oracle.prox(state.x - step_size * slope, step_size), switch, average)

    def answer(self, oracle: Oracle, state: SwitchingState, k: Float[Array, ""]) -> Answer:
        return Answer(state.average.point, state.switch.values, state.switch.multipliers)

    def observe(self, oracle: Oracle, state: SwitchingState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, 1 / 2), "objective_share": state.switch.steps}


class RegularizedState(NamedTuple):
    x: Vector
    switch: Switch
    average: Averaged
    center: Vector
    multipliers: Float[Array, " m"]  # of the last complete inner loop
    inner: InnerLoop


class RegularizedSubgradient(AbstractConstraintMethod):
    """The quadratically regularised subgradient method: a proximal-point loop whose subproblems are solved by switching
    subgradients.

        outer:  the subproblem  min f + (mu/2) ||x - z||^2  subject to  r + (mu/2) ||x - z||^2 <= 0,  z its centre
        inner:  x+ = P_X( x - eta_j (grad f(x) + mu (x - z)) )        if  max r + (mu/2) ||x - z||^2 <= tolerance_j
                x+ = P_X( x - eta_j (grad r_i(x) + mu (x - z)) )      otherwise, i the row of the maximum
                eta_j = 1 / (1 / step_size + mu j / 2),   tolerance_j = tolerance (j + 1)^(-1/2)

    The inner loop ends after `inner_iterations`, a number given beforehand (the source's depends on constants of the
    problem and on the accuracy wanted). The mean of its points at which the objective had its turn, the j-th with
    weight j, is the next centre and the point that is returned; without such a point, the last one. max r is estimated
    and multipliers are counted as in `SwitchingSubgradient`. The source treats inequalities; an equality counts as |r|,
    without the quadratic term. Written without the source at hand.

    Arguments:
        step_size, tolerance, inner_iterations: as above.
        proximity: mu, larger than the weak convexity of objective and constraints.

    Reference: R. Ma, Q. Lin, T. Yang, "Quadratically regularized subgradient methods for weakly convex optimization
    with weakly convex constraints", 2020.

    >>> import lariax as lx
    >>> method = lx.rivals.RegularizedSubgradient(step_size=0.05, tolerance=0.01, inner_iterations=100)
    >>> method.inner_iterations
    100
    """

    step_size: float | Array = 0.1
    tolerance: float | Array = 0.1
    proximity: float | Array = 1.0
    inner_iterations: int = eqx.field(static=True, default=200)

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "proximity", or_zero=("tolerance",))
        check_count("inner_iterations", self.inner_iterations)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> RegularizedState:
        values = oracle.join(oracle.residuals(point, batches.first, copy=1))
        return RegularizedState(
            point, Switch.start(values), Averaged.start(point), point, 0 * values, InnerLoop.start()
        )

    def step(self, oracle: Oracle, state: RegularizedState, k: Float[Array, ""], batch: Batch) -> RegularizedState:
        j = state.inner.place.astype(oracle.dtype)
        away, step_size = state.x - state.center, state.inner.step_size(self.step_size, self.proximity, oracle.dtype)
        bump = 0.5 * self.proximity * (away @ away)
        rates = decayed(1.0, j, 1 / 2), 2 / (j + 2)
        tolerance = decayed(self.tolerance, j, 1 / 2)
        switch, feasible, slope = switched(oracle, state.switch, state.x, bump, batch, tolerance, rates)
        average = state.average.add(state.x, (j + 1) * feasible)
        x = oracle.prox(state.x - step_size * (slope + self.proximity * away), step_size)
        inner, ended = state.inner.next(self.inner_iterations)
        going = RegularizedState(x, switch, average, state.center, state.multipliers, inner)
        done = jnp.where(average.weight > 0, average.point, x)
        over = RegularizedState(
            done, Switch.start(switch.values), Averaged.start(done), done, switch.multipliers, inner
        )
        return either(oracle, ~ended, going, over)

    def answer(self, oracle: Oracle, state: RegularizedState, k: Float[Array, ""]) -> Answer:
        return Answer(state.center, state.switch.values, state.multipliers)

    def observe(self, oracle: Oracle, state: RegularizedState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "step_size": state.inner.step_size(self.step_size, self.proximity, oracle.dtype),
            "outer": state.inner.round,
        }
