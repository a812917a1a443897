"""Every example in docstrings, README and documentation runs, and prints what it says it prints."""

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path

import pytest

import lariax

ROOT = Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(lariax.__path__, "lariax."))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    failures = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert failures.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page):
    """Python blocks of a page run one after the other; a text block right after one is what it prints."""
    namespace, printed = {}, ""
    for kind, body in BLOCK.findall(page.read_text()):
        if kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(body, str(page), "exec"), namespace)
            printed = output.getvalue()
        else:
            assert body.strip() == printed.strip(), f"{page.name} says\n{body}\nbut the code prints\n{printed}"


@pytest.mark.parametrize("name", [name for name in lariax.__all__ if callable(getattr(lariax, name))])
def test_public_names_explain_themselves(name):
    assert (getattr(lariax, name).__doc__ or "").strip()
