"""What is printed fits a terminal of 80 columns, and no number is folded."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from lariax.cli._console import in_options
from lariax.cli._solve import in_commands
from lariax.loop import STATUSES, summary
from lariax.report import comparison
from lariax.utils import narrow_table


def printed(thing, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(thing)
    return console.file.getvalue()


def numbers(text):
    return [word.strip("[],") for word in text.split() if any(c.isdigit() for c in word)]


@pytest.mark.parametrize("heldout", [False, True])
def test_a_run_fits(saved_run, heldout):
    certificate = saved_run.certificate
    certificate = replace(certificate, heldout=replace(certificate, heldout=None) if heldout else None)
    run = replace(saved_run, certificate=certificate)
    for thing in (run, certificate, comparison([run, run])):
        narrow, wide = printed(thing), printed(thing, 300)
        assert max(map(len, narrow.splitlines())) <= 80
        assert sorted(numbers(narrow)) == sorted(numbers(wide))  # as many, and whole


def test_the_answer_is_printed(saved_run):
    text = printed(saved_run)
    assert "multiplier" in text
    assert all(name in text for name in saved_run.multipliers)
    assert all(summary(array) in " ".join(text.split()) for array in saved_run.x.values())


def test_arrays_in_few_words():
    assert summary(np.float32(0.5)) == "0.5"
    assert summary(np.array([1.0, -2.123456])) == "[1.0, -2.1235]"
    assert summary(np.arange(20.0)) == "float64(20,), from 0 to 19, of length 49.7"


def test_names_are_folded_and_numbers_are_not():
    table = narrow_table("name", "value [low, high]")
    table.add_row("a long name " * 10, "0.123456789 [0.1, 0.2]")
    assert "0.123456789 [0.1, 0.2]" in printed(table, 60)
    assert "value [low, high]" in printed(table, 60)


def test_advice_is_in_the_terms_of_the_command_line():
    again = "lariax solve --resume runs/a"
    for status in ("budget", "interrupted"):
        words = in_commands(STATUSES[status], again)
        assert f"`{again} --iterations N`" in words
        assert "lx." not in words
    saved = "It is saved: lx.resume(runs/a/checkpoint, problem) goes on, in another process too."
    there = f"It is saved: `{again}` goes on, in another process too."
    assert in_commands(saved, again) == there
    assert in_commands(f"{STATUSES['interrupted']} {saved}", again) == f"The run was stopped from outside. {there}"


@pytest.mark.parametrize(
    ("python", "here"),
    [
        ('method="auto" took TangentNormal: all is known.', "--method auto took TangentNormal: all is known."),
        ("say how long: iterations=, draws= or seconds=.", "say how long: --iterations, --draws or --seconds."),
        (
            "draws=1,000 would end it: batch_size=, batch_size=4.",
            "--draws 1,000 would end it: --batch-size, --batch-size 4.",
        ),
        ("Give it step_size= and samples=None; L1(seed=3)", "Give it step_size= and samples=None; L1(seed=3)"),
    ],
)
def test_arguments_are_options_there(python, here):
    assert in_options(python) == here
