"""Algorithm 1 of Alacaoglu & Wright: a linearised augmented Lagrangian method with variance reduction, for A x = b."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lariax.formulas import LinearizedConstants, storm
from lariax.methods._base import AbstractMethod, Answer, Needs, check_positive, exact_stationarity, linear_system
from lariax.oracle import Batch, Oracle, Vector


class LinearizedState(NamedTuple):
    x: Vector
    gradient: Vector  # g_k, an estimate of grad f at x_k
    multipliers: Float[Array, " m"]
    residual: Float[Array, " m"]  # A x_k - b


class LinearizedALM(AbstractMethod):
    """Algorithm 1: one gradient step an iteration on the augmented Lagrangian, and a dual step as long as the penalty.

        x_k = x_{k-1} - eta_k ( g_{k-1} + A^T (y_{k-1} + rho (A x_{k-1} - b)) )
        y_k = y_{k-1} + rho (A x_k - b)
        g_k = grad f(x_k, xi_k) + (1 - alpha_k) (g_{k-1} - grad f(x_{k-1}, xi_k))           one fresh sample, used twice

    for constraints that are all `Linear` (A is all of them together and may be rank-deficient), at a constant penalty.
    As the multiplier of the random output the theorem certifies y_k with x_k, and so it is here for every output.

    By default a practical setting with the exponents of the theorem,

        rho = Lf / ||A||^2,   eta_k = (1/2) / (Lf + rho ||A||^2) (k + 1)^(-1/3),   alpha_k = min(1, 4 (Lf eta_k)^2).

    `LinearizedALM.from_constants` has the constants of the proof. They are not for use: with Lf = ||A|| = delta = 1 its
    first step is 2.8e-25 long, and in double precision a run does not move.

    The theorem is for x unrestricted. A set or a regulariser is handled by a proximal step in the first line, which is
    beyond it: sound as a method (its fixed points are the stationary points), without a rate.

    Arguments:
        lipschitz: Lf, how fast the sampled gradients change with x (their mean-square Lipschitz constant).
        penalty: rho, instead of the rule above. An objective that is concave along a weak row of A wants more.
        step_size: eta in eta_k = eta (k + 1)^(-1/3), instead of the rule above.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
    ...     samples=lx.Distribution(lambda key: jnp.array([0.0, 2.0]) + 0.1 * jax.random.normal(key, (2,))),
    ...     constraints={"agree": lx.Linear(jnp.array([[1.0, -1.0]]), 0.0)},
    ... )
    >>> result = lx.solve(problem, jnp.zeros(2), method=lx.LinearizedALM(lipschitz=1.0), iterations=10_000)
    >>> [round(float(value), 1) for value in result.x]
    [1.0, 1.0]

    Reference: A. Alacaoglu, S. J. Wright, "Complexity of Single Loop Algorithms for Nonlinear Programming with
    Stochastic Objective and Constraints".
    """

    lipschitz: Any = 1.0
    penalty: Any = None
    step_size: Any = None
    momentum: Any = None  # c in alpha_k = min(1, c eta_k^2)
    log_offset: Any = None  # log(k0) of the theorem's step sizes; None: the practical ones

    needs: ClassVar[Needs] = Needs(slacks=True)

    def __check_init__(self) -> None:
        check_positive("lipschitz", self.lipschitz)
        for name in ("penalty", "step_size", "momentum"):
            check_positive(name, getattr(self, name))

    @classmethod
    def from_constants(
        cls,
        *,
        lipschitz: float,
        norm: float,
        smallest: float,
        c1: float = 1.0,
        c2: float = 1.0,
        c3: float = 1.0,
        c4: float = 1.0,
    ) -> "LinearizedALM":
        """The parameters of the theorem, for ||A|| and delta (`Linear.norm()`, `Linear.smallest_eigenvalue()`).

            eta_k = eta / ((k + k0)^(1/3) log(k + k0)),   alpha_k = 121 Lf^2 eta_k^2

        computed in the logarithmic domain: k0 passes 1e50 for a problem with all constants 1.
        """
        found = LinearizedConstants.of(lipschitz=lipschitz, norm=norm, smallest=smallest, c1=c1, c2=c2, c3=c3, c4=c4)
        return cls(lipschitz, found.penalty, found.step_size, found.momentum, found.log_offset)

    def prepare(self, oracle: Oracle, x: PyTree[Array], iterations: int | None = None) -> "LinearizedALM":
        norm = linear_system(self, oracle, x).norm()
        penalty = self.lipschitz / norm**2 if self.penalty is None else self.penalty
        step_size = 0.5 / (self.lipschitz + penalty * norm**2) if self.step_size is None else self.step_size
        momentum = 4 * self.lipschitz**2 if self.momentum is None else self.momentum
        return LinearizedALM(self.lipschitz, penalty, step_size, momentum, self.log_offset)

    def step_size_at(self, k: Float[Array, ""] | float) -> Array:
        """eta_k"""
        if self.log_offset is None:
            return self.step_size * (k + 1) ** (-1 / 3)
        log_k = jnp.logaddexp(jnp.log(k), self.log_offset)  # log(k + k0)
        return self.step_size * jnp.exp(-log_k / 3) / log_k

    def momentum_at(self, k: Float[Array, ""] | float) -> Array:
        """alpha_k"""
        return jnp.minimum(1.0, self.momentum * self.step_size_at(k) ** 2)

    def init(self, oracle: Oracle, point: Vector, batches: Batch) -> LinearizedState:
        residual, _ = oracle.exact_residuals(point)
        gradient = oracle.objective_gradient(point, batches.first)
        return LinearizedState(point, gradient, jnp.zeros_like(residual), residual)

    def step(self, oracle: Oracle, state: LinearizedState, k: Float[Array, ""], batch: Batch) -> LinearizedState:
        step_size = self.step_size_at(k)
        _, transposed = oracle.exact_residuals(state.x)
        direction = state.gradient + transposed(state.multipliers + self.penalty * state.residual)
        x = oracle.prox(state.x - step_size * direction, step_size)  # line 3
        residual, _ = oracle.exact_residuals(x)
        multipliers = state.multipliers + self.penalty * residual  # line 4
        fresh, stale = oracle.objective_gradient(x, batch), oracle.objective_gradient(state.x, batch)
        gradient = storm(fresh, stale, state.gradient, self.momentum_at(k))  # line 5
        return LinearizedState(x, gradient, multipliers, residual)

    def answer(self, oracle: Oracle, state: LinearizedState, k: Float[Array, ""]) -> Answer:
        return Answer(state.x, state.residual, state.multipliers)

    def observe(self, oracle: Oracle, state: LinearizedState, k: Float[Array, ""]) -> dict[str, Array]:
        return {
            "stationarity": exact_stationarity(oracle, state.x, state.gradient, state.multipliers),
            "step_size": self.step_size_at(k),
            "penalty": jnp.asarray(self.penalty),
            "momentum": self.momentum_at(k),
        }
