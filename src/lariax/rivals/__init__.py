"""Methods of other papers, and of no paper, behind the interface of Lariax's own: for comparison.

They count the same draws and evaluations, take the same sets, sources and precisions, and are tuned by hand. Where a
docstring says that the source was not at hand, the update is the one by which the method is known, and what is ours in
it is said there.

>>> import jax.numpy as jnp, lariax as lx
>>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Linear(jnp.ones((1, 2)), 1.0)})
>>> result = lx.solve(problem, jnp.zeros(2), lx.rivals.ProxPDA(step_size=0.1, penalty=1.0), iterations=1000)
>>> [round(float(value), 2) for value in result.x]
[0.5, 0.5]
"""

from lariax.rivals._constraint_extrapolation import ConstraintExtrapolation
from lariax.rivals._gradient_tracking import GradientTracking
from lariax.rivals._hinge_penalty import HingePenalty
from lariax.rivals._momentum_alm import MomentumALM, RecursiveMomentumPenalty
from lariax.rivals._prox_pda import ProxPDA
from lariax.rivals._sgd import PenaltySGD, PrimalDualSGD, SameBatchALM
from lariax.rivals._smoothed_primal_dual import SmoothedPrimalDual
from lariax.rivals._spider_admm import SpiderADMM
from lariax.rivals._spider_penalty import SpiderPenalty
from lariax.rivals._stochastic_ialm import StochasticIALM
from lariax.rivals._stochastic_sqp import StochasticSQP
from lariax.rivals._switching_subgradient import RegularizedSubgradient, SwitchingSubgradient

__all__ = [
    "ConstraintExtrapolation",
    "GradientTracking",
    "HingePenalty",
    "MomentumALM",
    "PenaltySGD",
    "PrimalDualSGD",
    "ProxPDA",
    "RecursiveMomentumPenalty",
    "RegularizedSubgradient",
    "SameBatchALM",
    "SmoothedPrimalDual",
    "SpiderADMM",
    "SpiderPenalty",
    "StochasticIALM",
    "StochasticSQP",
    "SwitchingSubgradient",
]
