"""Packages that are not there are named, with the way to get them."""

import importlib
import subprocess
import sys

import pytest

from lariax.utils import needed_by


@pytest.mark.parametrize(
    ("package", "line", "said"),
    [
        ("torch", "import lariax.torch", "lariax.torch needs torch, which is not installed: pip install torch"),
        ("sklearn", "import lariax.sklearn", "lariax.sklearn needs scikit-learn, which is not installed: pip"),
        ("pandas", "lariax.loop.History({}).to_pandas()", "to_pandas() needs pandas, which is not installed: pip"),
        (
            "matplotlib",
            "import lariax.report._plot as p; p._figure()",
            "plot() needs matplotlib, which is not installed",
        ),
    ],
)
def test_a_package_that_is_not_there_is_named_with_the_way_to_get_it(package, line, said):
    code = f"import lariax, sys\nsys.modules[{package!r}] = None\n{line}"  # None: as if it were not installed
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"ModuleNotFoundError: {said}" in run.stderr
    assert "Help: docs/start.md#install" in run.stderr


def test_other_errors_of_imports_are_left_alone():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'lariax\.nothing'"), needed_by("this"):
        importlib.import_module("lariax.nothing")
    with pytest.raises(ValueError, match="mine"), needed_by("this"):
        raise ValueError("mine")
