"""Problems of CUTEst as `sif2jax` writes them, one module at a time: all of them take over a minute to import."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FOLDER = "cutest/_constrained_minimisation"
LARGEST = 200
"""Entries of x."""

NAMES = """
BT1 BT2 BT3 BT4 BT5 BT6 BT7 BT8 BT9 BT10 BT11 BT12 BYRDSPHR DIXCHLNG FLT HS6 HS7 HS9 HS26 HS27 HS28 HS39 HS40 HS42 HS46
HS47 HS48 HS49 HS50 HS51 HS52 HS56 HS61 HS77 HS78 HS79 HS100LNP HS111LNP MARATOS MSS1 ORTHREGB S316_322
"""
EQUALITIES = NAMES.split()
"""All with equalities alone, no bounds, at most 200 entries and an objective that is not constant."""


class Case(NamedTuple):
    name: str
    objective: Callable[[jax.Array], jax.Array]
    constraint: Callable[[jax.Array], jax.Array]  # = 0
    x0: jax.Array


def by_name(name: str) -> Case:
    problem = _problem(name)
    x0 = jnp.ravel(jnp.asarray(problem.y0, float))
    equality, inequality = problem.constraint(x0)
    bounds = problem.bounds
    if inequality is not None or (bounds is not None and any(np.isfinite(np.asarray(end)).any() for end in bounds)):
        raise ValueError(
            f"{name} has inequalities or bounds; the sign convention of sif2jax for those is not reliable."
        )
    if x0.size > LARGEST or equality is None:
        raise ValueError(f"{name} has {x0.size} entries, at most {LARGEST} are wanted, and equalities.")

    def objective(x: jax.Array) -> jax.Array:
        return jnp.asarray(problem.objective(x, problem.args), x.dtype)

    def constraint(x: jax.Array) -> jax.Array:
        return jnp.ravel(problem.constraint(x)[0])

    return Case(name, objective, constraint, x0)


def _problem(name: str) -> Any:
    module = _module(name.lower())
    wanted = name.replace("_", "").lower()
    found = [kind for label, kind in vars(module).items() if label.replace("_", "").lower() == wanted]
    if not found:
        raise ValueError(f"sif2jax has no problem {name}.")
    return found[0]()


def _module(name: str) -> ModuleType:
    """A module of the package without what the package itself imports on the way."""
    if "sif2jax" not in sys.modules:
        found = importlib.util.find_spec("sif2jax")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("this benchmark needs sif2jax: pip install 'lariax[bench]'.")
        root = Path(found.submodule_search_locations[0])
        for package in ("", "cutest", FOLDER):
            path = f"sif2jax/{package}".rstrip("/").replace("/", ".")
            empty = ModuleType(path)
            empty.__path__ = [str(root / package)]
            sys.modules[path] = empty
    return importlib.import_module(f"sif2jax.{FOLDER.replace('/', '.')}.{name}")
