"""One small run that the tests of run folders, report and command line share, and many made from it by hand."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from lariax import runs
from lariax.inference import TableLine
from lariax.runs import SavedInference

HOSTILE = [
    "</script><script>window.stolen = 1</script>",
    "\"'><img src=x onerror=window.stolen=1>",
    "שלום \u202e gnp.exe \u2028 \u0000",
    "🦄 & <b>bold</b> $x^2$ [red]rich[/red]",
    "long " * 2000,
]


def make_problem():
    rows = np.random.default_rng(0).normal(size=(64, 2))
    return lx.Problem(
        lambda x, z: jnp.sum((x["w"] - 1 - 0.1 * z) ** 2),
        samples=lx.Dataset(rows),
        heldout=lx.Dataset(rows[::-1] + 0.01),
        constraints={
            "sum": lx.Equal(lambda x, z: jnp.sum(x["w"]) + 0.1 * z[0], 1.0),
            "top": lx.AtMost(lambda x: x["w"], jnp.array([0.7, 5.0]), samples=None),
        },
    )


@pytest.fixture(scope="session")
def result():
    method = lx.QuadraticPenalty(step_size=0.05, penalty=2.0, pairs=True)
    return lx.solve(make_problem(), {"w": jnp.zeros(2)}, method, iterations=400, batch_size=4, record_every=2)


def picture(title, kind, series, **more):
    rest = {"x_label": "", "y_label": "", "categories": (), "reference": None, "extent": None}
    return SimpleNamespace(title=title, kind=kind, series=series, **{**rest, **more})


PICTURES = [
    picture(
        "groups", "bars", {"a": np.array([0.1, 0.4]), "b": np.array([0.2, 0.3])}, categories=("f", "m"), reference=0.25
    ),
    picture("curve", "lines", {"roc": np.array([[0, 0], [0.2, 0.7], [1, 1.0]])}, x_label="false", y_label="true"),
    picture("cloud", "scatter", {"points": np.array([[0, 0], [0.2, 0.7], [1, 1.0]]), "none": np.zeros((0, 2))}),
    picture("state", "heatmap", {"u": np.arange(12.0).reshape(3, 4)}, extent=(0.0, 1.0, 0.0, 1.0)),
]


@pytest.fixture(scope="session")
def saved_run(result):
    settings = {"problem": {"kind": "given", "name": "small", "title": "A small problem"}, "seed": 0}
    return runs.saved(result, "first", settings, PICTURES, result.certificate, measures={"accuracy": 0.5})


@pytest.fixture(scope="session")
def run_with_errors(saved_run):
    """The same run with intervals of its multipliers, in another order than theirs."""
    ends = {"top[1]": 0.0, "sum": 0.4, "top[0]": 0.2}
    lines = tuple(TableLine("multipliers", name, y, 0.1, y - 0.2, y + 0.2, "normal") for name, y in ends.items())
    return dataclasses.replace(saved_run, inference=SavedInference("the distribution", 0.95, 1600, (), lines))


@pytest.fixture(scope="session")
def hostile_run(saved_run):
    """The same run with names that try everything."""

    def renamed(certificate):
        reports = list(certificate.constraints.values())
        beside = None if certificate.heldout is None else renamed(certificate.heldout)
        return dataclasses.replace(
            certificate,
            constraints={name: reports[i % 2] for i, name in enumerate(HOSTILE)},
            warnings=(HOSTILE[0],),
            heldout=beside,
        )

    n = len(saved_run)
    history = {path: values for path, values in saved_run.history.items() if len(path) == 1}
    history |= {("constraints", name): np.linspace(1, 0, n) for name in HOSTILE}
    history |= {("multipliers", name): np.linspace(0, i, n) for i, name in enumerate(HOSTILE)}
    series = {name: np.array([1.0, 2.0]) for name in HOSTILE}
    pictures = [dict(saved_run.pictures[0], title=HOSTILE[0], categories=HOSTILE[:2], series=series)]
    return dataclasses.replace(
        saved_run,
        name=HOSTILE[0],
        history=history,
        multipliers={name: np.ones(()) for name in HOSTILE},
        certificate=renamed(saved_run.certificate),
        settings={"problem": {"title": HOSTILE[1]}, HOSTILE[2]: HOSTILE[3], "method": {"name": HOSTILE[4]}},
        pictures=pictures,
    )


@pytest.fixture(scope="session")
def long_run(saved_run):
    """A history of 100,000 records."""
    n = 100_000
    at = np.arange(1, n + 1)
    noise = np.random.default_rng(0).normal(size=n)
    history = {path: np.interp(at, [1, n], [values[0], values[-1]]) for path, values in saved_run.history.items()}
    history |= {("iteration",): at, ("draws",): 4 * at, ("seconds",): at / 1000.0}
    history |= {("feasibility",): np.exp(0.3 * noise) / at**0.5, ("stationarity",): np.exp(0.3 * noise[::-1]) / at**0.4}
    return dataclasses.replace(saved_run, name="long", history=history)
