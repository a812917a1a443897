"""Prox-PDA of Hong: the deterministic linearised augmented Lagrangian method."""

from typing import ClassVar, NamedTuple

from jaxtyping import Array, Float, PyTree

from lariax.methods import AbstractMethod, Answer, Needs, linear_system
from lariax.oracle import Batch, Oracle, Vector
from lariax.rivals._common import check_all_positive


class PrimalDualState(NamedTuple):
    x: Vector
    residual: Float[Array, " m"]  # A x - b
    multipliers: Float[Array, " m"]


class ProxPDA(AbstractMethod):
    """Prox-PDA, the linearised augmented Lagrangian method with exact gradients, for A x = b.

        x+ = x - eta ( grad f(x) + A^T (y + rho (A x - b)) )
        y+ = y + rho (A x+ - b)

    The source minimises <grad f(x), .> + the augmented Lagrangian + (rho / 2) ||. - x||^2 in the metric B^T B. Chosen:
    B^T B = I / (rho eta) - A^T A, which makes the minimiser the step above.

    The source has exact gradients. Here the mean over the iteration's batch takes their place, which is the same if
    nothing is random; otherwise it is plain stochastic gradient descent with a constant step, and stays as far from
    the solution as that step and the batch size allow. A set or a regulariser is handled by a proximal step, which is
    beyond the source. Written without the source at hand.

    Arguments:
        step_size: eta, below 1 / (Lf + rho ||A||^2).
        penalty: rho.

    Reference: M. Hong, "Decomposing linearly constrained nonconvex problems by a proximal primal dual approach:
    algorithms, convergence, and applications", 2016.

    >>> import lariax as lx
    >>> method = lx.rivals.ProxPDA(step_size=0.05, penalty=2.0)
    >>> method.penalty
    2.0
    """

    step_size: float | Array = 0.1
    penalty: float | Array = 1.0

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_all_positive(self, "step_size", "penalty")

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "ProxPDA":
        linear_system(self, oracle, x)
        return self

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> PrimalDualState:
        residual, _ = oracle.exact_residuals(point)
        return PrimalDualState(point, residual, 0 * residual)

    def step(self, oracle: Oracle, state: PrimalDualState, k: Float[Array, ""], batch: Batch) -> PrimalDualState:
        residual, transposed = oracle.exact_residuals(state.x)
        slope = oracle.objective_gradient(state.x, batch) + transposed(state.multipliers + self.penalty * residual)
        x = oracle.prox(state.x - self.step_size * slope, self.step_size)
        residual, _ = oracle.exact_residuals(x)
        return PrimalDualState(x, residual, state.multipliers + self.penalty * residual)

    def answer(self, oracle: Oracle, state: PrimalDualState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residual, state.multipliers)

    def observe(self, oracle: Oracle, state: PrimalDualState, k: Float[Array, ""]) -> dict[str, Array]:
        return {"step_size": self.step_size + 0 * k, "penalty": self.penalty + 0 * k}
