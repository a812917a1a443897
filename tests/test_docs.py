"""Every example in docstrings, README and documentation runs, and prints what it says it prints."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import lariax

ROOT = Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(lariax.__path__, "lariax."))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH = {"_triton": "triton", "lightning": "lightning", "transformers": "transformers"}  # which may not be there
WITH = {f"lariax.torch.{name}": package for name, package in WITH.items()}
MARK = "---- end of block ----"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


CALLS = "solve|resume|certify|inference|infer|minimize|fit|bind|step|update|plot|report"
RUN = re.compile(rf"^ *(?:>>>|\.\.\.) .*\b(?:{CALLS})\(", re.MULTILINE)
"""What takes seconds to compile, and is tested elsewhere."""

FRONT_DOORS = [
    *("lariax.loop._solve", "lariax.loop._resume", "lariax.certificate._certify", "lariax.scipy._minimize"),
    *("lariax.torch._tracked", "lariax.sklearn._classifier"),
]
"""Their examples run in the quick tests all the same."""


def is_long(name):
    text = Path(importlib.util.find_spec(name).origin).read_text()
    return RUN.search(text) is not None and name not in FRONT_DOORS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if is_long(name) else ()) for name in MODULES]
)
def test_docstrings(name):
    if name in WITH:
        pytest.importorskip(WITH[name])
    module = importlib.import_module(name)
    with jax.enable_x64(False):  # as JAX comes; a warning, as of lost digits, is an error in all tests
        failures = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert failures.failed == 0


@pytest.mark.long_but("README.md", "certificate.md")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_pages(page):
    """Python blocks of a page run one after the other, in a process of their own with JAX as it comes and no
    warning; a text block right after one is what it prints."""
    code, expected = [], []
    for kind, body in BLOCK.findall(page.read_text()):
        if kind == "python":
            code.append(body)
            expected.append(None)
        else:
            expected[-1] = body.strip()
    script = "import warnings; warnings.simplefilter('error')\n" + "\n".join(
        f"{body}\nprint({MARK!r})" for body in code
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    for printed, said in zip(run.stdout.split(MARK), expected, strict=False):
        assert said is None or said == printed.strip(), f"{page.name} says\n{said}\nbut the code prints\n{printed}"


@pytest.mark.parametrize("name", [name for name in lariax.__all__ if callable(getattr(lariax, name))])
def test_public_names_explain_themselves(name):
    assert (getattr(lariax, name).__doc__ or "").strip()
