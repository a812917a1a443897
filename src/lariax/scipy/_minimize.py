"""`minimize`: problems said in SciPy's words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lariax.certificate import RelativeTolerance, Tolerance
from lariax.compilation import on_device
from lariax.loop import Result, solve
from lariax.methods import AbstractMethod
from lariax.problem import SHARED, AbstractConstraint, AbstractSource, AtLeast, AtMost, Equal, Linear, Problem
from lariax.sets import AbstractSet, Box
from lariax.utils import helped_by, takes

EXACT_ITERATIONS = 16_000
"""The most for a problem in which nothing is random: it usually ends long before, by its tolerance,"""

RANDOM_ITERATIONS = 10_000
"""and for one with samples, if no budget is given."""

OPTIONS = {"maxiter": "iterations", "disp": "progress"}
"""Of SciPy, and their names here."""

DERIVATIVES = {"jac", "hess", "hessp"}

RELATIVE = {64: 1e-6, 32: 1e-3}
"""The default tolerance, by the precision of x."""


@helped_by("scipy")
def minimize(
    fun: Callable[..., Array],
    x0: PyTree,
    args: Any = (),
    *,
    samples: AbstractSource | None = None,
    constraints: Any = (),
    bounds: Any = None,
    method: AbstractMethod | str = "auto",
    tolerance: Tolerance | None = None,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Result:
    """Minimise a function under SciPy's constraints: a `Problem` and `solve` in one call.

    Functions are differentiated by JAX, so they are written with `jax.numpy`; derivatives need not be given, and `jac`
    and `hess` of a constraint are not used. The result has `x`, `fun`, `jac`, `nit`, `nfev`, `success` and `message` as
    SciPy's has; its `status` is a word.

    Arguments:
        fun: `fun(x)`, or `fun(x, sample)` with `samples=`: then its expectation is minimised.
        x0: where to start.
        args: further arguments of fun, after x and the sample.
        samples: a source such as `lx.Distribution` or `lx.Dataset`; None: nothing is random.
        constraints: `scipy.optimize.LinearConstraint` or `NonlinearConstraint`, or several of them in a list: the
            constraint at place i is called `c{i}` in the result, and `c{i} lower`, `c{i} upper`, `c{i} equal` where it
            has several kinds of rows. Dictionaries with 'type', 'fun' and perhaps 'args' are taken too. Or constraints
            of Lariax, by name; without samples= their functions are of x alone.
        bounds: `scipy.optimize.Bounds`, pairs (low, high) with None for no bound, or a set of `lariax.sets`.
        method: as for `solve`.
        tolerance: when to stop, as for `solve`. By default, for a problem in which nothing is random, when every part
            of the certificate is at most 1e-6 (in float32: 1e-3) in units of its own: what is left of each entry of the
            gradient beside the terms that cancel in it, each residual beside what it is made of. Other units for x,
            for fun or for a constraint do not change that.
        tol: the same as `tolerance`, but relative, as the default is; for problems in which nothing is random.
        options: as SciPy has them, 'maxiter' and 'disp': `iterations=` and `progress=`.
        more: whatever `solve` takes. The budget is 16,000 iterations by default, with samples 10,000.

    >>> import jax.numpy as jnp, lariax as lx
    >>> from scipy.optimize import NonlinearConstraint
    >>> disc = NonlinearConstraint(lambda x: x @ x, -jnp.inf, 1.0)
    >>> result = lx.minimize(lambda x: (x[0] - 2) ** 2 + x[1] ** 2, [0.0, 0.5], constraints=disc, bounds=[(0, 3)] * 2)
    >>> result.success, [round(float(value), 3) for value in result.x], round(float(result.multipliers["c0"]), 3)
    (True, [1.0, 0.0], 1.0)
    """
    more = _in_our_words(method, options, more)
    x = _as_array(x0) if isinstance(x0, list | tuple) else jax.tree.map(_as_floats, x0)
    fun = _with(fun, args)
    problem = Problem(
        _traceable("fun", fun, x, samples is not None),
        samples=samples,
        constraints=_constraints(constraints, x, samples is not None),
        within=_within(bounds, x),
    )
    if tol is not None and (samples is not None or tolerance is not None):
        raise TypeError(
            "tol= is relative, for problems in which nothing is random, and stands alone. Use tolerance=, in the "
            "units of the certificate: the largest stationarity, feasibility and complementarity that you accept."
        )
    if samples is None and tolerance is None:
        lengths = np.concatenate([np.abs(np.ravel(leaf)) for leaf in jax.tree.leaves(x)])
        bits = jnp.finfo(jax.dtypes.canonicalize_dtype(lengths.dtype)).bits  # as JAX will have it
        tolerance = RelativeTolerance(tol or RELATIVE[bits], lengths)
    if not {"iterations", "draws", "seconds"} & more.keys():
        more["iterations"] = EXACT_ITERATIONS if samples is None else RANDOM_ITERATIONS
    return solve(problem, x, method, tolerance=tolerance, **more)


def _in_our_words(method: Any, options: Mapping[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """The arguments of SciPy's `minimize` as those of `solve`, or the word to use."""
    for name in DERIVATIVES & more.keys():
        given = more.pop(name)
        if given is not None and given is not False:
            raise TypeError(f"{name}= is not needed: JAX differentiates fun. Leave it out; fun returns one number.")
    if isinstance(method, str) and method != "auto":
        raise TypeError(
            f"method={method!r} is not of Lariax. Leave it out: the structure of the problem decides on the method. Or "
            "take one such as lx.TangentNormal() or lx.TrackedLagrangian()."
        )
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            raise TypeError(
                f"options= takes {', '.join(map(repr, OPTIONS))}, found {name!r}. Accuracy is tol=, a budget "
                "iterations=, draws= or seconds=; the methods of Lariax have their settings in their own constructors."
            )
        if more.setdefault(OPTIONS[name], value) != value:
            raise TypeError(f"options={{{name!r}: ...}} and {OPTIONS[name]}= are the same. Give one of them.")
    return more


def _with(fun: Any, args: Any) -> Any:
    """fun with further arguments, one or several."""
    further = args if isinstance(args, tuple) else (args,)
    return (lambda *known: fun(*known, *further)) if further and callable(fun) else fun


def _as_array(numbers: Sequence[Any]) -> Array:
    """Without a program, unless some are traced."""
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(numbers))
    return jnp.asarray(numbers, float) if traced else on_device(np.asarray(numbers, float))


def _as_floats(leaf: Any) -> Any:
    return leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.asarray(leaf, float)


def _traceable(name: str, fun: Any, x: PyTree, random: bool = False) -> Callable[..., Array]:
    """The function, if JAX can look into it; found out before anything else."""
    if not callable(fun):
        raise TypeError(f"{name} must be a function, found {type(fun).__name__}.")
    if random:
        return fun
    try:
        jax.eval_shape(fun, x)
    except jax.errors.JAXTypeError as error:
        raise TypeError(
            f"{name} cannot be traced by JAX ({str(error).splitlines()[0]}). Write it with jax.numpy instead of numpy, "
            "jnp.where instead of if, and without float(...); code that cannot be written so belongs to "
            "scipy.optimize.minimize."
        ) from error
    return fun


# --- bounds


def _within(bounds: Any, x: PyTree) -> AbstractSet | None:
    from scipy.optimize import Bounds

    if bounds is None or isinstance(bounds, AbstractSet):
        return bounds
    if isinstance(bounds, Bounds):
        low, high = bounds.lb, bounds.ub
    elif isinstance(bounds, Sequence) and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in bounds):
        low, high = ([pair[i] for pair in bounds] for i in range(2))
    else:
        raise TypeError(
            f"bounds= takes scipy.optimize.Bounds, a list of pairs (low, high) or a set such as lx.sets.Box, found "
            f"{type(bounds).__name__}."
        )
    return Box(_ends(low, -np.inf, x), _ends(high, np.inf, x))


def _ends(values: Any, missing: float, x: PyTree) -> PyTree:
    """One bound for all entries of x, or one for each."""
    given = np.asarray([missing if v is None else v for v in np.ravel(np.asarray(values, object))], float)
    if given.size == 1:
        return float(given[0])
    leaves, structure = jax.tree.flatten(x)
    sizes = [np.size(leaf) for leaf in leaves]
    if given.size != sum(sizes):
        raise ValueError(f"there are {given.size} bounds for {sum(sizes)} entries of x; give one, or one for each.")
    parts = np.split(given, np.cumsum(sizes)[:-1])
    shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


# --- constraints


def _constraints(given: Any, x: PyTree, random: bool = False) -> dict[str, AbstractConstraint]:
    if isinstance(given, Mapping) and not {"type", "fun"} <= given.keys():
        return {name: part if random else _exact(part) for name, part in given.items()}
    several = given if isinstance(given, list | tuple) else [given]
    found: dict[str, AbstractConstraint] = {}
    for i, constraint in enumerate(several):
        parts = _parts(f"c{i}", constraint, x)
        found |= {f"c{i}" if len(parts) == 1 else f"c{i} {kind}": part for kind, part in parts.items()}
    return found


def _exact(constraint: Any) -> Any:
    """A constraint of Lariax on x alone, where there are no samples that it could share."""
    shares = isinstance(constraint, AbstractConstraint) and constraint.samples is SHARED
    return replace(constraint, samples=None) if shares and constraint.fun and takes(constraint.fun, 1) else constraint


def _parts(name: str, constraint: Any, x: PyTree) -> dict[str, AbstractConstraint]:
    """The rows of one of SciPy's constraints by kind: lower <= fun(x) <= upper, or equal."""
    from scipy.optimize import LinearConstraint, NonlinearConstraint

    if isinstance(constraint, Mapping) and constraint.get("type") in ("eq", "ineq") and "fun" in constraint:
        most = 0.0 if constraint["type"] == "eq" else np.inf
        constraint = NonlinearConstraint(_with(constraint["fun"], constraint.get("args", ())), 0.0, most)
    if isinstance(constraint, LinearConstraint):
        matrix = constraint.A
        fun: Callable[..., Array] = Linear(matrix).fun
        rows = int(np.shape(matrix)[0])
    elif isinstance(constraint, NonlinearConstraint):
        matrix, fun = None, _traceable(f"the function of constraint {name!r}", constraint.fun, x)
        rows = int(np.prod(jax.eval_shape(fun, x).shape, dtype=int))
    else:
        found = dict(constraint) if isinstance(constraint, Mapping) else type(constraint).__name__
        raise TypeError(
            f"constraint {name!r} must be a scipy.optimize.LinearConstraint or NonlinearConstraint, or a dictionary "
            f"with 'type' ('eq' or 'ineq') and 'fun', found {found}. Constraints of Lariax go by name: "
            "constraints={'name': lx.AtMost(fun, bound)}."
        )
    low, high = (np.broadcast_to(np.asarray(end, float).ravel(), rows) for end in (constraint.lb, constraint.ub))
    if (low > high).any() or np.isnan(low).any() or np.isnan(high).any():
        raise ValueError(f"constraint {name!r} has lb={low} and ub={high}; every lb must be at most its ub.")
    equal = low == high
    parts: dict[str, AbstractConstraint] = {}
    for kind, chosen, ends, make in (
        ("equal", equal, low, Equal),
        ("lower", ~equal & np.isfinite(low), low, AtLeast),
        ("upper", ~equal & np.isfinite(high), high, AtMost),
    ):
        if not chosen.any():
            continue
        if kind == "equal" and matrix is not None:
            parts[kind] = Linear(matrix[np.flatnonzero(chosen)], ends[chosen])
        elif chosen.all():
            parts[kind] = make(fun, jnp.asarray(ends if rows > 1 else ends[0]), samples=None)
        else:
            parts[kind] = make(_picked(fun, np.flatnonzero(chosen)), jnp.asarray(ends[chosen]), samples=None)
    return parts


def _picked(fun: Callable[..., Array], rows: np.ndarray) -> Callable[[PyTree], Array]:
    return lambda x: jnp.ravel(fun(x))[rows]
