"""Step sizes, penalties and momenta of Algorithm 2 as functions of the iteration number."""

from dataclasses import dataclass
from math import sqrt
from typing import Any


@dataclass(frozen=True)
class Exponents:
    """The powers of k at which the step size falls, the penalty grows and the momentum falls."""

    step_size: float
    penalty: float
    momentum: float


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
        return (72 / 81) * (k + 1) ** -self.exponents.momentum


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
