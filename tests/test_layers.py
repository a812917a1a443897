"""Each layer imports the ones above it, never the ones below; front ends are never imported by `import lariax`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lariax

ROOT = Path(lariax.__file__).parent
LAYERS = [
    {"formulas"},
    {"tuned"},
    {"problem", "sets", "prox"},
    {"oracle"},
    {"certificate"},
    {"inference"},
    {"methods"},
    {"rivals"},
    {"loop"},
    {"gallery", "rates"},
    {"torch"},
    {"runs"},
    {"report"},
    {"cli"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
LATE = {("loop/_result.py", "report")}  # imported when asked for: result.plot()
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT]


def imported_packages(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "lariax":
                yield parts[1]


def package_of(path):
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_upward(path):
    assert package_of(path) in LEVEL, f"{path}: say in LAYERS where this package belongs"
    for package in imported_packages(path):
        late = (str(path.relative_to(ROOT)), package) in LATE
        assert late or LEVEL[package] <= LEVEL[package_of(path)], f"{path} imports lariax.{package}, a layer below it"


def test_formulas_need_no_array_library():
    for path in (ROOT / "formulas").glob("*.py"):
        assert not {"jax", "torch", "numpy"} & {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        }


def test_importing_lariax_is_modest():
    code = (
        "import sys, jax; before = jax.config.values.copy(); import lariax; "
        "late = {'torch', 'sklearn', 'matplotlib', 'pandas', 'typer', 'lariax.rates', 'lariax.rivals'}; "
        "heavy = late & set(sys.modules); "
        "assert not heavy, heavy; "
        "changed = [k for k in before if before[k] != jax.config.values[k]]; assert not changed, changed"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
