"""`lariax solve`."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import typer

from lariax import report
from lariax.certificate import Certificate
from lariax.cli._console import BAD_FOLDER, NOT_AS_ASKED, STOPPED, Screen, WrongInput
from lariax.cli._tasks import Task, find, method_of, split
from lariax.loop import Result
from lariax.loop import solve as run
from lariax.runs import Claim, SavedRun, certificate_to_json, claim, fresh_name, saved

PARENT = Path("runs")


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    what: str | None
    options: tuple[str, ...]
    method: str
    budgets: Mapping[str, Any]
    batch_size: int | None
    seed: int
    output: str
    tolerance: float | None
    confidence: float
    record_every: int | None
    x0: Path | None
    folder: Path | None


def solve(screen: Screen, order: Order) -> None:
    """Find the problem, solve it, certify the answer, leave everything in a folder."""
    own = split(order.what or "")[0]
    with screen.explained(str(own) if own else None):
        if order.what is None:
            raise WrongInput("say what to solve: a name that `lariax list` shows, or file.py:problem.")
        with screen.waiting(f"loading {order.what}"):
            task = find(order.what, order.options, order.x0)
            arguments = _arguments(task, order)
        place = claim(order.folder or fresh_name(PARENT, task.name))
        settings = {"problem": task.about, "double": bool(jax.config.values["jax_enable_x64"]), **arguments}
        try:
            place.announce(settings)
            result = run(
                task.problem,
                task.x0,
                **{**arguments, "method": method_of(order.method)},
                progress=screen.watched,
            )
        except BaseException:
            place.give_up()
            raise
        kept = _judged(screen, task, result, place, settings)
        _conclude(screen, kept, place, asked=order.tolerance is not None)


def _arguments(task: Task, order: Order) -> dict[str, Any]:
    """The options of `lx.solve`: what was asked for, else what the problem suggests."""
    suggested = dict(task.defaults)
    if order.budgets:
        suggested = {name: value for name, value in suggested.items() if name not in ("iterations", "draws", "seconds")}
    given = {
        "method": order.method,
        "batch_size": order.batch_size,
        "seed": order.seed,
        "output": order.output,
        "tolerance": order.tolerance,
        "confidence": order.confidence,
        "record_every": order.record_every,
        **order.budgets,
    }
    return suggested | {name: value for name, value in given.items() if value is not None}


def _judged(screen: Screen, task: Task, result: Result, place: Claim, settings: Mapping[str, Any]) -> SavedRun:
    """The certificate and the pictures; a second Ctrl-C does without them."""
    certificate: Certificate | None = None
    pictures: list[Any] = []
    measures: Mapping[str, float] = {}
    why = ""
    try:
        with screen.waiting("certifying on fresh samples"):
            certificate = result.certificate
            pictures = list(task.pictures(result.x)) if task.pictures else []
            measures = task.measures(result.x) if task.measures else {}
    except ValueError as error:  # a Stream that has ended, or too few rows
        why = str(error)
    except KeyboardInterrupt:
        why = "Stopped while it was being made."
    return saved(result, place.folder.name, settings, pictures, certificate, why, measures)


def _conclude(screen: Screen, run: SavedRun, place: Claim, asked: bool) -> None:
    screen.show(run)
    folder = _keep(screen, run, place)
    page = folder / "report.html"
    certificate = None if run.certificate is None else certificate_to_json(run.certificate)
    screen.show(f"\nRun     {folder}\nReport  {page}")
    screen.give({"folder": folder, "report": page, **run.outcome, "certificate": certificate})
    if folder != place.folder:
        raise typer.Exit(BAD_FOLDER)
    if run.status == "interrupted":
        raise typer.Exit(STOPPED)
    if run.status in ("diverged", "infeasible_stationary") or (asked and not run.outcome["success"]):
        raise typer.Exit(NOT_AS_ASKED)


def _keep(screen: Screen, run: SavedRun, place: Claim) -> Path:
    """Write the folder; on a full disk somewhere else, so that the answer is not lost."""
    try:
        return _write(run, place)
    except OSError as error:
        screen.err.print(f"lariax: cannot write {place.folder}: {error.strerror}.", style="red")
        place.give_up()
        spare = Claim(Path(tempfile.mkdtemp(prefix="lariax-")))
        try:
            folder = _write(run, spare)
        except OSError:
            spare.give_up()
            screen.fail(
                BAD_FOLDER, f"nor is there room in {spare.folder.parent}. The answer is lost but for the above."
            )
        screen.err.print(f"lariax: the run is in {folder} instead. Move it to where there is room.", style="red")
        return folder


def _write(run: SavedRun, place: Claim) -> Path:
    place.write(run)
    report.write([run], place.folder / "report.html")
    return place.folder
