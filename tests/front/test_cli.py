"""The command line as people type it, right and wrong."""

import json
import os
import re
import shutil
import signal
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from typer.testing import CliRunner

from lariax import __version__, gallery, report, runs
from lariax.cli._app import app
from lariax.cli._tasks import find, task_of
from lariax.loop._progress import ProgressBar

SOURCE = """
import jax.numpy as jnp
import numpy as np
import lariax as lx

rows = np.random.default_rng(0).normal(size=(64, 2))
problem = lx.Problem(
    lambda x, z: jnp.sum((x - 1 - 0.1 * z) ** 2),
    samples=lx.Dataset(rows),
    constraints={"sum": lx.Equal(lambda x, z: jnp.sum(x) + 0.1 * z[0], 1.0)},
)
x0 = jnp.zeros(2)
number = 3


def pair():
    return problem, x0


far = {"sum": lx.AtMost(problem.objective, 9.0)}
slack = lx.Problem(problem.objective, samples=problem.samples, constraints=far), x0


def broken():
    return 1 / 0


unsound = lx.Problem(lambda x, z: jnp.sum(x @ z.T @ z), samples=lx.Dataset(rows)), jnp.zeros(5)
"""
CHEAP = ("--method", "QuadraticPenalty(step_size=0.05, penalty=2, pairs=True)", "--batch-size", "4")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to work in, with a problem in a file."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "mine.py").write_text(SOURCE)
    (folder / "blank.py").write_text("import lariax as lx\nproblem = lx.Problem(lambda x: x @ x)\n")
    (folder / "prose.py").write_text("this is no Python\n")
    return folder


@pytest.fixture
def lariax(place, monkeypatch):
    monkeypatch.chdir(place)

    def call(*arguments, code=0):
        outcome = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        assert outcome.exit_code == code, f"{outcome.exit_code}\n{outcome.stdout}\n{outcome.stderr}"
        return outcome

    return call


@pytest.fixture(scope="module")
def solved(place):
    """The folder of one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        outcome = CliRunner().invoke(
            app, ["solve", "mine.py:pair", *CHEAP, "--iterations", "200", "--json"], catch_exceptions=False
        )
    assert outcome.exit_code == 3, outcome.stderr  # a method with a constant step does not meet an equation exactly
    return json.loads(outcome.stdout)


class TestSolve:
    def test_watched(self, lariax, solved, monkeypatch):  # `solved` has the first folder of its name
        """The address is told before the run, the page is asked while it goes on, and gone with the command."""
        seen, call = [], report.Watch.__call__

        def ask(watch, snapshot):
            call(watch, snapshot)
            with urllib.request.urlopen(watch.address.replace("/?", "/numbers?"), timeout=10) as answer:
                seen.append(json.load(answer)["count"])

        monkeypatch.setattr(report.Watch, "__call__", ask)
        options = (*CHEAP, "--iterations", "100", "--record-every", "25", "--watch", "--json")
        outcome = lariax("solve", "mine.py:pair", *options, code=3)
        assert seen == [1, 2, 3, 4]
        address = re.search(r"watch it at (http://127\.0\.0\.1:\d+/\?token=[\w-]+)", outcome.stderr)[1]
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address, timeout=10)
        assert json.loads(outcome.stdout)["status"] == "budget"

    def test_leaves_a_folder_and_a_report(self, place, solved):
        folder = place / solved["folder"]
        assert solved["folder"] == "runs/pair-1"
        assert solved["status"] == "budget"
        assert solved["iterations"] == 200
        run = runs.load(folder)
        np.testing.assert_allclose(run.x["x"], [0.5, 0.5], atol=0.2)
        assert run.settings["problem"] == {
            "kind": "file",
            "file": "mine.py",
            "name": "pair",
            "title": "mine.py: pair",
        }
        assert "budget after" not in (folder / "report.html").read_text()[:200]
        assert solved["certificate"]["verdict"] in (folder / "report.html").read_text().replace("&#x27;", "'")

    def test_in_words(self, lariax, place):
        outcome = lariax("solve", "mine.py", *CHEAP, "--iterations", 100, "--tolerance", 1e-12, code=3)
        assert "stationarity" in outcome.stdout
        assert "Report  runs/problem-1/report.html" in outcome.stdout
        assert re.search(r"^ x +\[0\.\d+, 0\.\d+\] *$", outcome.stdout, re.MULTILINE)
        assert re.search(r"^ multiplier +sum +\d\.\d+ *$", outcome.stdout, re.MULTILINE)
        assert "`lariax solve mine.py:problem --resume runs/problem-1 --iterations N`" in outcome.stdout
        assert "\x1b" not in outcome.stdout + outcome.stderr, "no colours and no bars into a pipe"
        assert outcome.stderr == ""

    def test_what_is_violated_is_not_as_asked(self, lariax, place):
        """Two iterations are not enough for the equation, though the budget was spent as planned."""
        outcome = lariax("solve", "mine.py:pair", *CHEAP, "--iterations", 2, "--json", code=3)
        found = json.loads(outcome.stdout)
        assert (found["status"], found["success"]) == ("budget", False)
        assert found["certificate"]["constraints"]["sum"]["holds"] == "violated"
        slack = lariax("solve", "mine.py:slack", *CHEAP, "--iterations", 50)
        assert " surely" in slack.stdout

    def test_ctrl_c_keeps_what_there_is(self, lariax, place, monkeypatch):
        def stop(self, iteration, record):
            if iteration > 1:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(ProgressBar, "update", stop)
        outcome = lariax("solve", "mine.py:pair", *CHEAP, "--seconds", 600, "--folder", "stopped", "--json", code=130)
        assert json.loads(outcome.stdout)["status"] == "interrupted"
        assert runs.load(place / "stopped").outcome["iterations"] > 1
        words = lariax("solve", "mine.py:pair", *CHEAP, "--seconds", 600, "--folder", "again", code=130).stdout
        assert "Go on   lariax solve mine.py:pair --resume again\n" in words  # with what is left of its budget

    def test_resume(self, lariax, place):
        """A run in two parts, the second in a process that knows nothing of the first, is the run in one."""
        options = [*CHEAP, "--record-every", 10]
        lariax("solve", "mine.py:pair", *options, "--iterations", 60, "--folder", "parts", code=3)
        (place / "parts" / "run.json").unlink()  # as if it had been killed
        assert "--resume parts` goes on" in lariax("report", "parts", code=4).stderr.replace("\n", " ")
        told = " ".join(lariax("solve", "--resume", "parts", code=2).stderr.split())
        assert "lariax solve mine.py:pair --resume parts" in told
        lariax("solve", "mine.py:pair", "--resume", "parts", "--iterations", 40, code=3)
        lariax("solve", "mine.py:pair", *options, "--iterations", 100, "--folder", "whole", code=3)
        parts, whole = runs.load(place / "parts"), runs.load(place / "whole")
        np.testing.assert_array_equal(parts.x["x"], whole.x["x"])
        np.testing.assert_array_equal(parts.history[("objective",)], whole.history[("objective",)])
        assert parts.settings["resumed"] == {"iterations": 40}

    def test_a_full_disk_does_not_lose_the_answer(self, lariax, place, tmp_path, monkeypatch):
        replace = os.replace

        def full(source, target):
            if str(target).startswith("full") and target.suffix != ".lariax":  # the checkpoints had been small enough
                raise OSError(28, "No space left on device")
            replace(source, target)

        monkeypatch.setattr(runs.ClaimedFolder, "announce", lambda *_: None)
        monkeypatch.setattr(os, "replace", full)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        outcome = lariax("solve", "mine.py:pair", *CHEAP, "--iterations", 50, "--folder", "full", "--json", code=4)
        assert "No space left on device" in outcome.stderr
        assert not (place / "full").exists()
        assert json.loads(outcome.stdout)["folder"].startswith(str(tmp_path))


WRONG = {
    "nothing to solve": (["solve"], 2, "say what to solve"),
    "unknown name": (["solve", "fairnes"], 2, "Did you mean 'fairness'"),
    "very unknown name": (["solve", "zzzz"], 2, "`lariax list` shows"),
    "unknown entry": (["list", "portfolios"], 2, "Did you mean 'portfolio'"),
    "unknown option of an entry": (["solve", "portfolio", "-o", "asets=3"], 2, "Did you mean 'assets'"),
    "option without a value": (["solve", "portfolio", "-o", "assets"], 2, "name=value"),
    "options for a file": (["solve", "mine.py", "-o", "a=1"], 2, "entries of the gallery"),
    "x0 for an entry": (["solve", "portfolio", "--x0", "a.npy"], 2, "bring their own start"),
    "missing file": (["solve", "mime.py:problem"], 2, "there is no file mime.py. Did you mean 'mine.py'"),
    "file that is not Python": (["solve", "prose.py"], 2, "line 1, is not Python"),
    "missing name": (["solve", "mine.py:problen"], 2, "Did you mean 'problem'"),
    "no x0": (["solve", "blank.py"], 2, "has no x0"),
    "x0 that is no array": (["solve", "blank.py", "--x0", "mine.py"], 2, "takes a .npy file"),
    "not a problem": (["solve", "mine.py:number"], 2, "must be an lx.Problem"),
    "a function that fails": (["solve", "mine.py:broken"], 1, "line 25, in broken: return 1 / 0"),
    "an objective that fails": (["solve", "mine.py:unsound", "--seconds", "1"], 1, "in <lambda>: unsound"),
    "unknown method": (["solve", "mine.py", "--method", "QuadraticPenality"], 2, "Did you mean 'QuadraticPenalty'"),
    "code as a method": (["solve", "mine.py", "--method", "__import__('os')"], 2, "takes a name, or name(setting"),
    "method with a wrong setting": (["solve", "mine.py", "--method", "QuadraticPenalty(step_size=-1)"], 2, "positive"),
    "no iterations": (["solve", "mine.py", "--iterations", "0"], 2, "positive integer"),
    "strange output": (["solve", "mine.py", "--iterations", "5", "--output", "worst"], 2, "one of 'last'"),
    "misspelt option": (["solve", "mine.py", "--iteration", "5"], 2, "No such option"),
    "folder that exists": (["solve", "mine.py", "--folder", "."], 4, "exists already"),
    "resume with other settings": (["solve", "--resume", "x", "--seed", "1"], 2, "keeps its settings"),
    "resume nothing": (["solve", "--resume", "nowhere"], 4, "not the folder of a run"),
    "certify nothing": (["certify", "nowhere"], 4, "does not exist"),
    "certify something else": (["certify", "."], 4, "not the folder of a run"),
    "compare with a file": (["compare", "mine.py"], 4, "is not a folder"),
    "report of nothing": (["report"], 2, "Missing argument"),
    "unknown case of the theory": (["rates", "IV"], 2, "there are I, II, III, III+"),
    "unknown command": (["sovle"], 2, "No such command"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input(lariax, place, what):
    arguments, code, words = WRONG[what]
    before = sorted(map(str, place.rglob("*")))
    outcome = lariax(*arguments, code=code)
    told = " ".join(outcome.stderr.replace("│", " ").split())
    assert words in told
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    after = sorted(map(str, place.rglob("*")))
    assert [path for path in after if "__pycache__" not in path] == [p for p in before if "__pycache__" not in p]


def test_rates_without_matplotlib_say_so_before_they_are_measured(lariax, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    outcome = lariax("rates", "I", "--output", "rates", code=2)
    assert "needs matplotlib, which is not installed: pip install matplotlib" in " ".join(outcome.stderr.split())
    assert not (place / "rates").exists()


def test_errors_for_machines(lariax):
    outcome = lariax("solve", "fairnes", "--json", code=2)
    assert json.loads(outcome.stdout)["error"]["code"] == 2


class TestRuns:
    def test_certify_runs_no_code_that_a_folder_names(self, lariax, solved):
        outcome = lariax("certify", solved["folder"], code=2)
        assert f"lariax certify {solved['folder']} --problem mine.py:pair" in " ".join(outcome.stderr.split())

    def test_certify(self, lariax, place, solved):
        folder = place / solved["folder"]
        outcome = lariax("certify", solved["folder"], "--problem", "mine.py:pair", "--tolerance", 0.5, "--json")
        certificate = json.loads(outcome.stdout)
        assert certificate["tolerance"] == 0.5
        assert runs.load(folder).certificate.verdict == certificate["verdict"]
        assert certificate["verdict"] in (folder / "report.html").read_text().replace("&#x27;", "'")
        lariax("certify", solved["folder"], "--problem", "mine.py:pair", "--tolerance", 1e-9, code=3)

    def test_certify_with_another_problem(self, lariax, solved):
        lariax("certify", solved["folder"], "--problem", "mine.py:unsound", code=2)

    def test_inference(self, lariax, place, solved):
        told = lariax("inference", solved["folder"], code=2).stderr
        assert f"lariax inference {solved['folder']} --problem mine.py:pair" in " ".join(told.split())
        found = json.loads(lariax("inference", solved["folder"], "--problem", "mine.py:pair", "--json").stdout)
        names = [(entry["part"], entry["name"]) for entry in found["entries"]]
        assert names == [
            ("x", "x[0]"),
            ("x", "x[1]"),
            ("multipliers", "sum"),
            ("constraints", "sum"),
            ("objective",) * 2,
        ]
        kept = runs.load(place / solved["folder"]).inference
        assert kept.entries[0].low < kept.entries[0].estimate < kept.entries[0].high
        lariax("report", solved["folder"])
        page = (place / solved["folder"] / "report.html").read_text()
        assert 'href="#inference"' in page
        assert "Multipliers" in page
        assert "standard error" in lariax("inference", solved["folder"], "--problem", "mine.py:pair").stdout

    def test_compare(self, lariax, solved):
        text = lariax("compare", solved["folder"], solved["folder"]).stdout
        assert text.count("pair-1") == 2 * (1 + 3 + 1)  # how it ended, three measures, one constraint
        both = json.loads(lariax("compare", solved["folder"], solved["folder"], "--json").stdout)["runs"]
        assert both[0]["certificate"]["constraints"].keys() == {"sum"}

    @pytest.mark.parametrize("command", ["compare", "report"])
    def test_of_several_those_that_have_ended(self, lariax, place, solved, command):
        """`runs/*` names a run that was killed, too: it does not keep the others from being seen."""
        killed = place / "killed-1"
        shutil.copytree(place / solved["folder"], killed)
        (killed / "run.json").unlink()
        outcome = lariax(command, solved["folder"], killed, "--json")
        assert f"{killed} is left out: its run has not ended, or was killed." in outcome.stderr
        assert "pair-1" in outcome.stdout
        assert "killed-1" not in outcome.stdout
        assert "goes on with it" in lariax(command, killed, code=4).stderr
        shutil.rmtree(killed)

    def test_report(self, lariax, place, solved):
        lariax("report", solved["folder"])
        two = lariax("report", solved["folder"], solved["folder"], "--output", "both.html", "--json")
        assert json.loads(two.stdout)["report"] == "both.html"
        lariax("report", solved["folder"], "--output", "mine.py", code=4)
        assert (place / "mine.py").read_text() == SOURCE


def test_list(lariax):
    text = lariax("list").stdout
    assert all(name in text for name in gallery.names())
    assert {entry["name"] for entry in json.loads(lariax("list", "--json").stdout)["problems"]} == set(gallery.names())
    assert "Check:" in lariax("list", "portfolio").stdout


def test_a_problem_of_the_gallery_is_found_again():
    task = find("chance-constraint", ["seed=3"])
    about = json.loads(runs.dumps({"problem": task.about}))
    again = task_of(about, None, "lariax")
    assert again.about == task.about
    assert again.about["options"]["seed"] == 3
    assert again.pictures(again.x0)
    assert again.defaults


def test_doctor(lariax):
    found = json.loads(lariax("doctor", "--json").stdout)
    assert found["self_check"]["passed"]
    assert "jax" in found["versions"]


def test_version_and_help(lariax):
    assert lariax("--version").stdout.strip() == __version__
    assert "Exit codes" in lariax("--help").stdout
