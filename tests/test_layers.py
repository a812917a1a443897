"""Each layer imports the ones above it, never the ones below; no module is part of a cycle, wherever in it the import
stands; front ends are never imported by `import lariax`. Files and functions are short, and a class name means one
thing."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import lariax

ROOT = Path(lariax.__file__).parent
LAYERS = [
    {"compilation", "utils"},
    {"formulas"},
    {"tuned"},
    {"prox"},
    {"sets"},
    {"problem"},
    {"risk"},
    {"oracle"},
    {"certificate"},
    {"inference"},
    {"checkpoint"},
    {"methods"},
    {"rivals"},
    {"loop"},
    {"gallery", "rates", "scipy"},
    {"sklearn", "torch"},
    {"runs"},
    {"report"},
    {"cli"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
MODULES = {
    ".".join(("lariax", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
INNER = [name for name, path in MODULES.items() if path.parent != ROOT]


def nodes_of(path):
    return ast.walk(ast.parse(path.read_text()))


def imported(path):
    """What a file imports of Lariax: anywhere in it, also within functions or for the type checker alone."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names if name.startswith("lariax."))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("lariax."))


GRAPH = {name: set(imported(path)) for name, path in MODULES.items()}


def package_of(name):
    return name.split(".")[1]


@pytest.mark.parametrize("name", INNER)
def test_imports_go_upward(name):
    own = package_of(name)
    assert own in LEVEL, f"{name}: say in LAYERS where this package belongs"
    for other in GRAPH[name]:
        is_above = package_of(other) == own or LEVEL[package_of(other)] < LEVEL[own]
        assert is_above, f"{name} imports {other}, which is not in a layer above it"


def test_no_module_imports_itself_by_a_detour():
    done, under_way = set(), []

    def visit(name):
        assert name not in under_way, f"a cycle: {' -> '.join([*under_way[under_way.index(name) :], name])}"
        if name not in done:
            under_way.append(name)
            for other in GRAPH[name]:
                visit(other)
            done.add(under_way.pop())

    for name in MODULES:
        visit(name)


def subclasses(cls):
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def test_the_loop_knows_no_method():
    """What it needs of them is in `AbstractMethod`."""
    concrete = {cls.__name__ for cls in subclasses(lariax.AbstractMethod)}
    assert "TrackedLagrangian" in concrete
    for path in (ROOT / "loop").glob("*.py"):
        nodes = list(nodes_of(path))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not concrete & names, path


def test_a_method_has_nine_hooks():
    hooks = [name for name in vars(lariax.AbstractMethod) if not name.startswith("_")]
    assert len(hooks) == 9, hooks


def test_files_and_functions_are_short():
    """450 lines, and 60 without the docstring."""
    top = Path(__file__).parents[1]
    others = [path for folder in ("tests", "benchmarks") for path in (top / folder).rglob("*.py")]
    for path in [*MODULES.values(), *others]:
        assert path.read_text().count("\n") <= 450, path
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                first = node.body[0]
                docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0
                assert node.end_lineno - node.lineno + 1 - docstring <= 60, f"{path}: {node.name}"


def test_a_class_name_means_one_thing():
    """Torch has the core's public names for what is the same there; Lightning and transformers both say callback."""
    places = defaultdict(set)
    for name, path in MODULES.items():
        for found in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            places[found].add(name)
    assert {name for name, where in places.items() if len(where) > 1} == {
        *("AbstractConstraint", "Equal", "AtMost", "AtLeast"),
        *("TrackedLagrangian", "QuadraticPenalty", "DualPenalty", "Multipliers"),
        "MultipliersCallback",
    }


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
