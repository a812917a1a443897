"""Problems of the CUTEst collection with noise added, for whoever has `sif2jax` installed."""

import importlib
import importlib.util
import re
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._reference import kkt_point
from lariax.problem import AtLeast, Distribution, Equal, Problem
from lariax.sets import Box

ALIAS = "lariax_sif2jax"
"""Under this name problems are imported one at a time; importing all of sif2jax takes the better part of a minute."""

CLOSE = 1e-6
"""Up to this residual of the optimality conditions a point counts as a solution."""

SIGN = 1e-2
"""By so much an expected solution may violate an inequality: some are given to a few digits."""


@entry
def cutest(problem: str = "HS7", noise: float = 0.01, constraint_noise: float = 0.01) -> Entry:
    """A problem of the CUTEst collection, seen through noise.

        minimise    E[ f(x) + noise xi . x ]                                       xi, zeta: standard normal
        subject to  E[ c(x) + constraint_noise (zeta_1 + zeta_2 . x) ] = 0         row by row
                    E[ g(x) + constraint_noise (zeta_1 + zeta_2 . x) ] >= 0
                    bounds on x

    f, c, g and the bounds are those of the collection, as written down in the package sif2jax (`pip install sif2jax`).
    The noise has mean 0, so the solution is that of the problem without it.

    Scale: that of the problem; HS7 has 2 unknowns and 1 constraint.
    Check: SLSQP and Newton without the noise, from the solution that sif2jax gives where it gives one.
    Arguments:
        problem: its name in the collection, such as HS7.
        noise: of the gradient of f, in each entry.
        constraint_noise: of c and g, and of each entry of their gradients; 0: they are deterministic.

    >>> from lariax import gallery
    >>> gallery.cutest("HS7", noise=0.1).x0.shape  # doctest: +SKIP (wants the extra "cutest")
    (2,)
    """
    given = _imported(problem)
    y0 = given.y0
    if not isinstance(y0, jax.Array) or y0.ndim != 1:
        raise ValueError(f"{problem} has unknowns that are not one vector; the gallery takes only those that are.")
    d = y0.size
    equal, at_least = _rows(given, y0)
    _check_sign(problem, given, at_least)
    kinds = {"equal": (Equal, equal), "at least": (AtLeast, at_least)}
    constraints = {}
    for i, (name, (kind, size)) in enumerate(kinds.items()):
        fun = partial(_constraint, given, i, constraint_noise)
        noisy = Distribution(partial(_normal, (size, d + 1))) if constraint_noise else None
        if size:
            constraints[name] = kind(fun, samples=noisy)
    bounds = getattr(given, "bounds", None)
    return Entry(
        problem=Problem(
            lambda x, xi: given.objective(x, given.args) + noise * xi @ x,
            samples=Distribution(partial(_normal, (d,))),
            constraints=constraints,
            within=None if bounds is None else Box(*bounds),
        ),
        x0=jnp.asarray(y0, float),
        defaults={"batch_size": 2, "iterations": 20_000},
        solve=partial(_solve, given, equal, at_least),
        draw=_draw,
    )


def _normal(shape: tuple[int, ...], key: Array) -> Array:
    return jax.random.normal(key, shape)


def _constraint(given: Any, which: int, noise: float, x: Array, zeta: Array | None = None) -> Array:
    values = ravel_pytree(given.constraint(x)[which])[0]
    return values if zeta is None else values + noise * (zeta[:, 0] + zeta[:, 1:] @ x)


def _rows(given: Any, y0: Array) -> tuple[int, int]:
    """How many equations and inequalities there are."""
    if not hasattr(given, "constraint"):
        return 0, 0
    equal, at_least = (ravel_pytree(part)[0].size for part in given.constraint(y0))  # nothing for None
    return equal, at_least


def _check_sign(name: str, given: Any, at_least: int) -> None:
    """Inequalities are to be >= 0, and in some problems of sif2jax they are not, at its own solution."""
    if not at_least or given.expected_result is None:
        return
    least = float(jnp.min(ravel_pytree(given.constraint(given.expected_result)[1])[0]))
    if least < -SIGN:
        raise ValueError(
            f"{name}: the solution that sif2jax gives violates an inequality by {-least:.3g}, so the signs of its "
            "inequalities cannot be relied on. Choose another problem."
        )


def _solve(given: Any, equal: int, at_least: int) -> Solution:
    with jax.enable_x64(True):
        expected, value = given.expected_result, given.expected_objective_value
        d = given.y0.size
        guess = np.asarray(given.y0 if expected is None else expected, float)

        def residuals(x: Array) -> Array:
            parts = given.constraint(x) if equal + at_least else (None, None)
            return jnp.concatenate([sign * ravel_pytree(part)[0] for part, sign in zip(parts, (1, -1), strict=True)])

        bounds = getattr(given, "bounds", None)
        limits = None if bounds is None else np.stack([np.broadcast_to(np.asarray(b, float), d) for b in bounds], 1)
        found = kkt_point(
            lambda x: given.objective(x, given.args),
            residuals,
            [False] * equal + [True] * at_least,
            guess,
            bounds=limits,
        )
    if not found.residual < CLOSE:
        return Solution(float("nan") if value is None else float(value))
    named = {"equal": found.multipliers[:equal], "at least": -found.multipliers[equal:]}
    return Solution(found.value, found.x, {name: y for name, y in named.items() if y.size})


def _draw(x: PyTree) -> list[Picture]:
    values = np.asarray(x, float)
    return [Picture("The answer", "bars", {"x": values}, categories=tuple(f"x{i + 1}" for i in range(values.size)))]


# --- one problem of sif2jax


def _imported(problem: str) -> Any:
    """The problem, from its own module: the package's own import would bring in a thousand of them."""
    spec = importlib.util.find_spec("sif2jax")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the entry 'cutest' needs the package sif2jax, which is not installed. Install it: pip install sif2jax."
        )
    root = Path(spec.submodule_search_locations[0])
    name = problem.upper()
    file = f"{name.lower()}.py"
    home = next((path.parent for path in sorted(root.glob(f"cutest/*/{file}")) if _offered(path.parent, name)), None)
    if not re.fullmatch(r"[A-Z0-9_]+", name) or home is None:
        raise ValueError(f"sif2jax offers no problem {problem!r}. Names are those of CUTEst, such as HS7 or BYRDSPHR.")
    _stub(ALIAS, root)
    _stub(f"{ALIAS}.cutest", root / "cutest")
    _stub(f"{ALIAS}.cutest.{home.name}", home)
    module = importlib.import_module(f"{ALIAS}.cutest.{home.name}.{name.lower()}")
    return getattr(module, name)()


def _offered(home: Path, name: str) -> bool:
    """Whether the package exports it; some are there and commented out, as not yet right."""
    exports = (home / "__init__.py").read_text(encoding="utf-8")
    return re.search(rf"^from \.{name.lower()} import\b", exports, re.MULTILINE) is not None


def _stub(name: str, path: Path) -> None:
    """A package that can find its modules, without running its own code."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules[name] = module
