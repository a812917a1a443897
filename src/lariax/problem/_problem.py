"""What is to be solved: objective, constraints, set, regulariser, samples. Immutable, and innocent of any method."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array, PyTree

from lariax.problem._constraints import SHARED, AbstractConstraint
from lariax.problem._sources import AbstractSource
from lariax.prox import AbstractProximable, Restricted, Zero
from lariax.sets import AbstractSet, Everything
from lariax.utils import explains_options, helped_by, takes

OBJECTIVE = (
    "Write lambda x, sample: ..., or leave samples= out if nothing is random.",
    "Say where samples come from: samples=lx.Dataset(arrays) or lx.Distribution(lambda key: ...).",
)
CONSTRAINT = (
    "Write lx.{}(fun, ..., samples=None) if it is deterministic, or give it a second argument.",
    "Leave samples=None out to use the problem's samples, or give lx.{} samples= of its own.",
)
"""What to do where a function takes x alone and is called with a sample, and the other way round."""


class Problem(eqx.Module):
    """minimise E[f(x, sample)] + h(x)  subject to named constraints and x in a convex set.

    Arguments:
        objective: `f(x, sample) -> scalar`, for one sample; `f(x)` when `samples=None`. x is any pytree of arrays.
        samples: where samples come from (`Distribution`, `Dataset`, `Stratified`, `Stream`); None: nothing random.
        constraints: any number of `Equal`, `AtMost`, `AtLeast`, `Linear`, by name. The names come back in the
            multipliers and in the history.
        within: a closed convex set for x, of `lx.sets`; by default everything.
        regularizer: a convex h with a proximal map, of `lx.prox`. Together with `within` where both act on
            every entry of x alone (L1 and a Box, say); otherwise the two have no proximal map together.
        heldout: a source of the same kind as `samples` that is never trained on. A constraint with samples of its own
            has a heldout= of its own.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: jnp.sum((x - z) ** 2),
    ...     samples=lx.Distribution(lambda key: 1.0 + jax.random.normal(key, (3,))),
    ...     constraints={"total": lx.Equal(lambda x: jnp.sum(x) - 1.0, samples=None)},
    ...     within=lx.sets.NonNegative(),
    ... )
    """

    objective: Callable[..., Any]
    samples: AbstractSource | None
    _names: tuple[str, ...] = eqx.field(static=True)
    _constraints: tuple[AbstractConstraint, ...]
    within: AbstractSet
    regularizer: AbstractProximable
    heldout: AbstractSource | None
    is_joint: bool = eqx.field(static=True)

    @explains_options("problem")
    def __init__(
        self,
        objective: Callable[..., Any],
        *,
        samples: AbstractSource | None = None,
        constraints: Mapping[str, AbstractConstraint] | None = None,
        within: AbstractSet | None = None,
        regularizer: AbstractProximable | None = None,
        heldout: AbstractSource | None = None,
        _joint: bool = False,
    ):
        named = _named(constraints)
        self.objective = objective
        self.samples = samples
        self._names = tuple(named)
        self._constraints = tuple(named.values())
        self.within = Everything() if within is None else within
        self.regularizer = Zero() if regularizer is None else regularizer
        self.heldout = heldout
        self.is_joint = _joint

    @classmethod
    def joint(
        cls,
        fun: Callable[[PyTree, PyTree], tuple[Array, dict[str, Array]]],
        *,
        samples: AbstractSource,
        constraints: Mapping[str, AbstractConstraint],
        within: AbstractSet | None = None,
        regularizer: AbstractProximable | None = None,
        heldout: AbstractSource | None = None,
    ) -> "Problem":
        """One function for everything: `fun(x, sample) -> (loss, {name: value, ...})`, one forward pass for all.

        A constraint without a function of its own takes its values from the dictionary, by name; constraints with their
        own function (and perhaps their own samples) may stand beside them.

        >>> import jax.numpy as jnp, lariax as lx
        >>> def fun(x, row):
        ...     error = row["input"] @ x - row["output"]
        ...     return error**2, {"bias": error}
        >>> rows = lx.Dataset({"input": jnp.eye(3), "output": jnp.ones(3)})
        >>> problem = lx.Problem.joint(fun, samples=rows, constraints={"bias": lx.AtMost(bound=0.01)})
        """
        return cls(
            fun,
            samples=samples,
            constraints=constraints,
            within=within,
            regularizer=regularizer,
            heldout=heldout,
            _joint=True,
        )

    @helped_by("problem")
    def __check_init__(self) -> None:
        if not callable(self.objective):
            raise TypeError(
                f"the objective must be a function f(x, sample), found {type(self.objective).__name__}. "
                "Write lx.Problem(lambda x, sample: ..., samples=...)."
            )
        _check_arguments("the objective", self.objective, self.samples is not None, OBJECTIVE)
        _check_source("samples=", self.samples)
        _check_source("heldout=", self.heldout)
        if self.is_joint and self.samples is None:
            raise TypeError("Problem.joint needs samples=, found None: its function takes (x, sample).")
        for name, constraint in self.constraints.items():
            self._check_constraint(name, constraint)
        for option, value, kind in (
            ("within=", self.within, AbstractSet),
            ("regularizer=", self.regularizer, AbstractProximable),
        ):
            if not isinstance(value, kind):
                hint = " Bounds are lx.sets.Box(lower, upper), a set for each part of x is lx.sets.Product({...})."
                raise TypeError(
                    f"{option} takes an object of lariax.{'sets' if kind is AbstractSet else 'prox'}, found "
                    f"{type(value).__name__}.{hint if kind is AbstractSet else ''}"
                )
        _ = self.simple  # complains if the two have no proximal map together

    def _check_constraint(self, name: Any, constraint: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"constraints are named by strings, found the name {name!r}.")
        if not isinstance(constraint, AbstractConstraint):
            raise TypeError(
                f"constraint {name!r} must be one of lx.Equal, lx.AtMost, lx.AtLeast, lx.Linear, found "
                f"{type(constraint).__name__}. Wrap a bare function: lx.Equal(fun)."
            )
        if constraint.fun is None and not self.is_joint:
            raise ValueError(
                f"constraint {name!r} has no function. Write lx.{type(constraint).__name__}(fun, bound), or use "
                "lx.Problem.joint if the objective's function returns the constraint values too."
            )
        if constraint.fun is not None and constraint.samples is SHARED and self.samples is None:
            raise ValueError(
                f"constraint {name!r} uses the problem's samples, but the problem has samples=None. Give the "
                "constraint its own samples=, or samples=None if it is deterministic."
            )
        if constraint.fun is not None:
            kind = type(constraint).__name__
            what = f"constraint {name!r}"
            _check_arguments(
                what, constraint.fun, constraint.samples is not None, (part.format(kind) for part in CONSTRAINT)
            )
        elif constraint.samples is not SHARED:
            raise ValueError(
                f"constraint {name!r} takes its values from the joint function, so it cannot have samples= of its own. "
                "Leave samples= out, or give the constraint its own function."
            )

    @property
    def constraints(self) -> dict[str, AbstractConstraint]:
        """By name, in the user's order (which a dictionary as a leaf of a pytree would lose)."""
        return dict(zip(self._names, self._constraints, strict=True))

    @property
    def sources(self) -> tuple[AbstractSource | None, ...]:
        """The objective's source, then those that constraints brought along, in their order."""
        own = (constraint.samples for constraint in self.constraints.values())
        return (self.samples, *(source for source in own if isinstance(source, AbstractSource)))

    def with_sources(self, sources: Mapping[int, AbstractSource]) -> "Problem":
        """The same problem, with others in the place of some of `sources`, by their number there."""
        problem, number = self, 0
        if 0 in sources:
            problem = eqx.tree_at(lambda p: p.samples, problem, sources[0], is_leaf=_is_source)
        for k, constraint in enumerate(self._constraints):
            if isinstance(constraint.samples, AbstractSource):
                number += 1
                if number in sources:
                    place = lambda p, k=k: p._constraints[k].samples  # noqa: E731
                    problem = eqx.tree_at(place, problem, sources[number], is_leaf=_is_source)
        return problem

    @property
    def has_heldout(self) -> bool:
        """Whether anything in it has held-out rows."""
        return self.heldout is not None or any(c.heldout is not None for c in self._constraints)

    def on_heldout(self) -> "Problem":
        """The same problem, with held-out rows in the place of those trained on, wherever there are any."""
        constraints = tuple(
            constraint
            if constraint.heldout is None
            else eqx.tree_at(lambda c: c.samples, constraint, constraint.heldout, is_leaf=_is_source)
            for constraint in self._constraints
        )
        samples = self.samples if self.heldout is None else self.heldout
        return eqx.tree_at(lambda p: (p.samples, p._constraints), self, (samples, constraints), is_leaf=_is_none)

    def without_heldout(self) -> "Problem":
        """The same problem, without held-out rows."""
        constraints = tuple(
            constraint if constraint.heldout is None else eqx.tree_at(lambda c: c.heldout, constraint, None)
            for constraint in self._constraints
        )
        return eqx.tree_at(lambda p: (p.heldout, p._constraints), self, (None, constraints), is_leaf=_is_none)

    @property
    def simple(self) -> AbstractProximable:
        """The one term that is handled by its proximal map: the set, the regulariser, or both together."""
        if isinstance(self.regularizer, Zero):
            return self.within
        return self.regularizer if isinstance(self.within, Everything) else Restricted(self.regularizer, self.within)


def _is_none(node: Any) -> bool:
    return node is None


def _is_source(node: Any) -> bool:
    return isinstance(node, AbstractSource)


def _named(constraints: Any) -> Mapping[str, AbstractConstraint]:
    if constraints is None or isinstance(constraints, Mapping):
        return constraints or {}
    several = constraints if isinstance(constraints, list | tuple) else [constraints]
    kinds = [f'"c{i}": lx.{type(each).__name__}(...)' for i, each in enumerate(several[:2])]
    raise TypeError(
        f"constraints= takes a dictionary, found {type(constraints).__name__}. Give each a name, by which its "
        f"multiplier comes back: constraints={{{', '.join(kinds)}{', ...' if len(several) > 2 else ''}}}."
    )


def _check_arguments(what: str, fun: Callable[..., Any], random: bool, advice: Iterable[str]) -> None:
    """Say it if a function of x alone is to be called with a sample, or the other way round."""
    alone, with_sample = advice
    if random and takes(fun, 1) and not takes(fun, 2):
        raise TypeError(f"{what} is a function of x alone, but it is called as fun(x, sample). {alone}")
    if not random and takes(fun, 2) and not takes(fun, 1):
        raise TypeError(
            f"{what} is a function of two arguments, but it has samples=None, so it is called as fun(x). {with_sample}"
        )


def _check_source(option: str, source: Any) -> None:
    if source is not None and not isinstance(source, AbstractSource):
        raise TypeError(
            f"{option} takes a source, found {type(source).__name__}. Wrap arrays in lx.Dataset(arrays), a sampler in "
            "lx.Distribution(lambda key: ...), a data loader in lx.Stream(loader)."
        )
