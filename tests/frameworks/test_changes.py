"""The scripts of docs/frameworks run, without the change and with it, and the change is short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
HUB = (DOCS / "frameworks.md").read_text()
SHARED = re.search(r"^```python\n(.*?)^```$", HUB, re.MULTILINE | re.DOTALL)[1]
LINKS = dict(re.findall(r"^\| \[([^\]]+)\]\((frameworks/\w+\.md)\) \| \d", HUB, re.MULTILINE))
CHANGES = {
    name: re.search(r"^```diff\n(.*?)^```$", (DOCS / path).read_text(), re.MULTILINE | re.DOTALL)[1]
    for name, path in LINKS.items()
}
NEEDS = {"accelerate": "accelerate", "Lightning": "lightning", "Hugging Face Trainer": "transformers"}
MEET = """import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
"""
PART = "dist.destroy_process_group()\n"


def test_all_are_there():
    assert list(CHANGES) == [
        "A plain loop", "torch.compile", "DistributedDataParallel", "FSDP2, and distributed checkpoints",
        "accelerate", "Lightning", "Hugging Face Trainer",
    ]  # fmt: skip
    assert {f"frameworks/{page.name}" for page in (DOCS / "frameworks").glob("*.md")} == set(LINKS.values())
    for name, path in LINKS.items():
        assert (DOCS / path).read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize("name", CHANGES)
def test_at_most_six_lines_change(name):
    lines = CHANGES[name].splitlines()
    assert all(line[:1] in (" ", "+", "-") for line in lines)
    changed = sum(line.startswith(("+", "-")) for line in lines)
    assert changed <= 6
    assert f"({LINKS[name]}) | {changed} lines" in HUB


@pytest.mark.long_but("A plain loop-+")
@pytest.mark.parametrize("kept", ["-", "+"])
@pytest.mark.parametrize("name", CHANGES)
def test_scripts_run(name, kept, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    lines = [line[1:] for line in CHANGES[name].splitlines() if line.startswith((" ", kept))]
    several = "Distributed" in name or "FSDP" in name
    code = "\n".join([f"folder = {str(tmp_path)!r}", SHARED, MEET if several else "", *lines, ""])
    if kept == "+":
        owner = {"Lightning": "module.", "Hugging Face Trainer": "trainer."}.get(name, "")
        code += f"print(sorted({owner}multipliers.observe()))\n"
    code += PART if several else ""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert ("mean/multiplier" in run.stdout) == (kept == "+")
