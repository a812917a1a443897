"""Eight virtual devices against one: the same answer to rounding, x where it was, nothing gathered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("on_mesh.py")
METHODS = ["QuadraticPenalty", "DualPenalty", "LinearizedALM", "TrackedLagrangian", "one_backward", "TangentNormal"]
CASES = [
    *(("explicit", method, "both") for method in [*METHODS, "Optax"]),
    *(("auto", method, "both") for method in ("QuadraticPenalty", "TrackedLagrangian")),
    *(("explicit", method, where) for method in ("DualPenalty", "TrackedLagrangian") for where in ("x", "rows")),
]
X_ENTRIES, DATA_ENTRIES = 12_007, 4096 * 600


@pytest.mark.long_but("explicit-QuadraticPenalty-both", "auto-TrackedLagrangian-both")
@pytest.mark.parametrize(("kind", "method", "where"), CASES, ids=["-".join(case) for case in CASES])
def test_a_mesh_gives_the_answer_of_one_device(kind, method, where):
    """50 iterations on the same samples."""
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, DRIVER, kind, method, where], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["moved"] > 0.01
    assert found["apart"] < 1e-9
    assert found["multipliers"] < 1e-7
    assert found["status"][0] == found["status"][1]
    assert all(found["kept"])
    assert found["gathered"] < 100  # entries; x has 12,007, the data 2.5 million
    assert found["strata"] == (1 if where == "x" else 4)
