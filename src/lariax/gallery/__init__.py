"""Problems to try, to learn from and to measure with: each a function that returns a `Case`.

>>> from lariax import gallery
>>> case = gallery.load("fairness", criterion="demographic parity")
>>> case.title
'A classifier with a bounded gap between two groups'

`lx.solve(case.problem, case.x0, **case.defaults)` solves it, `case.solution` is what is known of the solution, and
`case.pictures(result.x)` are pictures of an answer. `case.mathematics`, `case.scale` and `case.check` say what it is
about, how large it is, and how one knows that an answer is right.
"""

import inspect
from typing import Any

from lariax.gallery._case import ENTRIES, Case, Picture, Solution
from lariax.gallery.components import principal_components
from lariax.gallery.control import diffusion_control
from lariax.gallery.cutest import cutest
from lariax.gallery.design import suspension
from lariax.gallery.detection import out_of_distribution
from lariax.gallery.distributed import consensus, resource_sharing, splitting
from lariax.gallery.fairness import fairness
from lariax.gallery.neyman_pearson import neyman_pearson, neyman_pearson_multiclass
from lariax.gallery.planning import dispatch, newsvendor_network
from lariax.gallery.risk import chance_constraint, portfolio
from lariax.utils import did_you_mean

__all__ = [
    "Case",
    "Picture",
    "Solution",
    "chance_constraint",
    "consensus",
    "cutest",
    "diffusion_control",
    "dispatch",
    "fairness",
    "load",
    "names",
    "newsvendor_network",
    "neyman_pearson",
    "neyman_pearson_multiclass",
    "out_of_distribution",
    "portfolio",
    "principal_components",
    "resource_sharing",
    "splitting",
    "suspension",
]


def names() -> list[str]:
    """The entries of the gallery.

    >>> from lariax import gallery
    >>> "fairness" in gallery.names()
    True
    """
    return sorted(ENTRIES)


def load(name: str, **options: Any) -> Case:
    """An entry of the gallery by its name, with options of its own.

    >>> from lariax import gallery
    >>> gallery.load("fairness", bound=0.01).options["bound"]
    0.01
    """
    function = ENTRIES.get(str(name).replace("-", "_"))
    if function is None:
        raise ValueError(
            f"the gallery has no entry {name!r}. {did_you_mean(name, ENTRIES)}It has {', '.join(names())}."
        )
    known = list(inspect.signature(function).parameters)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            raise TypeError(f"{name} has no option {option!r}. {hint}It takes {', '.join(known) or 'none'}.")
    return function(**options)
