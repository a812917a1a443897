"""What to solve: an entry of the gallery, or something in the person's own file."""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lariax import gallery, methods, rivals
from lariax.cli._console import WrongInput
from lariax.methods import AbstractMethod
from lariax.problem import Problem
from lariax.utils import did_you_mean

SECONDS = 30.0  # for a problem that does not say itself how long it wants to be run


@dataclass(frozen=True, eq=False)
class Task:
    """A problem, where to start, and what is known of it."""

    name: str
    problem: Problem
    x0: Any
    about: Mapping[str, Any]  # enough to find it again
    defaults: Mapping[str, Any] = field(default_factory=lambda: {"seconds": SECONDS})
    pictures: Callable[[Any], Sequence[Any]] | None = None
    measures: Callable[[Any], Mapping[str, float]] | None = None


def find(what: str, options: Sequence[str] = (), x0: Path | None = None) -> Task:
    """NAME of the gallery, `file.py`, or `file.py:name`."""
    file, name = split(what)
    if file is None:
        if x0 is not None:
            raise WrongInput("--x0 is for a problem in a file; entries of the gallery bring their own start.")
        return _of_gallery(what, parsed(options))
    if options:
        raise WrongInput("--option is for entries of the gallery; a problem in a file has none.")
    return _of_file(file, name, x0)


def task_of(settings: Mapping[str, Any], what: str | None, command: str) -> Task:
    """The problem of a run folder. A folder may come from anywhere, so no code that it names is run unasked; `command`
    is how to ask."""
    if what is not None:
        return find(what)
    about = settings.get("problem")
    about = about if isinstance(about, Mapping) else {}
    if about.get("kind") == "gallery" and isinstance(about.get("name"), str):
        options = about.get("options")
        return _of_gallery(about["name"], dict(options) if isinstance(options, Mapping) else {})
    known = f"{about['file']}:{about.get('name', 'problem')}" if isinstance(about.get("file"), str) else "FILE.py:NAME"
    raise WrongInput(
        "this is a run of a problem in a file, and Lariax runs no code that a folder names. Name it yourself: "
        + command.format(known)
    )


def split(what: str) -> tuple[Path | None, str]:
    """The file and the name in it; no file: the gallery."""
    if what.endswith(".py"):
        return Path(what), "problem"
    head, dot, name = what.rpartition(".py:")
    return (Path(head + ".py"), name or "problem") if dot else (None, what)


def gallery_name(name: str) -> str:
    """The name of an entry as the gallery spells it."""
    names, wanted = gallery.names(), name.replace("-", "_").lower()
    if wanted not in names:
        hint = did_you_mean(wanted, names, most=3, cutoff=0.5)
        raise WrongInput(
            f"there is no {name!r} in the gallery. {hint}`lariax list` shows what there is; a problem of your own is "
            "file.py:problem."
        )
    return wanted


def _of_gallery(what: str, options: dict[str, Any]) -> Task:
    name = gallery_name(what)
    try:
        case = gallery.load(name, **options)
    except (OSError, ImportError) as error:  # data or a package that is not here
        raise WrongInput(f"{name} cannot be loaded: {error}") from error
    about = {"kind": "gallery", "name": name, "title": case.title, "options": dict(case.options)}
    return Task(name, case.problem, case.x0, about, case.defaults, case.pictures, case.measures)


# --- the person's own file


def _of_file(file: Path, name: str, x0: Path | None) -> Task:
    found, module = _named(file, name)
    about = {"kind": "file", "file": str(file), "name": name, "title": f"{file.name}: {name}"}
    if callable(found) and not isinstance(found, Problem) and not hasattr(found, "problem"):
        found = found()
    if hasattr(found, "problem") and hasattr(found, "x0"):
        about |= {"title": getattr(found, "title", about["title"])}
        more = {key: getattr(found, key) for key in ("defaults", "pictures", "measures") if hasattr(found, key)}
        return Task(name, found.problem, found.x0 if x0 is None else _start(x0), about, **more)
    if isinstance(found, tuple) and len(found) == 2:
        found, start = found
    else:
        start = getattr(module, "x0", None)
    if not isinstance(found, Problem):
        raise WrongInput(
            f"{name!r} in {file} must be an lx.Problem (with an x0 beside it), a pair (problem, x0), a case as of the "
            f"gallery, or a function that returns one of these; found {type(found).__name__}."
        )
    if x0 is not None:
        start = _start(x0)
    if start is None:
        raise WrongInput(f"{file} has no x0 to start from. Write `x0 = ...` in it, or give --x0 start.npy.")
    return Task(name, found, start, about)


def _named(file: Path, name: str) -> tuple[Any, Any]:
    if not file.is_file():
        near = sorted(path.name for path in file.parent.glob("*.py")) if file.parent.is_dir() else []
        raise WrongInput(f"there is no file {file}. {did_you_mean(file.name, near)}".rstrip())
    spec = importlib.util.spec_from_file_location("problem_in_a_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise WrongInput(f"{error.filename}, line {error.lineno}, is not Python: {error.msg}.") from error
    if not hasattr(module, name):
        names = [key for key in vars(module) if not key.startswith("_")]
        known = f"It has {', '.join(names[:12]) or 'nothing'}."
        hint = f" {did_you_mean(name, names).rstrip() or known}"
        raise WrongInput(f"{file} has nothing that is called {name!r}.{hint}")
    return getattr(module, name), module


def _start(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise WrongInput(f"--x0 takes a .npy file with one array, and {path} is not: {error}.") from error


# --- options


def parsed(options: Sequence[str]) -> dict[str, Any]:
    """name=value pairs; a value is a Python literal, or else a text."""
    found = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier():
            raise WrongInput(f"--option takes name=value, found {option!r}.")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found


def method_of(text: str) -> AbstractMethod | str:
    """`auto`, `QuadraticPenalty`, or `QuadraticPenalty(step_size=0.1)`."""
    if text == "auto":
        return text
    kinds = {
        name: kind
        for name, kind in (vars(methods) | vars(rivals)).items()
        if inspect.isclass(kind) and issubclass(kind, AbstractMethod) and not inspect.isabstract(kind)
    }
    try:
        call = ast.parse(text.strip(), mode="eval").body
        name = call.func if isinstance(call, ast.Call) else call
        if not isinstance(name, ast.Name) or (isinstance(call, ast.Call) and call.args):
            raise ValueError
        given = call.keywords if isinstance(call, ast.Call) else []
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in given}
    except (ValueError, SyntaxError) as error:
        raise WrongInput(f"--method takes a name, or name(setting=number, ...), found {text!r}.") from error
    if name.id not in kinds:
        hint = did_you_mean(name.id, kinds, cutoff=0.4)
        raise WrongInput(f"there is no method {name.id!r}. {hint}There are auto, {', '.join(kinds)}.")
    return kinds[name.id](**settings)
