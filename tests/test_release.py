"""What is released: the version, the changelog, the workflows, and the wheel as a stranger gets it."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from scripts.oldest import oldest

import lariax

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
DATA = {"README.md", "make.py", "adult.npz", "german_credit.npz"}
"""What the wheel has in gallery/data: two tables, where they come from, and how they were made."""


def test_the_version_is_in_one_place():
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == lariax.__version__


def test_every_python_that_is_promised_is_tested_on_three_systems():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    systems, pythons = (re.search(rf"^ +{name}: \[(.*)\]$", ci, re.MULTILINE)[1] for name in ("os", "python"))
    assert project["requires-python"] == f">={promised[0]}"
    assert pythons == ", ".join(f'"{version}"' for version in promised)
    assert [re.sub(r"-.*", "", system) for system in systems.split(", ")] == ["ubuntu", "macos", "windows"]


def test_actions_are_pinned_by_commit():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [line for path in workflows for line in re.findall(r"uses: (.+)", path.read_text())]
    assert len(workflows) == 2
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_pins_are_pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert len({line.partition("==")[0].lower() for line in lines}) == len(lines)


def test_oldest_versions_are_those_of_the_project():
    project = {"dependencies": ["jax>=0.9", "numpy>=2.0,<3"], "optional-dependencies": {"plot": ["matplotlib>=3.9"]}}
    assert oldest(project) == ["jax==0.9", "numpy==2.0", "matplotlib==3.9"]
    with pytest.raises(ValueError, match="no lower bound: rich"):
        oldest({"dependencies": ["rich"]})


@pytest.mark.long
def test_workflows_pass_their_linter():
    command = [BIN / "zizmor", "--offline", "--no-progress", "--no-config", ROOT / ".github"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The wheel (built from the source distribution) and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("*.whl"))


@pytest.mark.long
def test_distributions_are_sound(dist, wheel):
    python("-m", "twine", "check", "--strict", *dist.iterdir())
    subprocess.run([BIN / "check-wheel-contents", wheel], check=True)
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < 1_000_000
    assert not [name for name in names if Path(name).name.startswith("test") or not name.startswith("lariax")]
    assert {Path(name).name for name in names if name.startswith("lariax/gallery/data/")} == DATA
    kinds = {Path(name).suffix for name in names if not name.startswith("lariax-")}
    assert kinds == {".py", ".js", ".css", ".md", ".npz", ".typed"}


class Stranger:
    """Somebody with an empty environment and the wheel."""

    def __init__(self, folder, wheel):
        venv.create(folder / "empty", with_pip=True)
        self.folder, self.wheel = folder, wheel
        self.bin = folder / "empty" / ("Scripts" if sys.platform == "win32" else "bin")

    def install(self, extras=""):
        pins = ["--constraint", ROOT / "constraints.txt"]
        self.run("python", "-m", "pip", "install", "--quiet", *pins, f"{self.wheel}{extras}")

    def run(self, program, *arguments):
        command = [str(self.bin / program), *map(str, arguments)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout.strip()

    def paste(self, page):
        """The first example of a page prints what the page says."""
        blocks = re.findall(r"^```(python|text)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        (_, code), (_, said), *_ = blocks
        assert self.run("python", "-I", "-c", code) == said.strip()


@pytest.mark.long
def test_every_guide_begins_well_in_an_empty_environment(wheel, tmp_path):
    stranger = Stranger(tmp_path, wheel)
    stranger.install()
    assert "Self-check passed" in stranger.run("lariax", "doctor")
    for page in ("README.md", "docs/guides/planning.md", "docs/guides/estimation.md", "docs/guides/research.md"):
        stranger.paste(page)
    stranger.install("[sklearn]")
    stranger.paste("docs/guides/scikit-learn.md")
    stranger.install("[torch]")
    stranger.paste("docs/guides/network.md")


def python(*arguments):
    run = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
