"""PyTorch front end: optimizers with unbiased, variance-reduced constraints, and the certificate.

In a training loop:

    opt = lariax.torch.TrackedLagrangian(model, {"gap": lariax.torch.AtMost(0.005)})
    for batch in loader:
        loss = opt.step(closure, batch)        # closure(batch) -> (loss, {"gap": one value a row})
"""

from lariax.utils import needed_by

with needed_by("lariax.torch"):
    from lariax.torch._certify import certify
    from lariax.torch._constraints import AtLeast, AtMost, Equal, Indexed, Proxy
    from lariax.torch._multipliers import Multipliers
    from lariax.torch._penalty import DualPenalty, QuadraticPenalty
    from lariax.torch._tracked import TrackedLagrangian

__all__ = [
    "AtLeast",
    "AtMost",
    "DualPenalty",
    "Equal",
    "Indexed",
    "Multipliers",
    "Proxy",
    "QuadraticPenalty",
    "TrackedLagrangian",
    "certify",
]
