"""`lariax doctor`."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

from lariax.cli._console import FAILED, Screen
from lariax.loop import solve
from lariax.problem import Distribution, Equal, Problem
from lariax.runs import versions
from lariax.utils import page

EXTRAS = {
    "matplotlib": "result.plot()",
    "pandas": "history.to_pandas()",
    "torch": "lariax.torch",
    "scikit-learn": "lariax.sklearn",
    "sif2jax": "problems of CUTEst in the gallery",
}
SOLUTION = np.array([-0.5, 1.5])


def examine(screen: Screen) -> None:
    """Say what is there, then solve a problem whose solution is known."""
    with screen.explained():
        found = versions()
        extras = {name: _version(name) for name in EXTRAS}
        double = bool(jax.config.values["jax_enable_x64"])
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, value in found.items():
            table.add_row(name, value)
        table.add_row("precision", "double" if double else "single (JAX_ENABLE_X64=1 makes it double)")
        for name, use in EXTRAS.items():
            table.add_row(name, extras[name] or f"[yellow]not installed[/]; for {use}")
        screen.show(table)
        with screen.waiting("self-check"):
            check = self_check()
        words = "[green]passed[/]" if check["passed"] else "[red]failed[/]"
        screen.show(
            f"\nSelf-check {words} in {check['seconds']:.1f} s: a problem with a random constraint, "
            f"{check['distance']:.3f} from its solution; {check['draws_per_second']:,.0f} draws a second."
        )
        screen.show(f"Help: {page('start')}; questions: {page('questions')}; commands: {page('commands')}.")
        screen.give({"versions": found, "extras": extras, "double": double, "self_check": check})
        if not check["passed"]:
            raise typer.Exit(FAILED)


def self_check() -> dict[str, Any]:
    """Solve  min (x1^2 + (x2 - 2)^2) / 2  with E[x1 + x2 - 1 + 2 z (x1 - x2)] = 0, from (0, 0)."""
    problem = Problem(
        lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
        samples=Distribution(jax.random.normal),
        constraints={"line": Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
    )
    began = time.perf_counter()
    first = solve(problem, jnp.zeros(2), iterations=1000, batch_size=8)
    compiled = time.perf_counter()
    result = solve(problem, first, iterations=19_000)
    ended = time.perf_counter()
    distance = float(np.linalg.norm(np.asarray(result.x) - SOLUTION))
    return {
        "passed": distance < 0.1,  # some six standard errors; the answer of a biased method is 1.28 away
        "distance": distance,
        "draws_per_second": (result.draws - first.draws) / (ended - compiled),
        "seconds": ended - began,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
