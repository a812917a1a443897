"""Step sizes, penalties and momenta: the constants of the theorems, and Algorithm 2's as functions of the iteration."""

from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any


@dataclass(frozen=True)
class Exponents:
    """The powers of k at which the step size falls, the penalty grows and the momentum falls from `first_momentum`.

    With momentum=0 and first_momentum=1 the estimate has no memory.
    """

    step_size: float
    penalty: float
    momentum: float
    first_momentum: float = 72 / 81


STOCHASTIC_CONSTRAINTS = Exponents(step_size=3 / 5, penalty=1 / 5, momentum=4 / 5)
"""Case III: E||.|| <= eps after O(eps^-5) samples."""

DETERMINISTIC_CONSTRAINTS = Exponents(step_size=1 / 2, penalty=1 / 4, momentum=1 / 2)
"""Case II: O(eps^-4)."""


@dataclass(frozen=True)
class PenaltySchedule:
    """The schedule of Algorithm 2, for iterations k = 1, 2, ...

        eta_k = step_size / (k + 1)^p       rho_k = penalty k^q       alpha_{k+1} = (72/81) / (k + 1)^r

    The theorems take step_size = 1 / (9 L~ penalty), with L~ of `penalty_lipschitz`.
    """

    step_size: Any
    penalty: Any
    exponents: Exponents

    def step_size_at(self, k: Any) -> Any:
        """eta_k, the step from x_k to x_{k+1}."""
        return self.step_size * (k + 1) ** -self.exponents.step_size

    def penalty_at(self, k: Any) -> Any:
        """rho_k, which belongs to x_k."""
        return self.penalty * k**self.exponents.penalty

    def momentum_after(self, k: Any) -> Any:
        """alpha_{k+1}, with which the estimate at x_{k+1} is made."""
        return self.exponents.first_momentum * (k + 1) ** -self.exponents.momentum

    def at(self, k: Any) -> dict[str, Any]:
        """All three, by name."""
        return {
            "step_size": self.step_size_at(k),
            "penalty": self.penalty_at(k),
            "momentum": self.momentum_after(k),
        }


def penalty_lipschitz(
    *,
    constraints: int,
    gradient_lipschitz: float,
    constraint_bound: float,
    constraint_lipschitz: float,
    constraint_gradient_bound: float,
    constraint_gradient_lipschitz: float,
) -> float:
    """L~ of Algorithm 2, the smoothness of the sampled penalty function per unit of penalty.

        L~^2 = 4 L_gf^2 + 4 m^2 ( C_c^2 L_gc^2 + C_gc^2 L_c^2 )

    with bounds and Lipschitz constants of every single *sample* of every single constraint: for noise without bound
    (Gaussian) they do not exist. The appendix of the source defines the square, as here; its main text drops it.
    """
    return 2 * sqrt(
        gradient_lipschitz**2
        + constraints**2
        * (
            (constraint_bound * constraint_gradient_lipschitz) ** 2
            + (constraint_gradient_bound * constraint_lipschitz) ** 2
        )
    )


def dual_penalty_lipschitz(
    *,
    constraints: int,
    gradient_lipschitz: float,
    constraint_bound: float,
    constraint_lipschitz: float,
    constraint_gradient_bound: float,
    constraint_gradient_lipschitz: float,
    dual_step: float = 1.0,
    multiplier_norm: float = 0.0,
) -> float:
    """L~ of Algorithm 2 with dual updates.

        L~^2 = (3/4) L_gf^2 + (3/4) m^2 (||y_1|| + 4 gamma)^2 L_gc^2 + (3/2) m^2 ( C_c^2 L_gc^2 + C_gc^2 L_c^2 )

    The source writes 4 for 4 gamma, which is the same for gamma = 1. The inequality in which it uses L~^2 would want
    four times this; the value stated by the theorem is the one returned.
    """
    return sqrt(
        0.75 * gradient_lipschitz**2
        + 0.75 * (constraints * (multiplier_norm + 4 * dual_step) * constraint_gradient_lipschitz) ** 2
        + 1.5
        * constraints**2
        * (
            (constraint_bound * constraint_gradient_lipschitz) ** 2
            + (constraint_gradient_bound * constraint_lipschitz) ** 2
        )
    )


@dataclass(frozen=True)
class LinearizedConstants:
    """The parameters of Algorithm 1's theorem: eta_k = eta / ((k + k0)^(1/3) log(k + k0)), alpha_k = c eta_k^2."""

    penalty: float
    step_size: float  # eta
    log_offset: float  # log(k0): k0 itself passes 1e40 for harmless problems
    momentum: float  # c

    @classmethod
    def of(
        cls,
        *,
        lipschitz: float,
        norm: float,
        smallest: float,
        c1: float = 1.0,
        c2: float = 1.0,
        c3: float = 1.0,
        c4: float = 1.0,
    ) -> "LinearizedConstants":
        """For Lf, ||A|| and delta, the smallest nonzero eigenvalue of A^T A, with free constants c1 .. c4 > 0.

        Exactly as in the source. (Its third term of k0 lost an eta, (10 / (3 eta c3 Lf))^2 would be right; the last but
        one term is larger than either unless c3 is below 1e-40.)
        """
        scale = min(1 / (448 * lipschitz), 1 / (32 * (1 + c2 + c3) * lipschitz), 1 / (8 * (1 + 2 * c3) * lipschitz))
        penalty = max(
            7 * (1 + c1) / (scale * smallest),
            4 * (6 + c4) * (1 + c1) * lipschitz / smallest,
            168 * (1 + c1) * lipschitz / smallest,
        )
        step_size = 1 / (11 * (lipschitz + penalty * norm**2))
        momentum = 121 * lipschitz**2
        square = log(momentum) + 2 * log(step_size)  # of c eta^2
        log_offset = max(
            2 * log(10 * scale / (3 * c1 * step_size)),
            2 * log(20 / (3 * step_size * c2 * lipschitz)),
            2 * log(10 / (3 * c3 * lipschitz)),
            log(400 / 3) - 2 * log(step_size) - log(c4) - 2 * log(lipschitz),
            4 * (log(20) - square),
            6 * (log(50 / 3) - square),
            log(2),
        )
        return cls(penalty, step_size, log_offset, momentum)

    @property
    def offset(self) -> float:
        """k0, or infinity where it does not fit."""
        return exp(self.log_offset) if self.log_offset < 709 else inf
