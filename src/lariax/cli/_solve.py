"""`lariax solve`."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import typer

from lariax import report
from lariax.certificate import Certificate
from lariax.cli._console import BAD_FOLDER, NOT_AS_ASKED, STOPPED, Screen, WrongInput, in_options
from lariax.cli._tasks import Task, find, method_of, split, task_of
from lariax.loop import FAILURES, Checkpoint, CheckpointError, Result, resume
from lariax.loop import solve as run
from lariax.runs import (
    ClaimedFolder,
    RunFolderError,
    SavedRun,
    certificate_to_json,
    claim,
    claim_next,
    dumps,
    load_settings,
    saved,
)

PARENT = Path("runs")
CHECKPOINT = "checkpoint"  # a folder within that of the run


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    what: str | None
    options: tuple[str, ...] = ()
    method: str = "auto"
    budgets: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    seed: int = 0
    output: str = "last"
    tolerance: float | None = None
    confidence: float = 0.95
    record_every: int | None = None
    x0: Path | None = None
    folder: Path | None = None
    double: bool = False
    resume: Path | None = None
    watch: bool = False


def solve(screen: Screen, order: Order) -> None:
    """Find the problem, solve it or go on with it, certify the answer, leave everything in a folder."""
    own = split(order.what or "")[0]
    with screen.explained(str(own) if own else None):
        if order.double:
            jax.config.update("jax_enable_x64", True)
        work = _begun(screen, order) if order.resume is None else _resumed(screen, order, order.resume)
        with _watching(screen, work) if order.watch else nullcontext() as watch:
            try:
                result = work.go(watch)
            except BaseException as error:
                _abandon(screen, work, error)
                raise
            kept = _judged(screen, work, result)
            _conclude(screen, kept, work.place, asked=work.settings.get("tolerance") is not None)


@contextmanager
def _watching(screen: Screen, work: "_Work") -> Iterator[report.Watch]:
    """A page on which the run is seen while it goes on."""
    folder, watch = work.place.folder, report.Watch(work.task.name, where="page")
    screen.err.print(f"lariax: watch it at {watch.address}", highlight=False, soft_wrap=True)
    try:
        yield watch
    finally:
        watch.close(f"The run has ended. Its report is {folder / 'report.html'}.")


@dataclass(frozen=True, eq=False)
class _Work:
    """A run that is ready to go."""

    task: Task
    place: ClaimedFolder
    settings: Mapping[str, Any]
    go: Callable[[report.Watch | None], Result]


def _begun(screen: Screen, order: Order) -> _Work:
    """A new run in a new folder."""
    if order.what is None:
        raise WrongInput("say what to solve: a name that `lariax list` shows, or file.py:problem.")
    with screen.waiting(f"loading {order.what}"):
        task = find(order.what, order.options, order.x0)
        arguments = _arguments(task, order)
        method = method_of(order.method)
    place = claim(order.folder) if order.folder else claim_next(PARENT, task.name)
    settings = {"problem": task.about, "double": bool(jax.config.values["jax_enable_x64"]), **arguments}
    try:
        place.announce(settings)
    except OSError as error:
        place.give_up()
        raise RunFolderError(f"cannot write {place.folder}: {error.strerror}.") from error
    checkpoint = Checkpoint(place.folder / CHECKPOINT, keep=1, origin=json.loads(dumps(task.about)))

    def go(watch: report.Watch | None) -> Result:
        options = {**arguments, "method": method, "checkpoint": checkpoint, "progress": screen.watched}
        return run(task.problem, task.x0, **options, callback=watch)

    return _Work(task, place, settings, go)


def _resumed(screen: Screen, order: Order, folder: Path) -> _Work:
    """The run of a folder, from its newest checkpoint."""
    fixed = Order(order.what, budgets=order.budgets, double=order.double, resume=order.resume, watch=order.watch)
    if order != fixed:
        changed = [f.name for f in fields(Order) if getattr(order, f.name) != getattr(fixed, f.name)]
        options = ", ".join(f"--{name.replace('_', '-').rstrip('s')}" for name in changed)
        raise WrongInput(f"a resumed run keeps its settings, so --resume goes without {options}. Budgets may be new.")
    settings = load_settings(folder)
    if settings.get("double"):
        jax.config.update("jax_enable_x64", True)
    with screen.waiting(f"loading {folder}"):
        task = task_of(settings, order.what, f"lariax solve {{}} --resume {folder}")
    settings = {**settings, **({"resumed": dict(order.budgets)} if order.budgets else {})}

    def go(watch: report.Watch | None) -> Result:
        options = {"x0": task.x0, "progress": screen.watched, "callback": watch}
        return resume(folder / CHECKPOINT, task.problem, **order.budgets, **options)

    return _Work(task, ClaimedFolder(folder), settings, go)


def _again(about: Mapping[str, Any], folder: Path) -> str:
    """The command that goes on with a run."""
    what = f"{about['file']}:{about['name']} " if about["kind"] == "file" else ""
    return f"lariax solve {what}--resume {folder}"


def _abandon(screen: Screen, work: _Work, error: BaseException) -> None:
    """A run that gave no result: its folder goes, unless the run can be resumed from what is in it."""
    place = work.place
    saved = place.folder / CHECKPOINT
    if isinstance(error, CheckpointError) or not (saved.is_dir() and any(saved.iterdir())):
        if place.is_new:
            place.give_up()
    else:
        again = _again(work.task.about, place.folder)
        screen.err.print(f"lariax: `{again}` goes on from the last checkpoint.", highlight=False, soft_wrap=True)


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


def _judged(screen: Screen, work: _Work, result: Result) -> SavedRun:
    """The certificate and the pictures; a second Ctrl-C does without them."""
    task = work.task
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
    kept = saved(result, work.place.folder.name, work.settings, pictures, certificate, why, measures)
    again = _again(task.about, work.place.folder)
    return replace(kept, outcome={**kept.outcome, "message": in_commands(kept.outcome["message"], again)})


def in_commands(message: str, again: str) -> str:
    """What a result advises, in the words of the command line."""
    goes_on = "lx.solve(problem, result, iterations=...)"
    if "lx.resume(" in message:  # one way to go on is enough
        message = message.replace(f" Continue it with {goes_on}.", "")
    message = message.replace(goes_on, f"`{again} --iterations N`")
    return in_options(re.sub(r"lx\.resume\(.*?, problem\)", f"`{again}`", message))


def _conclude(screen: Screen, run: SavedRun, place: ClaimedFolder, asked: bool) -> None:
    screen.show(run)
    folder = _keep(screen, run, place)
    page = folder / "report.html"
    certificate = None if run.certificate is None else certificate_to_json(run.certificate)
    screen.show(f"\nRun     {folder}\nReport  {page}", keep_lines=True)
    if run.status in ("budget", "interrupted") and (folder / CHECKPOINT).is_dir():
        more = "" if run.status == "interrupted" else f" --iterations {max(run.outcome['iterations'], 1000)}"
        screen.show(f"Go on   {_again(run.settings['problem'], folder)}{more}", keep_lines=True)
    screen.give({"folder": folder, "report": page, **run.outcome, "certificate": certificate})
    if folder != place.folder:
        raise typer.Exit(BAD_FOLDER)
    if run.status == "interrupted":
        raise typer.Exit(STOPPED)
    violated = run.certificate is not None and is_violated(run.certificate)
    if run.status in FAILURES or violated or (asked and not run.outcome["success"]):
        raise typer.Exit(NOT_AS_ASKED)


def is_violated(certificate: Certificate) -> bool:
    """Whether a constraint surely does not hold, on samples or on held-out rows."""
    return any(side.feasible == "violated" for side in (certificate, certificate.heldout) if side is not None)


def _keep(screen: Screen, run: SavedRun, place: ClaimedFolder) -> Path:
    """Write the folder; on a full disk somewhere else, so that the answer is not lost."""
    try:
        return _write(run, place)
    except (OSError, RunFolderError) as error:
        screen.err.print(f"lariax: cannot write {place.folder}: {getattr(error, 'strerror', error)}.", style="red")
        if place.is_new:
            place.give_up()
        spare = ClaimedFolder(Path(tempfile.mkdtemp(prefix="lariax-")))
        try:
            folder = _write(run, spare)
        except (OSError, RunFolderError):
            spare.give_up()
            screen.fail(
                BAD_FOLDER, f"nor is there room in {spare.folder.parent}. The answer is lost but for the above."
            )
        screen.err.print(f"lariax: the run is in {folder} instead. Move it to where there is room.", style="red")
        return folder


def _write(run: SavedRun, place: ClaimedFolder) -> Path:
    place.write(run)
    report.write([run], place.folder / "report.html")
    return place.folder
