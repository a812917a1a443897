"""Eight virtual devices against one: the same answer to rounding, x where it was, nothing gathered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("on_mesh.py")
METHODS = [
    "QuadraticPenalty",
    "DualPenalty",
    "LinearizedALM",
    "TrackedLagrangian",
    "one_backward",
    "TangentNormal",
    "Optax",
]
KINDS = ("explicit", "auto")
CASES = [
    *((kind, method, "both") for method in METHODS for kind in KINDS),
    *((KINDS[i % 2], method, "x") for i, method in enumerate(METHODS)),
    *((KINDS[1 - i % 2], method, "rows") for i, method in enumerate(METHODS)),
]
AGENTS = [
    *(
        (method, "ring")
        for method in ("LinearizedALM", "GradientTracking", "ProxPDA", "SpiderADMM", "TrackedLagrangian")
    ),
    *((method, "sharing") for method in ("LinearizedALM", "SpiderADMM")),
]
MOST_GATHERED = 128  # entries; x has 12,007 or 8,192, the data 2.5 million or 32,768
MOST_SENT = 2400  # from one device to another: half a batch, or the models of a device on a ring


@pytest.mark.long_but("explicit-QuadraticPenalty-both")
@pytest.mark.parametrize(("kind", "method", "where"), CASES, ids=["-".join(case) for case in CASES])
def test_a_mesh_gives_the_answer_of_one_device(kind, method, where):
    """50 iterations on the same samples."""
    found = ran(kind, method, where)
    assert all(found["kept"])
    assert found["strata"] == (1 if where == "x" else 4)


@pytest.mark.long
@pytest.mark.parametrize(("method", "where"), AGENTS, ids=["-".join(case) for case in AGENTS])
def test_agents_on_a_mesh_give_the_answer_of_one_device(method, where):
    """Consensus on a ring by exchanges with neighbours, sharing by one reduction; nobody sees all models."""
    assert all(ran("explicit", method, where)["kept"])


@pytest.mark.parametrize("method", ["QuadraticPenalty", pytest.param("TrackedLagrangian", marks=pytest.mark.long)])
def test_runs_are_shared_out(method):
    """Seeds along a mesh: every device makes its own runs, and nothing is sent."""
    found = printed("sweep", method)
    assert set(found["apart"]) == {"automatic", "compiled", "called", "mapped"}
    assert max(found["apart"].values()) < 1e-9
    assert all(rows == [2] for rows in found["rows"].values())  # of sixteen, on each of eight
    assert found["sent"] == []


@pytest.mark.long
def test_a_run_goes_on_on_another_number_of_devices():
    """The same rows, known wherever they are; other draws, and it is said that the bits are others."""
    found = printed("resume", "QuadraticPenalty")
    assert found["iterations"] == 800
    changes = [text.partition("devices was ")[2] for text in found["said"]]
    assert changes == ["8 and is 4.", "4 and is not there.", "not there and is 8."]
    assert found["x"] == pytest.approx(found["alone"], abs=0.1)
    assert "this is not the problem" in found["refused"]


def printed(*words):
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # to compile
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {quick}"}
    run = subprocess.run([sys.executable, DRIVER, *words], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def ran(kind, method, where):
    found = printed(kind, method, where)
    assert found["moved"] > 0.01
    assert found["apart"] < 1e-9
    assert found["multipliers"] < 1e-7
    assert found["status"][0] == found["status"][1]
    assert found["gathered"] <= MOST_GATHERED
    assert found["sent"] <= MOST_SENT
    return found
