"""The commands."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from lariax.cli import _doctor, _gallery, _rates, _runs, _solve
from lariax.cli._console import Screen, show_warnings
from lariax.compilation import keep_programs

app = typer.Typer(
    name="lariax",
    help="Constrained optimisation when the objective and the constraints are only seen through samples.",
    epilog="Exit codes: 0 done; 1 a failure; 2 wrong input; 3 done, but the answer is not what was asked for; 4 a run "
    "folder that cannot be read or written; 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else.")]
Double = Annotated[bool, typer.Option("--double", help="Compute in double precision.")]
ProblemFile = Annotated[
    str | None,
    typer.Option(metavar="FILE.py[:NAME]", help="The problem, if the run was of one in a file.", show_default=False),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, as `lariax solve` leaves them.")
]


@app.command("list")
def list_problems(
    name: Annotated[str | None, typer.Argument(help="Of an entry, to see all about it.")] = None, as_json: Json = False
) -> None:
    """The gallery: problems to try."""
    screen = Screen(as_json)
    with screen.explained():
        _gallery.show(screen, name)


@app.command()
def solve(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME | FILE.py[:NAME]",
            help="An entry of the gallery (`lariax list`), or a problem in a Python file: an lx.Problem with an x0 "
            "beside it, a pair (problem, x0), a case as of the gallery, or a function that returns one of these.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the entry.")
    ] = None,
    method: Annotated[str, typer.Option(help="auto, or for instance 'QuadraticPenalty(step_size=0.1)'.")] = "auto",
    iterations: Annotated[int | None, typer.Option(help="Budget of iterations.", show_default=False)] = None,
    draws: Annotated[int | None, typer.Option(help="Budget of samples drawn.", show_default=False)] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget of time, after compiling.", show_default=False)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples an iteration.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    output: Annotated[str, typer.Option(help="Which iterate: last, random or best.")] = "last",
    tolerance: Annotated[
        float | None, typer.Option(help="Stop when a certificate says that the point is this good.", show_default=False)
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the certificates made on the way.")] = 0.95,
    record_every: Annotated[
        int | None, typer.Option(help="Iterations between two records; else some 200 records.", show_default=False)
    ] = None,
    x0: Annotated[Path | None, typer.Option(help="A .npy file to start from, for a problem in a file.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A new folder for the run.", show_default="runs/NAME-1, -2, ...")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run that was stopped or killed, or whose budget is spent."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Serve a live page of the run to this machine, at an address that is printed."),
    ] = False,
    double: Double = False,
    as_json: Json = False,
) -> None:
    """Solve a problem, certify the answer, and leave a folder with everything and a report.

    Ctrl-C ends the run early and keeps what there is; a run that was killed can be resumed.
    """
    budgets = {"iterations": iterations, "draws": draws, "seconds": seconds}
    order = _solve.Order(
        what=what,
        options=tuple(option or ()),
        method=method,
        budgets={name: value for name, value in budgets.items() if value is not None},
        batch_size=batch_size,
        seed=seed,
        output=output,
        tolerance=tolerance,
        confidence=confidence,
        record_every=record_every,
        x0=x0,
        folder=folder,
        double=double,
        resume=resume,
        watch=watch,
    )
    _solve.solve(Screen(as_json), order)


@app.command()
def certify(
    run: Folder,
    draws: Annotated[int, typer.Option(help="Fresh samples to look at.")] = 100_000,
    confidence: Annotated[float, typer.Option(help="Of each interval.")] = 0.95,
    tolerance: Annotated[
        float | None, typer.Option(help="Up to where a violation counts as none.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the fresh samples.")] = 1,
    problem: ProblemFile = None,
    as_json: Json = False,
) -> None:
    """Judge the answer of a run anew, on samples that it has not seen, and keep the certificate in its folder."""
    _runs.certify(Screen(as_json), run, draws, confidence, tolerance, seed, problem)


@app.command()
def inference(
    run: Folder,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Samples of each source; else all rows of data, or as many as the run drew.", show_default=False
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of each interval.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the fresh samples.")] = 1,
    problem: ProblemFile = None,
    as_json: Json = False,
) -> None:
    """Error bars for the answer of a run, its multipliers and its objective, and keep them in its folder."""
    _runs.infer(Screen(as_json), run, draws, confidence, seed, problem)


@app.command()
def compare(runs: Folders, as_json: Json = False) -> None:
    """Runs in one table."""
    screen = Screen(as_json)
    with screen.explained():
        _runs.compare(screen, runs)


@app.command()
def report(
    runs: Folders,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write.", show_default="report.html in the folder of the run, or here for several"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """One HTML file that shows a run, or several side by side. It needs no network."""
    screen = Screen(as_json)
    with screen.explained():
        _runs.report(screen, runs, output)


@app.command()
def rates(
    cases: Annotated[list[str] | None, typer.Argument(help="Of I, II, III, III+; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Problems and runs for each experiment.")] = 64,
    longest: Annotated[int, typer.Option(min=2000, help="The largest number of iterations.")] = 1_000_000,
    processes: Annotated[int, typer.Option(min=1, help="Experiments side by side.")] = 2,
    output: Annotated[Path, typer.Option(help="Folder for the tables and pictures.")] = Path("rates"),
    as_json: Json = False,
) -> None:
    """Measure the rates of the paper's theorems, and the ablations that must look different."""
    _rates.measure(Screen(as_json), cases or [], seeds, longest, processes, output)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What is installed, which device is used, and whether a small problem comes out right."""
    _doctor.examine(Screen(as_json))


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(metadata.version("lariax"))
        raise typer.Exit


def main() -> Any:
    """The console script."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # names may hold what a terminal cannot show
    show_warnings()
    keep_programs()
    app()
