"""What all commands share: how to speak, how to wait, how to end."""

import contextlib
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, Never

import typer
from rich.console import Console
from rich.markup import escape

from lariax.loop import CheckpointError
from lariax.problem import visible
from lariax.runs import RunFolderError, dumps
from lariax.utils import LariaxWarning

FAILED, WRONG_INPUT, NOT_AS_ASKED, BAD_FOLDER, STOPPED = 1, 2, 3, 4, 130


OPTIONS = "iterations|draws|seconds|batch_size|seed|output|tolerance|confidence|record_every|method|x0"
ARGUMENT = re.compile(rf"""(?<![\w.(-])({OPTIONS})=("\w+"|\d[\d,._]*\d|\d)?""")


class WrongInput(Exception):
    """Something that the person at the keyboard can put right."""


class Screen:
    """Results on standard output, everything else on standard error; with `as_json` one object and no words."""

    def __init__(self, as_json: bool = False):
        self.as_json = as_json
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def watched(self) -> bool:
        """Whether somebody sees the progress."""
        return self.err.is_terminal and not self.as_json

    def show(self, *things: Any, keep_lines: bool = False) -> None:
        """For people alone. `keep_lines`: paths and commands, to be copied as they are."""
        if not self.as_json:
            self.out.print(*things, highlight=False, soft_wrap=keep_lines)

    def give(self, value: dict[str, Any]) -> None:
        """For machines alone."""
        if self.as_json:
            print(dumps(value, indent=1))

    @contextlib.contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """A sign of life during work that cannot tell how far it is."""
        if not self.watched:
            yield
            return
        with self.err.status(f"{words} ..."):
            yield

    def fail(self, code: int, message: str) -> Never:
        if self.as_json:
            print(json.dumps({"error": {"code": code, "message": message}}))
        else:
            self.err.print(f"[red bold]lariax:[/] {_escaped(message)}", highlight=False)
        raise typer.Exit(code)

    @contextlib.contextmanager
    def explained(self, file: str | None = None) -> Iterator[None]:
        """Errors in words and as exit codes. `file`: the person's own, whose lines are shown."""
        try:
            yield
        except typer.Exit:
            raise
        except (RunFolderError, CheckpointError) as error:
            self.fail(BAD_FOLDER, told(error))
        except WrongInput as error:
            self.fail(WRONG_INPUT, str(error))
        except KeyboardInterrupt:
            self.fail(STOPPED, "stopped before there was anything to keep.")
        except (TimeoutError, MemoryError) as error:
            self.fail(FAILED, str(error))
        except (ValueError, TypeError, ModuleNotFoundError) as error:
            lines = own_lines(error, file)
            self.fail(FAILED if lines else WRONG_INPUT, f"{told(error)}{lines}")
        except Exception as error:
            lines = own_lines(error, file)
            if not lines:
                raise
            self.fail(FAILED, f"{type(error).__name__}: {error}{lines}")


def told(error: BaseException) -> str:
    """What an error says, and the page that it names."""
    return in_options(" ".join([str(error), *(f"{note}." for note in getattr(error, "__notes__", ()))]))


def in_options(words: str) -> str:
    """Advice with options of the command line in the place of Python's arguments: `--batch-size` for `batch_size=`."""

    def option(found: re.Match[str]) -> str:
        name, value = found.groups(default="")
        return f"--{name.replace('_', '-')} {value.strip(chr(34))}".rstrip()

    return ARGUMENT.sub(option, words)


def show_warnings() -> None:
    """Warnings of Lariax as sentences, others as Python writes them."""
    usual = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        if issubclass(category, LariaxWarning):
            Screen().err.print(f"lariax: {_escaped(in_options(str(message)))}", style="yellow", highlight=False)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def own_lines(error: BaseException, file: str | None) -> str:
    """Where in the person's own file it happened."""
    if file is None:
        return ""
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if os.path.realpath(frame.filename) == os.path.realpath(file)]
    return "".join(f"\n  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames[-3:])


def _console(stream: Any) -> Console:
    """Wide when it goes to a file or a pipe, where nobody folds lines."""
    console = Console(file=stream)
    return console if console.is_terminal else Console(file=stream, width=160)


def _escaped(text: str) -> str:
    return escape("\n".join(visible(line) for line in text.split("\n")))
