"""`lariax certify`, `inference`, `compare` and `report`: what can be done with the folders of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import typer
from jaxtyping import PyTree

from lariax import report as pages
from lariax.certificate import certify_run
from lariax.cli._console import NOT_AS_ASKED, Screen, WrongInput
from lariax.cli._solve import is_violated
from lariax.cli._tasks import Task, split, task_of
from lariax.inference import infer_run
from lariax.loop import FAILURES
from lariax.problem import arrays_of
from lariax.report import comparison
from lariax.runs import (
    SavedRun,
    certificate_to_json,
    inference_to_json,
    is_unfinished,
    keep_certificate,
    keep_inference,
    leaves_of,
    load,
)


def certify(
    screen: Screen,
    folder: Path,
    draws: int,
    confidence: float,
    tolerance: float | None,
    seed: int,
    problem: str | None,
) -> None:
    own = split(problem or "")[0]
    with screen.explained(str(own) if own else None):
        with screen.waiting("loading"):
            run, task, x = _loaded(folder, problem, "certify")
        with screen.waiting(f"certifying on {draws:,} fresh samples"):
            certificate = certify_run(task.problem, x, run.multipliers, draws, confidence, seed, tolerance).certificate
        screen.show(certificate)
        keep_certificate(folder, certificate)
        _refresh(screen, folder, "certificate.json")
        screen.give(certificate_to_json(certificate))
        if is_violated(certificate):
            raise typer.Exit(NOT_AS_ASKED)


def infer(screen: Screen, folder: Path, draws: int | None, confidence: float, seed: int, problem: str | None) -> None:
    own = split(problem or "")[0]
    with screen.explained(str(own) if own else None):
        with screen.waiting("loading"):
            run, task, x = _loaded(folder, problem, "inference")
        if run.status in FAILURES:
            raise WrongInput(f"there are no error bars for a run that ended as {run.status!r}.")
        with screen.waiting("inferring"):
            drawn = run.outcome["draws"]
            found = infer_run(task.problem, x, run.multipliers, drawn, draws, confidence, seed, "sandwich")
        screen.show(found)
        keep_inference(folder, found)
        _refresh(screen, folder, "inference.json")
        screen.give(inference_to_json(found))


def _refresh(screen: Screen, folder: Path, name: str) -> None:
    """The report with what was just kept in the folder."""
    page = folder / "report.html"
    pages.write([load(folder)], page)
    screen.show(f"\nKept    {folder / name}\nReport  {page}", keep_lines=True)


def _loaded(folder: Path, problem: str | None, command: str) -> tuple[SavedRun, Task, PyTree]:
    """A run, its problem, and its x in the structure of the problem's."""
    run = load(folder)
    if run.settings.get("double"):
        jax.config.update("jax_enable_x64", True)
    task = task_of(run.settings, problem, f"lariax {command} {folder} --problem {{}}")
    return run, task, _as(run, task.x0)


def _as(run: SavedRun, x0: PyTree) -> PyTree:
    """The x of a run in the structure of x0."""
    wanted = leaves_of(x0)
    shapes = {path: array.shape for path, array in wanted.items()}
    found = {path: array.shape for path, array in run.x.items()}
    if shapes != found:
        raise WrongInput(f"the answer of the run has the arrays {found}, and the problem's x0 has {shapes}.")
    leaves, structure = jax.tree.flatten(arrays_of(x0))
    arrays = [
        np.asarray(array, leaf.dtype) for array, leaf in zip(run.x.values(), map(np.asarray, leaves), strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, arrays), x0)


def compare(screen: Screen, folders: Sequence[Path]) -> None:
    ended, runs = _load(screen, folders)
    screen.show(comparison(runs))
    screen.give({"runs": [_summary(folder, run) for folder, run in zip(ended, runs, strict=True)]})


def _summary(folder: Path, run: SavedRun) -> dict[str, Any]:
    certificate = None if run.certificate is None else certificate_to_json(run.certificate)
    return {"folder": folder, "name": run.name, **run.outcome, "certificate": certificate}


def report(screen: Screen, folders: Sequence[Path], output: Path | None) -> None:
    ended, runs = _load(screen, folders)
    target = output or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    pages.write(runs, target)
    screen.show(f"Report  {target}", keep_lines=True)
    screen.give({"report": target, "runs": [str(folder) for folder in ended]})


def _load(screen: Screen, folders: Sequence[Path]) -> tuple[list[Path], list[SavedRun]]:
    """Of several, those that have ended: `runs/*` may name one that goes on, or was killed."""
    ended = [folder for folder in folders if not is_unfinished(folder)] or list(folders)
    for folder in folders:
        if folder not in ended:
            left_out = f"lariax: {folder} is left out: its run has not ended, or was killed."
            screen.err.print(left_out, markup=False, highlight=False, soft_wrap=True)
    with screen.waiting("reading"):
        return ended, [load(folder) for folder in ended]
