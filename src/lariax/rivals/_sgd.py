"""What people do without a paper: stochastic gradient steps on a penalty, on the Lagrangian, on the batch's own
augmented Lagrangian."""

from typing import ClassVar, NamedTuple

from jaxtyping import Array, Float

from lariax.methods import AbstractMethod, Answer, Needs
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import check_all_positive, decayed


class DescentState(NamedTuple):
    x: Vector
    constraints: Float[Array, " m"]  # a running mean of r, for the record and for multipliers
    multipliers: Float[Array, " m"]


def _lagged(state: DescentState, values: Array, k: Float[Array, ""]) -> Array:
    """The running mean of constraint values, over about the last sqrt(k)."""
    return state.constraints + decayed(1.0, k, 1 / 2) * (values - state.constraints)


class AbstractDescent(AbstractMethod):
    """A method whose state is a `DescentState`, and which takes any problem."""

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> DescentState:
        values = oracle.join(oracle.residuals(point, batches.first))
        return DescentState(point, values, 0 * values)

    def answer(self, oracle: Oracle, state: DescentState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.constraints, state.multipliers)


class PenaltySGD(AbstractDescent):
    """Stochastic gradient steps on f + (rho / 2) ||c||^2 at a constant penalty.

        x+ = P_X( x - eta_k ( grad f(x, xi) + rho sum_i grad c_i(x, zeta1) c_i(x, zeta2) ) ),   zeta1, zeta2 independent

    with eta_k = step_size (k + 1)^-decay. It ends where f + (rho / 2) ||c||^2 is least, which is not feasible but for
    large rho. The multiplier is rho times a running mean of c. Inequalities enter through slacks. Folklore, without a
    source.

    Arguments:
        step_size, penalty, decay: as above.

    >>> import lariax as lx
    >>> method = lx.rivals.PenaltySGD(step_size=0.05, penalty=20.0)
    >>> method.penalty
    20.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 10.0
    decay: float | Array = 0.5

    needs: ClassVar[Needs] = Needs(slacks=True, copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", or_zero=("decay",))

    def step(self, oracle: Oracle, state: DescentState, k: Float[Array, ""], batch: Batch) -> DescentState:
        step_size = decayed(self.step_size, k, self.decay)
        slope, values = oracle.penalty_gradient(state.x, self.penalty, batch)
        mean = _lagged(state, values, k)
        return DescentState(oracle.prox(state.x - step_size * slope, step_size), mean, self.penalty * mean)

    def observe(self, oracle: Oracle, state: DescentState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, self.decay), "penalty": self.penalty + 0 * k}


class PrimalDualSGD(AbstractDescent):
    """Stochastic gradient descent in x and ascent in y on the Lagrangian f + y . r.

        x+ = P_X( x - eta_k ( grad f(x, xi) + J(x, zeta1)^T y ) )
        y+ = y + gamma_k r(x, zeta2),          no less than 0 for an inequality

    with eta_k = step_size (k + 1)^-decay, gamma_k = dual_step (k + 1)^-decay. Without a penalty nothing damps the
    turning of x and y around each other where the Lagrangian is not strongly convex, and a nonconvex one is not
    minimised at a solution: it may not converge where the others do. Folklore; the analysis for convex problems is old
    (Arrow, Hurwicz, Uzawa 1958).

    Arguments:
        step_size, dual_step, decay: as above.

    >>> import lariax as lx
    >>> method = lx.rivals.PrimalDualSGD(step_size=0.05, dual_step=0.2)
    >>> method.dual_step
    0.2
    """

    step_size: float | Array = 0.1
    dual_step: float | Array = 0.1
    decay: float | Array = 0.5

    needs: ClassVar[Needs] = Needs(copies=2)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "dual_step", or_zero=("decay",))

    def step(self, oracle: Oracle, state: DescentState, k: Float[Array, ""], batch: Batch) -> DescentState:
        decay = decayed(1.0, k, self.decay)
        slope = oracle.look(state.x, batch).gradient(oracle.split(state.multipliers))
        values = oracle.join(oracle.residuals(state.x, batch, copy=1))
        x = oracle.prox(state.x - self.step_size * decay * slope, self.step_size * decay)
        multipliers = oracle.signed(state.multipliers + self.dual_step * decay * values)
        return DescentState(x, _lagged(state, values, k), multipliers)

    def observe(self, oracle: Oracle, state: DescentState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, self.decay)}


class SameBatchALM(AbstractDescent):
    """The augmented Lagrangian of the batch, differentiated: what libraries for constrained training in PyTorch do.

        x+ = P_X( x - eta_k ( grad f(x, B) + J(x, B)^T max(0, y + rho r(x, B)) ) )         max for inequalities only
        y+ = y + gamma_k r(x, B),                                                          no less than 0 for them

    with eta_k = step_size (k + 1)^-decay, gamma_k = dual_step (k + 1)^-decay. One batch is used for values and for
    gradients, so J^T r is biased by rho times their covariance over the batch size, and for inequalities the maximum of
    a noisy value is too: it does not end at a solution unless batches grow. No draw is spent on independence.

    Arguments:
        step_size, penalty, dual_step, decay: as above.

    >>> import lariax as lx
    >>> method = lx.rivals.SameBatchALM(step_size=0.02, penalty=10.0, dual_step=0.02)
    >>> method.penalty
    10.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0
    dual_step: float | Array = 0.1
    decay: float | Array = 0.5

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty", or_zero=("dual_step", "decay"))

    def step(self, oracle: Oracle, state: DescentState, k: Float[Array, ""], batch: Batch) -> DescentState:
        decay = decayed(1.0, k, self.decay)
        look = oracle.look(state.x, batch)
        values = oracle.join(look.residuals)
        slope = look.gradient(oracle.split(oracle.signed(state.multipliers + self.penalty * values)))
        x = oracle.prox(state.x - self.step_size * decay * slope, self.step_size * decay)
        multipliers = oracle.signed(state.multipliers + self.dual_step * decay * values)
        return DescentState(x, _lagged(state, values, k), multipliers)

    def observe(self, oracle: Oracle, state: DescentState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": decayed(self.step_size, k, self.decay), "penalty": self.penalty + 0 * k}
