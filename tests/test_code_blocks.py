"""No block of code and no command of a page goes untested: `test_docs.py` runs what is Python, `frameworks/` and this
file what is a change of a script, and commands are looked up, with their options."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from lariax.cli._app import app

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""The pages whose Python blocks are run by `test_docs.py`."""

OTHERS = [*sorted(set(ROOT.glob("*.md")) - {ROOT / "README.md"}), *sorted((ROOT / "benchmarks/results").glob("*.md"))]
FENCE = re.compile(r"^([ >]*(?:```+|~~~+)[ ]*)(.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"\{(toctree|figure|image|eval-rst)\}")
"""What may stand in braces: none of these holds code but `eval-rst`, which names docstrings."""


def untested(page, text):
    """Blocks of a page that no test runs."""
    fences = [(mark, kind) for mark, kind in FENCE.findall(text) if kind]
    if 2 * len(fences) != len(FENCE.findall(text)):
        return ["a block that does not say what it is"]
    run = {"python", "text"} if page in DOCS else set()
    run |= {"diff"} if page == ROOT / "README.md" or page.parent.name == "frameworks" else set()
    found = [kind for mark, kind in fences if mark != "```" or (kind not in run and not DIRECTIVE.match(kind))]
    return found + re.findall(
        r"^ {4,}(?:>>> .*|import \w+.*|from [\w.]+ import .*)$", BLOCK.sub("", text), re.MULTILINE
    )


@pytest.mark.parametrize("page", [*DOCS, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run(page):
    assert untested(page, page.read_text()) == []


NOT_RUN = [
    "```py\n1\n```\n",
    "```\n1\n```\n",
    "- one\n\n  ```python\n  1\n  ```\n",
    "~~~python\n1\n~~~\n",
    "```{code-block} python\n1\n```\n",
    "```diff\n-1\n+2\n```\n",
    "    import lariax\n",
    "    >>> 1 + 1\n    2\n",
]


@pytest.mark.parametrize("text", NOT_RUN)
def test_a_block_that_is_not_run_is_found(text):
    page = ROOT / "docs/start.md"
    assert untested(page, page.read_text() + text)


BEFORE = """
import torch
torch.manual_seed(0)
x, side = torch.randn(512, 3), torch.where(torch.rand(512) < 0.5, 2.0, -2.0)
y = (x[:, 0] > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
loss_of = torch.nn.BCEWithLogitsLoss(reduction="none")
opt = torch.optim.Adam(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y, side), batch_size=64)
"""


@pytest.mark.parametrize("kept", ["-", "+"])
def test_the_change_in_readme_runs(kept):
    (change,) = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = [line[1:] for line in change.splitlines() if line.startswith((" ", kept))]
    code = "\n".join([BEFORE, *lines, "print('multipliers' in vars())"])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(kept == "+")


COMMANDS = typer.main.get_command(app).commands
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMAND = re.compile(r"(?:`|^ {4,})((?:lariax|make|python -m) [^`\n]+)", re.MULTILINE)


def unknown(line):
    """What a command names that is not there."""
    first, *words = line.partition("#")[0].replace("python -m ", "").split()
    if line.startswith("python -m "):
        return [] if first == "benchmarks.NAME" or importlib.util.find_spec(first) else [first]
    if first == "make":
        return [word for word in words if word not in TARGETS]
    name, *rest = words
    if name not in COMMANDS:
        return [name]
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    return [word for word in rest if word.startswith("-") and word not in options | {"--help"}]


@pytest.mark.parametrize("page", [*DOCS, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    assert [line for line in COMMAND.findall(BLOCK.sub("", page.read_text())) if unknown(line)] == []
