"""Run folders and command lines that are wrong in ways that nobody thought of: used, or refused in words."""

import contextlib
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lariax import runs
from lariax.cli._app import app

PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"null", b"[]", b"{}", b'"', b"-1", b"1e999", b"NaN", b"\x00", b"\xff\xfe", b"[" * 5000, b"}", b","]
    ),
)


@pytest.fixture(scope="module")
def folder(saved_run, tmp_path_factory):
    place = tmp_path_factory.mktemp("mutations") / "run"
    runs.claim(place).write(saved_run)
    return place


def test_run_folders(folder, random_inputs):
    """One file changed: the run is read, or the error is one of run folders."""

    @random_inputs(200)
    @given(which=st.integers(0), where=st.integers(0), drop=st.integers(0, 30), piece=PIECES, cut=st.booleans())
    def check(which, where, drop, piece, cut):
        files = sorted(path for path in folder.iterdir() if path.is_file())
        file = files[which % len(files)]
        content = file.read_bytes()
        place = where % (len(content) + 1)
        try:
            file.write_bytes(content[:place] + piece + (b"" if cut else content[place + drop :]))
            with contextlib.suppress(runs.RunFolderError):
                runs.load(folder)
        finally:
            file.write_bytes(content)

    check()


WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["nothing.py", "nothing.py:x", "zzz", "-1", "nan", "1e400", "QuadraticPenalty(", "auto", "--", "-o"]
    ),
    st.sampled_from(["__import__('os')", "QuadraticPenalty(step_size=__import__('os'))", "../..", "/dev/null", "\x00"]),
)
NAMES = [
    "method",
    "iterations",
    "draws",
    "seconds",
    "batch-size",
    "seed",
    "output",
    "tolerance",
    "confidence",
    "record-every",
    "x0",
    "folder",
    "option",
    "problem",
    "resume",
    "nonsense",
    "json",
]
OPTIONS = st.sampled_from([f"--{name}" for name in NAMES])


def test_command_lines(tmp_path_factory, random_inputs):
    """An exit code of the documented list, words on standard error, no traceback; and nothing is left behind."""

    @random_inputs(80)
    @given(
        command=st.sampled_from(["solve", "certify", "compare", "report", "list", "", "nonsense"]),
        words=st.lists(WORDS, max_size=3),
        options=st.lists(st.tuples(OPTIONS, WORDS), max_size=3),
    )
    def check(command, words, options):
        place = tmp_path_factory.mktemp("line")
        arguments = [command, *words, *(part for option in options for part in option)]
        with contextlib.chdir(place):
            outcome = CliRunner().invoke(app, arguments)
        assert outcome.exception is None or isinstance(outcome.exception, SystemExit), (arguments, outcome.exception)
        assert outcome.exit_code in (0, 1, 2, 3, 4)
        assert outcome.exit_code == 0 or (outcome.stderr + outcome.stdout).strip()
        assert "Traceback" not in outcome.stderr + outcome.stdout
        assert list(place.iterdir()) == []
        shutil.rmtree(place)

    check()
